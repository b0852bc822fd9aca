"""Runs one claimed job, and tells what became of it.

A mutation settles itself: its effects and the end of its job commit together. What an action did is told to the
worker, which settles many at once.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from datetime import timedelta
from typing import Any

from penstock.calls.run import Runner
from penstock.calls.threads import apart
from penstock.errors import LeaseLost, LimitExceeded, NonRetryableError, Overloaded
from penstock.functions.function import AnyFunction
from penstock.jobs.job import Job, Outcome, Settlement, job_id
from penstock.jobs.settle import settle
from penstock.jobs.states import JobEvent
from penstock.observe.logs import event as log_event
from penstock.wire.outgoing import encode_kept

_PARKED_FOR = timedelta(seconds=30)
_LONGEST_ERROR = 10_000


async def run_job(runner: Runner, job: Job, lease: int, cancelled: asyncio.Event) -> Outcome | None:
    """Run a job under a lease; what became of it, or None if it has settled itself or is not ours any more."""
    function = runner.engine.registry.find(job.function)
    if function is None:
        return _parked(job, f"FunctionNotFound: no function {job.function} is declared in the program of this worker")
    try:
        if function.kind.value == "mutation":
            await _run_mutation(runner, function, job, lease)
            return None
        arguments = await apart(len(job.args), lambda: function.signature.check_json(job.args))
        result = await runner.action(function, arguments, cancelled=cancelled)
        return Outcome(JobEvent.RETURNED, result=_result(runner, function, result))
    except LeaseLost:
        log_event("job.lost", logging.WARNING, job=job_id(job.id), function=job.function, lease=lease)
        return None
    except Exception as error:  # noqa: BLE001 - whatever user code raises is the job's outcome
        return _raised(job, error, cancelled)


def _raised(job: Job, error: Exception, cancelled: asyncio.Event) -> Outcome:
    if isinstance(error, Overloaded) and _has_not_begun(job, error):
        return _parked(job, f"Overloaded: {error}")
    return Outcome(JobEvent.CANCELED) if cancelled.is_set() else failure(error)


def _parked(job: Job, reason: str) -> Outcome:
    """The outcome of a job that this worker cannot begin; another one may, or this one later."""
    log_event("job.parked", logging.WARNING, job=job_id(job.id), function=job.function, reason=reason)
    return Outcome(JobEvent.SNOOZED, delay=_PARKED_FOR, error=_storable(reason))


def _has_not_begun(job: Job, error: Overloaded) -> bool:
    """Whether it is the job's own function that found no thread, and not one that it runs."""
    return (error.facts.get("function"), error.facts.get("depth")) == (job.function, 0)


def failure(error: BaseException) -> Outcome:
    """The outcome of a job that raised."""
    text = f"{type(error).__name__}: {error}"[:_LONGEST_ERROR]
    trace = "".join(traceback.format_exception(error))[-_LONGEST_ERROR:]
    return Outcome(
        JobEvent.RAISED,
        error=_storable(text),
        traceback=_storable(trace),
        retryable=not isinstance(error, NonRetryableError),
    )


async def _run_mutation(runner: Runner, function: AnyFunction, job: Job, lease: int) -> None:
    def settled(result: object) -> Settlement:
        outcome = Outcome(JobEvent.RETURNED, result=_result(runner, function, result))
        return settle(job, outcome, runner.now(), 0.0, keep(runner))

    async def check() -> dict[str, Any]:
        return await apart(len(job.args), lambda: function.signature.check_json(job.args))

    await runner.mutation(function, check, lease=lease, settle=settled)


def keep(runner: Runner) -> timedelta:
    """How long the status of a finished job is kept."""
    return timedelta(seconds=runner.engine.config.job_status_ttl)


def _result(runner: Runner, function: AnyFunction, result: object) -> str:
    kept = encode_kept(result)
    limit = runner.engine.config.max_result_bytes
    if len(kept) > limit:
        raise LimitExceeded(
            f"{function.name} returned {len(kept)} bytes; a job's result may have {limit}.",
            fix="Store the data in a table, and return its id.",
            limit=limit,
        )
    return kept.decode()


def _storable(text: str) -> str:
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
