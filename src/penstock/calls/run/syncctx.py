"""The ctx of functions written with def: the same words, but each call waits and gives its result.

Owns the bridge from a thread to the event loop. The functions run in threads; their calls run on the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any, Generic, Never, NoReturn, ParamSpec, Protocol, TypeVar

from penstock.calls.enqueue.messages import SyncSender
from penstock.calls.enqueue.scheduler import Scheduler
from penstock.calls.locks.blocks import LEASE, WAIT, SyncLockBlock, refuse_in_transaction
from penstock.calls.run.bridge import Bridge
from penstock.calls.run.context import ActionCtx, MutationCtx, QueryCtx
from penstock.calls.run.ratelimits import RateStatus
from penstock.calls.run.work import SyncActionWork
from penstock.clock import Random
from penstock.functions.function import ActionFunction, FunctionKind, MutationFunction, QueryFunction
from penstock.jobs.job import JobId, JobStatus
from penstock.jobs.work import Work
from penstock.pools.results import Completion
from penstock.schema.ids import Id, RowId
from penstock.schema.index import Index
from penstock.schema.table import Table
from penstock.transaction.aggregates import Groups
from penstock.transaction.database import DatabaseReader, DatabaseWriter
from penstock.transaction.pages import Page
from penstock.transaction.scan import Scan
from penstock.transaction.segments import Direction
from penstock.transaction.words import refuses_other_words

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound=Table)


class Wait(Protocol):
    """Waits for a call."""

    def __call__(self, call: Coroutine[Any, Any, R], /) -> R:
        """Its result."""


@refuses_other_words
class SyncQueryCtx:
    """The ctx of a query written with def; see `QueryCtx`."""

    db: SyncDatabaseReader
    of_kind = FunctionKind.QUERY

    def __init__(self, ctx: QueryCtx, loop: asyncio.AbstractEventLoop) -> None:
        self._ctx = ctx
        self._wait = Bridge(loop)
        self.db = SyncDatabaseReader(ctx.db, self._wait)
        self.job_calls = ctx.job_calls.waiting(self._wait)

    def now(self) -> datetime:
        """See `QueryCtx.now`."""
        return self._ctx.now()

    @property
    def random(self) -> Random:
        """See `QueryCtx.random`."""
        return self._ctx.random

    @property
    def is_job(self) -> bool:
        """See `QueryCtx.is_job`."""
        return self._ctx.is_job

    @property
    def work(self) -> Work:
        """See `QueryCtx.work`."""
        return self._ctx.work

    def sql(self, query: str, /, **values: Any) -> list[dict[str, Any]]:
        """See `QueryCtx.sql`."""
        return self._wait(self._ctx.sql(query, **values))

    def with_lock(self, *_args: Any, **_options: Any) -> NoReturn:
        """See `QueryCtx.with_lock`."""
        refuse_in_transaction()

    def run_query(self, function: QueryFunction[Any, P, R, Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """See `QueryCtx.run_query`."""
        return self._wait(self._ctx.run_query(function, *args, **kwargs))


@refuses_other_words
class SyncMutationCtx(SyncQueryCtx):
    """The ctx of a mutation written with def; see `MutationCtx`."""

    db: SyncDatabaseWriter
    of_kind = FunctionKind.MUTATION

    def __init__(self, ctx: MutationCtx, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(ctx, loop)
        self._mutation = ctx
        self.db = SyncDatabaseWriter(ctx.db, self._wait)
        self.scheduler = SyncScheduler(ctx.scheduler, self._wait)
        self.outbox = SyncSender(ctx.outbox, self._wait)

    def rate_limit(self, name: str, key: str = "", *, count: int = 1, reserve: bool = False) -> RateStatus:
        """See `MutationCtx.rate_limit`."""
        return self._wait(self._mutation.rate_limit(name, key, count=count, reserve=reserve))

    def check_fence(self, key: str, fence: int) -> None:
        """See `MutationCtx.check_fence`."""
        self._wait(self._mutation.check_fence(key, fence))

    def run_mutation(self, function: MutationFunction[Any, P, R, Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """See `MutationCtx.run_mutation`."""
        return self._wait(self._mutation.run_mutation(function, *args, **kwargs))


@refuses_other_words
class SyncActionCtx:
    """The ctx of an action written with def; see `ActionCtx`."""

    of_kind = FunctionKind.ACTION

    def __init__(self, ctx: ActionCtx, loop: asyncio.AbstractEventLoop) -> None:
        self._ctx = ctx
        self._wait = Bridge(loop)
        self.job_calls = ctx.job_calls.waiting(self._wait)
        self.scheduler = SyncScheduler(ctx.scheduler, self._wait)
        self.outbox = SyncSender(ctx.outbox, self._wait)

    @property
    def cancelled(self) -> bool:
        """Whether someone asked for this action's job to stop."""
        return self._ctx.cancelled

    def wait_cancelled(self, seconds: float) -> bool:
        """See `ActionCtx.wait_cancelled`; not without an end, as nothing else ends the wait of a thread."""
        return self._wait(self._ctx.wait_cancelled(seconds))

    def now(self) -> datetime:
        """See `ActionCtx.now`."""
        return self._ctx.now()

    @property
    def random(self) -> Random:
        """See `ActionCtx.random`."""
        return self._ctx.random

    @property
    def is_job(self) -> bool:
        """See `ActionCtx.is_job`."""
        return self._ctx.is_job

    @property
    def work(self) -> SyncActionWork:
        """See `ActionCtx.work`."""
        return SyncActionWork(self._ctx.work, self._wait)

    def rate_limit(self, name: str, key: str = "", *, count: int = 1, reserve: bool = False) -> RateStatus:
        """See `ActionCtx.rate_limit`."""
        return self._wait(self._ctx.rate_limit(name, key, count=count, reserve=reserve))

    def with_lock(self, key: str, *, wait: timedelta = WAIT, lease: timedelta = LEASE) -> SyncLockBlock:
        """See `ActionCtx.with_lock`. No thread is cancelled: `LockLost` comes at the end of the block."""
        return SyncLockBlock(self._ctx.with_lock(key, wait=wait, lease=lease), self._wait)

    def run_query(self, function: QueryFunction[Any, P, R, Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """See `ActionCtx.run_query`."""
        return self._wait(self._ctx.run_query(function, *args, **kwargs))

    def run_mutation(self, function: MutationFunction[Any, P, R, Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """See `ActionCtx.run_mutation`."""
        return self._wait(self._ctx.run_mutation(function, *args, **kwargs))

    def run_action(self, function: ActionFunction[Any, P, R, Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """See `ActionCtx.run_action`."""
        return self._wait(self._ctx.run_action(function, *args, **kwargs))


@refuses_other_words
class SyncDatabaseReader:
    """`ctx.db` of a query written with def; see `DatabaseReader`."""

    def __init__(self, db: DatabaseReader, wait: Bridge) -> None:
        self._db = db
        self._wait = wait

    def get(self, table: type[T], row_id: RowId[T]) -> T | None:
        """See `DatabaseReader.get`."""
        return self._wait(self._db.get(table, row_id))

    def query(self, table: type[T]) -> SyncScan[T]:
        """See `DatabaseReader.query`."""
        return SyncScan(self._db.query(table), self._wait)


@refuses_other_words
class SyncDatabaseWriter(SyncDatabaseReader):
    """`ctx.db` of a mutation written with def; see `DatabaseWriter`."""

    def __init__(self, db: DatabaseWriter, wait: Bridge) -> None:
        super().__init__(db, wait)
        self._writer = db

    def insert(self, row: T, *more: Never) -> Id[T]:
        """See `DatabaseWriter.insert`."""
        return self._wait(self._writer.insert(row, *more))

    def insert_many(self, rows: Iterable[T]) -> list[Id[T]]:
        """See `DatabaseWriter.insert_many`."""
        return self._wait(self._writer.insert_many(list(rows)))  # in the thread, where they may wait

    def patch(self, table: type[T], row_id: RowId[T], /, *more: Never, **changes: Any) -> T:
        """See `DatabaseWriter.patch`."""
        return self._wait(self._writer.patch(table, row_id, *more, **changes))

    def replace(self, table: type[T], row_id: RowId[T], row: T) -> T:
        """See `DatabaseWriter.replace`."""
        return self._wait(self._writer.replace(table, row_id, row))

    def delete(self, table: type[T], row_id: RowId[T]) -> None:
        """See `DatabaseWriter.delete`."""
        self._wait(self._writer.delete(table, row_id))


@refuses_other_words
class SyncScan(Generic[T]):
    """A query in a function written with def; see `Scan`."""

    def __init__(self, scan: Scan[T], wait: Bridge) -> None:
        self._scan = scan
        self._wait = wait

    def with_index(self, index: Index, /, **columns: Any) -> SyncScan[T]:
        """See `Scan.with_index`."""
        return SyncScan(self._scan.with_index(index, **columns), self._wait)

    def order(self, direction: Direction) -> SyncScan[T]:
        """See `Scan.order`."""
        return SyncScan(self._scan.order(direction), self._wait)

    def filter(self, predicate: Callable[[T], bool]) -> SyncScan[T]:
        """See `Scan.filter`."""
        return SyncScan(self._scan.filter(predicate), self._wait)

    def take(self, count: int) -> list[T]:
        """See `Scan.take`."""
        return self._wait(self._scan.take(count))

    def first(self) -> T | None:
        """See `Scan.first`."""
        return self._wait(self._scan.first())

    def unique(self) -> T | None:
        """See `Scan.unique`."""
        return self._wait(self._scan.unique())

    def collect(self) -> list[T]:
        """See `Scan.collect`."""
        return self._wait(self._scan.collect())

    def paginate(self, *, cursor: str | None = None, num_items: int = 100) -> Page[T]:
        """See `Scan.paginate`."""
        return self._wait(self._scan.paginate(cursor=cursor, num_items=num_items))

    def count(self) -> int:
        """See `Scan.count`."""
        return self._wait(self._scan.count())

    def sum(self, column: str) -> Any:
        """See `Scan.sum`."""
        return self._wait(self._scan.sum(column))

    def min(self, column: str) -> Any:
        """See `Scan.min`."""
        return self._wait(self._scan.min(column))

    def max(self, column: str) -> Any:
        """See `Scan.max`."""
        return self._wait(self._scan.max(column))

    def group_by(self, *columns: str) -> SyncGroups:
        """See `Scan.group_by`."""
        return SyncGroups(self._scan.group_by(*columns), self._wait)

    def __iter__(self) -> Iterator[T]:
        rows = self._scan.__aiter__()

        async def following() -> list[T]:
            return [row async for row in _one(rows)]

        while found := self._wait(following()):
            yield from found


class SyncGroups:
    """Groups in a function written with def; see `Groups`."""

    def __init__(self, groups: Groups, wait: Bridge) -> None:
        self._groups = groups
        self._wait = wait

    def count(self) -> dict[Any, int]:
        """See `Groups.count`."""
        return self._wait(self._groups.count())

    def sum(self, column: str) -> dict[Any, Any]:
        """See `Groups.sum`."""
        return self._wait(self._groups.sum(column))

    def min(self, column: str) -> dict[Any, Any]:
        """See `Groups.min`."""
        return self._wait(self._groups.min(column))

    def max(self, column: str) -> dict[Any, Any]:
        """See `Groups.max`."""
        return self._wait(self._groups.max(column))


@refuses_other_words
class SyncScheduler:
    """`ctx.scheduler` of a function written with def; see `Scheduler`."""

    def __init__(self, scheduler: Scheduler, wait: Wait) -> None:
        self._scheduler = scheduler
        self._wait = wait

    def run_after(
        self,
        delay: timedelta,
        function: MutationFunction[Any, P, Any, Any] | ActionFunction[Any, P, Any, Any],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> JobId:
        """See `Scheduler.run_after`."""
        return self._wait(self._scheduler.run_after(delay, function, *args, **kwargs))

    def run_at(
        self,
        time: datetime,
        function: MutationFunction[Any, P, Any, Any] | ActionFunction[Any, P, Any, Any],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> JobId:
        """See `Scheduler.run_at`."""
        return self._wait(self._scheduler.run_at(time, function, *args, **kwargs))

    def cancel(self, job: JobId) -> None:
        """See `Scheduler.cancel`."""
        self._wait(self._scheduler.cancel(job))

    def retry(self, job: JobId) -> bool:
        """See `Scheduler.retry`."""
        return self._wait(self._scheduler.retry(job))

    def get(self, job: JobId) -> JobStatus | None:
        """See `Scheduler.get`."""
        return self._wait(self._scheduler.get(job))

    def complete(self, token: str, result: Any = None) -> Completion:
        """See `Scheduler.complete`."""
        return self._wait(self._scheduler.complete(token, result))

    def fail(self, token: str, error: str, *, retryable: bool = True) -> Completion:
        """See `Scheduler.fail`."""
        return self._wait(self._scheduler.fail(token, error, retryable=retryable))


async def _one(rows: Any) -> Any:
    """The next item of an async iterator, or nothing."""
    try:
        yield await rows.__anext__()
    except StopAsyncIteration:
        return
