"""Which reactive tasks start no runs now: those that are paused, and those that are held for a while.

Owns what this process knows of that. What is for all processes is kept with the tasks; workers write and read it there.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from penstock.store.contract import Store

PAUSED_FOR = timedelta(hours=1)


class Holds:
    """The tasks that are held."""

    def __init__(self) -> None:
        self._known: Mapping[int, datetime | None] = {}
        self._local: dict[int, datetime] = {}
        self._unwritten: dict[int, datetime] = {}

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
        if task not in self._known and task not in self._local:
            return None
        known = self._known.get(task, now)
        if known is None:
            return PAUSED_FOR
        until = max(known, self._local.get(task, now))
        return until - now if until > now else None
