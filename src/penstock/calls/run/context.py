"""The ctx, the first argument of a function: all it may do, and nothing else.

Owns the three kinds of ctx for functions written with async def; `sync` has their twins for def.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, ParamSpec, TypeVar

from penstock.calls.call import Call
from penstock.calls.enqueue.jobreader import JobReader
from penstock.calls.enqueue.jobs import JobCalls
from penstock.calls.enqueue.messages import Sender
from penstock.calls.enqueue.scheduler import Scheduler
from penstock.calls.locks.blocks import LEASE, WAIT, LockBlock, OnLost, check_fence
from penstock.calls.run.auth import Auth, SigningAuth
from penstock.calls.run.jobrun import no_work
from penstock.calls.run.ratelimits import RateStatus, policy_of, take_tokens
from penstock.calls.run.runner import FunctionCalls
from penstock.calls.run.sql import plain, prepare_sql
from penstock.calls.run.storage import Storage, StorageReader, StorageWriter
from penstock.calls.run.work import ActionWork
from penstock.clock import Random, random_of
from penstock.errors import ContextError, DataError
from penstock.functions.component import own_function, own_name
from penstock.functions.function import ActionFunction, AnyFunction, FunctionKind, MutationFunction, QueryFunction
from penstock.functions.registry import make_handle, read_handle
from penstock.identity.caller import RequestInfo
from penstock.identity.identity import Identity
from penstock.jobs.job import Work
from penstock.observe import practices
from penstock.schema.table import Table
from penstock.search.vectors import VectorsOf
from penstock.transaction.database import DatabaseReader, DatabaseWriter
from penstock.transaction.tracking import Calls, OfCall, track_calls
from penstock.transaction.transaction import Scope
from penstock.transaction.vectors import DEFAULT_LIMIT, VectorHit, search_vectors
from penstock.transaction.words import refuses_other_words

P = ParamSpec("P")
R = TypeVar("R")
Row = TypeVar("Row", bound=Table)


@refuses_other_words
class QueryCtx(OfCall):
    """The ctx of a query: one snapshot to read.

    Attributes:
        db: Typed tables.
    """

    db: DatabaseReader
    of_kind = FunctionKind.QUERY

    def __init__(self, runner: FunctionCalls, call: Call, scope: Scope) -> None:
        self._runner = runner
        self._call = call
        self._scope = self._calls = scope
        self.db = DatabaseReader(scope)

    @property
    def auth(self) -> Auth:
        """The caller. A live query that asks runs once for each user, and otherwise once for all of them."""
        return Auth(self._scope, self._scope.transaction.identity, self._call.caller.refusal)

    @property
    def request(self) -> RequestInfo | None:
        """The request that the call came with; None in jobs, and in calls from Python.

        A live query that reads it runs once for each connection, and otherwise once for all of them.
        """
        return self._scope.transaction.request()

    @property
    def job_calls(self) -> JobCalls:
        """Jobs, as pools enqueue and look at them."""
        return JobCalls(self._runner, self._scope)

    @property
    def storage(self) -> StorageReader:
        """Stored files."""
        return StorageReader(self.job_calls, self._call.caller)

    @property
    def jobs(self) -> JobReader:
        """The statuses of jobs; in a mutation also those of the jobs that it enqueues."""
        return JobReader(self.job_calls, self._scope.transaction)

    def handle_of(self, function: AnyFunction, /) -> str:
        """A handle of a function, to give to a component or to store: text that is the same in each process.

        Args:
            function: A function of this program, or of the component whose function this is.

        Raises:
            ContextError: It is not a function of this program.
        """
        return make_handle(self.job_calls.find_function(function))

    def function(self, handle: str, /) -> Any:
        """The function of a handle, to run, schedule or enqueue. Take handles from the program, never from clients.

        Raises:
            FunctionNotFound: The program has no such function any more.
        """
        return read_handle(self._runner.engine.registry, handle)

    def now(self, *, every: timedelta | None = None) -> datetime:
        """The time of this execution, aware, in UTC: the same throughout, and in a retry.

        Args:
            every: Round it down to a multiple of this, counted from 1970: a live query that asks for it runs again when
                the next multiple comes. One that asks without it does not run again because time passes.

        Raises:
            ValueInvalid: `every` is no length of time.
        """
        return self._scope.transaction.time(every)

    @property
    def random(self) -> Random:
        """Random numbers of this execution: a retry gets the same ones."""
        return self._scope.transaction.random

    @property
    def is_job(self) -> bool:
        """Whether this runs in an attempt at a job."""
        return self._call.job is not None

    @property
    def work(self) -> Work:
        """The attempt at a job that this runs in.

        Raises:
            ContextError: It runs in none.
        """
        work = self._call.work
        if work is None:
            raise no_work()
        return work

    @track_calls
    async def check_access(self, function: AnyFunction, /, *args: Any, **kwargs: Any) -> None:
        """Check that the caller may call a function with these arguments.

        Raises:
            AccessDenied: The function's access does not let the caller in.
            NotSignedIn: The same, and the caller has no identity.
        """
        async with self._scope.hold():
            function = own_function(self._calls.component, function)
            call = replace(self._call, function=function)
            await self._runner.check_access(self._scope.transaction, call, function.arguments(args, kwargs))

    @track_calls
    async def sql(
        self, query: str, /, *, reads: Sequence[type[Table]] | None = None, unruled: bool = False, **values: Any
    ) -> list[dict[str, Any]]:
        """Rows of an SQL query that the builder cannot say, in the same snapshot, with ``:named`` values.

        Values come as the database's driver gives them.

        Args:
            query: The query.
            reads: The tables that it reads: a live query then runs again when one of their rows changes, and otherwise
                whenever any row does.
            unruled: Whether it may read all rows. Rules of tables do not hold in SQL: in a program with rules a
                function that acts for its caller has to say so, and choose the caller's rows itself.
            **values: Its values by name.

        Raises:
            ContextError: Rules would not hold, and `unruled` is not given; or the function is one of a component.
            DataError: It is no query, or writes.
            LimitExceeded: It gives more rows than one transaction may read.
        """
        transaction = self._scope.transaction
        if self._scope.component is not None:
            raise ContextError(
                "ctx.sql: the tables of a component have other names in each program, which SQL does not know.",
                fix="Use ctx.db.",
            )
        if self._scope.ruled and transaction.statements.ruled and not unruled:
            raise ContextError(
                "ctx.sql: the rules of tables do not hold in SQL.",
                fix="Choose the caller's rows in the query, and write unruled=True; or use ctx.db.",
            )
        sql, args = prepare_sql(query, values, transaction.store.dialect)
        async with self._scope.lock:
            names, rows = await transaction.fetch_read_only(sql, args, reads)
        if len(set(names)) < len(names):
            raise DataError("ctx.sql: two columns of the query have one name.", fix="Name them with AS.")
        return [dict(zip(names, map(plain, row), strict=True)) for row in rows]

    @track_calls
    async def vector_search(
        self, index: VectorsOf[Row], vector: Sequence[float], /, *, limit: int = DEFAULT_LIMIT, **filters: Any
    ) -> list[VectorHit[Row]]:
        """Find the rows whose vectors are the nearest to another one, the nearest first; those of one score by id.

        ``await ctx.vector_search(Message.by_meaning, vector, limit=16, channel=channel)``

        A live query runs again when a row changes that has these values of filters, or had them.

        Args:
            index: A vector index of a table.
            vector: As many floats as the index has dimensions. Its length makes no difference, only its direction.
            limit: The most rows, from 1 to 256.
            **filters: A value that a filter of the index has, or a list of such values; 64 at most.

        Returns:
            Ids and scores of rows that the rules of the table let the caller read. Where rules leave out rows, only
            the nearest 4,096 are looked at.

        Raises:
            SearchNotReady: The index is being filled, or is behind.
            ValueInvalid: The vector has another length, NaN, an infinity or only zeros; or the limit, a filter or its
                value cannot be.
        """
        return await search_vectors(self._scope, index, vector, limit, filters)

    @track_calls
    async def run_query(self, function: QueryFunction[Any, P, R, Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run another query in the same snapshot, with its arguments and result checked."""
        call = self._call.inner(function, (args, kwargs))
        result: R = await self._runner.run_within(self._scope, call, FunctionKind.QUERY)
        return result


