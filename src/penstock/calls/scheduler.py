"""`ctx.scheduler`: functions to run later, as jobs.

Owns the words and the checks. In a mutation a job is part of the transaction; elsewhere it is stored at once.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ParamSpec
from uuid import UUID

from penstock.errors import ContextError, LimitExceeded, ValueInvalid
from penstock.functions.function import ActionFunction, AnyFunction, Function, FunctionKind, MutationFunction
from penstock.jobs.job import JobId, JobStatus, NewJob, job_id, job_uuid
from penstock.jobs.states import JobState
from penstock.transaction.transaction import Scope
from penstock.values import decode_json, encode_json, text_bytes

if TYPE_CHECKING:
    from penstock.calls.run import Runner

P = ParamSpec("P")
Track = Callable[[Coroutine[Any, Any, Any]], Coroutine[Any, Any, Any]]

_FARTHEST = timedelta(days=5 * 366)


class Scheduler:
    """Runs functions later. A scheduled mutation takes effect exactly once, a scheduled action at most once."""

    __slots__ = ("_runner", "_scope", "_track")

    def __init__(self, runner: Runner, scope: Scope | None, track: Track | None = None) -> None:
        self._runner = runner
        self._scope = scope
        self._track: Track = scope.track if scope is not None else track or _as_it_is

    def run_after(
        self,
        delay: timedelta,
        function: MutationFunction[Any, P, Any, Any] | ActionFunction[Any, P, Any, Any],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Coroutine[Any, Any, JobId]:
        """Run a mutation or an action with these arguments, this long after ``ctx.now()``; the id of its job.

        In a mutation the job exists if and only if the transaction commits.

        Raises:
            ArgumentsInvalid: The function does not take these arguments.
            ValueInvalid: The delay is negative, or over five years.
            LimitExceeded: The arguments are too large, or too many jobs are scheduled at once.
        """
        return self._track(self._run_after(delay, function, args, kwargs))

    def run_at(
        self,
        time: datetime,
        function: MutationFunction[Any, P, Any, Any] | ActionFunction[Any, P, Any, Any],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Coroutine[Any, Any, JobId]:
        """The same at a point in time, or at once if it is past. Raises what `run_after` raises."""
        return self._track(self._run_at(time, function, args, kwargs))

    def cancel(self, job: JobId) -> Coroutine[Any, Any, None]:
        """Ask for a job to be canceled.

        A pending job never starts, once this has committed; an action that runs sees ``ctx.cancelled`` set. A job that
        has ended, or never existed, is left alone.

        Raises:
            IdInvalid: It is not an id of a job.
        """
        return self._track(self._cancel(job))

    def get(self, job: JobId) -> Coroutine[Any, Any, JobStatus | None]:
        """How a job stands; None if it is unknown, or ended so long ago that its status is gone.

        Raises:
            IdInvalid: It is not an id of a job.
        """
        return self._track(self._get(job))

    # ----- steps

    async def _run_after(
        self, delay: timedelta, function: AnyFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> JobId:
        given: object = delay
        if not isinstance(given, timedelta):
            raise ValueInvalid(f"run_after takes a timedelta, not {delay!r}.", fix="Write timedelta(seconds=…).")
        if not timedelta(0) <= delay <= _FARTHEST:
            raise ValueInvalid(f"A delay of {delay} is negative, or longer than five years.")
        return await self._schedule(self._now() + delay, function, args, kwargs)

    async def _run_at(
        self, time: datetime, function: AnyFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> JobId:
        given: object = time
        if not isinstance(given, datetime) or given.tzinfo is None:
            raise ValueInvalid(f"run_at takes an aware datetime, not {time!r}.", fix="Attach a time zone.")
        now = self._now()
        if time > now + _FARTHEST:
            raise ValueInvalid(f"{time} is more than five years ahead.")
        return await self._schedule(max(time.astimezone(UTC), now), function, args, kwargs)

    async def _schedule(
        self, run_at: datetime, function: AnyFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> JobId:
        job = self._job(run_at, function, args, kwargs)
        if self._scope is not None:
            self._scope.transaction.add_job(job)
        else:
            await self._runner.enqueue([job])
        return job_id(job.id)

    def _job(self, run_at: datetime, function: AnyFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> NewJob:
        if not isinstance(function, Function):
            raise ContextError(
                f"{function!r} is not a function of an app, so no worker could find it.",
                fix="Decorate it with @app.internal_mutation or @app.internal_action.",
            )
        if function.kind is FunctionKind.QUERY:
            raise ContextError(f"{function.name} is a query: run later, nobody would see its result.")
        if self._runner.engine.registry.find(function.name) is not function:
            raise ContextError(f"{function.name} is not a function of this app.")
        checked = function.signature.check(function.signature.bind(args, kwargs))
        text = encode_json(checked, f"The arguments of {function.name}")
        limit = self._runner.engine.config.max_job_argument_bytes
        size = text_bytes(text)
        if size > limit:
            raise LimitExceeded(
                f"The arguments of {function.name} have {size} bytes; a job may have {limit}.",
                fix="Store the data in a table, and pass its id.",
                limit=limit,
            )
        uuid = UUID(int=self._runner.engine.clock.uuid7())
        return NewJob(id=uuid, function=function.name, kind=function.kind.value, args=text, run_at=run_at)

    async def _cancel(self, job: JobId) -> None:
        uuid = job_uuid(job)
        if self._scope is not None:
            self._scope.transaction.add_cancel(uuid)
        else:
            await self._runner.request_cancel([uuid])

    async def _get(self, job: JobId) -> JobStatus | None:
        uuid = job_uuid(job)
        if self._scope is None:
            return await self._runner.find_job(uuid)
        transaction = self._scope.transaction
        for new in transaction.jobs:
            if new.id == uuid:
                return _status_of_new(new, transaction.now)
        async with self._scope.lock:
            return await transaction.store.jobs.find(transaction.session, uuid, transaction.now)

    def _now(self) -> datetime:
        return self._runner.now() if self._scope is None else self._scope.transaction.now


def _status_of_new(job: NewJob, now: datetime) -> JobStatus:
    return JobStatus(
        id=job_id(job.id),
        function=job.function,
        args=decode_json(job.args),
        state=JobState.PENDING,
        attempt=0,
        run_at=job.run_at,
        enqueued_at=now,
    )


def _as_it_is(call: Coroutine[Any, Any, Any]) -> Coroutine[Any, Any, Any]:
    return call
