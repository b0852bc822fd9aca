"""`ctx.scheduler`: functions to run later, as jobs without a pool.

In a mutation a job is part of the transaction; elsewhere it is stored at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, ParamSpec, TypeVar

from penstock.calls.enqueue.jobs import JobCalls
from penstock.calls.enqueue.tokens import complete, fail
from penstock.crons.schedule import LocalTime
from penstock.errors import ContextError
from penstock.functions.function import (
    ActionFunction,
    AnyFunction,
    FunctionKind,
    MutationFunction,
    WorkflowFunction,
)
from penstock.jobs.job import DEFAULT_POOL, JobId, JobStatus, job_id, job_uuid
from penstock.pools.results import Completion
from penstock.transaction.tracking import track_calls
from penstock.transaction.words import refuses_other_words

P = ParamSpec("P")
R = TypeVar("R")


@refuses_other_words
class Scheduler:
    """Runs functions later. A scheduled mutation takes effect exactly once, a scheduled action at most once."""

    __slots__ = ("_calls",)

    def __init__(self, calls: JobCalls) -> None:
        self._calls = calls

    @track_calls
    async def run_after(
        self,
        delay: timedelta,
        function: MutationFunction[Any, P, R, Any] | ActionFunction[Any, P, R, Any] | WorkflowFunction[Any, P, R, Any],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> JobId[R]:
        """Run a function that is no query with these arguments, this long after ``ctx.now()``; the id of its job.

        In a mutation the job exists if and only if the transaction commits.

        Raises:
            ArgumentsInvalid: The function does not take these arguments.
            ValueInvalid: The delay is negative, or over five years.
            LimitExceeded: The arguments are too large, or too many jobs are scheduled at once.
        """
        call = self._schedule(self._calls.after(delay, "run_after"), function, args, kwargs)
        return await self._calls.sending(DEFAULT_POOL, function, call)

    @track_calls
    async def run_at(
        self,
        time: datetime | LocalTime,
        function: MutationFunction[Any, P, R, Any] | ActionFunction[Any, P, R, Any] | WorkflowFunction[Any, P, R, Any],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> JobId[R]:
        """Run a function at a point in time, or at once if it is past. Raises the errors of `run_after`.

        ``LocalTime(datetime(2030, 3, 31, 9), "Europe/Prague")`` is nine o'clock there.
        """
        call = self._schedule(self._calls.at(time, "run_at"), function, args, kwargs)
        return await self._calls.sending(DEFAULT_POOL, function, call)

    @track_calls
    async def cancel(self, job: JobId) -> None:
        """Ask for a job to be canceled.

        A pending job never starts, once this has committed; an action that runs sees ``ctx.cancelled`` true. A job that
        has ended, or never existed, is left alone.

        Raises:
            IdInvalid: It is not an id of a job.
        """
        await self._calls.cancel([job_uuid(job)])

    @track_calls
    async def retry(self, job: JobId) -> bool:
        """Run a job again that has failed or was canceled; False if it is in another state, or its status has expired.

        Its attempts are counted from zero; failed ones stay in its status.

        Raises:
            ContextError: The ctx is one of a mutation; retry in an action, or with a backend.
            IdInvalid: It is not an id of a job.
        """
        return bool(await self._calls.retry([job_uuid(job)]))

    @track_calls
    async def get(self, job: JobId) -> JobStatus | None:
        """The status of a job, or None; see `JobReader.get`."""
        return await self._calls.look(job_uuid(job))

    @track_calls
    async def complete(self, token: str, result: Any = None) -> Completion:
        """End a job with success that waits for an outside system; see `Workpool.complete`."""
        return await complete(self._calls, token, result)

    @track_calls
    async def fail(self, token: str, error: str, *, retryable: bool = True) -> Completion:
        """End an attempt at such a job with failure; see `Workpool.fail`."""
        return await fail(self._calls, token, error, retryable=retryable)

    async def _schedule(
        self, run_at: datetime, function: AnyFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> JobId[Any]:
        function = self._calls.function(function)
        if function.kind is FunctionKind.QUERY:
            raise ContextError(f"{function.name} is a query. Nobody would see the result of a later run.")
        job = self._calls.new_job(function, function.signature.bind(args, kwargs), run_at)
        await self._calls.enqueue(job)
        return job_id(job.id)