@refuses_other_words
class MutationCtx(QueryCtx):
    """The ctx of a mutation: one serializable transaction to read and write.

    Attributes:
        db: Typed tables.
    """

    db: DatabaseWriter
    of_kind = FunctionKind.MUTATION

    def __init__(self, runner: FunctionCalls, call: Call, scope: Scope) -> None:
        super().__init__(runner, call, scope)
        self.db = DatabaseWriter(scope)

    @property
    def scheduler(self) -> Scheduler:
        """Functions to run later, if this transaction commits."""
        return Scheduler(self.job_calls)

    @property
    def auth(self) -> SigningAuth:
        """The caller, and tokens that the program signs."""
        transaction, refusal = self._scope.transaction, self._call.caller.refusal
        return SigningAuth(self._scope, transaction.identity, refusal, self.job_calls)

    @property
    def storage(self) -> StorageWriter:
        """Stored files; they are deleted if this transaction commits."""
        return StorageWriter(self.job_calls, self._call.caller)

    @property
    def outbox(self) -> Sender:
        """Messages to topics, sent if this transaction commits."""
        return Sender(self.job_calls)

    @track_calls
    async def rate_limit(self, name: str, key: str = "", *, count: int = 1, reserve: bool = False) -> RateStatus:
        """Take tokens of a declared rate limit with this transaction; whether there were enough, or when there will be.

        Raises the errors of `RateLimiter.take`, and:

        Raises:
            ContextError: The app declares no such rate limit.
        """
        own = own_name(self._calls.component, name)
        policy = policy_of(self._runner.engine.rate_limits, own)
        return await take_tokens(self.job_calls, own, policy, key, count, reserve=reserve)

    @track_calls
    async def check_fence(self, key: str, fence: int) -> None:
        """Check that a lock still has this holder, and keep it from others until this transaction has ended.

        So a holder that has lost its lock without knowing it cannot write.

        Args:
            key: The key of the lock.
            fence: The number of the holder: ``lock.fence``.

        Raises:
            LockLost: It does not have this holder any more.
            ValueInvalid: There can be no such key or number.
        """
        await check_fence(self.job_calls, own_name(self._calls.component, key), fence)

    @track_calls
    async def run_mutation(self, function: MutationFunction[Any, P, R, Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run another mutation as a sub-transaction: if it raises, only its own changes are undone."""
        call = self._call.inner(function, (args, kwargs))
        result: R = await self._runner.run_within(self._scope, call, FunctionKind.MUTATION)
        return result


@refuses_other_words
class ActionCtx(OfCall):
    """The ctx of an action: no transaction of its own; each query and mutation it runs is one."""

    of_kind = FunctionKind.ACTION

    def __init__(self, runner: FunctionCalls, call: Call, calls: Calls) -> None:
        self._runner = runner
        self._call = call
        self._calls = calls
        self._random: Random | None = None

    @property
    def auth(self) -> SigningAuth:
        """The caller, and tokens that the program signs.

        The queries, mutations and actions that this one runs have the same caller; its jobs do not.
        """
        return SigningAuth(self._calls, self._identity, self._call.caller.refusal, self.job_calls)

    @property
    def request(self) -> RequestInfo | None:
        """The request that the call came with; None in jobs, and in calls from Python."""
        return self._call.caller.request

    @property
    def job_calls(self) -> JobCalls:
        """Jobs, as pools enqueue and look at them."""
        return JobCalls(
            self._runner, None, self._calls.track, caller=self._call.caller, component=self._calls.component
        )

    @property
    def scheduler(self) -> Scheduler:
        """Functions to run later, even if this action fails."""
        return Scheduler(self.job_calls)

    @property
    def storage(self) -> Storage:
        """Stored files."""
        return Storage(self.job_calls, self._call.caller)

    @property
    def outbox(self) -> Sender:
        """Messages to topics, each sent at once, in a transaction of its own."""
        return Sender(self.job_calls)

    @property
    def cancelled(self) -> bool:
        """Whether someone asked for this action's job to stop."""
        return self._call.cancellation.is_set()

    async def wait_cancelled(self, seconds: float | None = None) -> bool:
        """Wait until someone asks for this action's job to stop, at most this many seconds; whether someone did."""
        event = self._call.cancellation.event
        if seconds is None:
            return await event.wait()
        return await self._runner.engine.clock.wait(event, seconds)

    @property
    def is_job(self) -> bool:
        """Whether this runs in an attempt at a job."""
        return self._call.job is not None

    @property
    def work(self) -> ActionWork:
        """The attempt at a job that this runs in.

        Raises:
            ContextError: It runs in none.
        """
        if self._call.job is None:
            raise no_work()
        return ActionWork(self._call.job, self._runner, self._calls)

    def handle_of(self, function: AnyFunction, /) -> str:
        """A handle of a function, to give to a component or to store; see `QueryCtx.handle_of`."""
        return make_handle(self.job_calls.find_function(function))

    def function(self, handle: str, /) -> Any:
        """The function of a handle; see `QueryCtx.function`."""
        return read_handle(self._runner.engine.registry, handle)

    def now(self) -> datetime:
        """The time, aware, in UTC."""
        return self._runner.now()

    @property
    def random(self) -> Random:
        """Random numbers."""
        if self._random is None:
            self._random = random_of(self._runner.engine.clock.seed())
        return self._random

    @track_calls
    async def check_access(self, function: AnyFunction, /, *args: Any, **kwargs: Any) -> None:
        """Check that the caller may call a function with these arguments; see `QueryCtx.check_access`."""
        function = own_function(self._calls.component, function)
        call = replace(self._call, function=function)
        await self._runner.check_access_alone(call, function.arguments(args, kwargs))

    @track_calls
    async def rate_limit(self, name: str, key: str = "", *, count: int = 1, reserve: bool = False) -> RateStatus:
        """Take tokens of a declared rate limit, at once; whether there were enough, or when there will be.

        Raises the errors of `RateLimiter.take`, and:

        Raises:
            ContextError: The app declares no such rate limit.
        """
        own = own_name(self._calls.component, name)
        policy = policy_of(self._runner.engine.rate_limits, own)
        return await take_tokens(self.job_calls, own, policy, key, count, reserve=reserve)

    def with_lock(
        self, key: str, *, wait: timedelta = WAIT, lease: timedelta = LEASE, on_lost: OnLost = "cancel"
    ) -> LockBlock:
        """Hold a lock, on all machines, during a block: ``async with ctx.with_lock(key) as lock:``.

        The lock is renewed while the block runs, and is free at once when it ends, or within `lease` if this process
        dies. Its holder cannot take it a second time.

        Args:
            key: The key of the lock, such as ``f"account:{account_id}"``: a text of 1 to 200 printable characters.
            wait: The longest wait for it; zero to try once.
            lease: The time after which it is free if this process dies; 1 second to a day.
            on_lost: The policy if the lock is lost, as when the database cannot be reached for most of
                `lease`. ``"cancel"`` cancels its task, and the block raises `LockLost`. With ``"signal"`` it goes on,
                and learns of it from the `Lock`.

        Raises:
            LockTaken: On entering: it was not free in time.
            LockLost: At the end of the block.
            ContextError: On entering: it is held here already.
            ValueInvalid: The key or an option cannot be.
        """
        return LockBlock(self._runner.locks, own_name(self._calls.component, key), wait, lease, on_lost, self._calls)

    @track_calls
    async def vector_search(
        self, index: VectorsOf[Row], vector: Sequence[float], /, *, limit: int = DEFAULT_LIMIT, **filters: Any
    ) -> list[VectorHit[Row]]:
        """Find the rows whose vectors are the nearest, in a snapshot of its own; see `QueryCtx.vector_search`."""
        return await self._runner.read_alone(
            self._call, lambda scope: search_vectors(scope, index, vector, limit, filters)
        )

    @track_calls
    async def run_query(self, function: QueryFunction[Any, P, R, Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a query in a snapshot of its own."""
        practices.ran("run_query", function)
        result: R = await self._runner.run(self._call.inner(function, (args, kwargs)), FunctionKind.QUERY)
        return result

    @track_calls
    async def run_mutation(self, function: MutationFunction[Any, P, R, Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a mutation in a transaction of its own."""
        practices.ran("run_mutation", function)
        result: R = await self._runner.run(self._call.inner(function, (args, kwargs)), FunctionKind.MUTATION)
        return result

    @track_calls
    async def run_action(self, function: ActionFunction[Any, P, R, Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run another action. Use it to change the runtime; otherwise a plain helper function is enough."""
        practices.ran("run_action", function)
        result: R = await self._runner.run(self._call.inner(function, (args, kwargs)), FunctionKind.ACTION)
        return result

    def _identity(self) -> Identity | None:
        practices.note_identity()
        return self._call.caller.identity
