"""Jobs that no worker runs, as an external system will complete them: workers let go of them and end overdue ones."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.calls.enqueue.tokens import settle_canceled, settle_expired
from penstock.calls.run.runner import Runner
from penstock.jobs.job import Job, job_id
from penstock.observe.logs import event as log_event

_AT_ONCE = 100


async def hold(runner: Runner, lease: int, jobs: Sequence[Job]) -> None:
    """Let jobs go from a worker, and their slots with them, unless they were ended meanwhile."""
    moved = await runner.engine.store.tokens.hold(lease, [(job.id, job.attempt) for job in jobs])
    for job in jobs:
        if job.id in moved:
            log_event("job.held", job=job_id(job.id), function=job.function, attempt=job.attempt)


async def expire(runner: Runner) -> None:
    """End the attempts that nobody completed in time."""
    count = await runner.engine.store.tokens.expire(runner.now(), _AT_ONCE, settle_expired(runner))
    _tell_of_free_slots(runner, count)


async def cancel(runner: Runner) -> bool:
    """End canceled ones; whether there were any, so that there may be more."""
    count = await runner.engine.store.tokens.cancel(runner.now(), _AT_ONCE, settle_canceled(runner))
    _tell_of_free_slots(runner, count)
    return count > 0


def _tell_of_free_slots(runner: Runner, count: int) -> None:
    if count:
        runner.engine.store.signals.notify()
