"""How work of a pool is run again that has ended, one or many.

Owns the words. A retry changes jobs at rest, which a transaction of a function never does: it is asked for in actions
and by programs, and takes effect at once.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

from penstock.calls.enqueue.jobs import JobCalls, calls_of
from penstock.errors import ContextError, UsageError
from penstock.functions.function import Function
from penstock.jobs.filter import JobFilter
from penstock.jobs.job import JobId, job_uuid

if TYPE_CHECKING:
    from penstock.api.callers import AsyncWaiter, SyncWaiter


class Where(TypedDict, total=False):
    """What work may be told apart by, beside its pool and function; see `JobFilter`."""

    state: str
    name: str
    key: str
    concurrency_key: str
    error: str
    since: datetime
    before: datetime
    on_complete_error: str


class Retrying:
    """What can be retried: the work of a pool."""

    name: Any

    @overload
    def retry(self, ctx: AsyncWaiter, work_id: JobId) -> Coroutine[Any, Any, bool]: ...
    @overload
    def retry(self, ctx: SyncWaiter, work_id: JobId) -> bool: ...
    def retry(self, ctx: Any, work_id: JobId) -> Any:
        """Run work again that has failed or was canceled; False if it is in another state, or its status has expired.

        It is the same work with the same arguments and options: it is pending now, its attempts begin anew, and when it
        has ended again its ``on_complete`` is called again. Its attempts that failed stay in its status.

        Args:
            ctx: The ctx of an action, or the backend of a program.
            work_id: Its id.

        Raises:
            ContextError: The ctx is one of a mutation or a query.
            IdInvalid: It is not an id of a job.
        """
        calls = _calls(ctx)
        return calls.answer(_retry(calls, work_id))

    @overload
    def retry_all(
        self,
        ctx: AsyncWaiter,
        function: Function[Any, Any, Any, Any] | None = None,
        **where: Unpack[Where],
    ) -> Coroutine[Any, Any, int]: ...
    @overload
    def retry_all(
        self, ctx: SyncWaiter, function: Function[Any, Any, Any, Any] | None = None, **where: Unpack[Where]
    ) -> int: ...
    def retry_all(self, ctx: Any, function: Any = None, **where: Any) -> Any:
        """Run all work of this pool again that has failed, the oldest first; how much.

        Args:
            ctx: As for `retry`.
            function: Only calls of this function.
            **where: Only work for which this holds, too; see `JobFilter`. ``state="canceled"`` for what was canceled
                instead, ``error="…"`` for what failed with an error that contains this.

        Raises:
            ContextError: The ctx is one of a mutation or a query.
            UsageError: Work has nothing by this name to be told apart by.
            ValueInvalid: It asks for work that cannot be retried, or with a value that cannot be.
        """
        calls = _calls(ctx)
        return calls.answer(calls.retry_all(filter_of(self.name, function, where)))

    @overload
    def retry_on_complete(self, ctx: AsyncWaiter, work_id: JobId) -> Coroutine[Any, Any, bool]: ...
    @overload
    def retry_on_complete(self, ctx: SyncWaiter, work_id: JobId) -> bool: ...
    def retry_on_complete(self, ctx: Any, work_id: JobId) -> Any:
        """Call the ``on_complete`` of work again that has raised each time; False if it has not, or is unknown.

        How the work has ended stays as it is, and is what ``on_complete`` is told; its attempts begin anew.

        Args:
            ctx: As for `retry`.
            work_id: Its id.

        Raises:
            ContextError: The ctx is one of a mutation or a query.
            IdInvalid: It is not an id of a job.
        """
        calls = _calls(ctx)
        return calls.answer(_retry(calls, work_id, on_complete=True))

    @overload
    def retry_all_on_complete(
        self,
        ctx: AsyncWaiter,
        function: Function[Any, Any, Any, Any] | None = None,
        **where: Unpack[Where],
    ) -> Coroutine[Any, Any, int]: ...
    @overload
    def retry_all_on_complete(
        self, ctx: SyncWaiter, function: Function[Any, Any, Any, Any] | None = None, **where: Unpack[Where]
    ) -> int: ...
    def retry_all_on_complete(self, ctx: Any, function: Any = None, **where: Any) -> Any:
        """The same for all work of this pool; how much, the oldest first.

        Args:
            ctx: As for `retry`.
            function: Only for calls of this function.
            **where: Only for work for which this holds, too; see `JobFilter`.

        Raises:
            ContextError: The ctx is one of a mutation or a query.
            UsageError: Work has nothing by this name to be told apart by.
            ValueInvalid: It asks for work that has not ended, or with a value that cannot be.
        """
        calls = _calls(ctx)
        return calls.answer(calls.retry_all(filter_of(self.name, function, where), on_complete=True))


def filter_of(pool: str, function: Any, where: Mapping[str, Any]) -> JobFilter:
    """The filter for work of a pool.

    Raises:
        ContextError: What is given as a function is none.
        UsageError: Work has nothing by this name to be told apart by.
        ValueInvalid: A value cannot be.
    """
    if unknown := sorted(where.keys() - Where.__annotations__.keys()):
        words = ", ".join(Where.__annotations__)
        raise UsageError(f"Jobs have no property {', '.join(unknown)}.", fix=f"Properties are: {words}.")
    if function is not None and not isinstance(function, Function):
        raise ContextError(f"{function!r} is not a function of an app.", fix="Pass the decorated function.")
    return JobFilter(pool, None if function is None else function.name, **where)


async def _retry(calls: JobCalls, work_id: JobId, *, on_complete: bool = False) -> bool:
    return bool(await calls.retry([job_uuid(work_id)], on_complete=on_complete))


def _calls(ctx: Any) -> JobCalls:
    calls = calls_of(ctx)
    calls.check_outside("Work is retried")
    return calls
