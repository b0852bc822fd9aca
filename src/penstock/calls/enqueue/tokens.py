"""Jobs that outside systems complete: a caller with the job's token settles it, from any process.

The store sees to it that each token counts once.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

from penstock.calls.enqueue.jobs import JobCalls
from penstock.calls.run.attempts import Attempts
from penstock.errors import ContextError, LimitExceeded, ResultInvalid, TokenExpired, ValueInvalid
from penstock.functions.signature import encode_any
from penstock.jobs.job import Job, Outcome, Settlement, job_id
from penstock.jobs.states import JobEvent
from penstock.jobs.token import not_known, token_of
from penstock.observe.logs import event as log_event
from penstock.pools.results import Completion
from penstock.store.nouns.tokens import Redeemed
from penstock.values import storable

_LONGEST_ERROR = 10_000
_NOBODY_TOLD = "CallTimeout: no completion came within the time that complete_later gave"


async def complete(calls: JobCalls, token: object, result: Any) -> Completion:
    """End the job of a token with success."""
    limit = calls.engine.config.max_result_bytes

    def outcome(job: Job) -> Outcome:
        kept = _encode(calls, job, result)
        if len(kept) > limit:
            raise LimitExceeded(
                f"The result has {len(kept)} bytes; a job's result may have {limit}.",
                fix="Store the data elsewhere, and send its address.",
                limit=limit,
            )
        return Outcome(JobEvent.RETURNED, result=calls.store.encryption.encrypt(kept))

    return await _redeem(calls, token, "success", outcome)


async def fail(calls: JobCalls, token: object, error: object, *, retryable: object) -> Completion:
    """End the attempt of a token with failure; its retry policy says whether there is another one."""
    if not isinstance(error, str) or not error:
        raise ValueInvalid(f"An error is a text that says what went wrong, not {error!r}.")
    if not isinstance(retryable, bool):
        raise ValueInvalid(f"retryable is True or False, not {retryable!r}.")
    outcome = Outcome(JobEvent.RAISED, error=storable(error[:_LONGEST_ERROR]), retryable=retryable)
    return await _redeem(calls, token, "failed", lambda _: outcome)


def settle_held(runner: Attempts, told: Literal["expired", "canceled"], jobs: list[Job]) -> list[Settlement]:
    """The settlements of jobs held outside that nobody completed in time, or that somebody canceled."""
    outcome = Outcome(JobEvent.CANCELED) if told == "canceled" else Outcome(JobEvent.RAISED, error=_NOBODY_TOLD)
    for job in jobs:
        log_event("job.told", job=job_id(job.id), attempt=job.attempt, told=told)
    return _settlements(runner, jobs, lambda _: outcome)


async def _redeem(
    calls: JobCalls, text: object, told: Literal["success", "failed"], outcome: Callable[[Job], Outcome]
) -> Completion:
    """Settle the job of a token; the outcome is only made and checked once the token is known to count."""
    if calls.in_transaction:
        raise ContextError(
            "A transaction cannot complete a job with a token; it can only add jobs.",
            fix="Complete the job in an action, or from the program.",
        )
    token, store, runner = token_of(text), calls.store, calls.runner

    async def once() -> Redeemed | None:
        return await store.tokens.redeem(token, told, runner.now(), lambda jobs: _settlements(runner, jobs, outcome))

    redeemed = await runner.attempt(once)
    if redeemed is None:
        raise not_known()
    if redeemed.told == "expired":
        raise TokenExpired("The token's time is over, or its attempt is.")
    if redeemed.accepted:
        log_event("job.told", job=job_id(token.job_id), attempt=token.attempt, told=told)
        store.signals.notify()
    return Completion(redeemed.accepted, redeemed.told)


def _settlements(runner: Attempts, jobs: list[Job], outcome: Callable[[Job], Outcome]) -> list[Settlement]:
    return runner.engine.decide([(job, outcome(job)) for job in jobs])


def _encode(calls: JobCalls, job: Job, result: Any) -> str:
    """A result as its function would have returned it, or else any JSON value."""
    function = calls.engine.registry.find(job.function)
    with suppress(ResultInvalid):
        if function is not None:
            return function.signature.result_json(function.signature.check_result(result)).decode()
    try:
        return encode_any(result, "The result")
    except ValueInvalid as error:
        raise ResultInvalid(error.what, fix=error.fix) from error
