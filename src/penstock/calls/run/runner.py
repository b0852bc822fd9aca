"""Runs functions: queries in a snapshot, mutations in a transaction that is tried again, actions in neither.

Owns the three kinds of run, at the top and nested. Every road to user code leads through here: HTTP, Python, jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache, partial
from hashlib import blake2b
from typing import Any, TypeVar, cast
from weakref import ref

from penstock.calls.call import Arguments, Call, PythonCall
from penstock.calls.enqueue.jobs import JobCalls
from penstock.calls.locks.locks import Locks
from penstock.calls.run import djangodb
from penstock.calls.run.attempts import Attempts, Tries, Turn
from penstock.calls.run.bridge import Bridge
from penstock.calls.run.containment import containing
from penstock.calls.run.engine import Engine
from penstock.calls.run.jobrun import Moment
from penstock.calls.run.ratelimits import key_of, policy_of, take_tokens
from penstock.calls.run.snapshots import Snapshot
from penstock.calls.run.threads import Place
from penstock.calls.run.unawaited import refuse_tasks_of, watch_dropped_coroutines
from penstock.dataclass import dataclass
from penstock.errors import (
    AccessDenied,
    CallTimeout,
    ContextError,
    CursorInvalid,
    DatabaseUnavailable,
    LimitExceeded,
    NotSignedIn,
    PenstockError,
    RateLimited,
    TryAgain,
)
from penstock.functions.access import Asked
from penstock.functions.component import Component
from penstock.functions.function import AnyFunction, FunctionKind, QueryFunction, check_depth, expect
from penstock.functions.registry import AroundJobs
from penstock.live.entry import Answer, Entry
from penstock.observe import points
from penstock.observe.loglines import log_lines
from penstock.observe.practices import Practices, Watch
from penstock.observe.timing import time_step
from penstock.store.session import NeedsTransaction, Session, reading
from penstock.transaction.commit import commit
from penstock.transaction.pages import decode_journal, encode_journal
from penstock.transaction.shared import Part
from penstock.transaction.tracking import Calls
from penstock.transaction.transaction import Scope, Transaction

T = TypeVar("T")
Contexts = Mapping[tuple[FunctionKind, bool], Callable[..., Any]]


class FunctionCalls(Attempts):
    """Runs the functions of one engine.

    Args:
        engine: The engine.
        contexts: The class of the ctx for each kind of function, for async def and for def.
    """

    def __init__(self, engine: Engine, contexts: Contexts) -> None:
        watch_dropped_coroutines()
        super().__init__(engine)
        self.locks = Locks(engine)
        self._contexts = contexts
        self._reads_more: set[str] = set()  # queries that read by more than one statement, which takes a transaction

    # ----- at the top

    async def run(self, call: Call, kind: FunctionKind) -> Any:
        """Run a function for Python code; an error notes its name, as a web framework that answers it knows none."""
        expect(call.function, kind)
        try:
            return await self.start(call)
        except PenstockError as error:
            error.raised_in = error.raised_in or call.function.name
            raise

    def start(self, call: Call) -> Coroutine[Any, Any, Any]:
        """Run a function of any kind, in a transaction of its own."""
        kind = call.function.kind
        if kind is FunctionKind.MUTATION:
            return self.mutation(call)
        if kind is FunctionKind.WORKFLOW:
            raise ContextError(
                f"{call.function.name} is a workflow, which only runs as a job.",
                fix="Start it with scheduler.run_after, or enqueue it in a pool.",
            )
        return self.query(call) if kind is FunctionKind.QUERY else self.action(call)

    async def query(self, call: Call) -> Any:
        """Run a query in a snapshot; on another connection if one was lost."""
        arguments = await call.check()
        with self.engine.journal.call(call.function, call.caller, call.step):
            tries = Tries(self.engine, call.function.name)
            while True:
                is_first = not tries.number and call.function.name not in self._reads_more
                begin = self.engine.store.begin_single if is_first else self.engine.store.begin_read
                async with tries, self.engine.thread(call.function, call.depth, call.lingering) as thread:
                    with time_step("waits"):
                        session = await begin()
                    try:
                        transaction = self._transaction(session, call, (self.now(), self.engine.clock.seed()))
                        return await self._in_transaction(transaction, call, arguments, thread)
                    except NeedsTransaction as error:
                        if error.lasts:
                            self._reads_more.add(call.function.name)
                    finally:
                        await session.rollback()

    async def mutation(self, call: Call) -> Any:
        """Run a mutation, from scratch each time it conflicts, with the same time and chance.

        Raises:
            Conflict: It conflicted more often than the settings allow; a job is tried for as long as it takes.
        """
        engine, function = self.engine, call.function
        moment = call.moment or (self.now(), engine.clock.seed())
        has_paid = not call.takes_token
        with engine.journal.call(function, call.caller, call.step):
            async with engine.thread(function, call.depth, call.lingering) as thread:
                turn = Turn(self.admission, function.name, call.arguments)
                tries = Tries(engine, function.name, turn=turn, for_ever=call.for_ever)
                while True:
                    async with tries:
                        arguments = await call.check(again=tries.number > 1)
                        if not has_paid:
                            await self._take_token(call)
                            has_paid = True
                        with time_step("waits"):
                            session = await self.begin_write(tries.queue, for_ever=call.for_ever)
                        try:
                            transaction = self._transaction(session, call, moment)
                            result = await self._in_transaction(transaction, call, arguments, thread)
                            if points.armed:
                                await points.reach("mutation.ran", function=function.name)
                            answer = call.finish(result)
                            with time_step("database"):
                                await commit(transaction, partial(call.seal, answer=answer))
                        finally:
                            await session.rollback()
                        return answer

    async def run_in_part(
        self, part: Part, call: Call, arguments: Arguments, moment: Moment
    ) -> tuple[Transaction, Any]:
        """Run a mutation once, in its part of a transaction that it shares; its gathered changes, and its result."""
        transaction = self._transaction(part, call, moment)
        with self.engine.journal.call(call.function):
            result = await self._in_transaction(transaction, call, arguments, None)
        if points.armed:
            await points.reach("mutation.ran", function=call.function.name)
        return transaction, result

    async def action(self, call: Call) -> Any:
        """Run an action, in no transaction."""
        arguments, function = await call.check(), call.function
        with self.engine.journal.call(function, call.caller, call.step):
            check_depth(function, call.depth)
            if call.takes_token:
                await self._take_token(call)
            if function.access is not None:
                for asked in call.asks(arguments):
                    await self.check_access_alone(call, asked)
            if function.is_async:
                await call.begin()
                return await self.run_handler(call, arguments, None)
            if function.runtime == "process":
                text = function.signature.encode(arguments).encode()
                found = await self.engine.processes.run(function, text, call.work, call.lingering)
                return function.signature.result_of_json(found)
            async with self.engine.thread(function, call.depth, call.lingering) as thread:
                await call.begin()
                return await self.run_handler(call, arguments, thread)

    async def queries(self, calls: Sequence[Call], at: Snapshot | None = None) -> list[bytes | Exception]:
        """Run queries on checked arguments in one snapshot, at one time; for each its answer, or its error."""
        in_thread = next((call.function for call in calls if not call.function.is_async), None)
        async with self.engine.thread(in_thread, 0) as thread:
            if at is not None:
                return await at.use(lambda session, now: self._queries_in(session, now, calls, thread), "query")

            async def once() -> list[bytes | Exception]:
                async with reading(self.engine.store.begin_read) as session:
                    return await self._queries_in(session, self.now(), calls, thread)

            return await self.attempt(once, "A batch of queries")

    async def watch(self, session: Session, entry: Entry) -> Answer | None:
        """Run a watched query in a snapshot that it shares with others; its answer is a result or an error.

        None if a conflict of the database has ended the run: it is to run in a new snapshot, as often as a call would.
        The journal of an earlier answer keeps the ends of its pages.
        The snapshot has a savepoint ``query``, to which a failure goes back: it costs one round trip for all of them.

        Raises:
            TryAgain: The snapshot is lost.
        """
        function, journal = entry.function, entry.journal
        call = Call(function, entry.arguments, entry.caller)
        transaction = self._transaction(session, call, (self.now(), entry.seed))
        limit = function.seconds(self.engine.config.call_timeout)
        timer, lines = asyncio.timeout(limit), list[str]()
        try:
            transaction.given_ends = decode_journal(journal)
            async with timer, self.engine.thread(function, 0) as thread:
                ran, config = self.engine.journal.call(function, entry.caller), self.engine.config
                told = config.dev or bool(config.admin_token)  # to a watcher with that token
                with ran, log_lines(told=told) as lines, containing(function.name):
                    result = await self._in_transaction(transaction, call, entry.arguments, thread)
            encoded = function.signature.result_json(result, checks=False)
        except Exception as error:
            is_late = isinstance(error, TimeoutError) and timer.expired()
            try:
                await session.rollback_to("query")
                await session.savepoint("query")
            except TryAgain:  # it was the database; or the run took so long that the snapshot is gone
                if not is_late:
                    raise
            if is_late:
                error = CallTimeout.of(function.title, limit)
            elif isinstance(error, TryAgain) and error in (transaction.failure, transaction.again):
                if isinstance(error, DatabaseUnavailable):
                    raise
                entry.conflicts += 1
                if not error.facts.get("slow") and entry.conflicts < self.engine.config.conflict_attempts:
                    return None
            said = f"{type(error).__name__}: {error}".encode(errors="replace")
            kept = None if isinstance(error, CursorInvalid) else journal  # its pages are to begin again
            answer = Answer(transaction.read_set, error=error, digest=_digest(said), size=len(said), journal=kept)
        else:
            ends = encode_journal(transaction.page_ends)
            answer = Answer(transaction.read_set, result, digest=_digest(encoded), size=len(encoded), journal=ends)
        jobs = transaction.read_set.jobs
        found = await self.engine.store.jobs.find_many(session, [*jobs], transaction.now) if jobs else None
        return replace(answer, jobs=found, given=journal, lines=lines)

    # ----- nested in a transaction

    async def run_within(self, scope: Scope, call: PythonCall, kind: FunctionKind) -> Any:
        """Run a query in the transaction of another function, or a mutation in a sub-transaction."""
        expect(call.function, kind)
        arguments = call.read()
        with self.engine.journal.call(call.function, step=call.step):
            async with scope.hold():
                if kind is FunctionKind.QUERY:
                    return await self._within(scope.transaction, call, arguments, None)
                async with scope.transaction.branch():
                    return await self._within(scope.transaction, call, arguments, None)

    # ----- steps

    async def _queries_in(
        self, session: Session, now: datetime, calls: Sequence[Call], thread: Place | None
    ) -> list[bytes | Exception]:
        found: list[bytes | Exception] = []
        budget = Budget(self.engine.config.max_bytes_read)
        await session.savepoint("query")
        for call in calls:
            try:
                budget.check()
                transaction = self._transaction(session, call, (now, self.engine.clock.seed()))
                try:
                    with self.engine.journal.call(call.function, call.caller), containing(call.function.name):
                        result = await self._in_transaction(transaction, call, call.arguments, thread)
                finally:
                    budget.read += transaction.bytes_read
                found.append(budget.take(call.finish(result)))  # the encoded result need not be held any more
            except Exception as error:
                if isinstance(error, TryAgain) and not error.from_function:
                    raise
                found.append(error)
                await session.rollback_to("query")
                await session.savepoint("query")
        return found

    def _transaction(self, session: Session, call: Call, moment: Moment) -> Transaction:
        return Transaction(session, self.engine, *moment, call.caller)

    async def _in_transaction(
        self, transaction: Transaction, call: Call, arguments: Arguments, thread: Place | None
    ) -> Any:
        """Run the function of a transaction. It cannot swallow an error that has ended the transaction."""
        try:
            await call.begin(transaction.session)
            result = await self._within(transaction, call, arguments, thread)
        except Exception:
            if transaction.failure is not None:
                raise transaction.failure from None
            raise
        if transaction.failure is not None:
            raise transaction.failure
        self.engine.journal.count_rows(transaction)
        if call.job is not None or transaction.cancels:
            call.note_cancels(transaction.cancels)
        return result

    def _within(
        self, transaction: Transaction, call: Call, arguments: Arguments, thread: Place | None
    ) -> Coroutine[Any, Any, Any]:
        check_depth(call.function, call.depth)
        if not call.caller.is_system:
            transaction.ask = lambda facts, component: self._ask(transaction, call, facts, {}, component)
            if call.function.access is not None:
                return self._guard(transaction, call, arguments, thread)
        return self.run_handler(call, arguments, thread, transaction)

    async def _guard(self, transaction: Transaction, call: Call, arguments: Arguments, thread: Place | None) -> Any:
        for asked in call.asks(arguments):
            await self.check_access(transaction, call, asked)
        return await self.run_handler(call, arguments, thread, transaction)

    async def check_access(self, transaction: Transaction, call: Call, arguments: Arguments) -> None:
        """Check that the caller of a transaction may call a function. The reads of its guards are noted as its own.

        Raises:
            AccessDenied: Its access does not let the caller in.
            NotSignedIn: The same, and the caller has no identity.
        """
        function = call.function
        if function.access is None or transaction.caller.is_system:
            return
        asked = Asked(
            function.arguments((), arguments),
            transaction.identity,
            lambda guard, given: self._ask(transaction, call, guard, given, function.component),
        )
        if not await function.access.lets_in(asked):
            if transaction.identity() is None:
                raise transaction.caller.refusal or NotSignedIn()
            raise AccessDenied(f"The access of {function.name} does not let this caller in.")

    async def check_access_alone(self, call: Call, arguments: Arguments) -> None:
        """Check the same for an action, in a snapshot of its own."""
        if call.function.access is None or call.caller.is_system:
            return

        async def once() -> None:
            async with reading(self.engine.store.begin_read) as session:
                moment = self.now(), self.engine.clock.seed()
                await self.check_access(self._transaction(session, call, moment), call, arguments)

        await self.attempt(once, call.function.name)

    async def read_alone(self, call: Call, step: Callable[[Scope], Awaitable[T]]) -> T:
        """Read for an action, in a snapshot of its own, by the rules that hold for its caller."""

        async def once() -> T:
            async with reading(self.engine.store.begin_read) as session:
                transaction = self._transaction(session, call, (self.now(), self.engine.clock.seed()))
                transaction.ask = lambda facts, component: self._ask(transaction, call, facts, {}, component)
                return await step(_scope(transaction, call))

        return await self.attempt(once, call.function.name)

    async def _take_token(self, call: Call) -> None:
        """Take a token of the function's rate limit for a call from outside, before it runs: it is not given back.

        Raises:
            RateLimited: There is none.
        """
        if (name := call.function.rate_limit) is None or call.caller.is_system:
            return
        policy = policy_of(self.engine.rate_limits, name)
        status = await take_tokens(JobCalls(self, None), name, policy, key_of(call.caller), 1, reserve=False)
        if not status.ok:
            raise RateLimited(status.retry_after.total_seconds())

    def _ask(
        self,
        transaction: Transaction,
        call: Call,
        asked: Callable[..., Any],
        arguments: Mapping[str, Any],
        component: Component | None,
    ) -> Coroutine[Any, Any, Any]:
        """Run a guard, or a function that reads facts for rules; it reads all rows."""
        asks = Call(_query_of(asked, component), dict(arguments), transaction.caller, call.depth + 1, call.job)
        check_depth(asks.function, asks.depth)
        return self.run_handler(asks, asks.arguments, None, transaction, asked)

    async def run_handler(
        self,
        call: Call,
        arguments: Arguments,
        thread: Place | None,
        transaction: Transaction | None = None,
        handler: Callable[..., Any] | None = None,
    ) -> Any:
        """Run the handler of a function; what it returns. None of its calls is left when it ends.

        Args:
            call: The call.
            arguments: Its arguments.
            thread: The place of one written with def; None to take one.
            transaction: The transaction in which it runs; None for an action.
            handler: Another handler to run, whose result nobody checks.

        Raises:
            UnawaitedCall: Calls, helpers or tasks that have the ctx are left.
        """
        function, run = call.function, handler or call.handler
        calls = Calls(function.name, function.component) if transaction is None else _scope(transaction, call)
        ctx = self._contexts[function.kind, True](self, call, calls)
        watch = None if self.engine.practices is None else _watch(self.engine.practices, call, run)
        try:
            if function.is_async:
                if djangodb.is_loaded():
                    await djangodb.on_loop()
                running = run(ctx, **arguments)
            else:
                twin = self._contexts[function.kind, False](ctx, Bridge(asyncio.get_running_loop()))
                running = self._in_thread(call, lambda: djangodb.in_thread(lambda: run(twin, **arguments)), thread)
            around = self.engine.registry.around_jobs
            result = await (running if around is None or handler or not call.works else _run_in(around, call, running))
            calls.end()
            if watch is not None:
                watch.check_asked()
        except BaseException as error:
            calls.abandon()
            if isinstance(error, PenstockError):
                error.from_function = transaction is None or error not in (transaction.failure, transaction.again)
            raise
        finally:
            if watch is not None:
                watch.end()
        if function.is_async:  # the thread of another function may hold the ctx for a moment longer
            ended = ref(calls)
            del ctx, calls
            if (held := ended()) is not None:  # by a task, say
                refuse_tasks_of(held)
        return result if handler is not None else call.check_result(result)

    async def _in_thread(self, call: Call, work: Callable[[], Any], thread: Place | None) -> Any:
        if thread is not None:
            return await thread.run(work)
        async with self.engine.thread(call.function, call.depth, call.lingering, nested=True) as own:
            return await self._in_thread(call, work, own)


async def _run_in(around: AroundJobs, call: Call, running: Coroutine[Any, Any, Any]) -> Any:
    """Run the handler of a job inside of the program's wrapper, which cannot swallow its error."""
    raised: BaseException | None = None
    try:
        async with around(call.function.name, call.works):
            try:
                return await running
            except BaseException as error:
                raised = error
                raise
    finally:
        running.close()  # if the wrapper has raised first
    raise cast("BaseException", raised)


