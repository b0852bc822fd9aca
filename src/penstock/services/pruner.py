"""The pruner: forgets jobs whose status has expired, and rate limits that are full again, a bounded piece at a time."""

from __future__ import annotations

from penstock.calls.run import Runner
from penstock.observe.logs import event as log_event
from penstock.services.service import Service

_AT_ONCE = 1000
_SOON = 0.1
_LATER = 600.0


class Pruner(Service):
    """Deletes what has had its time."""

    name = "pruner"

    def __init__(self, runner: Runner) -> None:
        super().__init__(runner.engine.clock)
        self._store = runner.engine.store

    async def tick(self) -> float:
        """Forget one piece; seconds until the next look."""
        now = self.clock.now()
        jobs = await self._store.jobs.prune(now, _AT_ONCE)
        rates = await self._store.rates.prune(now, _AT_ONCE)
        tokens = await self._store.tokens.prune(now, _AT_ONCE)
        locks = await self._store.locks.prune(now, _AT_ONCE)
        if jobs or rates or tokens or locks:
            log_event("pruner.pruned", jobs=jobs, rate_limits=rates, tokens=tokens, locks=locks)
        return _SOON if max(jobs, rates, tokens, locks) >= _AT_ONCE else _LATER
