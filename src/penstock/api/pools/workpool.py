"""A pool as programs use it: enqueue work with a limit over all machines, see its outcome, and look after it.

`calls/enqueue` stores the jobs; workers hold the limits. A retry or a new limit changes rows at rest, which a
transaction of a function never does. Actions and programs ask for it, and it takes effect at once.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar, Unpack, cast, overload

from pydantic import ValidationError
from pydantic_core import to_json

from penstock.api.callers import for_programs, for_readers, for_writers
from penstock.api.guests import Guests
from penstock.calls.enqueue.bulk_enqueue import exhaust
from penstock.calls.enqueue.jobs import JobCalls, calls_of
from penstock.calls.enqueue.tokens import complete, fail
from penstock.calls.run.engine import Engine
from penstock.calls.run.jobrun import NONE_HOLDS_AFTER
from penstock.clock import SystemClock
from penstock.config import FOR_EVER
from penstock.errors import ArgumentsInvalid, CallTimeout, ContextError, DataError, UsageError, ValueInvalid
from penstock.functions.component import own_function
from penstock.functions.function import AnyFunction, Function, FunctionKind
from penstock.jobs.filter import JobFilter
from penstock.jobs.job import JobId, JobStatus, NewJob, Options, job_id, job_uuid
from penstock.pools.options import Duplicate, WorkOptions, change_options, retry_of
from penstock.pools.pool import PoolDefinition, check_max_parallelism
from penstock.pools.results import Completion, Finished, Success, WorkResult, WorkStatus, work_status

if TYPE_CHECKING:
    from penstock.api.callers import AsyncWaiter, AsyncWriter, SyncWaiter, SyncWriter

P = ParamSpec("P")
T = TypeVar("T")

_FIRST_LOOK, _LAST_LOOK = 0.005, 0.25
_RETRIES = "Work is retried"


class Where(TypedDict, total=False):
    """Conditions on work, other than its pool and function; see `JobFilter`."""

    state: str
    name: str
    key: str
    concurrency_key: str
    error: str
    since: datetime
    before: datetime
    on_complete_error: str


class Workpool:
    """A pool of work with a limit that holds over all processes and machines.

    Made with `App.workpool`. Each piece of work is a job that runs a mutation, an action or a query. A mutation takes
    effect exactly once. An action runs at most once, or, if it is retried, until it succeeds or its attempts are used
    up. The semantics are those of Convex's Workpool.

    Attributes:
        name: Its name.
        definition: Its declaration.
    """

    def __init__(self, definition: PoolDefinition, guests: Guests, options: WorkOptions | None = None) -> None:
        self.definition = definition
        self.name = definition.name
        self._guests = guests
        self._options = options or WorkOptions()
        self._duplicate = Duplicate(self._options.get("on_duplicate", "return"), self._options.get("max_wait"))
        self._asked: dict[AnyFunction, Options] = {}

    def __repr__(self) -> str:
        return f"<pool {self.name}>"

    def within(
        self, definition: PoolDefinition, guests: Guests, resolve: Callable[[AnyFunction], AnyFunction]
    ) -> Workpool:
        """This pool in one use of its app."""
        options, after = self._options, self._options.get("on_complete")
        if after is not None:
            options = options.copy()
            options["on_complete"] = cast("Any", resolve(after))
        return Workpool(definition, guests, options)

    def with_options(self, **options: Unpack[WorkOptions]) -> Workpool:
        """This pool, with other options for the work that is enqueued through it.

        Args:
            **options: Any of these.
                ``retry``: for actions; True for the pool's default policy, a `Retry` for another, False for none.
                ``on_complete``: a mutation ``(ctx, work_id, result, context)``, run exactly once when the work has
                ended, in the transaction that ends it; ``result`` is a `Success`, `Failed` or `Canceled`.
                ``on_complete_retry``: a `Retry` for an ``on_complete`` that raises; five attempts by default.
                ``on_complete_only``: the ends after which ``on_complete`` runs, such as ``("failed",)``: some of
                ``"success"``, ``"failed"`` and ``"canceled"``; all by default.
                ``context``: a value for ``on_complete``, which it gets with the result; anything that JSON can say.
                ``run_at``, ``run_after``: a time or a delay before which it does not start.
                ``name``: its name in log events; its function's name by default.
                ``priority``: work with a higher one starts first; 0 by default.
                ``timeout``: how long one attempt may take.
                ``start_deadline``: how long after it was due work may start. Later it fails with the error ``expired``.
                ``deadline``: for runs of workflows: how long one may take from its beginning, waits included. Then its
                body is canceled, and may clean up.
                ``concurrency_key``: such as a tenant's id: work with the same one runs no more at once than the pool's
                ``key_parallelism``, and keys take turns.
                ``key``: there is no other work of this pool with the same one, until it ends.
                ``on_duplicate``: the policy if there is: ``"return"`` gives its id, ``"reject"`` raises
                `DuplicateJob`. With ``"replace"`` work has its key only until it starts; while it is pending, new work
                takes its place. ``"debounce"`` does so with ``run_after``: it starts when nothing new has come
                for so long.
                ``max_wait``: for ``"debounce"``: how long work is put off at most.

        Raises:
            UsageError: There is no such option, or two exclude each other.
            ValueInvalid: An option cannot have this value.
            DeclarationError: ``on_complete`` is no mutation that takes these arguments.
        """
        return Workpool(self.definition, self._guests, change_options(self._options, options))

    # ----- enqueue

    @overload
    def enqueue(
        self,
        ctx: AsyncWriter,
        function: Function[Any, P, T, Any],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Coroutine[Any, Any, JobId[T]]: ...
    @overload
    def enqueue(
        self,
        ctx: SyncWriter,
        function: Function[Any, P, T, Any],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> JobId[T]: ...
    def enqueue(self, ctx: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Enqueue a call of a function with these arguments; the id of its job.

        In a mutation the job exists if and only if the transaction commits.

        In a transaction of your own likewise, if its connection is passed: one of psycopg, psycopg2, asyncpg,
        SQLAlchemy, Django, sqlite3 or aiosqlite. On a sync connection the id is given at once, without ``await``.

        Args:
            ctx: The ctx of the mutation or action that enqueues, the backend of a program, or a connection.
            function: A mutation, an action or a query of this app.
            *args: Its arguments.
            **kwargs: Its arguments by name.

        Raises:
            ArgumentsInvalid: The function does not take these arguments.
            ContextError: The function is of no app or of another one. The ctx is one of a query; or the connection is
                closed, its transaction has failed, or it leads to another kind of database than the app's.
            ConfigError: The database of the connection has no tables of penstock.
            UsageError: An option does not fit the function, such as ``retry`` for a mutation.
            LimitExceeded: The arguments or the context are too large, or one transaction enqueues too much.
        """
        calls = calls_of(ctx, writes=True, otherwise=self._guests.calls)
        return calls.answer(
            calls.sending(calls.name(self.name), function, self._enqueue(calls, function, args, kwargs))
        )

    @overload
    def enqueue_batch(
        self, ctx: AsyncWriter, function: Function[Any, Any, T, Any], arguments: Iterable[Mapping[str, Any]]
    ) -> Coroutine[Any, Any, list[JobId[T]]]: ...
    @overload
    def enqueue_batch(
        self, ctx: SyncWriter, function: Function[Any, Any, T, Any], arguments: Iterable[Mapping[str, Any]]
    ) -> list[JobId[T]]: ...
    def enqueue_batch(self, ctx: Any, function: Any, arguments: Iterable[Mapping[str, Any]]) -> Any:
        """Enqueue a call for each of any number of arguments, all in one transaction; their ids in order.

        Args:
            ctx: As for `enqueue`.
            function: As for `enqueue`.
            arguments: The arguments of each call, by name. Type checkers see those of ``function.args(…)``.
                They are asked for once, one by one, so they may come from a generator: while those before are stored;
                but where nobody awaits, and on connections, before that.

        Raises:
            ArgumentsInvalid: The function does not take some of them, or they are no mappings; then none is enqueued.
        """
        calls = calls_of(ctx, writes=True, otherwise=self._guests.calls)
        given = exhaust(arguments) if calls.in_thread else arguments
        return calls.answer(calls.sending(calls.name(self.name), function, self._enqueue_batch(calls, function, given)))

    # ----- look

    @for_readers
    async def status(self, calls: JobCalls, work_id: JobId) -> WorkStatus | None:
        """The status of work: `Pending`, `Running` or `Finished`; None if it is unknown, or its status has expired.

        Raises:
            IdInvalid: It is not an id of a job.
        """
        found = await calls.find(job_uuid(work_id))
        return None if found is None else _status_of(calls, found)

    @for_readers
    def status_batch(self, calls: JobCalls, work_ids: Iterable[JobId]) -> Coroutine[Any, Any, list[WorkStatus | None]]:
        """The status of each, in order; see `status`."""
        return self._status_batch(calls, exhaust(work_ids) if calls.in_thread else work_ids)

    @overload
    def result(
        self, ctx: AsyncWaiter, work_id: JobId[T], timeout: timedelta | None = None
    ) -> Coroutine[Any, Any, WorkResult[T]]: ...
    @overload
    def result(self, ctx: SyncWaiter, work_id: JobId[T], timeout: timedelta | None = None) -> WorkResult[T]: ...
    def result(self, ctx: Any, work_id: JobId, timeout: timedelta | None = None) -> Any:
        """The outcome of work, once it has ended.

        The value of a success is read as the function's annotation says. It stays JSON if that does not fit: an outside
        system may complete work with any value.

        Args:
            work_id: Its id.
            timeout: How long to wait at most; None for as long as it takes.

        Raises:
            CallTimeout: It has not ended in time.
            ContextError: The ctx is one of a mutation or a query, which would see nothing end while it waits.
            DataError: It is unknown, or its status has expired.
            ValueInvalid: The timeout is no timedelta.
        """
        calls = calls_of(ctx, otherwise=self._guests.calls)
        return calls.answer(self._result(calls, work_id, timeout))

    async def _result(self, calls: JobCalls, work_id: JobId, timeout: timedelta | None) -> WorkResult[Any]:  # noqa: ASYNC109 - a word of the field
        if calls.in_transaction:
            raise ContextError(
                "A transaction cannot see a job end while it waits.", fix="Wait in an action, or use on_complete."
            )
        if not isinstance(timeout, timedelta | None):
            raise ValueInvalid(f"result takes a timedelta or None as its timeout, not {timeout!r}.")
        clock, pause = SystemClock(), _FIRST_LOOK
        deadline = None if timeout is None else clock.monotonic() + timeout.total_seconds()
        while True:
            job = await calls.find(job_uuid(work_id))
            status = None if job is None else _status_of(calls, job)
            if isinstance(status, Finished):
                return status.result
            if status is None:
                raise DataError(f"There is no work {work_id}, or its status has expired.")
            if deadline is not None and clock.monotonic() + pause > deadline:
                raise CallTimeout(f"{work_id} has not ended within {timeout}.", fix="Ask again, or wait longer.")
            await clock.sleep(pause)
            pause = min(pause * 1.5, _LAST_LOOK)

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
        """Ask for all work of this pool to be canceled that is enqueued by now; the number of jobs that had not ended.

        Args:
            function: Only calls of this function.
            **where: Further conditions; see `JobFilter`. ``state="pending"`` leaves running work alone.

        Raises:
            UsageError: There is no such condition.
            ValueInvalid: It asks for work that has ended, or a value cannot be.
        """
        return await calls.cancel_all(self._filter(calls, function, where))

    # ----- retry

    @for_programs(_RETRIES)
    async def retry(self, calls: JobCalls, work_id: JobId) -> bool:
        """Run work again that has failed or was canceled; False if it is in another state, or its status has expired.

        The work keeps its id, arguments and options. It is pending now, its attempts are counted from zero, and its
        ``on_complete`` is called again at its end. Its status still shows the attempts that failed.

        Raises:
            ContextError: The ctx is one of a mutation or a query.
            IdInvalid: It is not an id of a job.
        """
        return bool(await calls.retry([job_uuid(work_id)]))

    @for_programs(_RETRIES)
    async def retry_all(self, calls: JobCalls, function: AnyFunction | None = None, **where: Unpack[Where]) -> int:
        """Run all failed work of this pool again, the oldest first; the number of jobs.

        Args:
            function: Only calls of this function.
            **where: Further conditions; see `JobFilter`. ``state="canceled"`` picks canceled work instead,
                ``error="…"`` work whose error contains this text.

        Raises:
            ContextError: The ctx is one of a mutation or a query.
            UsageError: There is no such condition.
            ValueInvalid: It asks for work that cannot be retried, or a value cannot be.
        """
        return await calls.retry_all(self._filter(calls, function, where))

    @for_programs(_RETRIES)
    async def retry_on_complete(self, calls: JobCalls, work_id: JobId) -> bool:
        """Call the ``on_complete`` of work again that has raised each time; False if it has not, or is unknown.

        The outcome of the work stays as it is. The attempts of ``on_complete`` are counted from zero.

        Raises:
            ContextError: The ctx is one of a mutation or a query.
            IdInvalid: It is not an id of a job.
        """
        return bool(await calls.retry([job_uuid(work_id)], on_complete=True))

    @for_programs(_RETRIES)
    async def retry_all_on_complete(
        self, calls: JobCalls, function: AnyFunction | None = None, **where: Unpack[Where]
    ) -> int:
        """Retry each ``on_complete`` of this pool, the oldest first; their number. Arguments as for `retry_all`."""
        return await calls.retry_all(self._filter(calls, function, where), on_complete=True)

    # ----- end it from outside

    @for_programs()
    async def complete(self, calls: JobCalls, token: str, result: Any = None) -> Completion:
        """End work with success, whichever pool it is in; if it has ended before, the first outcome counts.

        Args:
            token: The token that ``ctx.work.complete_later()`` returned.
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
            error: The text of the error.
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
        await change_pool(calls.engine, calls.name(self.name), **changes)

    # ----- steps

    def _filter(self, calls: JobCalls, function: AnyFunction | None, where: Where) -> JobFilter:
        return filter_of(calls.name(self.name), own_function(calls.component, function), where)

    async def _enqueue(self, calls: JobCalls, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> JobId:
        make = self._maker(calls, function)
        job = make(function.signature.bind(args, kwargs))
        if job.options.key is not None:
            return job_id(await calls.enqueue_with_key(job, self._duplicate))
        await calls.enqueue(job)
        return job_id(job.id)

    async def _enqueue_batch(
        self, calls: JobCalls, function: Any, arguments: Iterable[Mapping[str, Any]]
    ) -> list[JobId]:
        make = self._maker(calls, function)
        if self._options.get("key") is not None:
            raise UsageError("The jobs of a batch cannot share a key.", fix="Enqueue jobs with keys one by one.")
        if not isinstance(arguments, Iterable):
            raise ArgumentsInvalid(f"enqueue_batch takes a list of arguments, one per call, not {arguments!r}.")
        return await calls.enqueue_all(map(make, arguments))

    def job(self, calls: JobCalls, function: Any, arguments: Mapping[str, Any]) -> NewJob:
        """A call of a function as a job of this pool, not enqueued; see `enqueue` for the errors."""
        return self._maker(calls, function)(arguments)

    def _maker(self, calls: JobCalls, function: Any) -> Callable[[Mapping[str, Any]], NewJob]:
        asked, after, run_at = self._options, self._options.get("on_complete"), calls.now()
        function = calls.function(function)
        done = None if after is None else calls.function(after).name
        options = self._asked.get(function) or self._ask(calls, function)
        if asked.get("context") is None:  # a context may have changed by the next call
            self._asked[function] = options
        if asked.get("run_after") is not None:
            run_at = calls.after(asked["run_after"], "run_after")
        elif asked.get("run_at") is not None:
            run_at = calls.at(asked["run_at"], "run_at")

        return calls.maker(
            function,
            run_at,
            pool=calls.name(self.name),
            priority=asked.get("priority", 0),
            options=options,
            on_complete=done,
            ageing=self.definition.ageing,
            gated=self.definition.rate_limit is not None,
        )

    def _ask(self, calls: JobCalls, function: AnyFunction) -> Options:
        asked, after, ttl = self._options, self._options.get("on_complete"), self.definition.status_ttl
        context, timeout, key = asked.get("context"), asked.get("timeout"), asked.get("key")
        start, deadline, only = asked.get("start_deadline"), asked.get("deadline"), asked.get("on_complete_only")
        if deadline is not None and function.kind is not FunctionKind.WORKFLOW:
            raise UsageError(
                f"{function.name} is {function.kind.with_article}, which has no deadline.",
                fix="Give it a timeout or a start_deadline.",
            )
        return Options(
            retry=retry_of(asked.get("retry"), function, self.definition),
            name=asked.get("name"),
            timeout=None if timeout is None else timeout.total_seconds(),
            start_deadline=None if start is None else start.total_seconds(),
            deadline=None if deadline is None else deadline.total_seconds(),
            keep=(FOR_EVER if ttl is None else ttl).total_seconds(),
            on_complete_retry=asked.get("on_complete_retry"),
            on_complete_only=None if only is None else ",".join(sorted(only)),
            context=None
            if after is None or context is None
            else calls.fitting(after.signature.encode_one("context", context, "The context"), "The context"),
            concurrency_key=asked.get("concurrency_key"),
            key=key,
            until_start=None if key is None else self._duplicate.until_start,
        )

    async def _status_batch(self, calls: JobCalls, work_ids: Iterable[JobId]) -> list[WorkStatus | None]:
        found = await calls.find_many([job_uuid(work_id) for work_id in work_ids])
        return [None if one is None else _status_of(calls, one) for one in found]


def _status_of(calls: JobCalls, job: JobStatus) -> WorkStatus:
    """The status of a job. A result has the type that the function's annotation names, if it can have it."""
    status, function = work_status(job), calls.engine.registry.find(job.function)
    if function is not None and isinstance(status, Finished) and isinstance(status.result, Success):
        with suppress(ValidationError):
            return Finished(Success(function.signature.result_of_json(to_json(status.result.value))))
    return status


async def change_pool(
    engine: Engine, name: str, *, max_parallelism: int | None = None, paused: bool | None = None
) -> None:
    """Change the limit of a pool, or pause it, on all machines at once; nothing starts beyond it once this returns."""
    if max_parallelism is not None:
        check_max_parallelism(name, max_parallelism)
    if not await engine.store.pools.change(name, max_parallelism=max_parallelism, paused=paused):
        raise DataError(
            f"The database knows no pool {name!r}.",
            fix="See penstock pools, or start the program that declares it once.",
        )
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
