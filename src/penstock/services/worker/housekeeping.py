"""Housekeeping that any worker does for all: takes over expired leases, ends overdue jobs, carries out cancels.

The worker that comes first does it; the others find nothing left.
"""

from __future__ import annotations

from penstock.calls.journal import tell_of_broken
from penstock.calls.run.runner import Runner
from penstock.jobs.job import Job, Settlement
from penstock.jobs.settle import cancel_anyhow
from penstock.services.rescue import Rescue
from penstock.services.worker import external
from penstock.services.worker.executor import Executor

_CANCELS_AT_ONCE = 1000


class Housekeeping:
    """The housekeeping of one worker."""

    def __init__(self, runner: Runner, executor: Executor) -> None:
        self._runner = runner
        self._executor = executor
        self._rescue = Rescue(runner)

    async def rescue(self, own: int | None) -> None:
        """Now and then take over the jobs of expired leases, and end the jobs whose completion is overdue."""
        if self._rescue.is_due:
            await self._rescue.look(own)
            await external.expire(self._runner)

    async def cancel(self) -> bool:
        """Carry out requests to cancel; whether any job has ended by that, so that there may be more."""
        engine = self._runner.engine
        now = engine.clock.now()
        canceled: list[tuple[Job, Settlement]] = []

        def decide(jobs: list[Job]) -> list[Settlement]:
            canceled[:] = [(job, cancel_anyhow(job, now, engine.keep, tell_of_broken)) for job in jobs]
            return [settlement for _, settlement in canceled]

        asked = await engine.store.jobs.cancel_pending(now, _CANCELS_AT_ONCE, decide)
        ours = self._executor.cancel(asked)
        engine.journal.settled(canceled)
        ended = ours < len(asked) and await external.cancel(self._runner)  # others run on other workers, or on none
        return bool(canceled) or ended
