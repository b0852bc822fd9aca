"""A pool as programs use it: enqueue work with a limit over all machines, and see its outcome.

`admin` changes work and limits. `calls/enqueue` stores the jobs; workers hold the limits.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from penstock.api.callers import for_programs, for_readers
from penstock.api.guests import Guests
from penstock.api.pools.admin import PoolAdmin
from penstock.calls.enqueue.bulk_enqueue import exhausted
from penstock.calls.enqueue.jobs import JobCalls, calls_of
from penstock.clock import SystemClock
from penstock.config import FOR_EVER
from penstock.errors import ArgumentsInvalid, CallTimeout, ContextError, DataError, UsageError, ValueInvalid
from penstock.functions.function import AnyFunction, Function
from penstock.jobs.job import JobId, NewJob, Options, job_id, job_uuid
from penstock.pools.options import WorkOptions
from penstock.pools.pool import PoolDefinition
from penstock.pools.results import Finished, WorkResult, WorkStatus, work_status

if TYPE_CHECKING:
    from penstock.api.callers import AsyncReader, AsyncWriter, SyncReader, SyncWriter

P = ParamSpec("P")
T = TypeVar("T")

_FIRST_LOOK, _LAST_LOOK = 0.005, 0.25


class Workpool(PoolAdmin):
    """A pool of work with a limit that holds over all processes and machines.

    Made with `App.workpool`. Each piece of work is a job that runs a mutation, an action or a query. A mutation takes
    effect exactly once; an action runs at most once, or, if it is retried, until it succeeds or its attempts are used
    up. The semantics are those of Convex's Workpool.
    """

    def __init__(self, definition: PoolDefinition, guests: Guests, options: WorkOptions | None = None) -> None:
        super().__init__(definition, guests)
        self._options = options or WorkOptions()
        self._asked: dict[AnyFunction, Options] = {}

    def __repr__(self) -> str:
        return f"<pool {self.name}>"

    def with_options(self, **options: Any) -> Workpool:
        """The same pool, with other options for the work that is enqueued through it.

        Args:
            **options: Any of these.
                ``retry``: for actions; True for the pool's default policy, a `Retry` for another, False for none.
                ``on_complete``: a mutation ``(ctx, work_id, result, context)``, run exactly once when the work has
                ended, in the transaction that ends it; ``result`` is a `Success`, `Failed` or `Canceled`.
                ``on_complete_retry``: a `Retry` for an ``on_complete`` that raises; five attempts by default.
                ``context``: a value for ``on_complete`` beside the result; anything that JSON can say.
                ``run_at``, ``run_after``: a time or a delay before which it does not start.
                ``name``: its name in log events; its function's name by default.
                ``priority``: work with a higher one starts first; 0 by default.
                ``timeout``: how long one attempt may take.
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
        return Workpool(self.definition, self._guests, self._options.changed(options))

    # ----- enqueue

    @overload
    def enqueue(
        self,
        ctx: AsyncWriter,
        function: Function[Any, P, Any, Any],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Coroutine[Any, Any, JobId]: ...
    @overload
    def enqueue(
        self,
        ctx: SyncWriter,
        function: Function[Any, P, Any, Any],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> JobId: ...
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
            ContextError: The function is of no app or of another one; the ctx is one of a query; or the connection is
                closed, its transaction has failed, or it leads to another kind of database than the app's.
            ConfigError: The database of the connection has no tables of penstock.
            UsageError: An option does not fit the function, such as ``retry`` for a mutation.
            LimitExceeded: The arguments or the context are too large, or one transaction enqueues too much.
        """
        calls = self._calls(ctx, writes=True)
        return calls.answer(calls.sending(self.name, function, self._enqueue(calls, function, args, kwargs)))

    @overload
    def enqueue_batch(
        self,
        ctx: AsyncWriter,
        function: Function[Any, Any, Any, Any],
        arguments: Iterable[Mapping[str, Any]],
    ) -> Coroutine[Any, Any, list[JobId]]: ...
    @overload
    def enqueue_batch(
        self,
        ctx: SyncWriter,
        function: Function[Any, Any, Any, Any],
        arguments: Iterable[Mapping[str, Any]],
    ) -> list[JobId]: ...
    def enqueue_batch(self, ctx: Any, function: Any, arguments: Iterable[Mapping[str, Any]]) -> Any:
        """Enqueue a call for each of any number of arguments, all in one transaction; their ids in order.

        Args:
            ctx: As for `enqueue`.
            function: As for `enqueue`.
            arguments: The arguments of each call, by name. They are asked for once, one by one, so they may come from a
                generator: while those before are stored; but where nobody awaits, and on connections, before that.

        Raises:
            ArgumentsInvalid: The function does not take some of them, or they are no mappings; then none is enqueued.
        """
        calls = self._calls(ctx, writes=True)
        given = exhausted(arguments) if calls.in_thread else arguments
        return calls.answer(calls.sending(self.name, function, self._enqueue_batch(calls, function, given)))

    # ----- look

    @for_readers
    async def status(self, calls: JobCalls, work_id: JobId) -> WorkStatus | None:
        """The status of work: `Pending`, `Running` or `Finished`; None if it is unknown, or its status has expired.

        Raises:
            IdInvalid: It is not an id of a job.
        """
        return await self._status(calls, work_id)

    @overload
    def status_batch(
        self, ctx: AsyncReader, work_ids: Iterable[JobId]
    ) -> Coroutine[Any, Any, list[WorkStatus | None]]: ...
    @overload
    def status_batch(self, ctx: SyncReader, work_ids: Iterable[JobId]) -> list[WorkStatus | None]: ...
    def status_batch(self, ctx: Any, work_ids: Iterable[JobId]) -> Any:
        """The status of each, in order; see `status`."""
        calls = self._calls(ctx)
        return calls.answer(self._status_batch(calls, exhausted(work_ids) if calls.in_thread else work_ids))

    @for_programs(connections=True)
    async def result(self, calls: JobCalls, work_id: JobId, timeout: timedelta | None = None) -> WorkResult[Any]:  # noqa: ASYNC109 - a word of the field
        """The outcome of work, once it has ended.

        Args:
            work_id: Its id.
            timeout: How long to wait at most; None for as long as it takes.

        Raises:
            CallTimeout: It has not ended in time.
            ContextError: The ctx is one of a mutation or a query, which would see nothing end while it waits.
            DataError: It is unknown, or its status has expired.
            ValueInvalid: The timeout is no timedelta.
        """
        if calls.in_transaction:
            raise ContextError(
                "A transaction cannot see a job end while it waits.", fix="Wait in an action, or use on_complete."
            )
        if not isinstance(timeout, timedelta | None):
            raise ValueInvalid(f"result takes a timedelta or None as its timeout, not {timeout!r}.")
        clock, pause = SystemClock(), _FIRST_LOOK
        deadline = None if timeout is None else clock.monotonic() + timeout.total_seconds()
        while True:
            status = await self._status(calls, work_id)
            if isinstance(status, Finished):
                return status.result
            if status is None:
                raise DataError(f"There is no work {work_id}, or its status has expired.")
            if deadline is not None and clock.monotonic() + pause > deadline:
                raise CallTimeout(f"{work_id} has not ended within {timeout}.", fix="Ask again, or wait longer.")
            await clock.sleep(pause)
            pause = min(pause * 1.5, _LAST_LOOK)

    # ----- steps

    def _calls(self, ctx: Any, *, writes: bool = False) -> JobCalls:
        return calls_of(ctx, writes=writes, otherwise=self._guests.calls)

    async def _enqueue(self, calls: JobCalls, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> JobId:
        make = self._maker(calls, function)
        job = make(function.signature.bind(args, kwargs))
        if job.options.key is not None:
            return job_id(await calls.enqueue_with_key(job, self._options.duplicate))
        await calls.enqueue(job)
        return job_id(job.id)

    async def _enqueue_batch(
        self, calls: JobCalls, function: Any, arguments: Iterable[Mapping[str, Any]]
    ) -> list[JobId]:
        make = self._maker(calls, function)
        if self._options.key is not None:
            raise UsageError("The jobs of a batch cannot share a key.", fix="Enqueue jobs with keys one by one.")
        if not isinstance(arguments, Iterable):
            raise ArgumentsInvalid(f"enqueue_batch takes a list of arguments, one per call, not {arguments!r}.")
        return await calls.enqueue_all(map(make, arguments))

    def job(self, calls: JobCalls, function: Any, arguments: Mapping[str, Any]) -> NewJob:
        """A call of a function as a job of this pool, not enqueued; see `enqueue` for the errors."""
        return self._maker(calls, function)(arguments)

    def _maker(self, calls: JobCalls, function: Any) -> Callable[[Mapping[str, Any]], NewJob]:
        """Makes jobs of the arguments of calls."""
        asked = self._options
        calls.check_function(function)
        if asked.on_complete is not None:
            calls.check_function(asked.on_complete)
        options = self._asked.get(function) or self._ask(calls, function)
        if asked.context is None:  # a context may have changed by the next call
            self._asked[function] = options
        run_at = calls.now()
        if asked.run_after is not None:
            run_at = calls.after(asked.run_after, "run_after")
        elif asked.run_at is not None:
            run_at = calls.at(asked.run_at, "run_at")

        return calls.maker(
            function,
            run_at,
            pool=self.name,
            priority=asked.priority,
            options=options,
            on_complete=None if asked.on_complete is None else asked.on_complete.name,
            ageing=self.definition.ageing,
            gated=self.definition.rate_limit is not None,
        )

    def _ask(self, calls: JobCalls, function: AnyFunction) -> Options:
        """The options of jobs that run a function."""
        asked, ttl = self._options, self.definition.status_ttl
        return Options(
            retry=asked.retry_of(function, self.definition),
            name=asked.name,
            timeout=None if asked.timeout is None else asked.timeout.total_seconds(),
            keep=(FOR_EVER if ttl is None else ttl).total_seconds(),
            on_complete_retry=asked.on_complete_retry,
            context=None if asked.context is None else calls.json(asked.context, "The context"),
            concurrency_key=asked.concurrency_key,
            key=asked.key,
            until_start=asked.duplicate.until_start if asked.key is not None else None,
        )

    async def _status(self, calls: JobCalls, work_id: JobId) -> WorkStatus | None:
        found = await calls.find(job_uuid(work_id))
        return None if found is None else work_status(found)

    async def _status_batch(self, calls: JobCalls, work_ids: Iterable[JobId]) -> list[WorkStatus | None]:
        found = await calls.find_many([job_uuid(work_id) for work_id in work_ids])
        return [None if one is None else work_status(one) for one in found]
