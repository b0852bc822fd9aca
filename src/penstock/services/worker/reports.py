"""The reports of a worker: the progress of its jobs, about once a second, and about once a minute how its pools stand.

Of pools it reports the active ones, and those with waiting work that no worker serves. Leaves the content of these
reports to `calls/journal`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from uuid import UUID

from penstock.calls.run.engine import Engine
from penstock.clock import Clock
from penstock.jobs.progress import Progress
from penstock.pools.report import EVERY
from penstock.store.store import Store

_PROGRESS_EVERY = 1.0
_MOST = 100_000


class ProgressBuffer:
    """The progress that is not written yet; of each job the last report, all of them in one statement."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._reported: dict[UUID, Progress] = {}
        self._written_at = -math.inf

    def note(self, job: UUID, progress: Progress) -> bool:
        """Keep the progress of a job; whether it is the first since the last write."""
        first = not self._reported
        self._reported[job] = progress
        return first

    def forget(self, job: UUID) -> None:
        self._reported.pop(job, None)

    def clear(self) -> None:
        self._reported.clear()

    @property
    def due(self) -> float:
        return max(0.0, self._written_at + _PROGRESS_EVERY - self._clock.monotonic()) if self._reported else math.inf

    async def write(self, lease: int | None, *, at_once: bool = False) -> None:
        if lease is None or not self._reported or (self.due > 0 and not at_once):
            return
        reported, self._reported = self._reported, {}
        try:
            await self._store.tokens.report(lease, reported)
        except BaseException:
            self._reported = reported | self._reported
            raise
        self._written_at = self._clock.monotonic()


class Reports:
    """The reports on pools of one worker."""

    def __init__(self, engine: Engine) -> None:
        self._journal, self._store, self._clock = engine.journal, engine.store, engine.clock
        self._told_at = self._clock.monotonic()
        self._since = self._clock.now()

    async def tell(self, running: Mapping[str, int]) -> None:
        if self._clock.monotonic() - self._told_at < EVERY or not self._journal.tallies:
            return
        self._told_at = self._clock.monotonic()
        for pool in await self._store.pools.backlog(_MOST):
            tally, runs = self._journal.tallies.get(pool.pool), running.get(pool.pool, 0)
            if tally is not None and (tally.completed or runs or (pool.ready and not pool.granted)):
                self._journal.report(pool.pool, self._since, runs, pool.ready)
        self._since = self._clock.now()
