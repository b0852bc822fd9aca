"""Reports on pools: about once a minute, for those that were active, how they do and how much work waits.

Owns when and on which pools. A worker tells of what it has done itself; of a pool that nobody works for although work
waits, each worker tells. Leaves what a report says to `calls/journal`.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.calls.journal import Journal
from penstock.clock import Clock
from penstock.pools.report import EVERY
from penstock.store.contract.pools import Backlog
from penstock.store.contract.store import Store

MOST = 100_000


class Reports:
    """The reports of one worker.

    Args:
        journal: Where they are told.
        store: Where the backlog is counted.
        clock: The worker's clock.
    """

    def __init__(self, journal: Journal, store: Store, clock: Clock) -> None:
        self._journal = journal
        self._store = store
        self._clock = clock
        self._told_at = clock.monotonic()
        self._since = clock.now()

    async def tell(self, running: Mapping[str, int]) -> None:
        """Report, if it is time to.

        Args:
            running: How many jobs of each pool this worker runs.
        """
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
        is_left_alone = bool(backlog.ready) and not backlog.granted
        return bool(tally.completed or running.get(backlog.pool)) or is_left_alone
