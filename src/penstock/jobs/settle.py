"""Decides what becomes of a job when an attempt has ended. Decides only: writing is the store's, and fenced."""

from __future__ import annotations

from datetime import datetime, timedelta

from penstock.jobs.job import Job, Outcome, Settlement
from penstock.jobs.retry import Retry, backoff
from penstock.jobs.states import MOVES, JobEvent, JobState

KEEP_STATUS = timedelta(days=7)
MAX_LOSSES = 5
_AFTER_LOSS = Retry(max_attempts=MAX_LOSSES, initial_backoff=1.0, base=2.0, max_backoff=60.0)


def settle(job: Job, outcome: Outcome, now: datetime, chance: float, keep: timedelta = KEEP_STATUS) -> Settlement:
    """What is to be written about a job, given what became of its attempt.

    Args:
        job: The job and its attempt.
        outcome: What became of the attempt.
        now: The time of the decision.
        chance: A number in [0, 1), for the jitter of the next attempt's time.
        keep: How long the status of a finished job is kept.
    """
    event = _event(job, outcome)
    state = MOVES[JobState.RUNNING, event]
    return Settlement(
        id=job.id,
        state=state,
        event=event,
        attempt=job.attempt - (event in {JobEvent.SNOOZED, JobEvent.HANDED_BACK}),
        run_at=now + _delay(job, outcome, event, chance) if state is JobState.PENDING else job.run_at,
        finished_at=now,
        expires_at=now + keep,
        result=outcome.result,
        error=outcome.error,
        traceback=outcome.traceback,
    )


def _event(job: Job, outcome: Outcome) -> JobEvent:
    """What happened, once it is known whether the job may run again.

    A lost mutation left no trace in the database, so it runs again; a worker that dies of it each time is stopped
    after a few losses. A lost action may have reached the outside world, so only its retry policy allows another run.
    """
    if outcome.event is JobEvent.RAISED:
        left = job.retry is not None and job.attempt < job.retry.max_attempts
        return JobEvent.RAISED if outcome.retryable and left else JobEvent.EXHAUSTED
    if outcome.event is JobEvent.LOST:
        attempts = job.retry.max_attempts if job.retry else MAX_LOSSES if job.kind != "action" else 1
        return JobEvent.LOST if job.attempt < attempts else JobEvent.ABANDONED
    return outcome.event


def _delay(job: Job, outcome: Outcome, event: JobEvent, chance: float) -> timedelta:
    if event is JobEvent.RAISED and job.retry is not None:
        return timedelta(seconds=backoff(job.retry, job.attempt, chance))
    if event is JobEvent.LOST and job.attempt > 1:
        return timedelta(seconds=backoff(_AFTER_LOSS, job.attempt, chance))
    return outcome.delay
