"""What a worker does for all: takes over the jobs of leases that have run out, and carries out cancels.

Any worker does it; whoever is first does, and the others find nothing left.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from uuid import UUID

from penstock.calls.batch import Batches
from penstock.calls.run import Runner
from penstock.calls.work import Running
from penstock.jobs.job import Job, Outcome, Settlement
from penstock.jobs.settle import settle, settle_cancel
from penstock.jobs.states import JobEvent
from penstock.observe.logs import event as log_event
from penstock.services.outside import Outside

_CANCELS_AT_ONCE = 1000
_LOOK_PART = 0.15  # of the setting `lease`: how often all look for leases that have run out


class Others:
    """Looks after what is not its worker's own.

    Args:
        runner: Runs functions.
        outside: Looks after jobs that no worker runs.
    """

    def __init__(self, runner: Runner, outside: Outside) -> None:
        self._engine = runner.engine
        self._store = runner.engine.store
        self._clock = runner.engine.clock
        self._outside = outside
        self._looked_at = -1e9

    async def look_after(self, own: int | None) -> None:
        """Now and then take over the jobs of leases that have run out, but for one's own."""
        if self._clock.monotonic() - self._looked_at < self._engine.config.lease * _LOOK_PART:
            return
        self._looked_at = self._clock.monotonic()
        await self._store.synchronize()  # a clock that runs ahead would end the leases of others
        now = self._clock.now()
        for lease in await self._store.leases.expired(now):
            if lease != own:
                lost: list[tuple[Job, Settlement]] = []
                count = await self._store.leases.rescue(lease, now, partial(self._settle_lost, lost))
                self._engine.journal.settled(lost)
                log_event("worker.rescued", logging.WARNING, lease=lease, jobs=count)
        await self._outside.expire()

    async def cancel(self, running: Mapping[UUID, Running], batches: Batches) -> bool:
        """Carry out what anybody asked to be canceled; whether any job has ended by that, of which there may be more.

        Args:
            running: The jobs that the worker runs: they are told.
            batches: Those of them that run together.
        """
        now, kept = self._clock.now(), self._engine.keep
        canceled: list[tuple[Job, Settlement]] = []

        def decide(jobs: list[Job]) -> list[Settlement]:
            canceled[:] = [(job, settle_cancel(job, now, kept)) for job in jobs]
            return [settlement for _, settlement in canceled]

        asked = await self._store.jobs.cancel_pending(now, _CANCELS_AT_ONCE, decide)
        ours = [running[job] for job in asked if job in running]
        for one in ours:
            one.cancelled.set()
        batches.note_cancel()
        self._engine.journal.settled(canceled)
        ended = len(ours) < len(asked) and await self._outside.cancel()  # others run on other workers, or on none
        return bool(canceled) or ended

    def _settle_lost(self, settled: list[tuple[Job, Settlement]], jobs: list[Job]) -> list[Settlement]:
        now, kept = self._clock.now(), self._engine.keep
        lost = Outcome(JobEvent.LOST, error="WorkerLost: the worker that ran this job died or lost its lease")
        settled[:] = [(job, settle(job, lost, now, self._clock.random(), kept)) for job in jobs]
        return [settlement for _, settlement in settled]
