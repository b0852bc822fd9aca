"""Runs one claimed job and its on_complete, and returns the outcome.

A mutation settles itself: its effects and the end of its job commit together. The worker settles actions, many at once.
A job with an on_complete ends in the transaction of that call. If the call raises, the ending is kept and the call is
made again as its policy says.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, ClassVar

from pydantic import ValidationError
from pydantic_core import to_json

from penstock.calls.call import Arguments, Call
from penstock.calls.handlers.mark_completed import end_of_marked
from penstock.calls.journal import tell_of_broken, tell_of_failed_on_complete
from penstock.calls.run.engine import Engine
from penstock.calls.run.jobrun import JobRun, Withdrawn, caller_of_job
from penstock.calls.run.runner import FunctionCalls
from penstock.calls.run.threads import check_args
from penstock.calls.run.timelimit import time_limit
from penstock.calls.workflows.run import run_workflow
from penstock.codec import Encryption, is_encrypted
from penstock.dataclass import dataclass
from penstock.errors import (
    ArgumentsInvalid,
    ContextError,
    LeaseLost,
    LimitExceeded,
    NonRetryableError,
    Overloaded,
    ResultInvalid,
    Snooze,
    TaskConditionFailed,
    Undecryptable,
)
from penstock.functions.function import AnyFunction, FunctionKind
from penstock.jobs.job import Ending, Job, Outcome, Settlement, job_id
from penstock.jobs.settle import complete, of_no_use, settle
from penstock.jobs.states import FINISHED, JobEvent, JobState
from penstock.observe.errortext import error_text, message_of, trace_text
from penstock.observe.logs import event as log_event
from penstock.pools.results import Success
from penstock.store.session import Session
from penstock.values import storable

_PARKED_FOR = timedelta(seconds=30)
_LONGEST_ERROR = 10_000
_CANCELED = b'{"kind":"canceled"}'


async def run_job(runner: FunctionCalls, run: JobRun) -> Outcome | None:
    """Run an attempt at a job under its lease; its outcome, or None if it has settled itself or the lease is lost."""
    job = run.job
    if (unread := job.options.unread) is not None:
        return _park_unread(job, unread)
    if job.is_late and not _is_workflow(run.function):  # which says so itself, if it has not begun
        return Outcome(JobEvent.RAISED, error="expired", retryable=False)
    if job.marked:  # by an attempt whose worker died
        return Outcome(JobEvent.RETURNED)
    journal = runner.engine.journal
    with journal.attempts(job) as spans:
        try:
            outcome = await _attempt(runner, run)
            if run.doubtful or job.marked:
                outcome = await end_of_marked(runner, run, outcome)
        except LeaseLost:  # not of its function: that has ended
            log_lost(run)
            return None
        if journal.tracing is not None:
            journal.attempt_ended(spans, outcome)
            run.trace = None if job.on_complete is None else journal.tracing.current()
    return outcome


def keep_ending(engine: Engine, run: JobRun, outcome: Outcome) -> bool:
    """Keep the ending of a job in `run`, if its on_complete comes next; whether it does."""
    if run.job.on_complete is None or run.job.ending is not None or outcome.event is JobEvent.HELD:
        return False
    (settled,) = engine.decide([(run.job, outcome)])
    if settled.ending is None:
        return False
    run.job.ending, run.job.failed = settled.ending, settled.failed
    run.decided, run.moment = settled, None
    return True


async def complete_job(runner: FunctionCalls, run: JobRun) -> Outcome | None:
    """Run the on_complete of a job that has ended; None if it has settled the job, or the lease is lost."""
    if (unread := run.job.options.unread) is not None:
        return _park_unread(run.job, unread)
    with runner.engine.journal.running(run.job, run.trace):
        call = CompletionCall.of(runner, run)
        if call is None:
            where = "in the program of this worker, which is its on_complete"
            return _leave(runner, run.job, str(run.job.on_complete), where)
        try:
            call.note_end(await runner.mutation(call))
        except Exception as error:  # noqa: BLE001 - it is the outcome
            if isinstance(error, LeaseLost) and not error.from_function:
                log_lost(run)
                return None
            return call.outcome_of_error(runner, error)
    return None


def _is_workflow(function: AnyFunction | None) -> bool:
    return function is not None and function.kind is FunctionKind.WORKFLOW


def log_lost(run: JobRun) -> None:
    """Log that a worker has lost a job."""
    job = run.job
    log_event("job.lost", logging.WARNING, job=job_id(job.id), function=job.function, lease=run.lease)


async def _attempt(runner: FunctionCalls, run: JobRun) -> Outcome | None:
    """Run a job's function; its outcome, or None if it has settled itself."""
    job, function = run.job, run.function
    if job.options.broken is not None:
        error = TypeError(f"its options have values of other types than they take: {job.options.broken}")
        tell_of_broken(job, error)
        return of_no_use(error)
    if function is None:
        return _leave(runner, job, job.function, "in the program of this worker")
    kind = function.kind
    timeout = None if kind is FunctionKind.WORKFLOW else job.options.timeout  # which counts its time itself
    try:
        call = JobCall.of(runner, function, run)
        calling = run_workflow(runner, run, function) if kind is FunctionKind.WORKFLOW else runner.start(call)
        if timeout is None:
            result = await calling
        else:
            run.deadline = runner.now() + timedelta(seconds=timeout)
            async with time_limit(job.function, timeout):
                result = await calling
        if kind is FunctionKind.MUTATION:
            call.note_end(result)
        if kind is FunctionKind.MUTATION or run.asleep:  # which has settled its job
            return None
        return _hold(function, run, result) if run.issued else outcome_of_result(runner.engine, function, result)
    except Exception as error:
        if isinstance(error, LeaseLost) and not error.from_function:
            raise
        void = runner.engine.store.tokens.void
        if run.issued and not await runner.attempt(lambda: void(job.id, job.attempt), for_ever=True):
            return None  # an external system has completed it already
        return outcome_of_error(runner, run, error)


