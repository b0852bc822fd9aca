"""What a worker does for all: takes over the jobs of leases that have run out, and carries out cancels.

Any worker does it; whoever is first does, and the others find nothing left.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from penstock.calls.jobs.batch import Batches
from penstock.calls.journal import tell_of_broken
from penstock.calls.run.runner import Runner
from penstock.calls.run.running import Running
from penstock.jobs.job import Job, Settlement
from penstock.jobs.settle import cancel_anyhow
from penstock.services.worker.external import Outside
from penstock.services.worker.rescue import Rescue

_CANCELS_AT_ONCE = 1000


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
        self._rescue = Rescue(runner)

    async def look_after(self, own: int | None) -> None:
        """Now and then take over the jobs of leases that have run out, but for one's own."""
        if self._rescue.is_due:
            await self._rescue.look(own)
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
            canceled[:] = [(job, cancel_anyhow(job, now, kept, tell_of_broken)) for job in jobs]
            return [settlement for _, settlement in canceled]

        asked = await self._store.jobs.cancel_pending(now, _CANCELS_AT_ONCE, decide)
        ours = [running[job] for job in asked if job in running]
        for one in ours:
            one.cancelled.set()
        batches.note_cancel()
        self._engine.journal.settled(canceled)
        ended = len(ours) < len(asked) and await self._outside.cancel()  # others run on other workers, or on none
        return bool(canceled) or ended
