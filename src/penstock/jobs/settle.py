"""Decides the next state of a job when an attempt has ended. The store writes it, fenced by the lease."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from penstock.config import FOR_EVER
from penstock.jobs.job import Attempt, Ending, Job, Options, Outcome, Settlement, mark_of
from penstock.jobs.retry import Exponential, Retry, backoff, wait_after
from penstock.jobs.states import FAILED_ATTEMPT, FINISHED, MOVES, JobEvent, JobState, next_state
from penstock.observe.errortext import error_text

KEEP_STATUS = timedelta(days=7)
MAX_LOSSES = 5
ATTEMPTS_KEPT = 20  # of one job; the SQL of settle says so too
_FOR_EVER_SECONDS = FOR_EVER.total_seconds()
_LONGEST_ERROR, _LONGEST_TRACEBACK = 2_000, 4_000  # of an attempt that is kept; the last one's are also kept whole
_AFTER_LOSS = Exponential(initial_backoff=1.0, base=2.0, max_backoff=60.0)
_ON_COMPLETE = Retry(max_attempts=5, initial_backoff=0.25, base=2.0)
_LAST = {JobEvent.RAISED: JobEvent.EXHAUSTED, JobEvent.LOST: JobEvent.ABANDONED}
# What keeps the next jobs of its key waiting: rows of tasks run in order, and nobody has let others go first.
_BLOCK_KEY = frozenset({JobEvent.RAISED, JobEvent.LOST, JobEvent.HANDED_BACK})
_HANDLED = frozenset({JobState.SUCCESS, JobState.FAILED})  # by its version; any other end is of no version


def settle(job: Job, outcome: Outcome, now: datetime, chance: float, keep: timedelta = KEEP_STATUS) -> Settlement:
    """The settlement of a job after an attempt, or after a call of its on_complete if only that was left."""
    if job.marked and outcome.event is not JobEvent.RETURNED:
        outcome = Outcome(JobEvent.RETURNED)
    if job.ending is not None:
        return _settle_call(job, job.ending, outcome, now, chance, keep)
    if outcome.event is JobEvent.RETURNED and (job.on_complete is None or not job.is_followed(JobState.SUCCESS)):
        # The way of most jobs, and the shortest.
        state, until, result = JobState.SUCCESS, expiry(job.options, now, keep), outcome.result
        settled = Settlement(job.id, state, outcome.event, job.attempt, job.run_at, now, until, result)
        settled.frees_key = job.options.key is not None
        settled.run = job.options.run
        if job.options.task is not None:
            settled.mark = mark_of(job.options.task, job.args, job.version)
        return settled
    wait, task = _wait(job, outcome, now, chance), job.options.task
    event = outcome.event if wait is not None else _LAST[outcome.event]
    state = next_state(JobState.RUNNING, event, job.is_followed)
    settled = Settlement(
        id=job.id,
        state=state,
        event=event,
        attempt=job.attempt - (event in {JobEvent.SNOOZED, JobEvent.HANDED_BACK}),
        run_at=now + wait if wait is not None and state is JobState.PENDING else job.run_at,
        finished_at=now,
        expires_at=expiry(job.options, now, keep),
        result=outcome.result,
        error=outcome.error,
        traceback=outcome.traceback,
        frees_key=job.options.key is not None and state in FINISHED,
        failed=_attempt_of(job, outcome, event, now) if event in FAILED_ATTEMPT else None,
        mark=None if task is None else mark_of(task, job.args, job.version if state in _HANDLED else -1),
        blocks_key=task is not None and (event in _BLOCK_KEY or outcome.blocks_key),
        run=job.options.run if state in FINISHED else None,
        cause=outcome.cause,
    )
    if state is not JobState.COMPLETING:
        return settled
    return _completing(job, settled, MOVES[JobState.RUNNING, event], job.started_at)


def settle_cancel(
    job: Job, now: datetime, keep: timedelta = KEEP_STATUS, event: JobEvent = JobEvent.CANCELED
) -> Settlement:
    """The settlement of a pending job that is canceled, or skipped. Its attempts stay as they are."""
    state = next_state(JobState.PENDING, event, job.is_followed)
    settled = Settlement(
        id=job.id,
        state=state,
        event=event,
        attempt=job.attempt,
        run_at=job.run_at,
        finished_at=now,
        expires_at=expiry(job.options, now, keep),
        frees_key=job.options.key is not None and (state in FINISHED or bool(job.options.until_start)),
        mark=None if job.options.task is None else mark_of(job.options.task, job.args),
        run=job.options.run if state in FINISHED else None,
    )
    return _completing(job, settled, MOVES[JobState.PENDING, event], None) if state is JobState.COMPLETING else settled


def complete(job: Job, ending: Ending, now: datetime, keep: timedelta, error: str | None = None) -> Settlement:
    """The settlement once the on_complete has returned, or raised for the last time."""
    return Settlement(
        id=job.id,
        state=ending.state,
        event=JobEvent.COMPLETED,
        attempt=job.attempt,
        run_at=ending.run_at or job.run_at,
        finished_at=ending.finished_at,
        expires_at=expiry(job.options, now, keep),
        result=ending.result,
        error=ending.error,
        traceback=ending.traceback,
        on_complete_error=error,
        on_complete_attempts=ending.attempts,
        frees_key=job.options.key is not None,
        failed=job.failed,
        run=job.options.run,
    )


def suspend(job: Job, run_at: datetime, now: datetime, reason: str) -> Settlement:
    """The settlement of a workflow's run that sleeps. That is no attempt, and it keeps its place and its key."""
    return Settlement(
        id=job.id,
        state=JobState.PENDING,
        event=JobEvent.SNOOZED,
        attempt=job.attempt - 1,
        run_at=run_at,
        finished_at=now,
        expires_at=now,
        error=reason,
        keeps_rank=True,
        blocks_key=True,
    )


