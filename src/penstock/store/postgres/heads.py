"""The place where ready jobs begin, if dead rows lie before them.

As long as a report or a dump holds an old snapshot, rows deleted since stay in tables and indexes. Each look for the
first ready job passes over all of them again. Owns the place to begin instead, and how often to begin from the very
first, as jobs with a higher priority come before known ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.clock import Clock
from penstock.jobs.job import Job

Head = tuple[int, int]  # rank and number of a job

FIRST: Head = (-(2**63), -(2**63))
_MANY = 2_000  # fewer dead rows are passed over so quickly that nothing need be done about them
_WHOLE_EVERY = 2.0  # seconds after which a look begins at the very first again


class Heads:
    """The heads of pools, as the claims of one process have found them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[str, Head] = {}
        self._whole_at = 0.0

    def after(self, pools: Sequence[str]) -> dict[str, list[int]]:
        """The rank and number after which to look for jobs of these pools now."""
        whole = self._clock.monotonic() >= self._whole_at
        heads = [FIRST if whole else self._known.get(pool, FIRST) for pool in pools]
        return {"after_ranks": [rank for rank, _ in heads], "after_seqs": [seq for _, seq in heads]}

    def until_whole(self) -> float | None:
        """Seconds until the next look from the very first, or None if each one is."""
        return max(0.0, self._whole_at - self._clock.monotonic()) if self._known else None

    def now(self) -> float:
        """When a look begins, for `learn`."""
        return self._clock.monotonic()

    def learn(
        self, began: float, pools: Sequence[str], passed: int, places: Sequence[Head], jobs: Sequence[Job]
    ) -> None:
        """Learn from a claim: when it `began`, how many index entries it passed over, and the places of its jobs."""
        whole = began >= self._whole_at
        if whole and passed - len(jobs) < _MANY:
            for pool in pools:
                self._known.pop(pool, None)
            return
        if whole:
            self._whole_at = self._clock.monotonic() + _WHOLE_EVERY
        self._known.update((job.pool, place) for job, place in zip(jobs, places, strict=True) if job.ending is None)
