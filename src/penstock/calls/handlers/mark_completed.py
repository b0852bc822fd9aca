"""`mark_completed`: a handler of a reactive task says that its run is done, at once or in a transaction of the user's.

Owns the word, and what it means for the end of the run. What is written is a mark on the running job, under the lease:
the lease's loss and the transaction exclude each other. So nothing else of penstock waits for that transaction, and the
run keeps its place until its handler has ended; then it ends as success, if the mark is there.
"""

from __future__ import annotations

import logging
from typing import Any

from penstock.calls.run.running import Running
from penstock.calls.runs import Runs
from penstock.errors import ContextError, LeaseLost
from penstock.jobs.job import Outcome, job_id
from penstock.jobs.states import JobEvent
from penstock.observe.logs import event as log_event
from penstock.store.contract.session import OpenTransaction
from penstock.store.guest.session import guest_session

_LEAST_PAUSE, _LONGEST_PAUSE = 0.01, 1.0  # seconds between two looks whether a transaction has ended
_LONG = 1.0  # seconds after which it is told that one has not


async def mark_completed(runner: Runs, attempt: Running | None, connection: Any) -> None:
    """Say that a run is done.

    Args:
        runner: Runs functions.
        attempt: The run.
        connection: One of the user's own, in whose transaction it is said; None to say it at once.

    Raises:
        LeaseLost: It no longer belongs to this worker.
        ContextError: It runs in no job, or the connection cannot be used.
    """
    if attempt is None:
        raise ContextError("mark_completed was called outside of a job.")
    if connection is None:
        await runner.patiently(lambda: _mark_at_once(runner, attempt))
        attempt.job.marked = True
        return
    store, session = runner.engine.store, guest_session(connection)
    session.check_dialect(store.dialect.name)
    attempt.doubtful = True  # nobody tells whether the transaction commits
    await _mark(runner, attempt, session)


async def end_of_marked(runner: Runs, running: Running, outcome: Outcome | None) -> Outcome | None:
    """What became of a run whose handler has ended, and which it may have marked.

    Where a transaction that marks it is still open, it waits for its end: only then is it known.

    Raises:
        LeaseLost: The job no longer belongs to this worker.
    """
    if outcome is None or not (running.doubtful or running.job.marked):
        return outcome
    if not running.job.marked:
        running.job.marked = await _is_marked(runner, running)
    if not running.job.marked:
        return outcome
    if outcome.event is not JobEvent.RETURNED:
        reason = outcome.error or outcome.event.value
        log_event("task.end_ignored", logging.WARNING, job=job_id(running.job.id), reason=reason)
    return Outcome(JobEvent.RETURNED)


async def _is_marked(runner: Runs, running: Running) -> bool:
    """Whether a run is marked, once that is known."""
    tasks, machine, job = runner.engine.store.tasks, runner.engine.machine, running.job
    pause, begun, told = _LEAST_PAUSE, machine.monotonic(), False
    while True:
        found = await runner.patiently(lambda: tasks.marked(running.lease, [job.id]), for_ever=True)
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


async def _mark_at_once(runner: Runs, attempt: Running) -> None:
    session = await runner.engine.store.begin_write()
    try:
        await _mark(runner, attempt, session)
        await session.commit()
    finally:
        await session.rollback()


async def _mark(runner: Runs, attempt: Running, transaction: OpenTransaction) -> None:
    if not await runner.engine.store.tasks.mark(transaction, attempt.lease, attempt.job):
        raise LeaseLost(
            f"{job_id(attempt.job.id)} no longer belongs to this worker, so it cannot be completed.",
            fix="Let it raise, so that the transaction rolls back: another run has taken over.",
        )