def most_losses(job: Job) -> int:
    """The number of losses that end a job. A run of a workflow is parked before."""
    return MAX_LOSSES + (job.kind == "mutation" and bool(job.options.restartable))


def expiry(options: Options, now: datetime, keep: timedelta) -> datetime:
    return now + (keep if options.keep is None else _retention(options.keep))


def settle_anyhow(
    job: Job, outcome: Outcome, now: datetime, chance: float, keep: timedelta, tell: Callable[[Job, Exception], object]
) -> Settlement:
    """Settle a job; if its stored data makes that raise, it ends failed, and `tell` gets the error.

    Many jobs are settled together, and none of them may wait for a broken one.
    """
    try:
        return settle(job, outcome, now, chance, keep)
    except Exception as error:  # noqa: BLE001 - what is stored may be anything
        tell(job, error)
        return settle(_bare(job), of_no_use(error), now, chance, keep)


def of_no_use(error: Exception) -> Outcome:
    text = f"JobBroken: what is stored with this job is of no use: {error_text(error)}"
    return Outcome(JobEvent.RAISED, error=text, retryable=False)


def cancel_anyhow(job: Job, now: datetime, keep: timedelta, tell: Callable[[Job, Exception], object]) -> Settlement:
    """Cancel a job in any state, for `settle_cancel`."""
    try:
        return settle_cancel(job, now, keep)
    except Exception as error:  # noqa: BLE001 - as above
        tell(job, error)
        return settle_cancel(_bare(job), now, keep)


def _bare(job: Job) -> Job:
    """A job with only those options that others wait for."""
    asked, task = job.options, job.options.task
    try:
        if task is not None:
            mark_of(task, job.args)
    except (ValueError, TypeError):
        task = None
    bare = Options(
        context=asked.context,
        on_complete_only=asked.on_complete_only,
        key=asked.key,
        until_start=asked.until_start,
        task=task,
        program=asked.program,
        run=asked.run,
    )
    return replace(job, options=bare, failing_since=None)