@dataclass(slots=True, kw_only=True)  # not frozen: see `Call`
class _EndsJob(Call):
    """A call that ends a job of a lease: if it is a mutation, both commit together."""

    engine: Engine
    lease: int

    for_ever: ClassVar[bool] = True

    def finish(self, result: Any) -> Settlement:
        return self.settlement(result, self.engine.clock.now())

    def settlement(self, result: Any, now: datetime) -> Settlement:
        """The settlement of the job, once its mutation has returned."""
        raise NotImplementedError

    async def seal(self, session: Session, answer: Settlement) -> None:
        if not await self.engine.store.jobs.settle_within(session, self.lease, answer):
            raise LeaseLost("The job's lease was lost while it ran; another worker has it.")

    def note_end(self, settled: Settlement) -> None:
        """Note the end of the job: its settlement has committed."""
        raise NotImplementedError

    def outcome_of_error(self, runner: FunctionCalls, error: Exception) -> Outcome:
        """The outcome if the mutation has raised."""
        raise NotImplementedError


@dataclass(slots=True, kw_only=True)  # not frozen: see `Call`
class JobCall(_EndsJob):
    """The call of a job's function. What its mutation returns becomes the settlement of the job."""

    job: JobRun

    @classmethod
    def of(cls, runner: FunctionCalls, function: AnyFunction, run: JobRun) -> JobCall:
        caller = caller_of_job(function)
        return cls(function, run.job.args, caller, job=run, moment=run.moment, engine=runner.engine, lease=run.lease)

    def check(self, *, again: bool = False) -> Coroutine[Any, Any, Arguments]:  # noqa: ARG002 - each does the same
        return check_args(self.function, self.arguments)

    def settlement(self, result: Any, now: datetime) -> Settlement:
        outcome = outcome_of_result(self.engine, self.function, result)
        if self.job.cancels_itself:  # what it has written stays
            outcome = Outcome(JobEvent.CANCELED)
        return settle(self.job.job, outcome, now, 0.0, self.engine.keep)

    def note_end(self, settled: Settlement) -> None:
        if settled.state in FINISHED:  # and was not put off
            self.engine.journal.note_end(self.job.job, settled.state, settled.finished_at)

    def outcome_of_error(self, runner: FunctionCalls, error: Exception) -> Outcome:
        return outcome_of_error(runner, self.job, error)


