"""Runs functions: queries in a snapshot, mutations in a transaction that is tried again, actions in neither.

Owns the three kinds of run, at the top and nested. Every road to user code leads through here: HTTP, Python, jobs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any, ParamSpec, TypeVar, cast

from penstock.calls.locks.locks import Locks
from penstock.calls.run.attempts import Attempts
from penstock.calls.run.budget import Budget
from penstock.calls.run.containment import contained
from penstock.calls.run.context import ActionCtx, MutationCtx, QueryCtx
from penstock.calls.run.engine import Engine
from penstock.calls.run.execution import PLAIN, Execution
from penstock.calls.run.handler import Ctx, run_handler
from penstock.calls.run.running import Moment, Running
from penstock.calls.run.threads import Place
from penstock.calls.run.unawaited import watch_dropped_coroutines
from penstock.errors import TryAgain
from penstock.functions.function import (
    ActionFunction,
    AnyFunction,
    FunctionKind,
    MutationFunction,
    QueryFunction,
    check_depth,
    expect,
)
from penstock.jobs.job import NewJob, Work
from penstock.observe import points
from penstock.store.contract.session import Session
from penstock.transaction.commit import commit
from penstock.transaction.shared import Part
from penstock.transaction.tracking import Calls
from penstock.transaction.transaction import Scope, Transaction
from penstock.values import copier, encode_json

P = ParamSpec("P")
R = TypeVar("R")

Encode = Callable[[Any], bytes]
Arguments = dict[str, Any]
QueryRun = tuple[AnyFunction, dict[str, Any], Encode]  # a query, its checked arguments, how its result leaves


class Runner:
    """Runs the functions of one engine."""

    def __init__(self, engine: Engine) -> None:
        watch_dropped_coroutines()
        self.engine = engine
        self.attempts = Attempts(engine)
        self.locks = Locks(engine)

    def now(self) -> datetime:
        """The app's time."""
        return self.engine.clock.now()

    def moment(self) -> Moment:
        """The time and chance of one execution."""
        return self.engine.clock.now(), self.engine.clock.seed()

    # ----- at the top

    async def run_query(
        self,
        function: QueryFunction[Any, P, R, Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        depth: int = 0,
        work: Work | None = None,
    ) -> R:
        """Run a query in a snapshot of its own."""
        expect(function, FunctionKind.QUERY)
        arguments = function.signature.check(function.signature.bind(args, kwargs))
        return cast("R", await self.query(function, arguments, depth, work))

    async def run_mutation(
        self,
        function: MutationFunction[Any, P, R, Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        depth: int = 0,
        work: Work | None = None,
    ) -> R:
        """Run a mutation in a transaction of its own, again if it conflicts."""
        expect(function, FunctionKind.MUTATION)
        given = function.signature.bind(args, kwargs)
        copied = copier(given)

        async def check() -> dict[str, Any]:
            return function.signature.check(copied(given))

        return cast("R", await self.mutation(function, check, depth, PLAIN if work is None else Execution(work=work)))

    async def run_action(
        self,
        function: ActionFunction[Any, P, R, Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        depth: int = 0,
        attempt: Running | None = None,
    ) -> R:
        """Run an action."""
        expect(function, FunctionKind.ACTION)
        arguments = function.signature.check(function.signature.bind(args, kwargs))
        return cast("R", await self.action(function, arguments, depth, attempt))

    async def query(
        self, function: AnyFunction, arguments: dict[str, Any], depth: int = 0, work: Work | None = None
    ) -> Any:
        """Run a query on checked arguments; on another connection if one was lost."""
        with self.engine.journal.call(function):
            return await self.attempts.run(lambda: self._query_once(function, arguments, depth, work), function.name)

    async def queries(self, runs: Sequence[QueryRun]) -> list[bytes | Exception]:
        """Run queries in one snapshot, at one time; for each its answer, or its error."""
        in_thread = next((function for function, _, _ in runs if not function.is_async), None)
        async with self.engine.thread(in_thread, 0) as thread:
            return await self.attempts.run(lambda: self._queries_once(runs, thread), "A batch of queries")

    async def mutation(
        self,
        function: AnyFunction,
        check: Callable[[], Awaitable[dict[str, Any]]],
        depth: int = 0,
        execution: Execution = PLAIN,
    ) -> Any:
        """Run a mutation, from scratch each time it conflicts, with the same time and chance.

        Args:
            function: The mutation.
            check: Gives its checked arguments, anew for each attempt.
            depth: The number of calls around it.
            execution: Its surroundings: a job, an outbox, or a call from outside.

        Raises:
            Conflict: It conflicted more often than the settings allow; a job is tried for as long as it takes.
        """
        moment = execution.moment or self.moment()
        with self.engine.journal.call(function):
            async with self.engine.thread(function, depth) as thread:

                async def once(queue: int | None) -> Any:
                    return await self._mutation_once(function, await check(), depth, thread, queue, moment, execution)

                return await self.attempts.write(once, function.name, for_ever=execution.settle is not None)

    async def shared_mutation(
        self, part: Part, function: AnyFunction, arguments: dict[str, Any], moment: Moment, work: Work
    ) -> tuple[Transaction, Any]:
        """Run a mutation once, in its part of a transaction that it shares; its gathered changes, and its result."""
        transaction = self._transaction(part, *moment, work)
        with self.engine.journal.call(function):
            result = await self._in_transaction(transaction, function, arguments, 0, None)
        if points.armed:
            await points.reach("mutation.ran", function=function.name)
        return transaction, result

    async def action(
        self,
        function: AnyFunction,
        arguments: dict[str, Any],
        depth: int = 0,
        attempt: Running | None = None,
    ) -> Any:
        """Run an action on checked arguments."""
        with self.engine.journal.call(function):
            return await self._action_once(function, arguments, depth, attempt)

    async def _action_once(
        self, function: AnyFunction, arguments: dict[str, Any], depth: int, attempt: Running | None
    ) -> Any:
        check_depth(function, depth)
        if function.runtime == "process":
            text = encode_json(arguments, f"The arguments of {function.name}").encode()
            work = None if attempt is None else attempt.work
            return function.signature.result_of_json(await self.engine.processes.run(function, text, work))
        async with self.engine.thread(function, depth) as thread:
            if attempt is not None:
                await attempt.begin()
            return await self._run(function, self._action_ctx(function, depth, attempt), arguments, depth, thread)

    def _action_ctx(self, function: AnyFunction, depth: int, attempt: Running | None) -> ActionCtx:
        return ActionCtx(self, Calls(function.name), depth, attempt)

    # ----- nested in a transaction

    async def nested_query(
        self, scope: Scope, depth: int, function: AnyFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run a query in the transaction of another function."""
        expect(function, FunctionKind.QUERY)
        arguments = function.signature.check(function.signature.bind(args, kwargs))
        with self.engine.journal.call(function):
            async with scope.held():
                return await self._in_scope(function, scope.transaction, arguments, depth + 1, None)

    async def nested_mutation(
        self, scope: Scope, depth: int, function: AnyFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run a mutation as a sub-transaction of another."""
        expect(function, FunctionKind.MUTATION)
        arguments = function.signature.check(function.signature.bind(args, kwargs))
        with self.engine.journal.call(function):
            async with scope.held(), scope.transaction.branch():
                return await self._in_scope(function, scope.transaction, arguments, depth + 1, None)

    # ----- outside of functions

    async def write(self, write: Callable[[Transaction], Awaitable[R]]) -> R:
        """Run a write of penstock itself in a transaction of its own, again if it conflicts; its result.

        Raises:
            Conflict: It conflicted more often than the settings allow.
        """
        engine = self.engine

        async def once(queue: int | None) -> R:
            session = await engine.store.begin_write(queue)
            try:
                transaction = self._transaction(session, self.now(), 0)
                result = await write(transaction)
                await commit(transaction)
            finally:
                await session.rollback()
            return result

        return await self.attempts.write(once, "penstock")

    async def enqueue(self, job: NewJob) -> None:
        """Enqueue a job in a transaction of its own; nobody else's gets in its way."""
        store, now = self.engine.store, self.now()
        await self.attempts.run(lambda: store.jobs.enqueue_alone(job, now), "penstock")
        store.signals.notify()
        self.engine.journal.enqueued(job, now)

    async def patiently(self, once: Callable[[], Awaitable[R]], *, for_ever: bool = False) -> R:
        """Run an idempotent step, again if the database was lost."""
        return await self.attempts.run(once, "penstock", for_ever=for_ever)

    # ----- steps

    async def _query_once(self, function: AnyFunction, arguments: dict[str, Any], depth: int, work: Work | None) -> Any:
        async with self.engine.thread(function, depth) as thread:
            session = await self.engine.store.begin_read()
            try:
                return await self._query_in(session, self.now(), function, arguments, depth, thread, work=work)
            finally:
                await session.rollback()

    async def _queries_once(self, runs: Sequence[QueryRun], thread: Place | None) -> list[bytes | Exception]:
        session, now = await self.engine.store.begin_read(), self.now()
        found: list[bytes | Exception] = []
        budget = Budget(self.engine.config.max_bytes_read)
        try:
            await session.savepoint("query")
            for function, arguments, encode in runs:
                try:
                    budget.check()
                    with self.engine.journal.call(function):
                        result = await contained(
                            function, self._query_in(session, now, function, arguments, 0, thread, budget)
                        )
                    found.append(budget.take(encode(result)))  # the encoded result need not be held any more
                except TryAgain:
                    raise
                except Exception as error:  # noqa: BLE001 - one query's failure is its own answer
                    found.append(error)
                    await session.rollback_to("query")
                    await session.savepoint("query")
            return found
        finally:
            await session.rollback()

    async def _query_in(
        self,
        session: Session,
        now: datetime,
        function: AnyFunction,
        arguments: dict[str, Any],
        depth: int,
        thread: Place | None,
        budget: Budget | None = None,
        work: Work | None = None,
    ) -> Any:
        transaction = self._transaction(session, now, self.engine.clock.seed(), work)
        try:
            return await self._in_transaction(transaction, function, arguments, depth, thread)
        finally:
            if budget is not None:
                budget.read += transaction.bytes_read

    async def _mutation_once(
        self,
        function: AnyFunction,
        arguments: Arguments,
        depth: int,
        thread: Place | None,
        queue: int | None,
        moment: Moment,
        execution: Execution,
    ) -> Any:
        lease, settle, finish = execution.lease, execution.settle, execution.finish
        session = await self.attempts.begin_write(queue, for_ever=settle is not None)
        try:
            transaction = self._transaction(session, *moment, execution.work)
            result = await self._in_transaction(transaction, function, arguments, depth, thread)
            if points.armed:
                await points.reach("mutation.ran", function=function.name)
            answer = finish(result) if finish else result
            await commit(transaction, lease, settle(result) if settle else None, execution.seal)
        finally:
            await session.rollback()
        return answer

    def _transaction(self, session: Session, now: datetime, seed: int, work: Work | None = None) -> Transaction:
        engine = self.engine
        return Transaction(session, engine.store, engine.statements, engine.config, engine.clock, now, seed, work)

    async def _in_transaction(
        self, transaction: Transaction, function: AnyFunction, arguments: Arguments, depth: int, thread: Place | None
    ) -> Any:
        """Run the function of a transaction. It cannot swallow an error that has ended the transaction."""
        try:
            if (work := transaction.work) is not None and work.begin is not None:
                await work.begin(transaction.session)
            result = await self._in_scope(function, transaction, arguments, depth, thread)
        except Exception:
            if transaction.failure is not None:
                raise transaction.failure from None
            raise
        if transaction.failure is not None:
            raise transaction.failure
        return result

    def _in_scope(
        self, function: AnyFunction, transaction: Transaction, arguments: Arguments, depth: int, thread: Place | None
    ) -> Coroutine[Any, Any, Any]:
        check_depth(function, depth)
        writable = function.kind is FunctionKind.MUTATION
        scope = Scope(transaction, function.name, writable=writable)
        ctx = MutationCtx(self, scope, depth) if writable else QueryCtx(self, scope, depth)
        return self._run(function, ctx, arguments, depth, thread)

    def _run(
        self, function: AnyFunction, ctx: Ctx, arguments: Arguments, depth: int, thread: Place | None
    ) -> Coroutine[Any, Any, Any]:
        return run_handler(self.engine, function, function.handler, ctx, arguments, depth, thread)
