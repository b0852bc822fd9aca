"""Runs functions: queries in a snapshot, mutations in a transaction that is tried again, actions in neither.

Owns the three kinds of run, at the top and nested. Every road to user code leads through here: HTTP, Python, jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache, partial
from hashlib import blake2b
from typing import Any
from weakref import ref

from penstock.calls.enqueue.jobs import JobCalls
from penstock.calls.run import djangodb, syncctx  # noqa: F401 - the faces of each ctx
from penstock.calls.run.bridge import Bridge
from penstock.calls.run.containment import contained
from penstock.calls.run.context import ActionCtx, Given, MutationCtx, QueryCtx, Run, Runs
from penstock.calls.run.engine import Engine
from penstock.calls.run.face import face_of
from penstock.calls.run.ratelimits import key_of, policy_of, take_tokens
from penstock.calls.run.running import PLAIN, Execution, Moment, Running
from penstock.calls.run.snapshots import Snapshot
from penstock.calls.run.threads import Place
from penstock.calls.run.unawaited import refuse_tasks_of, watch_dropped_coroutines
from penstock.errors import (
    AccessDenied,
    CallTimeout,
    CursorInvalid,
    DatabaseUnavailable,
    LimitExceeded,
    NotSignedIn,
    PenstockError,
    RateLimited,
    TryAgain,
    at_the_door,
)
from penstock.functions.access import Asked
from penstock.functions.function import AnyFunction, FunctionKind, QueryFunction, check_depth, expect
from penstock.identity.caller import SYSTEM, Caller
from penstock.jobs.job import Work
from penstock.live.entry import Answer, Entry
from penstock.observe import points
from penstock.observe.loglines import log_lines
from penstock.observe.practices import Practices, Watch
from penstock.observe.timing import spent_on
from penstock.store.session import Session, reading
from penstock.transaction.commit import commit
from penstock.transaction.pages import decode_journal, encode_journal
from penstock.transaction.shared import Part
from penstock.transaction.tracking import Calls
from penstock.transaction.transaction import Scope, Transaction
from penstock.values import copier

Ctx = QueryCtx | MutationCtx | ActionCtx
Encode = Callable[[Any], bytes]
Arguments = dict[str, Any]
QueryRun = tuple[AnyFunction, Arguments, Encode]  # a query, its checked arguments, how its result leaves


class Runner(Runs):
    """Runs the functions of one engine."""

    def __init__(self, engine: Engine) -> None:
        watch_dropped_coroutines()
        super().__init__(engine)

    # ----- at the top

    async def run_query(
        self, function: AnyFunction, given: Given, depth: int = 0, work: Work | None = None, caller: Caller = SYSTEM
    ) -> Any:
        arguments = _checked(function, FunctionKind.QUERY, given, outside=not depth)
        return await _named(function, self.query(function, arguments, depth, work, caller))

    async def run_mutation(
        self, function: AnyFunction, given: Given, depth: int = 0, work: Work | None = None, caller: Caller = SYSTEM
    ) -> Any:
        expect(function, FunctionKind.MUTATION)
        bound = function.signature.bind(*given)
        copied = copier(bound)
        execution = Execution(work=work, caller=caller, arguments=bound)

        async def check() -> Arguments:
            with at_the_door(outside=not depth):
                return function.signature.check(copied(bound))

        return await _named(function, self.mutation(function, check, depth, execution))

    async def run_action(
        self,
        function: AnyFunction,
        given: Given,
        depth: int = 0,
        attempt: Running | None = None,
        caller: Caller = SYSTEM,
    ) -> Any:
        arguments = _checked(function, FunctionKind.ACTION, given, outside=not depth)
        return await _named(function, self.action(function, arguments, depth, attempt, caller))

    async def query(
        self,
        function: AnyFunction,
        arguments: Arguments,
        depth: int = 0,
        work: Work | None = None,
        caller: Caller = SYSTEM,
    ) -> Any:
        """Run a query on checked arguments; on another connection if one was lost."""

        async def once() -> Any:
            async with self.engine.thread(function, depth) as thread:
                with spent_on("waits"):
                    session = await self.engine.store.begin_read()
                try:
                    transaction = self.transaction(session, self.now(), self.engine.clock.seed(), work, caller)
                    return await self._in_transaction(transaction, function, arguments, depth, thread)
                finally:
                    await session.rollback()

        with self.engine.journal.call(function, caller):
            return await self.attempt(once, function.name)

    async def queries(
        self, runs: Sequence[QueryRun], at: Snapshot | None = None, caller: Caller = SYSTEM
    ) -> list[bytes | Exception]:
        """Run queries in one snapshot, at one time; for each its answer, or its error."""
        in_thread = next((function for function, _, _ in runs if not function.is_async), None)
        async with self.engine.thread(in_thread, 0) as thread:
            if at is not None:
                return await at.use(lambda session, now: self._queries_in(session, now, runs, thread, caller), "query")

            async def once() -> list[bytes | Exception]:
                async with reading(self.engine.store.begin_read) as session:
                    return await self._queries_in(session, self.now(), runs, thread, caller)

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
        transaction = self.transaction(session, self.now(), entry.seed, None, entry.caller)
        limit = self.engine.config.call_timeout
        timer, lines = asyncio.timeout(limit), list[str]()
        try:
            transaction.given_ends = decode_journal(journal)
            async with timer, self.engine.thread(function, 0) as thread:
                with self.engine.journal.call(function, entry.caller), log_lines(told=self.engine.config.dev) as lines:
                    run = self._in_transaction(transaction, function, entry.arguments, 0, thread)
                    result = await contained(function, run)
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
                error = CallTimeout(f"{function.name} took longer than {limit:g} seconds.")
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

    async def mutation(
        self,
        function: AnyFunction,
        check: Callable[[], Awaitable[Arguments]],
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
        moment = execution.moment or (self.now(), self.engine.clock.seed())
        settle, finish, for_ever = execution.settle, execution.finish, execution.settle is not None
        has_paid = depth > 0 or execution.work is not None

        async def once(queue: int | None) -> Any:
            nonlocal has_paid
            arguments = await check()
            if not has_paid:
                await self._take_token(function, execution.caller)
                has_paid = True
            with spent_on("waits"):
                session = await self.begin_write(queue, for_ever=for_ever)
            try:
                transaction = self.transaction(session, *moment, execution.work, execution.caller)
                result = await self._in_transaction(transaction, function, arguments, depth, thread)
                if points.armed:
                    await points.reach("mutation.ran", function=function.name)
                answer = finish(result) if finish else result
                with spent_on("database"):
                    await commit(transaction, execution.lease, settle(result) if settle else None, execution.seal)
            finally:
                await session.rollback()
            return answer

        with self.engine.journal.call(function, execution.caller):
            async with self.engine.thread(function, depth) as thread:
                return await self.attempt_write(once, function.name, execution.arguments, for_ever=for_ever)

    async def shared_mutation(
        self, part: Part, function: AnyFunction, arguments: Arguments, moment: Moment, work: Work, caller: Caller
    ) -> tuple[Transaction, Any]:
        """Run a mutation once, in its part of a transaction that it shares; its gathered changes, and its result."""
        transaction = self.transaction(part, *moment, work, caller)
        with self.engine.journal.call(function):
            result = await self._in_transaction(transaction, function, arguments, 0, None)
        if points.armed:
            await points.reach("mutation.ran", function=function.name)
        return transaction, result

    async def action(
        self,
        function: AnyFunction,
        arguments: Arguments,
        depth: int = 0,
        attempt: Running | None = None,
        caller: Caller = SYSTEM,
    ) -> Any:
        with self.engine.journal.call(function, caller):
            check_depth(function, depth)
            if depth == 0 and attempt is None:
                await self._take_token(function, caller)
            await self.check_access_alone(function, arguments, depth + 1, caller)
            if function.runtime == "process":
                text = function.signature.encode(arguments).encode()
                work = None if attempt is None else attempt.work
                return function.signature.result_of_json(await self.engine.processes.run(function, text, work))
            async with self.engine.thread(function, depth) as thread:
                if attempt is not None:
                    await attempt.begin()
                make = partial(ActionCtx, self, caller=caller)
                return await self.run_handler(  # which alone holds the ctx
                    function, make(Calls(function.name), depth, attempt), arguments, depth, thread
                )

    # ----- nested in a transaction

    async def nested_query(self, scope: Scope, depth: int, function: AnyFunction, given: Given) -> Any:
        arguments = _checked(function, FunctionKind.QUERY, given)
        with self.engine.journal.call(function):
            async with scope.held():
                return await self._in_scope(function, scope.transaction, arguments, depth + 1, None)

    async def nested_mutation(self, scope: Scope, depth: int, function: AnyFunction, given: Given) -> Any:
        arguments = _checked(function, FunctionKind.MUTATION, given)
        with self.engine.journal.call(function):
            async with scope.held(), scope.transaction.branch():
                return await self._in_scope(function, scope.transaction, arguments, depth + 1, None)

    # ----- steps

    async def _queries_in(
        self, session: Session, now: datetime, runs: Sequence[QueryRun], thread: Place | None, caller: Caller
    ) -> list[bytes | Exception]:
        found: list[bytes | Exception] = []
        budget = Budget(self.engine.config.max_bytes_read)
        await session.savepoint("query")
        for function, arguments, encode in runs:
            try:
                budget.check()
                transaction = self.transaction(session, now, self.engine.clock.seed(), None, caller)
                run = self._in_transaction(transaction, function, arguments, 0, thread)
                try:
                    with self.engine.journal.call(function, caller):
                        result = await contained(function, run)
                finally:
                    budget.read += transaction.bytes_read
                found.append(budget.take(encode(result)))  # the encoded result need not be held any more
            except Exception as error:
                if isinstance(error, TryAgain) and not error.from_function:
                    raise
                found.append(error)
                await session.rollback_to("query")
                await session.savepoint("query")
        return found

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
        self.engine.journal.counted(transaction)
        return result

    def _in_scope(
        self, function: AnyFunction, transaction: Transaction, arguments: Arguments, depth: int, thread: Place | None
    ) -> Run:
        check_depth(function, depth)
        writable = function.kind is FunctionKind.MUTATION
        acts_for_caller = function.public or function.access is not None
        is_ruled = acts_for_caller and not transaction.caller.is_system
        scope = Scope(transaction, function.name, writable=writable, ruled=is_ruled)
        ctx = MutationCtx(self, scope, depth) if writable else QueryCtx(self, scope, depth)
        run = self.run_handler(function, ctx, arguments, depth, thread)
        if transaction.caller.is_system:
            return run
        transaction.ask = lambda facts: self._ask(transaction, facts, {}, depth + 1)
        return run if function.access is None else self._guarded(run, transaction, function, arguments, depth)

    async def _guarded(
        self, run: Run, transaction: Transaction, function: AnyFunction, arguments: Arguments, depth: int
    ) -> Any:
        try:
            await self.check_access(transaction, function, arguments, depth + 1)
        except BaseException:
            run.close()
            raise
        return await run

    async def check_access(
        self, transaction: Transaction, function: AnyFunction, arguments: Mapping[str, Any], depth: int
    ) -> None:
        """Check that the caller of a transaction may call a function. The reads of its guards are noted as its own.

        Raises:
            AccessDenied: Its access does not let the caller in.
            NotSignedIn: The same, and the caller has no identity.
        """
        if function.access is None or transaction.caller.is_system:
            return
        asked = Asked(
            function.arguments((), arguments),
            transaction.identity,
            lambda guard, given: self._ask(transaction, guard, given, depth),
        )
        if not await function.access.lets_in(asked):
            if transaction.identity() is None:
                raise NotSignedIn
            raise AccessDenied(f"The access of {function.name} does not let this caller in.")

    async def check_access_alone(
        self, function: AnyFunction, arguments: Mapping[str, Any], depth: int, caller: Caller
    ) -> None:
        """The same for an action, in a snapshot of its own."""
        if function.access is None or caller.is_system:
            return

        async def once() -> None:
            async with reading(self.engine.store.begin_read) as session:
                transaction = self.transaction(session, self.now(), self.engine.clock.seed(), None, caller)
                await self.check_access(transaction, function, arguments, depth)

        await self.attempt(once, function.name)

    async def _take_token(self, function: AnyFunction, caller: Caller) -> None:
        """Take a token of the function's rate limit for a call from outside, before it runs: it is not given back.

        Raises:
            RateLimited: There is none.
        """
        if (name := function.rate_limit) is None or caller.is_system:
            return
        policy = policy_of(self.engine.rate_limits, name)
        status = await take_tokens(JobCalls(self, None), name, policy, key_of(caller), 1, reserve=False)
        if not status.ok:
            raise RateLimited(status.retry_after.total_seconds())

    def _ask(
        self, transaction: Transaction, asked: Callable[..., Any], arguments: Mapping[str, Any], depth: int
    ) -> Run:
        """Run a guard, or a function that reads facts for rules; it reads all rows."""
        function = _asked_query(asked)
        check_depth(function, depth)
        ctx = QueryCtx(self, Scope(transaction, function.name, writable=False), depth)
        return self.run_handler(function, ctx, dict(arguments), depth, None, asked)

    async def run_handler(
        self,
        function: AnyFunction,
        ctx: Ctx,
        arguments: Arguments,
        depth: int,
        thread: Place | None,
        handler: Callable[..., Any] | None = None,
    ) -> Any:
        """Run the handler of a function; what it returns. None of its calls is left when it ends.

        Args:
            function: The function.
            ctx: Its ctx; the caller must not hold it, as all tasks are searched for whoever holds it at the end.
            arguments: Its arguments.
            depth: How many calls it is nested in.
            thread: The place of one written with def; None to take one.
            handler: Another handler to run, whose result nobody checks.

        Raises:
            UnawaitedCall: Calls, helpers or tasks that have the ctx are left.
        """
        run = handler or function.handler
        calls: Calls = ctx._calls  # noqa: SLF001 - it is run here
        watch = None if self.engine.practices is None else self._watch(self.engine.practices, function, ctx, run)
        try:
            if function.is_async:
                await djangodb.on_loop()
                result = await run(ctx, **arguments)
            else:
                twin = face_of(ctx, Bridge(asyncio.get_running_loop()))
                result = await self._in_thread(
                    function, lambda: djangodb.in_thread(lambda: run(twin, **arguments)), depth, thread
                )
            calls.end()
            if watch is not None:
                watch.check_asked()
        except BaseException as error:
            calls.abandon()
            if isinstance(error, PenstockError):
                transaction = None if isinstance(ctx, ActionCtx) else ctx._scope.transaction  # noqa: SLF001 - it is run here
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
        return result if handler is not None else function.signature.check_result(result)

    def _watch(self, practices: Practices, function: AnyFunction, ctx: Ctx, handler: Callable[..., Any]) -> Watch:
        caller = ctx._caller if isinstance(ctx, ActionCtx) else ctx._scope.transaction.caller  # noqa: SLF001 - it is run here
        is_open = function.public and function.access is None and not caller.is_system
        transacts = function.kind is not FunctionKind.ACTION
        return Watch(practices, function.name, function.declared, handler, transacts, is_open)

    async def _in_thread(self, function: AnyFunction, work: Callable[[], Any], depth: int, thread: Place | None) -> Any:
        if thread is not None:
            return await thread.run(work)
        async with self.engine.thread(function, depth, nested=True) as own:
            return await self._in_thread(function, work, depth, own)


@cache
def _asked_query(asked: Callable[..., Any]) -> AnyFunction:
    return QueryFunction(asked, public=False)


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


async def _named(function: AnyFunction, run: Run) -> Any:
    """Await a run; an error notes which function raised it, as a web framework that answers it does not know."""
    try:
        return await run
    except PenstockError as error:
        error.raised_in = error.raised_in or function.name
        raise


def _checked(function: AnyFunction, kind: FunctionKind, given: Given, *, outside: bool = False) -> Arguments:
    expect(function, kind)
    with at_the_door(outside=outside):
        return function.signature.check(function.signature.bind(*given))
