"""Takes away expired leases, and settles the jobs that still run under them as lost.

Workers, idle planners and waiting relays all look. The first one does it; the others find nothing left.
"""

from __future__ import annotations

import logging
from datetime import datetime
from functools import partial

from penstock.calls.run.runner import FunctionCalls
from penstock.errors import TryAgain
from penstock.jobs.job import Job, Outcome, Settlement
from penstock.jobs.states import JobEvent
from penstock.observe.logs import event as log_event

_LOOK_PART = 0.15  # of the setting `lease`
_LOST = Outcome(JobEvent.LOST, error="WorkerLost: the worker that ran this job died or lost its lease")


class Rescue:
    """Looks for expired leases."""

    def __init__(self, runner: FunctionCalls) -> None:
        self._engine = runner.engine
        self._store = runner.engine.store
        self._clock = runner.engine.clock
        self._looked_at = -1e9

    @property
    def is_due(self) -> bool:
        return self._clock.monotonic() - self._looked_at >= self._engine.config.lease * _LOOK_PART

    async def look(self, own: int | None) -> int:
        """Take away expired leases other than one's own; their number."""
        self._looked_at = self._clock.monotonic()
        await self._store.synchronize()  # a clock that runs ahead would end the leases of others
        now = self._clock.now()
        rescued = 0
        for lease in await self._store.leases.find_expired(now):
            if lease == own:
                continue
            try:
                await self._rescue(lease, now)
            except TryAgain:
                raise
            except Exception as error:  # noqa: BLE001 - no lease waits for another that cannot be taken away
                log_event("worker.not_rescued", logging.ERROR, lease=lease, error=error)
            else:
                rescued += 1
        return rescued

    async def _rescue(self, lease: int, now: datetime) -> None:
        lost: list[tuple[Job, Settlement]] = []
        count = await self._store.leases.rescue(lease, now, partial(self._settle_lost, lost))
        self._engine.journal.note_losses(lost)
        log_event("worker.rescued", logging.WARNING, lease=lease, jobs=count)

    def _settle_lost(self, settled: list[tuple[Job, Settlement]], jobs: list[Job]) -> list[Settlement]:
        settlements = self._engine.decide((job, _LOST) for job in jobs)
        settled[:] = zip(jobs, settlements, strict=True)
        return settlements
