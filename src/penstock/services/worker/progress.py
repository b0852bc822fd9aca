"""How far the jobs of a worker have come, as they say themselves: written about once a second, all in one statement.

Owns what has been said and is not written yet. A job may say it as often as it likes; only the last one counts.
"""

from __future__ import annotations

import math
from uuid import UUID

from penstock.clock import Clock
from penstock.jobs.progress import Progress
from penstock.store.contract.store import Store

_EVERY = 1.0


class Heard:
    """What the jobs of one worker have said."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._said: dict[UUID, Progress] = {}
        self._written_at = -math.inf

    def note(self, job: UUID, progress: Progress) -> bool:
        """Remember how far a job has come; whether it is the first to say so since they were written."""
        first = not self._said
        self._said[job] = progress
        return first

    def forget(self, job: UUID) -> None:
        """A job does not run any more, or begins anew."""
        self._said.pop(job, None)

    def clear(self) -> None:
        """No job runs any more."""
        self._said.clear()

    def due(self) -> float:
        """Seconds until they are to be written; more than anybody waits if there is nothing to write."""
        if not self._said:
            return math.inf
        return max(0.0, self._written_at + _EVERY - self._clock.monotonic())

    async def write(self, lease: int | None, *, at_once: bool = False) -> None:
        """Write what has been said, if it is time to, and there is a lease."""
        if lease is None or not self._said or (self.due() > 0 and not at_once):
            return
        said, self._said = self._said, {}
        try:
            await self._store.tokens.report(lease, said)
        except BaseException:
            self._said = said | self._said
            raise
        self._written_at = self._clock.monotonic()