@dataclass(slots=True, kw_only=True)  # not frozen: see `Call`
class CompletionCall(_EndsJob):
    """The call of an on_complete. It takes the ending of its job, and the settlement of the job is this ending."""

    ended: Job
    ending: Ending
    decided: Settlement | None  # of the attempt, if its end is not stored yet
    threads: list[Future[Any]]

    @property
    def lingering(self) -> list[Future[Any]]:
        return self.threads

    @classmethod
    def of(cls, runner: FunctionCalls, run: JobRun) -> CompletionCall | None:
        """The call for a job that has ended; None if this program has no such function."""
        engine, job, ending = runner.engine, run.job, run.job.ending
        assert ending is not None and job.on_complete is not None  # noqa: PT018, S101 - an ending comes with it
        function = engine.known.find(job.on_complete, job.options.program)
        if function is None:
            return None
        about: dict[str, Any] = {"ended": job, "ending": ending, "decided": run.decided, "threads": run.lingering}
        return cls(function, job.args, caller_of_job(function), engine=engine, lease=run.lease, **about)

    async def check(self, *, again: bool = False) -> Arguments:  # noqa: ARG002 - each attempt does the same
        engine, function, ending = self.engine, self.function, self.ending
        source = engine.registry.find(self.ended.function)
        if ending.state is JobState.FAILED:
            return await self._read(b'{"kind":"failed","error":' + to_json(ending.error or "") + b"}")
        if ending.state is not JobState.SUCCESS:
            return await self._read(_CANCELED)
        result = engine.store.encryption.decrypt(ending.result or "null")
        if source is not None and not source.signature.returns_nothing:
            with suppress(ArgumentsInvalid, ValidationError):  # an annotation may ask for the result as JSON has it
                arguments = await self._read(_CANCELED)
                value = source.signature.result_of_json(result)
                is_any = isinstance(arguments["result"], dict)
                success = {"kind": "success", "value": value} if is_any else Success(value)
                return function.signature.check({**arguments, "result": success})
        return await self._read(b'{"kind":"success","value":' + result.encode() + b"}")

    def settlement(self, result: Any, now: datetime) -> Settlement:  # noqa: ARG002 - nobody asks for it
        settled = complete(self.ended, self.ending, now, self.engine.keep)
        if self.decided is not None:  # nothing of the ending is stored, so the job ends as one without on_complete
            settled.event = self.decided.event
        return settled

    def note_end(self, settled: Settlement) -> None:
        journal, decided = self.engine.journal, self.decided
        if decided is not None and decided.failed is not None:
            journal.note_attempt(self.ended, decided.event)
            journal.note_failure(self.ended, decided)
        journal.note_end(self.ended, settled.state, settled.finished_at)

    def outcome_of_error(self, runner: FunctionCalls, error: Exception) -> Outcome:
        if isinstance(error, Snooze):
            return _snooze(runner, self.ended, error)
        tell_of_failed_on_complete(self.ended, error)
        return failure(error)

    async def _read(self, result: bytes) -> Arguments:
        """Check its arguments from JSON: ``work_id``, ``result`` and ``context``."""
        number, context = job_id(self.ended.id).encode(), (self.ended.options.context or "null").encode()
        text = b'{"work_id":"' + number + b'","result":' + result + b',"context":' + context + b"}"
        return await check_args(self.function, text)


def outcome_of_error(runner: FunctionCalls, run: JobRun, error: Exception) -> Outcome:
    """The outcome of an attempt that raised."""
    job = run.job
    if isinstance(error, Withdrawn):
        return Outcome(JobEvent.HANDED_BACK)
    if (
        isinstance(error, Overloaded)
        and not error.from_function
        and (error.facts.get("function"), error.facts.get("depth")) == (job.function, 0)
    ):
        return replace(_park(job, f"Overloaded: {error}"), blocks_key=True)  # so another worker need not take it
    if run.cancelled.is_set():
        return Outcome(JobEvent.CANCELED)
    if isinstance(error, TaskConditionFailed) and job.options.task is not None and "reason" in error.facts:
        return Outcome(JobEvent.SKIPPED, error=failure(error).error)
    return _snooze(runner, job, error) if isinstance(error, Snooze) else failure(error)