def _scope(transaction: Transaction, call: Call) -> Scope:
    function = call.function
    ruled = function.acts_for_caller and not call.caller.is_system
    writable = function.kind is FunctionKind.MUTATION
    return Scope(transaction, function.name, function.component, writable=writable, ruled=ruled)


def _watch(practices: Practices, call: Call, run: Callable[..., Any]) -> Watch:
    function, transacts = call.function, call.function.kind is not FunctionKind.ACTION
    is_open = function.public and function.access is None and not call.caller.is_system
    return Watch(practices, function.name, function.declared, run, transacts, is_open)


@cache
def _query_of(asked: Callable[..., Any], component: Component | None) -> AnyFunction:
    query: AnyFunction = QueryFunction(asked, public=False)
    query.component = component
    return query


def _digest(encoded: bytes) -> bytes:
    return blake2b(encoded, digest_size=16).digest()


@dataclass(slots=True)
class Budget:
    """The bytes that a batch of queries may read, and may return, together: a batch is one call."""

    limit: int
    read: int = 0
    returned: int = 0

    def check(self) -> None:
        """Refuse a further query if those before it have read or returned too much."""
        self._refuse_beyond("read", self.read)
        self._refuse_beyond("returned", self.returned)

    def take(self, answer: bytes) -> bytes:
        """Count an answer, and refuse it if with it they have returned too much."""
        self.returned += len(answer)
        self._refuse_beyond("returned", self.returned)
        return answer

    def _refuse_beyond(self, done: str, size: int) -> None:
        if size <= self.limit:
            return
        error = LimitExceeded(
            f"The queries of this batch have {done} more than {self.limit} bytes together.",
            fix="Send fewer queries at once.",
            limit=self.limit,
        )
        error.at_the_door = True  # the batch is the caller's
        raise error
