"""Reports on pools, about once a minute: of active pools, and of those with waiting work that no worker serves.

Leaves the content of a report to `calls/journal`.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.calls.run.engine import Engine
from penstock.pools.report import EVERY
from penstock.store.contract.pools import Backlog

MOST = 100_000


class Reports:
    """The reports of one worker."""

    def __init__(self, engine: Engine) -> None:
        self._journal, self._store, self._clock = engine.journal, engine.store, engine.clock
        self._told_at = self._clock.monotonic()
        self._since = self._clock.now()

    async def tell(self, running: Mapping[str, int]) -> None:
        """Report if that is due. `running` counts this worker's jobs by pool."""
        if self._clock.monotonic() - self._told_at < EVERY or not self._journal.tallies:
            return
        self._told_at = self._clock.monotonic()
        for backlog in await self._store.pools.backlog(MOST):
            if self._is_active(backlog, running):
                self._journal.report(backlog.pool, self._since, running.get(backlog.pool, 0), backlog.ready)
        self._since = self._clock.now()

    def _is_active(self, backlog: Backlog, running: Mapping[str, int]) -> bool:
        tally = self._journal.tallies.get(backlog.pool)
        if tally is None:
            return False
        return bool(tally.completed or running.get(backlog.pool) or (backlog.ready and not backlog.granted))
