"""Which reactive tasks start no runs now: those that are paused, and those that are held for a while.

Owns what this process knows of that. What is for all processes is kept with the tasks; workers write and read it there.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from penstock.store.contract import Store

PAUSED_FOR = timedelta(hours=1)
_LOOK_AGAIN = timedelta(seconds=5)  # by then it is written that a run was put off
_RELEASED_AT_ONCE = 1000


class Holds:
    """The tasks that are held."""

    def __init__(self) -> None:
        self._known: Mapping[int, datetime | None] = {}
        self._local: dict[int, datetime] = {}
        self._unwritten: dict[int, datetime] = {}
        self._put_off: dict[int, datetime] = {}

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

    def wait(self, task: int, now: datetime) -> timedelta | None:
        """For how long a task starts no runs; None if it does."""
        if task in self._known and self._known[task] is None:
            self._put_off[task] = now
            return PAUSED_FOR
        until = max((time for time in (self._known.get(task), self._local.get(task)) if time is not None), default=now)
        return until - now if until > now else None

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
