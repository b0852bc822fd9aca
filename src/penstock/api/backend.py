"""The methods of a running app for programs that await; `api/syncwords` has the same ones without await."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar

from penstock.api.live import Watch
from penstock.calls.call import PythonCall
from penstock.calls.enqueue.jobs import JobCalls
from penstock.calls.enqueue.scheduler import Scheduler
from penstock.calls.locks.blocks import LEASE, WAIT, LockBlock, OnLost
from penstock.calls.run.engine import Engine
from penstock.calls.run.runner import FunctionCalls
from penstock.calls.run.storage import Storage
from penstock.functions.function import ActionFunction, FunctionKind, MutationFunction, QueryFunction, expect
from penstock.identity.caller import SYSTEM, Caller
from penstock.identity.identity import Identity
from penstock.jobs.filter import ALL_JOBS, JobFilter, check_limit
from penstock.jobs.job import JobId, JobStatus, job_uuid
from penstock.store.nouns.pools import PoolRow

P = ParamSpec("P")
R = TypeVar("R")


class CallerBackend:
    """A backend that calls functions for somebody: for the program itself, or for the user of `with_identity`.

    Attributes:
        engine: Store, functions and clock.
        runner: Runs functions.
        caller: The caller of the functions: the system, or the identity of `with_identity`.
    """

    engine: Engine
    runner: FunctionCalls
    caller: Caller = SYSTEM

    @property
    def job_calls(self) -> JobCalls:
        """Jobs, as pools enqueue and look at them."""
        return JobCalls(self.runner, None)

    @property
    def scheduler(self) -> Scheduler:
        """Functions to run later, each as a job stored at once."""
        return Scheduler(self.job_calls)

    @property
    def storage(self) -> Storage:
        """Stored files; each call is a transaction of its own."""
        return Storage(self.job_calls, self.caller)

    def run_query(
        self, function: QueryFunction[Any, P, R, Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]:
        """Run a query in a snapshot."""
        return self.runner.run(PythonCall(function, (args, kwargs), self.caller), FunctionKind.QUERY)

    def run_mutation(
        self, function: MutationFunction[Any, P, R, Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]:
        """Run a mutation in a serializable transaction, again if it conflicts.

        Raises:
            Conflict: It conflicted more often than the settings allow.
            DatabaseUnavailable: The database was lost; ``facts["uncertain"]`` says whether it may have taken effect.
        """
        return self.runner.run(PythonCall(function, (args, kwargs), self.caller), FunctionKind.MUTATION)

    def run_action(
        self, function: ActionFunction[Any, P, R, Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]:
        """Run an action."""
        return self.runner.run(PythonCall(function, (args, kwargs), self.caller), FunctionKind.ACTION)

    def live(self, function: QueryFunction[Any, P, R, Any], /, *args: P.args, **kwargs: P.kwargs) -> Watch[R]:
        """Watch a query: its answer, and each other answer that it has once something that it read has changed.

        The query runs again if and only if somebody wrote a row that it read, or would read now. All queries that this
        process watches move to a new snapshot together. Changes of live tables are heard of at once; other tables are
        looked at again after 0.25 to 5 seconds.

        Args:
            function: A query.
            *args: Its arguments.
            **kwargs: Its arguments by name.

        Returns:
            An async iterator that never ends by itself. Leave it with ``aclose()``, or use it in ``async with``.

        Raises:
            ArgumentsInvalid: Its signature refuses the arguments.
            LimitExceeded: This process watches as many queries as it may.
        """
        expect(function, FunctionKind.QUERY)
        return self._watch(function, function.signature.check(function.signature.bind(args, kwargs)), self.caller)

    def _watch(self, function: QueryFunction[Any, ..., R, Any], arguments: dict[str, Any], caller: Caller) -> Watch[R]:
        raise NotImplementedError

    def with_identity(self, identity: Identity | None) -> CallerBackend:
        """This backend for calls and live queries of a user; with None, of a caller who has not signed in.

        The program's own calls have no identity, and no guard applies to them.
        """
        return _BackendFor(self, Caller(identity))

    def with_lock(
        self, key: str, *, wait: timedelta = WAIT, lease: timedelta = LEASE, on_lost: OnLost = "cancel"
    ) -> LockBlock:
        """Hold a lock, on all machines, during a block; see `ActionCtx.with_lock`."""
        return LockBlock(self.runner.locks, key, wait, lease, on_lost)

    def wake(self) -> None:
        """Tell the workers of all processes that there is work, which a transaction of your own has committed."""
        self.engine.store.signals.notify()

    async def job(self, job: JobId) -> JobStatus | None:
        """The status of a job; None if it is unknown, or its status has expired."""
        return await self.job_calls.look(job_uuid(job))

    async def pools(self) -> list[PoolRow]:
        """The pools that the database knows, by name: their limits, and the number of their jobs in each state."""
        return await self.job_calls.read(self.engine.store.pools.list)

    async def jobs(self, state: str | None = None, limit: int = 100, *, where: JobFilter = ALL_JOBS) -> list[JobStatus]:
        """Jobs in one state (pending, running, success, failed, canceled, skipped) or in all, newest first.

        Args:
            state: Only those in this state.
            limit: How many, at most 10,000.
            where: Only jobs that meet this filter.

        Raises:
            ValueInvalid: There is no such state, or so many cannot be asked for.
        """
        check_limit(limit)
        where = where if state is None else replace(where, state=state)
        store, now = self.engine.store, self.engine.clock.now()
        found = await self.job_calls.read(lambda session: store.jobs.list(session, where, limit, now))
        return list(map(self.job_calls.mask, found))

    async def job_counts(self) -> Mapping[str, int]:
        """How many jobs are ready, scheduled, retrying, running, and in each finished state."""
        store, now = self.engine.store, self.engine.clock.now()
        return await self.job_calls.read(lambda session: store.jobs.count(session, now))


class _BackendFor(CallerBackend):
    """A backend for the calls of one caller."""

    def __init__(self, backend: CallerBackend, caller: Caller) -> None:
        self.engine, self.runner, self.caller = backend.engine, backend.runner, caller
        self._watch = backend._watch  # type: ignore[method-assign]  # noqa: SLF001 - of its own kind
