"""Jobs that no worker runs, as an outside system will say how they end.

Owns the steps: workers hand them over, and end those of which nobody tells. Leaves when they are taken to the worker,
and that each job ends once to the store.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.calls.enqueue.tokens import settle_canceled, settle_expired
from penstock.calls.run.runner import Runner
from penstock.jobs.job import Job, job_id
from penstock.observe.logs import event as log_event

_AT_ONCE = 100


class Outside:
    """Jobs held outside, as one worker looks after them."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._store = runner.engine.store

    async def hold(self, lease: int, jobs: Sequence[Job]) -> None:
        """Let jobs go from a worker, and their slots with them. Those that were ended meanwhile are left alone."""
        moved = await self._store.tokens.hold(lease, [(job.id, job.attempt) for job in jobs])
        for job in jobs:
            if job.id in moved:
                log_event("job.held", job=job_id(job.id), function=job.function, attempt=job.attempt)

    async def expire(self) -> None:
        """End the attempts of which nobody has told in time."""
        self._freed(await self._store.tokens.expire(self._runner.now(), _AT_ONCE, settle_expired(self._runner)))

    async def cancel(self) -> bool:
        """End those that somebody canceled; whether there were any, so that there may be more."""
        return self._freed(await self._store.tokens.cancel(self._runner.now(), _AT_ONCE, settle_canceled(self._runner)))

    def _freed(self, count: int) -> bool:
        if count:
            self._store.signals.notify()  # slots are free
        return count > 0
