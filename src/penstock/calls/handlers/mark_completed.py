"""`mark_completed`: the handler of a reactive task completes its run, at once or in a transaction of the user's.

It writes a mark on the running job, fenced by the lease. A run with a mark ends as success when its handler ends.
"""

from __future__ import annotations

import logging
from typing import Any

from penstock.calls.run.attempts import Attempts
from penstock.calls.run.jobrun import JobRun
from penstock.errors import ContextError, LeaseLost
from penstock.jobs.job import Outcome, job_id
from penstock.jobs.states import JobEvent
from penstock.observe.logs import event as log_event
from penstock.store.guest.session import guest_session
from penstock.store.session import OpenTransaction, writing

_LEAST_PAUSE, _LONGEST_PAUSE = 0.01, 1.0  # seconds between checks whether a transaction has ended
_LONG = 1.0  # seconds after which an open transaction is logged


async def mark_completed(runner: Attempts, attempt: JobRun | None, connection: Any) -> None:
    """Mark a run as completed, at once or in the transaction of the user's connection; see `TaskCtx`."""
    if attempt is None:
        raise ContextError("mark_completed was called outside of a job.")
    if connection is None:
        await runner.attempt(lambda: _mark_at_once(runner, attempt))
        attempt.job.marked = True
        return
    store, session = runner.engine.store, guest_session(connection)
    session.check_dialect(store.dialect.name)
    attempt.doubtful = True  # penstock does not learn whether the transaction commits
    await _mark(runner, attempt, session)


async def end_of_marked(runner: Attempts, running: JobRun, outcome: Outcome | None) -> Outcome | None:
    """The outcome of a run whose handler has ended. If a transaction that may mark it is open, wait for its end.

    Raises:
        LeaseLost: The job no longer belongs to this worker.
    """
    if outcome is None or not (running.doubtful or running.job.marked):
        return outcome
    if not running.job.marked and not await _is_marked(runner, running):
        return outcome
    running.job.marked = True
    if outcome.event is not JobEvent.RETURNED:
        reason = outcome.error or outcome.event.value
        log_event("task.end_ignored", logging.WARNING, job=job_id(running.job.id), reason=reason)
    return Outcome(JobEvent.RETURNED)


async def _is_marked(runner: Attempts, running: JobRun) -> bool:
    tasks, machine, job = runner.engine.store.tasks, runner.engine.machine, running.job
    pause, begun, told = _LEAST_PAUSE, machine.monotonic(), False
    while True:
        found = await runner.attempt(lambda: tasks.read_marks(running.lease, [job.id]), for_ever=True)
        if job.id not in found:
            raise LeaseLost(f"{job_id(job.id)} no longer belongs to this worker.")
        marked = found[job.id]
        if marked is not None:
            return marked
        if not told and machine.monotonic() - begun > _LONG:
            told = True
            log_event("task.transaction_open", logging.WARNING, job=job_id(job.id), function=job.function)
        await machine.sleep(pause)
        pause = min(_LONGEST_PAUSE, pause * 2)


async def _mark_at_once(runner: Attempts, attempt: JobRun) -> None:
    async with writing(runner.engine.store.begin_write) as session:
        await _mark(runner, attempt, session)


async def _mark(runner: Attempts, attempt: JobRun, transaction: OpenTransaction) -> None:
    if not await runner.engine.store.tasks.mark(transaction, attempt.lease, attempt.job):
        raise LeaseLost(
            f"{job_id(attempt.job.id)} no longer belongs to this worker, so it cannot be completed.",
            fix="Let it raise, so that the transaction rolls back: another run has taken over.",
        )
