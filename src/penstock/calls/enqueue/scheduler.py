"""`ctx.scheduler`: functions to run later, as jobs without a pool.

In a mutation a job is part of the transaction; elsewhere it is stored at once.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from datetime import datetime, timedelta
from typing import Any, ParamSpec

from penstock.calls.enqueue.jobs import JobCalls
from penstock.errors import ContextError
from penstock.functions.function import ActionFunction, AnyFunction, FunctionKind, MutationFunction
from penstock.jobs.job import DEFAULT_POOL, JobId, JobStatus, job_id, job_uuid
from penstock.pools.results import Completion
from penstock.transaction.words import refuses_other_words

P = ParamSpec("P")


@refuses_other_words
class Scheduler:
    """Runs functions later. A scheduled mutation takes effect exactly once, a scheduled action at most once."""

    __slots__ = ("_calls",)

    def __init__(self, calls: JobCalls) -> None:
        self._calls = calls

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
        call = self._run_after(delay, function, args, kwargs)
        return self._calls.track(self._calls.sending(DEFAULT_POOL, function, call))

    def run_at(
        self,
        time: datetime,
        function: MutationFunction[Any, P, Any, Any] | ActionFunction[Any, P, Any, Any],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Coroutine[Any, Any, JobId]:
        """The same at a point in time, or at once if it is past. Raises the errors of `run_after`."""
        call = self._run_at(time, function, args, kwargs)
        return self._calls.track(self._calls.sending(DEFAULT_POOL, function, call))

    def cancel(self, job: JobId) -> Coroutine[Any, Any, None]:
        """Ask for a job to be canceled.

        A pending job never starts, once this has committed; an action that runs sees ``ctx.cancelled`` true. A job that
        has ended, or never existed, is left alone.

        Raises:
            IdInvalid: It is not an id of a job.
        """
        return self._calls.track(self._cancel(job))

    def retry(self, job: JobId) -> Coroutine[Any, Any, bool]:
        """Run a job again that has failed or was canceled; False if it is in another state, or its status has expired.

        Its attempts begin anew; those that failed stay in its status.

        Raises:
            ContextError: The ctx is one of a mutation; retry in an action, or with a backend.
            IdInvalid: It is not an id of a job.
        """
        return self._calls.track(self._retry(job))

    def get(self, job: JobId) -> Coroutine[Any, Any, JobStatus | None]:
        """The status of a job; None if it is unknown, or its status has expired.

        Raises:
            IdInvalid: It is not an id of a job.
        """
        return self._calls.track(self._get(job))

    def complete(self, token: str, result: Any = None) -> Coroutine[Any, Any, Completion]:
        """End a job with success that waits for an outside system; see `Workpool.complete`."""
        return self._calls.track(self._calls.complete(token, result))

    def fail(self, token: str, error: str, *, retryable: bool = True) -> Coroutine[Any, Any, Completion]:
        """End an attempt at such a job with failure; see `Workpool.fail`."""
        return self._calls.track(self._calls.fail(token, error, retryable=retryable))

    # ----- steps

    async def _run_after(
        self, delay: timedelta, function: AnyFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> JobId:
        return await self._schedule(self._calls.after(delay, "run_after"), function, args, kwargs)

    async def _run_at(
        self, time: datetime, function: AnyFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> JobId:
        return await self._schedule(self._calls.at(time, "run_at"), function, args, kwargs)

    async def _schedule(
        self, run_at: datetime, function: AnyFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> JobId:
        self._calls.check_function(function)
        if function.kind is FunctionKind.QUERY:
            raise ContextError(f"{function.name} is a query. Nobody would see the result of a later run.")
        job = self._calls.new_job(function, function.signature.bind(args, kwargs), run_at)
        await self._calls.enqueue(job)
        return job_id(job.id)

    async def _cancel(self, job: JobId) -> None:
        await self._calls.cancel([job_uuid(job)])

    async def _retry(self, job: JobId) -> bool:
        return bool(await self._calls.retry([job_uuid(job)]))

    async def _get(self, job: JobId) -> JobStatus | None:
        return await self._calls.find(job_uuid(job))