def _retention(seconds: object) -> timedelta:
    """A retention time; a value that is not a number, or too large, means for ever."""
    if not isinstance(seconds, int | float) or not seconds < _FOR_EVER_SECONDS:
        return FOR_EVER
    return timedelta(seconds=max(seconds, 0))


def _completing(job: Job, settled: Settlement, end: JobState, started_at: datetime | None) -> Settlement:
    """The settlement with the ending that is kept while on_complete comes first."""
    now = settled.finished_at
    settled.ending = Ending(end, now, settled.result, settled.error, settled.traceback, started_at, job.run_at)
    settled.run_at, settled.result, settled.error, settled.traceback = now, None, None, None
    return settled


def _settle_call(
    job: Job, ending: Ending, outcome: Outcome, now: datetime, chance: float, keep: timedelta
) -> Settlement:
    """The settlement after a call of the on_complete. The job's ending stays as it is."""
    raised = outcome.event in {JobEvent.RAISED, JobEvent.LOST}  # a callback that kills its worker ends too
    calls, retry = ending.calls + raised, job.options.on_complete_retry or _ON_COMPLETE
    delay = outcome.delay
    if raised:
        wait = wait_after(retry, calls, ending.failing_since, now, chance) if outcome.retryable else None
        event = outcome.event if wait is not None else _LAST[outcome.event]
        call = replace(_attempt_of(job, outcome, event, now), number=calls, failing_since=None)
        call = replace(call, started_at=max(job.started_at, ending.finished_at))  # the claimed call may be the attempt
        ending = replace(ending, attempts=(*ending.attempts, call)[-ATTEMPTS_KEPT:])
        if wait is None:
            return complete(job, ending, now, keep, outcome.error)
        delay, ending = wait, replace(ending, failing_since=ending.failing_since or now)
    return Settlement(
        id=job.id,
        state=JobState.COMPLETING,
        event=outcome.event,
        attempt=job.attempt,
        run_at=now + delay,
        finished_at=now,
        expires_at=expiry(job.options, now, keep),
        error=outcome.error,
        ending=replace(ending, calls=calls),
        failed=job.failed,
    )


def _wait(job: Job, outcome: Outcome, now: datetime, chance: float) -> timedelta | None:
    """The wait before the job runs again; None if its attempt failed and there is no further one.

    A lost mutation left no trace, so it runs again, up to a few losses. So does an action that may be started again.
    Any other lost action needs a retry policy.
    """
    retry, wait = job.options.retry, None
    if outcome.event not in _LAST:
        return outcome.delay
    if retry is not None:
        wait = wait_after(retry, job.attempt, job.failing_since, now, chance)
    if job.options.unread is not None:  # a worker that can read its policy will say when to stop
        wait = timedelta(seconds=backoff(_AFTER_LOSS, job.attempt, chance))
    if outcome.event is JobEvent.RAISED:
        return wait if outcome.retryable else None
    once = job.kind == "action" and not job.options.restartable
    if wait is None and (retry is not None or once or job.attempt >= most_losses(job)):
        return None
    return timedelta(seconds=backoff(_AFTER_LOSS, job.attempt, chance)) if job.attempt > 1 else outcome.delay


def _attempt_of(job: Job, outcome: Outcome, event: JobEvent, now: datetime) -> Attempt:
    error, traceback, options = outcome.error, outcome.traceback, job.options
    limited = options.unread is not None or (options.retry is not None and options.retry.max_duration is not None)
    return Attempt(
        number=job.attempt,
        started_at=job.started_at,
        ended_at=now,
        what=event.value,
        error=None if error is None else error[:_LONGEST_ERROR],
        traceback=None if traceback is None else traceback[-_LONGEST_TRACEBACK:],
        failing_since=job.failing_since or now if limited else None,
    )
