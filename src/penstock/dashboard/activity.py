"""What the pools do now, and what they did in the last minutes while somebody looked. Pages share each look."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from penstock.api.pools.activity import Look, look, pools_of
from penstock.app import Backend

_AGAIN = 0.5  # seconds for which a look holds
_COUNTED, _SHARE = 10.0, 100  # seconds for which a count holds at least, and of how many parts of the time it takes one
_STEP, _KEPT = 5.0, 180  # seconds between points, and how many are kept: 15 minutes


@dataclass(frozen=True, slots=True)
class Point:
    """The numbers of all pools at one time."""

    at: datetime
    ended: float
    failed: int
    ready: int


class Activity:
    """Looks at the pools, at most twice a second.

    Attributes:
        points: The past, oldest first.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._lock = asyncio.Lock()
        self._last: tuple[float, Look] | None = None
        self._failed, self._count_at = 0, 0.0
        self.points: deque[Point] = deque(maxlen=_KEPT)

    async def look(self) -> Look:
        """The numbers of now."""
        machine = self._backend.engine.machine
        async with self._lock:
            if self._last is None or machine.monotonic() - self._last[0] >= _AGAIN:
                began = machine.monotonic()
                seen = await look(self._backend.engine.store, self._backend.engine.clock.now())
                self._last = began, seen
                self._note(seen)
            return self._last[1]

    async def kept_failures(self) -> int:
        """How many failed jobs are kept. To count them reads a whole index, so it is done seldom."""
        machine, calls = self._backend.engine.machine, self._backend.job_calls
        began = machine.monotonic()
        if began >= self._count_at:
            self._count_at = began + _COUNTED
            found = await calls.read(lambda session: calls.store.jobs.count(session, calls.now()))
            self._failed = found.get("failed", 0)
            self._count_at = max(self._count_at, began + _SHARE * (machine.monotonic() - began))
        return self._failed

    def series(self, name: str) -> Sequence[float | None]:
        """The past of one number, with None where nobody looked."""
        found: list[float | None] = []
        before: datetime | None = None
        for point in self.points:
            if before is not None and (point.at - before).total_seconds() > 3 * _STEP:
                found.append(None)
            found.append(getattr(point, name))
            before = point.at
        return found

    def _note(self, seen: Look) -> None:
        if self.points and (seen.now - self.points[-1].at).total_seconds() < _STEP:
            return
        pools = pools_of(seen)
        ended, failed = sum(one.ended for one in pools), sum(one.failed for one in pools)
        self.points.append(Point(seen.now, ended, failed, sum(one.ready for one in pools)))
