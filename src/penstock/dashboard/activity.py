"""The work of the pools now and in the last minutes. Pages share each look."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from penstock.api.pools.activity import Look, PoolNow, look, pools_of
from penstock.app import Backend
from penstock.observe.logbook import Numbers
from penstock.store.nouns.logbook import minute_of

_AGAIN = 0.9  # seconds for which a look holds, so that pages share it
_STEP, _KEPT = 5.0, 180  # seconds between points, and how many are kept: 15 minutes
_SUMMED = ("running", "ready", "scheduled", "ended", "failed")


def totals_of(pools: Sequence[PoolNow]) -> dict[str, float]:
    """The numbers of all pools together."""
    return {name: sum(getattr(one, name) for one in pools) for name in _SUMMED}


class Activity:
    """Looks at the pools about once a second.

    Attributes:
        points: The past, oldest first: times, with the numbers of all pools.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._lock = asyncio.Lock()
        self._last: tuple[float, Look, Sequence[PoolNow]] | None = None
        self.points: deque[tuple[datetime, Mapping[str, float]]] = deque(maxlen=_KEPT)

    async def look(self) -> tuple[Look, Sequence[PoolNow]]:
        """The numbers of now, and the pools with them."""
        engine = self._backend.engine
        async with self._lock:
            began = engine.machine.monotonic()
            if self._last is None or began - self._last[0] >= _AGAIN:
                await engine.write_logbook()  # so that people see their own acts at once
                seen = await look(engine.store, engine.clock.now())
                self._last = began, seen, pools_of(seen)
                if not self.points or (seen.now - self.points[-1][0]).total_seconds() >= _STEP:
                    self.points.append((seen.now, totals_of(self._last[2])))
            return self._last[1:]

    async def forget(self) -> None:
        """Look again when somebody asks, as somebody has changed something."""
        async with self._lock:  # a look that began before the change ends first
            self._last = None

    async def sums(self, window: timedelta) -> Numbers:
        """The counts of all processes in this time, and before it since a minute began."""
        engine = self._backend.engine
        await engine.write_logbook()
        return await engine.store.logbook.sums(minute_of(engine.clock.now() - window))

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
