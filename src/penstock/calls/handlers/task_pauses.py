"""The reactive tasks that start no runs now: paused, throttled, or stopped by their circuit breaker.

Owns the pauses known in this process. Those for all processes are stored with the tasks; workers write and read them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import field
from datetime import datetime, timedelta

from penstock.dataclass import dataclass
from penstock.jobs.job import Job, Outcome, mark_of
from penstock.jobs.states import JobEvent
from penstock.observe.logs import event as log_event
from penstock.reactive.task import CircuitBreaker
from penstock.store.store import Store

PAUSED_FOR = timedelta(hours=1)
_LOOK_AGAIN = timedelta(seconds=5)  # by then the runs that were put off are stored
_RELEASED_AT_ONCE = 1000
_TRIES_FOR = timedelta(seconds=1)  # the others wait this long while one run is tried


@dataclass(slots=True)
class _Breaker:
    """The state of a task's circuit breaker in this process."""

    name: str
    breaker: CircuitBreaker
    failed: list[datetime] = field(default_factory=list)  # failures that are not stored yet
    error: str | None = None
    opened: bool = False  # whether it has opened, and no run has succeeded since
    trial: str | None = None  # the key of the one row that is tried
    until: datetime | None = None  # no other row is tried before, unless the trial ends
    refused: bool = False  # whether the trial failed

    def begin(self, key: str, now: datetime) -> timedelta | None:
        """The wait of a run while the task is not held; None if it may begin."""
        if not self.opened:
            return None
        if self.refused or (self.trial not in {None, key} and self.until is not None and now < self.until):
            return _TRIES_FOR
        self.trial, self.until = key, now + self.breaker.open_for
        return None


class TaskPauses:
    """The tasks that start no runs now."""

    def __init__(self) -> None:
        self._known: Mapping[int, datetime | None] = {}
        self._here: dict[int, datetime] = {}  # in this process only
        self._local: dict[int, datetime] = {}  # in all, until the workers have learned what is stored
        self._unwritten: dict[int, datetime] = {}
        self._put_off: dict[int, datetime] = {}
        self._watched: dict[int, _Breaker] = {}

    def watch(self, task: int, name: str, breaker: CircuitBreaker) -> None:
        """Count the failures of a task from now on."""
        self._watched[task] = _Breaker(name, breaker)

    def hold(self, task: int, until: datetime, *, local: bool) -> None:
        """Hold a task until a time, in this process or, once written, in all."""
        for kept in (self._here,) if local else (self._local, self._unwritten):
            kept[task] = max(until, kept.get(task, until))

    def here(self, now: datetime) -> Mapping[int, datetime]:
        """The tasks that are held in this process only, each until a time."""
        for task, until in [*self._here.items()]:  # a handler in a thread may add one
            if until <= now:
                del self._here[task]
        return dict(self._here)

    def seconds_here(self, now: datetime) -> float:
        """The seconds until the first of them is held no more."""
        return min(((until - now).total_seconds() for until in self.here(now).values()), default=math.inf)

    def learn(self, known: Mapping[int, datetime | None]) -> None:
        """Learn the stored times until which tasks are held; None for paused ones."""
        self._known = known

    async def write(self, store: Store) -> None:
        """Store holds and failures for all processes."""
        while self._unwritten:
            task, until = next(iter(self._unwritten.items()))
            await store.tasks.hold(task, until)
            if self._unwritten.get(task) == until:
                del self._unwritten[task]
        for task, watch in self._watched.items():
            if watch.failed:
                await self._count(store, task, watch)

    def concerns(self, task: int) -> bool:
        """Whether the runs of a task have to ask before they begin."""
        return any(task in kept for kept in (self._known, self._local, self._here, self._watched))

    def begin(self, task: int, key: str, now: datetime) -> timedelta | None:
        """The wait of a run; None if it may begin."""
        wait = self.wait(task, now)
        watch = self._watched.get(task)
        if watch is None:
            return wait
        if wait is not None:
            watch.opened |= task not in self._known or self._known[task] is not None
            return wait
        return watch.begin(key, now)

    def wait(self, task: int, now: datetime) -> timedelta | None:
        """The time for which a task starts no runs; None if it starts runs."""
        if task not in self._known and task not in self._local:
            return None
        known = self._known.get(task, now)
        if known is None:
            self._put_off[task] = now
            return PAUSED_FOR
        until = max(known, self._local.get(task, now))
        return until - now if until > now else None

    def has(self, task: int, now: datetime) -> bool:
        """Whether a task starts no runs; asking puts no run off."""
        known = self._known.get(task, now)
        return known is None or max(known, self._local.get(task, now), self._here.get(task, now)) > now

    async def look_again(self, store: Store, now: datetime) -> None:
        """Release runs that were put off after their task had been resumed, as resuming it released only the others."""
        due = [task for task, at in self._put_off.items() if now - at >= _LOOK_AGAIN]
        held = await store.tasks.list_held(now) if due else {}
        for task in due:
            found = 0
            if task not in held or held[task] is not None:  # a held task puts them off again, for a shorter time
                found = await store.tasks.release(task, now, _RELEASED_AT_ONCE)
            if found < _RELEASED_AT_ONCE:
                self._put_off.pop(task, None)

    def note_end(self, task: int, job: Job, outcome: Outcome | None, now: datetime) -> None:
        """Learn from the end of an attempt; a mutation that has settled itself has no outcome."""
        watch = self._watched.get(task)
        if watch is None:
            return
        tried = watch.trial is not None and _key_of(task, job) == watch.trial
        if outcome is not None and outcome.event is JobEvent.RAISED:
            watch.failed.append(now)
            watch.error = outcome.error
            watch.refused |= tried
        elif outcome.event is JobEvent.RETURNED if outcome is not None else job.kind == "mutation":
            watch.opened = False
        if tried or not watch.opened:  # a run that was put off tells nothing, so another may try
            watch.trial = None

    # ----- steps

    async def _count(self, store: Store, task: int, watch: _Breaker) -> None:
        """Store failures, and open the breaker if there were too many."""
        breaker, times = watch.breaker, list(watch.failed)
        last = await store.tasks.note_failures(task, times, breaker.failures)
        del watch.failed[: len(times)]
        until = max(times) + breaker.open_for if watch.refused else breaker.opens(last)
        if until is None:
            return
        self._local[task] = max(until, self._local.get(task, until))
        watch.opened, watch.refused, watch.trial = True, False, None
        if await store.tasks.open(task, until):
            name, failures, error, at = watch.name, len(last), watch.error, until.isoformat()
            log_event("task.breaker_opened", logging.WARNING, task=name, failures=failures, until=at, error=error)


def _key_of(task: int, job: Job) -> str | None:
    """The key of the row of a job; None if another program stored a broken job."""
    try:
        return mark_of(task, job.args).key
    except (ValueError, TypeError):
        return None
