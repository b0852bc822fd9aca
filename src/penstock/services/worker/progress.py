"""The progress that a worker's jobs report: written about once a second, the last report of each, in one statement."""

from __future__ import annotations

import math
from uuid import UUID

from penstock.clock import Clock
from penstock.jobs.progress import Progress
from penstock.store.contract.store import Store

_EVERY = 1.0


class ProgressBuffer:
    """The reports that are not written yet."""

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
        """Drop the report of a job that has ended or begins anew."""
        self._reported.pop(job, None)

    def clear(self) -> None:
        self._reported.clear()

    @property
    def due(self) -> float:
        """Seconds until the next write; infinite if there is nothing to write."""
        return max(0.0, self._written_at + _EVERY - self._clock.monotonic()) if self._reported else math.inf

    async def write(self, lease: int | None, *, at_once: bool = False) -> None:
        """Write the reports if that is due and there is a lease."""
        if lease is None or not self._reported or (self.due > 0 and not at_once):
            return
        reported, self._reported = self._reported, {}
        try:
            await self._store.tokens.report(lease, reported)
        except BaseException:
            self._reported = reported | self._reported
            raise
        self._written_at = self._clock.monotonic()
