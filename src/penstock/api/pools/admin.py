"""Looking after the work of a pool: cancel it, run it again, end it from outside, and change the pool's limit.

A retry or a new limit changes rows at rest, which a transaction of a function never does. Actions and programs ask for
it, and it takes effect at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypedDict, Unpack

from penstock.api.callers import for_programs, for_writers
from penstock.api.guests import Guests
from penstock.calls.enqueue.jobs import JobCalls
from penstock.calls.enqueue.tokens import complete, fail
from penstock.calls.run.engine import Engine
from penstock.calls.run.running import NONE_HOLDS_AFTER
from penstock.errors import ContextError, DataError, UsageError
from penstock.functions.function import Function
from penstock.jobs.filter import JobFilter
from penstock.jobs.job import JobId, job_uuid
from penstock.pools.pool import PoolDefinition, check_max_parallelism
from penstock.pools.results import Completion

AnyFunction = Function[Any, Any, Any, Any]

_RETRIES = "Work is retried"


class Where(TypedDict, total=False):
    """Conditions on work beside its pool and function; see `JobFilter`."""

    state: str
    name: str
    key: str
    concurrency_key: str
    error: str
    since: datetime
    before: datetime
    on_complete_error: str


class PoolAdmin:
    """Changes the work of a pool, and its limit. The ctx is one of an action, or the backend of a program."""

    def __init__(self, definition: PoolDefinition, guests: Guests) -> None:
        self.definition = definition
        self._guests = guests

    @property
    def name(self) -> str:
        """Its name."""
        return self.definition.name

    # ----- cancel

    @for_writers
    async def cancel(self, calls: JobCalls, work_id: JobId) -> None:
        """Ask for work to be canceled: if it is pending it never starts; if it runs, ``ctx.cancelled`` is true there.

        A mutation may ask, too, and your own transaction. Work that has ended is left alone.

        Raises:
            IdInvalid: It is not an id of a job.
        """
        await calls.cancel([job_uuid(work_id)])

    @for_writers
    async def cancel_all(self, calls: JobCalls, function: AnyFunction | None = None, **where: Unpack[Where]) -> int:
        """Ask for all work of this pool to be canceled that is enqueued by now; how much had not ended.

        Args:
            function: Only calls of this function.
            **where: Further conditions; see `JobFilter`. ``state="pending"`` leaves running work alone.

        Raises:
            UsageError: There is no such condition.
            ValueInvalid: It asks for work that has ended, or a value cannot be.
        """
        return await calls.cancel_all(filter_of(self.name, function, where))

    # ----- retry

    @for_programs(_RETRIES)
    async def retry(self, calls: JobCalls, work_id: JobId) -> bool:
        """Run work again that has failed or was canceled; False if it is in another state, or its status has expired.

        The work keeps its id, arguments and options. It is pending now, its attempts are counted anew, and its
        ``on_complete`` is called again at its end. Its status still shows the attempts that failed.

        Raises:
            ContextError: The ctx is one of a mutation or a query.
            IdInvalid: It is not an id of a job.
        """
        return bool(await calls.retry([job_uuid(work_id)]))

    @for_programs(_RETRIES)
    async def retry_all(self, calls: JobCalls, function: AnyFunction | None = None, **where: Unpack[Where]) -> int:
        """Run all work of this pool again that has failed, the oldest first; how much.

        Args:
            function: Only calls of this function.
            **where: Further conditions; see `JobFilter`. ``state="canceled"`` picks canceled work instead,
                ``error="…"`` work whose error contains this text.

        Raises:
            ContextError: The ctx is one of a mutation or a query.
            UsageError: There is no such condition.
            ValueInvalid: It asks for work that cannot be retried, or a value cannot be.
        """
        return await calls.retry_all(filter_of(self.name, function, where))

    @for_programs(_RETRIES)
    async def retry_on_complete(self, calls: JobCalls, work_id: JobId) -> bool:
        """Call the ``on_complete`` of work again that has raised each time; False if it has not, or is unknown.

        The outcome of the work stays as it is. The attempts of ``on_complete`` are counted anew.

        Raises:
            ContextError: The ctx is one of a mutation or a query.
            IdInvalid: It is not an id of a job.
        """
        return bool(await calls.retry([job_uuid(work_id)], on_complete=True))

    @for_programs(_RETRIES)
    async def retry_all_on_complete(
        self, calls: JobCalls, function: AnyFunction | None = None, **where: Unpack[Where]
    ) -> int:
        """The same for all work of this pool; how much, the oldest first. Takes and raises what `retry_all` does."""
        return await calls.retry_all(filter_of(self.name, function, where), on_complete=True)

    # ----- end it from outside

    @for_programs()
    async def complete(self, calls: JobCalls, token: str, result: Any = None) -> Completion:
        """End work with success, whichever pool it is in; if it has ended before, the first outcome counts.

        Args:
            token: What ``ctx.work.complete_later()`` gave.
            result: Its result; any JSON value.

        Raises:
            TokenInvalid: There is no such token.
            TokenExpired: The token has expired, or its attempt has ended.
            LimitExceeded: The result is too large.
            ContextError: The ctx is one of a mutation or a query, whose transactions end no work.
        """
        return await complete(calls, token, result)

    @for_programs()
    async def fail(self, calls: JobCalls, token: str, error: str, *, retryable: bool = True) -> Completion:
        """End the attempt with failure: it is tried again if its retry policy says so.

        Args:
            token: As for `complete`.
            error: What went wrong.
            retryable: Whether a further attempt makes sense.

        Raises:
            TokenInvalid: There is no such token.
            TokenExpired: The token has expired, or its attempt has ended.
            ValueInvalid: The error is no text.
        """
        return await fail(calls, token, error, retryable=retryable)

    # ----- the limit

    @for_programs(connections=True)
    async def set_max_parallelism(self, calls: JobCalls, number: int) -> None:
        """Change the limit, on all machines at once. It holds until another one is set or declared.

        Running work is not stopped. The call returns after half a second. From then on nothing starts until less work
        runs than the limit allows.

        Raises:
            DeclarationError: It is no whole number from 0 to a million.
        """
        await self._change(calls, max_parallelism=number)

    @for_programs(connections=True)
    async def pause(self, calls: JobCalls) -> None:
        """Start nothing more, on all machines, until `resume`. Work is accepted, and running work goes on.

        Nothing starts once this has returned, after half a second.
        """
        await self._change(calls, paused=True)

    @for_programs(connections=True)
    async def resume(self, calls: JobCalls) -> None:
        """Start work again."""
        await self._change(calls, paused=False)

    async def _change(self, calls: JobCalls, **changes: Any) -> None:
        if calls.in_transaction:
            raise ContextError("A limit cannot change inside a transaction.", fix="Pass the backend.")
        await change_pool(calls.engine, self.name, **changes)


async def change_pool(
    engine: Engine, name: str, *, max_parallelism: int | None = None, paused: bool | None = None
) -> None:
    """Change the limit of a pool, or pause it, on all machines at once; nothing starts beyond it once this returns."""
    if max_parallelism is not None:
        check_max_parallelism(name, max_parallelism)
    if not await engine.store.pools.change(name, max_parallelism=max_parallelism, paused=paused):
        raise DataError(f"The database knows no pool {name!r}.", fix="Start the program that declares it once.")
    engine.store.signals.notify()
    if max_parallelism is not None or paused:
        await engine.machine.sleep(NONE_HOLDS_AFTER)


def filter_of(pool: str, function: Any, where: Mapping[str, Any]) -> JobFilter:
    """The filter for work of a pool."""
    if unknown := sorted(where.keys() - Where.__annotations__.keys()):
        words = ", ".join(Where.__annotations__)
        raise UsageError(f"Jobs have no property {', '.join(unknown)}.", fix=f"Properties are: {words}.")
    if function is not None and not isinstance(function, Function):
        raise ContextError(f"{function!r} is not a function of an app.", fix="Pass the decorated function.")
    return JobFilter(pool, None if function is None else function.name, **where)
