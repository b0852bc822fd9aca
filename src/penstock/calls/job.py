"""Runs one claimed job, and tells what became of it.

A mutation settles itself: its effects and the end of its job commit together. What an action did is told to the
worker, which settles many at once.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from penstock.calls.completion import complete
from penstock.calls.run import Runner
from penstock.calls.threads import apart
from penstock.errors import CallTimeout, LeaseLost, LimitExceeded, NonRetryableError, Overloaded
from penstock.functions.function import AnyFunction, FunctionKind
from penstock.jobs.job import Job, Outcome, Settlement, job_id
from penstock.jobs.settle import settle
from penstock.jobs.states import JobEvent, JobState
from penstock.observe.logs import event as log_event
from penstock.wire.outgoing import encode_kept


@dataclass(slots=True)
class Running:
    """A job under way.

    Attributes:
        job: The job; with its ending, once that is known and only its on_complete is left.
        lease: The lease it runs under.
        cancelled: Set when someone asked for it to stop.
        begun: Whether it has begun to run.
        stopped: Whether the worker has stopped it.
        outcome: If it was stopped: what became of it, as far as is known.
    """

    job: Job
    lease: int
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    begun: bool = False
    stopped: bool = False
    outcome: Outcome | None = None
    task: asyncio.Task[None] = field(init=False)


_PARKED_FOR = timedelta(seconds=30)
_LONGEST_ERROR = 10_000
_NO_LIMIT: AbstractAsyncContextManager[None] = nullcontext()


async def run_job(runner: Runner, running: Running) -> Outcome | None:
    """Run a job under its lease; what became of it, or None if it has settled itself or is not ours any more.

    A job that ends, and has an on_complete, is settled with it. If that cannot be, `running.job` has the ending that is
    to be kept, and what is returned became of the on_complete.
    """
    journal = runner.engine.journal
    if journal.tracing is None:
        return await _run_job(runner, running)
    with journal.attempt(running.job) as outcomes:
        outcomes.append(await _run_job(runner, running))
    return outcomes[0]


async def _run_job(runner: Runner, running: Running) -> Outcome | None:
    try:
        outcome = None
        if running.job.ending is None:
            outcome = await _attempt(runner, running)
            if outcome is None or running.job.on_complete is None:
                return outcome
        return await _complete(runner, running, outcome)
    except LeaseLost:
        job = running.job
        log_event("job.lost", logging.WARNING, job=job_id(job.id), function=job.function, lease=running.lease)
        return None


async def _attempt(runner: Runner, running: Running) -> Outcome | None:
    """Run a job's function; what became of it, or None if it has settled itself."""
    job = running.job
    function = runner.engine.registry.find(job.function)
    if function is None:
        return _parked(job, f"FunctionNotFound: no function {job.function} is declared in the program of this worker")
    try:
        async with _NO_LIMIT if job.options.timeout is None else _time_limit(job, job.options.timeout):
            if function.kind is FunctionKind.MUTATION:
                await _run_mutation(runner, function, job, running.lease)
                return None
            arguments = await apart(len(job.args), lambda: function.signature.check_json(job.args))
            if function.kind is FunctionKind.QUERY:
                result = await runner.query(function, arguments)
            else:
                result = await runner.action(function, arguments, cancelled=running.cancelled)
        return Outcome(JobEvent.RETURNED, result=_result(runner, function, result))
    except LeaseLost:
        raise
    except Exception as error:  # noqa: BLE001 - whatever user code raises is the job's outcome
        return _raised(job, error, running.cancelled)


async def _complete(runner: Runner, running: Running, outcome: Outcome | None) -> Outcome | None:
    """Run a job's on_complete, if its attempt was the last; what is left to be settled."""
    engine, job = runner.engine, running.job
    if outcome is not None:
        settled = settle(job, outcome, runner.now(), engine.clock.random(), engine.keep)
        if settled.ending is None:
            return outcome
        engine.journal.attempted(job, settled.event)
        job = running.job = replace(job, ending=settled.ending)
    assert job.ending is not None and job.on_complete is not None  # noqa: PT018, S101 - an ending comes with it
    function = engine.registry.find(job.on_complete)
    if function is None:
        return _parked(job, f"FunctionNotFound: no function {job.on_complete} is declared, which is its on_complete")
    try:
        await complete(runner, function, job, job.ending, running.lease)
        engine.journal.ended(job, job.ending.state, job.ending.finished_at)
    except LeaseLost:
        raise
    except Exception as error:  # noqa: BLE001 - whatever user code raises is kept with the job
        log_event("job.on_complete_failed", logging.WARNING, job=job_id(job.id), function=job.on_complete, error=error)
        return failure(error)
    return None


@asynccontextmanager
async def _time_limit(job: Job, seconds: float) -> AsyncIterator[None]:
    """End a job that takes longer than it may.

    Raises:
        CallTimeout: It did.
    """
    timer = asyncio.timeout(seconds)
    try:
        async with timer:
            yield
    except TimeoutError as error:
        if not timer.expired():
            raise
        raise CallTimeout(
            f"{job.function} took longer than the {seconds:g} seconds that this job may take.",
            fix="Raise its timeout, or do less in one job.",
        ) from error


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
        return settle(job, outcome, runner.now(), 0.0, runner.engine.keep)

    async def check() -> dict[str, Any]:
        return await apart(len(job.args), lambda: function.signature.check_json(job.args))

    await runner.mutation(function, check, lease=lease, settle=settled)
    if job.on_complete is None:
        runner.engine.journal.ended(job, JobState.SUCCESS, runner.now())


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