def _snooze(runner: FunctionCalls, job: Job, error: Snooze) -> Outcome:
    wait, reason = error.wait(runner.now()), storable(message_of(error))[:_LONGEST_ERROR]
    log_event("job.snoozed", job=job_id(job.id), function=job.function, seconds=wait.total_seconds(), reason=reason)
    return Outcome(JobEvent.SNOOZED, delay=wait, error=f"Snooze: {reason}")


def outcome_of_result(engine: Engine, function: AnyFunction, result: object) -> Outcome:
    """Give the outcome of a function that has returned."""
    if isinstance(result, Outcome):  # of a reactive task, which may end otherwise
        return result
    return Outcome(JobEvent.RETURNED, result=result_text(engine, function, result))


def _hold(function: AnyFunction, run: JobRun, result: object) -> Outcome:
    """The outcome of a job that an external system will complete."""
    if not run.held:
        raise ContextError(f"{function.name} went on after complete_later had failed.", fix="Let it raise.")
    if result is not None:
        raise ResultInvalid(
            f"{function.name} returned a result after complete_later, which promises a later one.", fix="Return None."
        )
    return Outcome(JobEvent.HELD)


def _leave(runner: FunctionCalls, job: Job, function: str, where: str) -> Outcome:
    """The outcome of a job whose function this program lacks: any worker that has it may take it at once."""
    left = runner.engine.known.leave(function, runner.engine.clock.monotonic() + _PARKED_FOR.total_seconds())
    reason = f"FunctionNotFound: no function {function} is declared {where}"
    return _park(job, reason, timedelta(0) if left else _PARKED_FOR)


def _park_unread(job: Job, unread: str) -> Outcome:
    return _park(job, f"OptionsUnread: this worker cannot read what is asked for: {unread}")


def _park(job: Job, reason: str, delay: timedelta = _PARKED_FOR) -> Outcome:
    """The outcome of a job that this worker cannot begin; another one may, or this one later."""
    log_event("job.parked", logging.WARNING, job=job_id(job.id), function=job.function, reason=reason)
    return Outcome(JobEvent.SNOOZED, delay=delay, error=storable(reason))


def failure(error: BaseException) -> Outcome:
    """The outcome of a job that raised."""
    text, trace = storable(error_text(error)[:_LONGEST_ERROR]), storable(trace_text(error)[-_LONGEST_ERROR:])
    again = not isinstance(error, NonRetryableError)
    return Outcome(JobEvent.RAISED, error=text, traceback=trace, retryable=again, cause=error)


def outcome_of_interrupt(run: JobRun) -> Outcome:
    """The outcome of a job that was stopped midway. A mutation left no effect; an action that has begun may have."""
    restarts = run.job.options.restartable and run.job.options.retry is None
    if run.job.kind != "action" or not run.begun or run.job.ending is not None or restarts:
        return Outcome(JobEvent.HANDED_BACK)
    return Outcome(JobEvent.LOST, error="WorkerLost: the worker stopped before this job had ended")


def result_text(engine: Engine, function: AnyFunction, result: object) -> str:
    """A result as it is stored with a job; LimitExceeded if it is too large."""
    if result is None and function.signature.returns_nothing:  # as those of most jobs
        return engine.store.encryption.encrypt("null")
    kept = function.signature.result_json(result)
    limit = engine.config.max_result_bytes
    if len(kept) > limit:
        raise LimitExceeded(
            f"{function.name} returned {len(kept)} bytes; a job's result may have {limit}.",
            fix="Store the data in a table, and return its id.",
            limit=limit,
        )
    return engine.store.encryption.encrypt(kept.decode())


def decrypt_job(encryption: Encryption, job: Job) -> None:
    """Decrypt a claimed job. One that no key fits is parked, as one whose options another version has written."""
    if job.ending is None and job.options.context is None and not is_encrypted(job.args):
        return
    try:
        job.args, job.options = encryption.decrypt(job.args), job.options.with_context(encryption.decrypt)
        if job.ending is not None:  # its result is stored again as it is
            encryption.decrypt(job.ending.result or "")
    except Undecryptable as error:
        job.options = replace(job.options, unread=error_text(error))
