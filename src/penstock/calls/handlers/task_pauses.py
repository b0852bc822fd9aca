"""Which reactive tasks start no runs now: those that are paused, held for a while, or held by their circuit breaker.

Owns what this process knows of that. What is for all processes is kept with the tasks; workers write and read it there.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from penstock.jobs.job import Job, Outcome, mark_of
from penstock.jobs.states import JobEvent
from penstock.observe.logs import event as log_event
from penstock.reactive.breaker import CircuitBreaker
from penstock.store.contract.store import Store

PAUSED_FOR = timedelta(hours=1)
_LOOK_AGAIN = timedelta(seconds=5)  # by then it is written that a run was put off
_RELEASED_AT_ONCE = 1000
_TRIES_FOR = timedelta(seconds=1)  # while one run is tried, the others look again after this


@dataclass(slots=True)
class _Watch:
    """A task with a circuit breaker.

    Attributes:
        failed: When attempts failed, of which no other process knows yet.
        error: The last error.
        opened: Whether it was held, and no run has ended well since.
        trial: The key of the one row that is tried.
        until: For how long no other one is, unless it ends.
        refused: Whether it was tried, and failed.
    """

    name: str
    breaker: CircuitBreaker
    failed: list[datetime] = field(default_factory=list)
    error: str | None = None
    opened: bool = False
    trial: str | None = None
    until: datetime | None = None
    refused: bool = False

    def begin(self, key: str, now: datetime) -> timedelta | None:
        """A run is to begin while the task is not held."""
        if not self.opened:
            return None
        if self.refused or (self.trial not in {None, key} and self.until is not None and now < self.until):
            return _TRIES_FOR
        self.trial, self.until = key, now + self.breaker.open_for
        return None


class TaskPauses:
    """The tasks that are held."""

    def __init__(self) -> None:
        self._known: Mapping[int, datetime | None] = {}
        self._local: dict[int, datetime] = {}
        self._unwritten: dict[int, datetime] = {}
        self._put_off: dict[int, datetime] = {}
        self._watched: dict[int, _Watch] = {}

    def watch(self, task: int, name: str, breaker: CircuitBreaker) -> None:
        """Count the failures of a task from now on."""
        self._watched[task] = _Watch(name, breaker)

    def hold(self, task: int, until: datetime, *, local: bool) -> None:
        """Hold a task until a time: in this process, or everywhere, once it is written."""
        self._local[task] = max(until, self._local.get(task, until))
        if not local:
            self._unwritten[task] = max(until, self._unwritten.get(task, until))

    def learn(self, known: Mapping[int, datetime | None]) -> None:
        """What is kept of all tasks that are held: until when; None for those that are paused."""
        self._known = known

    async def write(self, store: Store) -> None:
        """Write what is for all processes."""
        while self._unwritten:
            task, until = next(iter(self._unwritten.items()))
            await store.tasks.hold(task, until)
            if self._unwritten.get(task) == until:
                del self._unwritten[task]
        for task, watch in self._watched.items():
            if watch.failed:
                await self._count(store, task, watch)

    def concerns(self, task: int) -> bool:
        """Whether anything is known of a task, so that its runs have to ask."""
        return task in self._known or task in self._local or task in self._watched

    def begin(self, task: int, key: str, now: datetime) -> timedelta | None:
        """A run is to begin: for how long it waits; None if it may begin."""
        wait = self.wait(task, now)
        watch = self._watched.get(task)
        if watch is None:
            return wait
        if wait is not None:
            watch.opened |= task not in self._known or self._known[task] is not None
            return wait
        return watch.begin(key, now)

    def wait(self, task: int, now: datetime) -> timedelta | None:
        """For how long a task starts no runs; None if it does."""
        if task not in self._known and task not in self._local:
            return None
        known = self._known.get(task, now)
        if known is None:
            self._put_off[task] = now
            return PAUSED_FOR
        until = max(known, self._local.get(task, now))
        return until - now if until > now else None

    def has(self, task: int, now: datetime) -> bool:
        """Whether a task starts no runs; nobody is put off by the question."""
        known = self._known.get(task, now)
        return known is None or max(known, self._local.get(task, now)) > now

    async def look_again(self, store: Store, now: datetime) -> None:
        """Make runs due that were put off for a pause which was over when that was written.

        Who resumes a task makes due what was put off before; what a worker had in hand then is left to this.
        """
        due = [task for task, at in self._put_off.items() if now - at >= _LOOK_AGAIN]
        held = await store.tasks.held(now) if due else {}
        for task in due:
            found = 0
            if task not in held or held[task] is not None:  # what is only held is put off again, and not for so long
                found = await store.tasks.release(task, now, _RELEASED_AT_ONCE)
            if found < _RELEASED_AT_ONCE:
                self._put_off.pop(task, None)

    def ended(self, task: int, job: Job, outcome: Outcome | None, now: datetime) -> None:
        """An attempt at a job of a task has ended; an outcome of None is that of a mutation that has settled itself."""
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
        if tried or not watch.opened:  # one that was put off tells nothing: another one may try
            watch.trial = None

    # ----- steps

    async def _count(self, store: Store, task: int, watch: _Watch) -> None:
        """Tell all processes of failures, and open the breaker if there were too many."""
        breaker, times = watch.breaker, list(watch.failed)
        last = await store.tasks.failed(task, times, breaker.failures)
        del watch.failed[: len(times)]
        until = max(times) + breaker.open_for if watch.refused else breaker.opens(last)
        if until is None:
            return
        self._local[task] = max(until, self._local.get(task, until))
        watch.opened, watch.refused, watch.trial = True, False, None
        if await store.tasks.open(task, until):
            log_event(
                "task.breaker_opened",
                logging.WARNING,
                task=watch.name,
                failures=len(last),
                until=until.isoformat(),
                error=watch.error,
            )


def _key_of(task: int, job: Job) -> str | None:
    """The key of the row of a job; None if it has none, as something past all doors has stored it."""
    try:
        return mark_of(task, job.args).key
    except (ValueError, TypeError):
        return None
