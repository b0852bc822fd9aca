"""Enqueue, cancel, retry and find jobs: in the transaction of a function, or in one of penstock's own.

`ctx.scheduler`, pools, tasks and outboxes all come here, with the checks of arguments that they share.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar, cast
from uuid import UUID

from penstock.calls.enqueue.bulk_enqueue import BulkEnqueue, NotMade
from penstock.calls.journal import tell_of_retries
from penstock.calls.run.attempts import Attempts
from penstock.crons.schedule import LocalTime
from penstock.errors import ContextError, LimitExceeded, ValueInvalid
from penstock.functions.component import Component, own_function, own_name
from penstock.functions.function import AnyFunction, Function, FunctionKind, WorkflowFunction
from penstock.functions.signature import encoder_of
from penstock.identity.caller import SYSTEM, Caller
from penstock.jobs.filter import JobFilter, cancelable, recallable, retriable
from penstock.jobs.job import DEFAULT_POOL, NO_OPTIONS, JobId, JobStatus, Kind, NewJob, Options, status_of_new
from penstock.jobs.order import FARTHEST, rank
from penstock.observe import practices
from penstock.observe.tracing import Tracing
from penstock.pools.options import Duplicate
from penstock.store.nouns.jobs import ABOVE_ALL
from penstock.store.session import reading
from penstock.transaction.keys import enqueue_with_key
from penstock.transaction.transaction import Scope, Transaction
from penstock.values import decode_json, encode_json, text_bytes

T = TypeVar("T")
Answer = Callable[[Coroutine[Any, Any, Any]], Any]

_MATCHED_AT_ONCE, _RETRIED_AT_ONCE = 5_000, 1_000


class JobCalls:
    """Enqueues, cancels, retries and finds jobs for one ctx, or, without a scope, for a program outside of functions.

    `answer` gives a call to its caller: to be awaited, or its result where the caller waits in a thread (`in_thread`).
    """

    __slots__ = ("_caller", "_scope", "answer", "component", "engine", "in_thread", "runner", "store")

    def __init__(
        self,
        runner: Attempts,
        scope: Scope | None,
        answer: Answer | None = None,
        *,
        in_thread: bool = False,
        caller: Caller = SYSTEM,
        component: Component | None = None,
    ) -> None:
        self.runner = runner
        self.engine = runner.engine
        self.store = runner.engine.store
        self._scope = scope
        self._caller = caller if scope is None else scope.transaction.caller
        self.component = component if scope is None else scope.component
        self.in_thread = in_thread
        self.answer: Answer = answer or (scope.track if scope is not None else lambda call: call)

    def track(self, call: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """A call as `answer` gives it to a caller who awaits it."""
        return cast("Coroutine[Any, Any, T]", self.answer(call))

    def waiting(self, wait: Answer) -> JobCalls:
        """Wait for a caller in a thread."""
        return JobCalls(
            self.runner,
            self._scope,
            lambda call: wait(self.answer(call)),
            in_thread=True,
            caller=self._caller,
            component=self.component,
        )

    def name(self, name: str) -> str:
        """The name in the program of a pool, rate limit, topic, cron or lock, as the caller's code says it."""
        given: object = name
        if not isinstance(given, str):
            raise ValueInvalid(f"A name is text, not {given!r}.", fix="Pass the name as it was declared.")
        return own_name(self.component, name)

    @property
    def is_writable(self) -> bool:
        """Whether jobs may be enqueued here."""
        return self._scope is None or self._scope.writable

    @property
    def in_transaction(self) -> bool:
        """Whether the caller is in a transaction, and so sees one moment."""
        return self._scope is not None

    def now(self) -> datetime:
        """The time of the transaction, or the app's."""
        return self.runner.now() if self._scope is None else self._scope.transaction.now

    def after(self, delay: object, word: str) -> datetime:
        """The time after a delay."""
        if not isinstance(delay, timedelta):
            raise ValueInvalid(f"{word} takes a timedelta, not {delay!r}.", fix="Write timedelta(seconds=…).")
        if not timedelta(0) <= delay <= FARTHEST:
            raise ValueInvalid(f"A delay of {delay} is negative, or longer than five years.")
        return self.now() + delay

    def at(self, time: object, word: str) -> datetime:
        """A point in time, or now if it is past."""
        if isinstance(time, LocalTime):
            time = time.instant
        if not isinstance(time, datetime) or time.tzinfo is None:
            raise ValueInvalid(
                f"{word} takes an aware datetime or a LocalTime, not {time!r}.", fix="Attach a time zone."
            )
        now = self.now()
        if time > now + FARTHEST:
            raise ValueInvalid(f"{time} is more than five years ahead.")
        return max(time.astimezone(UTC), now)

    def function(self, function: Any) -> AnyFunction:
        """The function that the caller's code means, for a job; `ContextError` if no worker could find it."""
        if isinstance(function, Function):
            function.check_job()
        found = self.find_function(function)
        practices.note_schedule(found)
        return found

    def find_function(self, function: Any) -> AnyFunction:
        """The function that the caller's code means; `ContextError` if it is none of this app."""
        function = own_function(self.component, function)
        if not isinstance(function, Function):
            raise ContextError(
                f"{function!r} is not a function of an app, so no worker could find it.",
                fix="Decorate it with @app.internal_mutation or @app.internal_action.",
            )
        if self.engine.registry.find(function.name) is not function:
            raise ContextError(
                f"{function.name} is not a function of this app.",
                fix="Of a component, pass the function of its use: comments[add], with comments = app.use(…).",
            )
        found: AnyFunction = function
        return found

    def new_job(self, function: AnyFunction, arguments: Mapping[str, Any], run_at: datetime, **asked: Any) -> NewJob:
        """A job that runs a function with these arguments; see `maker`."""
        return self.maker(function, run_at, **asked)(arguments)

    def maker(
        self,
        function: AnyFunction,
        run_at: datetime,
        *,
        pool: str = DEFAULT_POOL,
        priority: int = 0,
        options: Options = NO_OPTIONS,
        on_complete: str | None = None,
        ageing: timedelta | None = None,
        gated: bool = False,
    ) -> Callable[[Mapping[str, Any]], NewJob]:
        """The maker of jobs that run a function, from its arguments by name.

        The jobs pass a gate if they have a key, or if they are `gated` because their pool has a rate limit.
        """
        signature, what, clock = function.signature, f"The arguments of {function.name}", self.engine.clock
        name, place = function.name, rank(run_at, priority, ageing)
        kind: Kind = function.kind.job_kind
        key = options.concurrency_key or ("" if gated or options.key is not None else None)
        options = self.engine.journal.with_trace(options)
        if function.restartable or function.kind is FunctionKind.WORKFLOW:
            options = replace(options, restartable=True)
        if isinstance(function, WorkflowFunction) and function.outside is not None:
            options = replace(options, starter=self._caller.mark)
        if program := self.engine.registry.program:
            options = replace(options, program=program)

        def make(arguments: Mapping[str, Any]) -> NewJob:
            text = self.fitting(signature.encode(signature.check(arguments)), what)
            new_id = UUID(int=clock.uuid7())
            return NewJob(new_id, name, kind, text, run_at, place, pool, priority, options, on_complete, key)

        return make

    def fitting(self, text: str, what: str) -> str:
        """JSON to store with a job, encrypted if the app has a codec; `LimitExceeded` if it is too large."""
        size, limit = text_bytes(text), self.engine.config.max_job_argument_bytes
        if size > limit:
            raise LimitExceeded(
                f"{what} have {size} bytes; a job may have {limit}.",
                fix="Store the data in a table, and pass its id.",
                limit=limit,
            )
        return self.store.encryption.encrypt(text)

    async def enqueue(self, job: NewJob) -> None:
        """Enqueue a job: with the transaction, or at once."""
        if self._scope is None:
            await self.runner.enqueue(job)
            return
        async with self._scope.lock:  # or a part that runs now, and fails, would undo it
            self._scope.transaction.add_job(job)
            self.engine.journal.sending(self._scope.transaction, job)

    async def write(self, verb: Callable[[Transaction], Awaitable[T]]) -> T:
        """Run a writing step in the transaction, or in one of its own."""
        if self._scope is None:
            return await self.runner.write(verb)
        async with self._scope.lock:
            return await verb(self._scope.transaction)

    async def read(self, verb: Callable[[Any], Awaitable[T]], jobs: Iterable[UUID] | None = None, /) -> T:
        """Run a reading step in the transaction, or in a snapshot of its own.

        Args:
            verb: The step.
            jobs: The jobs whose statuses are all that it reads: a live query hears of their changes.
        """
        if self._scope is not None:
            self._scope.transaction.read_set.note_jobs(jobs)
            async with self._scope.lock:
                return await verb(self._scope.transaction)
        async with reading(self.store.begin_read) as session:
            return await verb(session)

    async def enqueue_all(self, jobs: Iterable[NewJob]) -> list[JobId]:
        """Enqueue any number of jobs of one function, all or none: with the transaction, or at once; their ids."""
        batch = BulkEnqueue(jobs, again=not self.in_transaction)

        async def send(transaction: Transaction) -> None:
            await batch.store(transaction, goes_on=self._scope is not None)
            if batch.first is not None:
                self.engine.journal.sending(transaction, batch.first, batch.ids)

        with suppress(NotMade):  # `ids` raises its cause
            await self.write(send)
        return batch.ids()

    async def enqueue_with_key(self, job: NewJob, duplicate: Duplicate) -> UUID:
        """Enqueue a job with a key; if a job has that key, follow the policy `duplicate`. The id of the job."""

        async def send(transaction: Transaction) -> UUID:
            found = await enqueue_with_key(transaction, job, duplicate)
            if found == job.id:
                transaction.keyed.append(job)
                self.engine.journal.sending(transaction, job)
            return found

        return await self.write(send)

    async def cancel(self, uuids: Iterable[UUID]) -> None:
        """Ask for jobs to be canceled: with the transaction, or at once."""
        asked = list(uuids)

        async def ask(transaction: Transaction) -> None:
            for uuid in asked:
                transaction.add_cancel(uuid)

        await self.write(ask)

    async def cancel_all(self, where: JobFilter) -> int:
        """Ask for all jobs to be canceled that match a filter and are enqueued by now; how many have not ended."""
        where = cancelable(where)
        return await self.write(lambda transaction: transaction.cancel_all(where))

    async def count_cancelable(self, where: JobFilter) -> int:
        """The number of jobs that `cancel_all` would ask for now."""
        asked = cancelable(where)
        states = ("pending", "running") if asked.state is None else (asked.state,)
        return sum([len(await self.matching(replace(asked, state=state))) for state in states])

    async def retry(self, uuids: Sequence[UUID], *, on_complete: bool = False) -> list[UUID]:
        """Run failed and canceled jobs again, or with `on_complete` only their on_complete that failed; which."""
        self.check_outside("Jobs are retried")
        verb, retried = self.store.jobs.recall if on_complete else self.store.jobs.retry, list[UUID]()
        for start in range(0, len(uuids), _RETRIED_AT_ONCE):
            retry = partial(verb, uuids[start : start + _RETRIED_AT_ONCE], self.runner.now())
            retried += await self.runner.attempt(retry, "Retrying jobs")
            self.store.signals.notify()
        tell_of_retries(retried, on_complete=on_complete)
        return retried

    async def retry_all(self, where: JobFilter, *, on_complete: bool = False) -> int:
        """Retry all jobs that match a filter; how many."""
        self.check_outside("Jobs are retried")
        found = await self.matching(recallable(where) if on_complete else retriable(where))
        return len(await self.retry(found, on_complete=on_complete))

    async def matching(self, where: JobFilter) -> list[UUID]:
        """Ids of all jobs that match a filter, oldest first; read in pieces."""
        store, found = self.store, list[UUID]()
        while True:
            below, now = found[-1] if found else ABOVE_ALL, self.runner.now()
            async with reading(store.begin_read) as session:
                piece = await store.jobs.matching(session, where, _MATCHED_AT_ONCE, now, below)
            found += piece
            if len(piece) < _MATCHED_AT_ONCE:
                return found[::-1]

    def check_outside(self, what: str) -> None:
        """Refuse a change of rows at rest in a transaction of a function, which only inserts."""
        if self._scope is not None:
            raise ContextError(
                f"{what} outside of queries and mutations: their transaction would block workers.",
                fix="Do it in an action or with a backend, or enqueue the job again.",
            )

    async def look(self, uuid: UUID) -> JobStatus | None:
        """The status of a job without secrets; None if it is unknown, or its status has expired."""
        found = await self.find(uuid)
        return None if found is None else self.mask(found)

    def mask(self, job: JobStatus) -> JobStatus:
        """The status of a job without what the annotations of its functions call secrets."""
        function = self.engine.registry.find(job.function)
        after = None if job.on_complete is None else self.engine.registry.find(job.on_complete)
        if function is not None:
            signature, kept = function.signature, (job.args, job.result, job.published)
            masked = (
                signature.encoder.mask(job.args),
                signature.results.mask(job.result),
                encoder_of(signature.publishes).mask(job.published),
            )
            if any(one is not other for one, other in zip(masked, kept, strict=True)):
                args, result, published = masked
                job = replace(job, args=args, result=result, published=published)
        if after is not None and job.options.context is not None:
            context = encode_json(after.signature.mask_one("context", decode_json(job.options.context)), "The context")
            job = replace(job, options=replace(job.options, context=context))
        return job

    async def find(self, uuid: UUID) -> JobStatus | None:
        """The status of a job; None if it is unknown, or its status has expired."""
        return (await self.find_many([uuid]))[0]

    async def find_many(self, uuids: Sequence[UUID]) -> list[JobStatus | None]:
        """The status of several jobs, all at the same moment."""
        now, new = self.now(), self._scope.transaction.jobs if self._scope is not None else ()
        wanted = set(uuids) if new else set()
        decrypt = self.store.encryption.decrypt
        known = {job.id: status_of_new(job, now, decrypt) for job in new if job.id in wanted}
        asked, find = [uuid for uuid in uuids if uuid not in known], self.store.jobs.find_many
        found = await self.read(lambda session: find(session, asked, now), asked) if asked else {}
        return [known.get(uuid) or found.get(uuid) for uuid in uuids]

    def sending(self, pool: str, function: object, call: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """A call that enqueues, in a span of its own if tracing is on."""
        tracing = self.engine.journal.tracing
        if tracing is None or not isinstance(function, Function):
            return call
        return _in_span(tracing, pool, function.name, call)


async def _in_span(tracing: Tracing, pool: str, function: str, call: Coroutine[Any, Any, T]) -> T:
    with tracing.send(pool, function) as span:
        sent = await call
        tracing.note_ids(span, cast("Any", sent))
        return sent


def calls_of(ctx: Any, *, writes: bool = False, otherwise: Callable[[Any], JobCalls] | None = None) -> JobCalls:
    """The jobs of a ctx or a backend, or else the ones that `otherwise` gives; `ContextError` if there are none."""
    calls = getattr(ctx, "job_calls", None)
    if not isinstance(calls, JobCalls) and otherwise is not None:
        calls = otherwise(ctx)
    if not isinstance(calls, JobCalls):
        raise ContextError(
            f"{type(ctx).__name__} is neither a ctx nor a backend.", fix="Pass the ctx of the function, or the backend."
        )
    if writes and not calls.is_writable:
        raise ContextError(
            "A query only reads; it cannot enqueue, cancel, send, take tokens or change crons.",
            fix="Do it in a mutation.",
        )
    return calls
