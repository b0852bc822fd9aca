"""The indexer: fills search indexes, and keeps them up with the change feed. In each index one process does at a time.

A search looks by itself at rows that changed since, so a late indexer makes searches slow, and never wrong.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from penstock.api.searches import AT_ONCE, apply, begin, fill
from penstock.calls.lease import LOOK_PART
from penstock.calls.run.runner import FunctionCalls
from penstock.changes.position import Position
from penstock.changes.searches import TableSearch, reader_name
from penstock.errors import Conflict, PenstockError, TryAgain
from penstock.observe.logs import event as log_event
from penstock.services.service import LeasedService

_STAND_BY = 1.0
_AFTER_FAILURE = 30.0
_LEAST = 0.25  # between looks that signals ask for: searches see changes without them, and many are cheaper together
_MOVE_EVERY = 2.0  # without changes, so that the feed can be emptied, and searches need not look at those of others


class Indexer(LeasedService):
    """Indexes the rows of a program's tables. `name` is the name of its process."""

    name = "indexer"

    def __init__(self, runner: FunctionCalls, name: str, searches: Sequence[TableSearch]) -> None:
        super().__init__(runner, f"indexer {name}", fenced=True)
        self._searches = searches
        self._positions: dict[str, Position] = {}
        self._moved_at: dict[str, float] = {}
        self._failed_at: dict[str, float] = {}
        self._next_at = -1e9  # the time before which signals ask for no tick

    async def tick(self) -> float:
        if not self._searches:
            return _STAND_BY
        try:
            async with self._limit_tick("index"):
                await self._lease.keep(busy=False)
                if self.lease is None:
                    await self._lease.keep()
                pause = min([await self._try_step(one) for one in self._searches])
        except Conflict:
            self._positions.clear()  # they may be void, as the database has crashed since
            raise
        self._next_at = self.clock.monotonic() + min(pause, _LEAST)
        return pause

    async def _safe_tick(self) -> float:
        early = self._next_at - self.clock.monotonic()
        return early if early > 0 else await super()._safe_tick()

    async def finish(self) -> None:
        self._positions.clear()
        await super().finish()

    # ----- steps

    async def _lose_lease(self, lease: int, _reason: str) -> None:
        log_event("indexer.lease_lost", logging.WARNING, lease=lease)
        self._positions.clear()

    async def _try_step(self, search: TableSearch) -> float:
        """Bring one index further; one that cannot be written holds up no other."""
        left = self._failed_at.get(search.name, -math.inf) + _AFTER_FAILURE - self.clock.monotonic()
        if left > 0:
            return left
        try:
            return await self._step(search)
        except TryAgain:
            raise
        except PenstockError as error:
            self._failed_at[search.name] = self.clock.monotonic()
            log_event("search.failed", logging.ERROR, index=search.name, error=error)
            return _AFTER_FAILURE

    async def _step(self, search: TableSearch) -> float:
        """Bring one index further; seconds until there may be more to do."""
        lease, state = self.lease, await self._store.searches.find(None, search)
        if state is None or state.interest is None or lease is None:
            return _STAND_BY
        at = self._positions.get(search.name)
        if at is None:
            if state.position is None:  # somebody has dropped its reader
                await begin(self._store, state.id, self.clock.now())
            at = await self._store.changes.take(reader_name(state.id), lease)
            if at is None:
                return 0.0 if await self._take_over() else _STAND_BY
            self._positions[search.name] = at
        if state.cursor is not None:
            return 0.0 if await fill(self._store, search) else _STAND_BY
        batch = await self._store.changes.read(at, AT_ONCE, [state.interest])
        now = self.clock.monotonic()
        if batch.changes or now - self._moved_at.get(search.name, 0.0) >= _MOVE_EVERY:
            if not await apply(self._store, search, state, batch, lease, self.clock.now()):
                del self._positions[search.name]
                return _STAND_BY
            self._positions[search.name], self._moved_at[search.name] = batch.position, now
        if not batch.complete:
            return 0.0
        return min(self._store.signals.until_fed(self.wake, batch.position), self._bound * LOOK_PART)
