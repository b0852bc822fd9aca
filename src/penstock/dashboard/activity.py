"""The work of the pools now and in the last minutes. Pages share each look."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta

from penstock.api.pools.activity import Look, PoolNow, look, pools_of
from penstock.app import Backend
from penstock.observe.logbook import Numbers
from penstock.store.nouns.logbook import minute_of

_AGAIN = 0.9  # seconds for which a look holds, so that pages share it
_SERIES_AGAIN = 5.0  # seconds for which the numbers of a chart hold: processes write no sooner
_SUMMED = ("running", "ready", "scheduled", "ended", "failed")


def totals_of(pools: Sequence[PoolNow]) -> dict[str, float]:
    """The numbers of all pools together."""
    return {name: sum(getattr(one, name) for one in pools) for name in _SUMMED}


class Activity:
    """Looks at the pools about once a second, and keeps the numbers of charts that were read last."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._lock = asyncio.Lock()
        self._last: tuple[float, Look, Sequence[PoolNow]] | None = None
        self._series: dict[tuple[str, datetime, timedelta], tuple[float, list[dict[str, float]]]] = {}

    async def look(self) -> tuple[Look, Sequence[PoolNow]]:
        """The numbers of now, and the pools with them."""
        engine = self._backend.engine
        async with self._lock:
            began = engine.machine.monotonic()
            if self._last is None or began - self._last[0] >= _AGAIN:
                await engine.write_logbook()  # so that people see their own acts at once
                seen = await look(engine.store, engine.clock.now())
                self._last = began, seen, pools_of(seen)
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

    async def series(self, name: str, since: datetime, step: timedelta) -> list[dict[str, float]]:
        """The numbers of one name since a time, by steps, as `StoredLogbook.series` gives them."""
        key, now = (name, since, step), self._backend.engine.machine.monotonic()
        self._series = {one: kept for one, kept in self._series.items() if now - kept[0] < _SERIES_AGAIN}
        if key not in self._series:
            await self._backend.engine.write_logbook()
            self._series[key] = now, await self._backend.engine.store.logbook.series(name, since, step)
        return self._series[key][1]
