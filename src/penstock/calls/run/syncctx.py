"""The ctx of functions written with def: they run in threads, and their calls on the event loop.

Generated, with `PENSTOCK_WRITE_SYNC=1 python -m pytest tests/house/test_house_sync.py`.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, NoReturn, ParamSpec, TypeVar

from penstock.calls.enqueue.jobs import JobCalls
from penstock.calls.enqueue.messages import Sender
from penstock.calls.enqueue.scheduler import Scheduler
from penstock.calls.locks.blocks import LEASE, WAIT, SyncLockBlock
from penstock.calls.run.bridge import Wait
from penstock.calls.run.context import ActionCtx, MutationCtx, QueryCtx
from penstock.calls.run.ratelimits import RateStatus
from penstock.calls.run.syncdb import SyncDatabaseReader, SyncDatabaseWriter
from penstock.calls.run.work import ActionWork
from penstock.clock import Random
from penstock.functions.function import ActionFunction, FunctionKind, MutationFunction, QueryFunction
from penstock.jobs.job import JobId, JobStatus, Work
from penstock.pools.results import Completion
from penstock.transaction.words import refuses_other_words

P = ParamSpec("P")
R = TypeVar("R")


@refuses_other_words
class SyncQueryCtx:
    """`QueryCtx` for code that does not await."""

    db: SyncDatabaseReader
    of_kind = FunctionKind.QUERY

    def __init__(self, twin: QueryCtx, wait: Wait) -> None:
        self._twin, self._wait = twin, wait
        self.db = SyncDatabaseReader(twin.db, wait)

    @property
    def job_calls(self) -> JobCalls:
        """See `QueryCtx.job_calls`."""
        return self._twin.job_calls.waiting(self._wait)

    def now(self) -> datetime:
        """See `QueryCtx.now`."""
        return self._twin.now()

    @property
    def random(self) -> Random:
        """See `QueryCtx.random`."""
        return self._twin.random

    @property
    def is_job(self) -> bool:
        """See `QueryCtx.is_job`."""
        return self._twin.is_job

    @property
    def work(self) -> Work:
        """See `QueryCtx.work`."""
        return self._twin.work

    def sql(self, query: str, /, **values: Any) -> list[dict[str, Any]]:
        """See `QueryCtx.sql`."""
        return self._wait(self._twin.sql(query, **values))

    def run_query(self, function: QueryFunction[Any, P, R, Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """See `QueryCtx.run_query`."""
        return self._wait(self._twin.run_query(function, *args, **kwargs))

    def with_lock(self, *_args: Any, **_options: Any) -> NoReturn:
        """See `QueryCtx.with_lock`."""
        self._twin.with_lock(*_args, **_options)


@refuses_other_words
class SyncMutationCtx(SyncQueryCtx):
    """`MutationCtx` for code that does not await."""

    db: SyncDatabaseWriter
    of_kind = FunctionKind.MUTATION
    _twin: MutationCtx

    def __init__(self, twin: MutationCtx, wait: Wait) -> None:
        super().__init__(twin, wait)
        self.db = SyncDatabaseWriter(twin.db, wait)

    @property
    def scheduler(self) -> SyncScheduler:
        """See `MutationCtx.scheduler`."""
        return SyncScheduler(self._twin.scheduler, self._wait)

    @property
    def outbox(self) -> SyncSender:
        """See `MutationCtx.outbox`."""
        return SyncSender(self._twin.outbox, self._wait)

    def rate_limit(self, name: str, key: str = "", *, count: int = 1, reserve: bool = False) -> RateStatus:
        """See `MutationCtx.rate_limit`."""
        return self._wait(self._twin.rate_limit(name, key, count=count, reserve=reserve))

    def check_fence(self, key: str, fence: int) -> None:
        """See `MutationCtx.check_fence`."""
        self._wait(self._twin.check_fence(key, fence))

    def run_mutation(self, function: MutationFunction[Any, P, R, Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """See `MutationCtx.run_mutation`."""
        return self._wait(self._twin.run_mutation(function, *args, **kwargs))


@refuses_other_words
class SyncActionCtx:
    """`ActionCtx` for code that does not await."""

    of_kind = FunctionKind.ACTION

    def __init__(self, twin: ActionCtx, wait: Wait) -> None:
        self._twin, self._wait = twin, wait

    @property
    def job_calls(self) -> JobCalls:
        """See `ActionCtx.job_calls`."""
        return self._twin.job_calls.waiting(self._wait)

    @property
    def scheduler(self) -> SyncScheduler:
        """See `ActionCtx.scheduler`."""
        return SyncScheduler(self._twin.scheduler, self._wait)

    @property
    def outbox(self) -> SyncSender:
        """See `ActionCtx.outbox`."""
        return SyncSender(self._twin.outbox, self._wait)

    @property
    def cancelled(self) -> bool:
        """See `ActionCtx.cancelled`."""
        return self._twin.cancelled

    def wait_cancelled(self, seconds: float) -> bool:
        """See `ActionCtx.wait_cancelled`. Not without an end, as nothing else ends the wait of a thread."""
        return self._wait(self._twin.wait_cancelled(seconds))

    @property
    def is_job(self) -> bool:
        """See `ActionCtx.is_job`."""
        return self._twin.is_job

    @property
    def work(self) -> SyncActionWork:
        """See `ActionCtx.work`."""
        return SyncActionWork(self._twin.work, self._wait)

    def now(self) -> datetime:
        """See `ActionCtx.now`."""
        return self._twin.now()

    @property
    def random(self) -> Random:
        """See `ActionCtx.random`."""
        return self._twin.random

    def rate_limit(self, name: str, key: str = "", *, count: int = 1, reserve: bool = False) -> RateStatus:
        """See `ActionCtx.rate_limit`."""
        return self._wait(self._twin.rate_limit(name, key, count=count, reserve=reserve))

    def with_lock(self, key: str, *, wait: timedelta = WAIT, lease: timedelta = LEASE) -> SyncLockBlock:
        """See `ActionCtx.with_lock`. No thread is cancelled: `LockLost` comes at the end of the block."""
        return SyncLockBlock(self._twin.with_lock(key, wait=wait, lease=lease), self._wait)

    def run_query(self, function: QueryFunction[Any, P, R, Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """See `ActionCtx.run_query`."""
        return self._wait(self._twin.run_query(function, *args, **kwargs))

    def run_mutation(self, function: MutationFunction[Any, P, R, Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """See `ActionCtx.run_mutation`."""
        return self._wait(self._twin.run_mutation(function, *args, **kwargs))

    def run_action(self, function: ActionFunction[Any, P, R, Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """See `ActionCtx.run_action`."""
        return self._wait(self._twin.run_action(function, *args, **kwargs))


class SyncActionWork:
    """`ActionWork` for code that does not await."""

    def __init__(self, twin: ActionWork, wait: Wait) -> None:
        self._twin, self._wait = twin, wait

    @property
    def id(self) -> JobId:
        """See `ActionWork.id`."""
        return self._twin.id

    @property
    def attempt(self) -> int:
        """See `ActionWork.attempt`."""
        return self._twin.attempt

    @property
    def deadline(self) -> datetime | None:
        """See `ActionWork.deadline`."""
        return self._twin.deadline

    @property
    def cancelled(self) -> bool:
        """See `ActionWork.cancelled`."""
        return self._twin.cancelled

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """See `ActionWork.progress`."""
        self._wait(self._twin.progress(done, total, note))

    def complete_later(self, timeout: timedelta = timedelta(hours=1)) -> str:
        """See `ActionWork.complete_later`."""
        return self._wait(self._twin.complete_later(timeout))


@refuses_other_words
class SyncScheduler:
    """`Scheduler` for code that does not await."""

    def __init__(self, twin: Scheduler, wait: Wait) -> None:
        self._twin, self._wait = twin, wait

    def run_after(
        self,
        delay: timedelta,
        function: MutationFunction[Any, P, Any, Any] | ActionFunction[Any, P, Any, Any],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> JobId:
        """See `Scheduler.run_after`."""
        return self._wait(self._twin.run_after(delay, function, *args, **kwargs))

    def run_at(
        self,
        time: datetime,
        function: MutationFunction[Any, P, Any, Any] | ActionFunction[Any, P, Any, Any],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> JobId:
        """See `Scheduler.run_at`."""
        return self._wait(self._twin.run_at(time, function, *args, **kwargs))

    def cancel(self, job: JobId) -> None:
        """See `Scheduler.cancel`."""
        self._wait(self._twin.cancel(job))

    def retry(self, job: JobId) -> bool:
        """See `Scheduler.retry`."""
        return self._wait(self._twin.retry(job))

    def get(self, job: JobId) -> JobStatus | None:
        """See `Scheduler.get`."""
        return self._wait(self._twin.get(job))

    def complete(self, token: str, result: Any = None) -> Completion:
        """See `Scheduler.complete`."""
        return self._wait(self._twin.complete(token, result))

    def fail(self, token: str, error: str, *, retryable: bool = True) -> Completion:
        """See `Scheduler.fail`."""
        return self._wait(self._twin.fail(token, error, retryable=retryable))


class SyncSender:
    """`Sender` for code that does not await."""

    def __init__(self, twin: Sender, wait: Wait) -> None:
        self._twin, self._wait = twin, wait

    def send(self, topic: str, payload: Any, *, key: str | None = None) -> None:
        """See `Sender.send`."""
        self._wait(self._twin.send(topic, payload, key=key))
