"""What the pools do now, and what they did in the last minutes while somebody looked. Pages share each look."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from penstock.api.pools.activity import Look, PoolNow, glance, pools_of
from penstock.app import Backend
from penstock.observe.meters import Labels

_AGAIN, _WINDOW = 0.9, 10.0  # seconds for which a look holds, so that pages share it, and over which ends are counted
_STEP, _KEPT = 5.0, 180  # seconds between points, and how many are kept: 15 minutes
_SUMMED = ("running", "ready", "scheduled", "ended", "failed")


def totals_of(pools: Sequence[PoolNow]) -> dict[str, float]:
    """The numbers of all pools together."""
    return {name: sum(getattr(one, name) for one in pools) for name in _SUMMED}


class Activity:
    """Looks at the pools about once a second. Ends are those of this process: to find all reads a whole table.

    Attributes:
        points: The past, oldest first: times, with the numbers of all pools.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._lock = asyncio.Lock()
        self._last: tuple[float, Look, Sequence[PoolNow]] | None = None
        self._completed: deque[tuple[float, Counter[Labels]]] = deque()  # by time, those of the last seconds
        self.points: deque[tuple[datetime, Mapping[str, float]]] = deque(maxlen=_KEPT)

    async def look(self) -> tuple[Look, Sequence[PoolNow]]:
        """The numbers of now, and the pools with them."""
        engine = self._backend.engine
        async with self._lock:
            began = engine.machine.monotonic()
            if self._last is None or began - self._last[0] >= _AGAIN:
                seen = await glance(engine.store, engine.clock.now())
                pools = self._with_ends(began, pools_of(seen))
                self._last = began, seen, pools
                self._note(seen, pools)
            return self._last[1:]

    async def forget(self) -> None:
        """Look again when somebody asks, as somebody has changed something."""
        async with self._lock:  # a look that began before the change ends first
            self._last = None

    def _with_ends(self, now: float, pools: Sequence[PoolNow]) -> Sequence[PoolNow]:
        meters, past = self._backend.engine.journal.meters, self._completed
        past.append((now, Counter() if meters is None else meters.counters["penstock_jobs_completed"].copy()))
        while len(past) > 2 and now - past[1][0] >= _WINDOW:  # noqa: PLR2004 - a rate has two ends
            past.popleft()
        (before, first), (_, last) = past[0], past[-1]
        ends = last - first

        def of(pool: PoolNow) -> PoolNow:
            ended = sum(number for (name, _), number in ends.items() if name == pool.name)
            return replace(pool, ended=ended / max(now - before, _AGAIN), failed=ends[pool.name, "failed"])

        return [of(pool) for pool in pools]

    def series(self, name: str) -> Sequence[float | None]:
        """The past of one number, with None where nobody looked."""
        found: list[float | None] = []
        before: datetime | None = None
        for at, totals in self.points:
            if before is not None and (at - before).total_seconds() > 3 * _STEP:
                found.append(None)
            found.append(totals[name])
            before = at
        return found

    def _note(self, seen: Look, pools: Sequence[PoolNow]) -> None:
        if not self.points or (seen.now - self.points[-1][0]).total_seconds() >= _STEP:
            self.points.append((seen.now, totals_of(pools)))
