"""The ctx of functions written with def: they run in threads, and their calls on the event loop.

Generated, with `PENSTOCK_WRITE_SYNC=1 python -m pytest tests/house/test_house_sync.py`.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from penstock.calls.enqueue.jobs import JobCalls
from penstock.calls.enqueue.messages import Sender
from penstock.calls.enqueue.scheduler import Scheduler
from penstock.calls.locks.blocks import LEASE, WAIT, SyncLockBlock
from penstock.calls.run.auth import Auth
from penstock.calls.run.bridge import Wait, waits
from penstock.calls.run.context import ActionCtx, MutationCtx, QueryCtx
from penstock.calls.run.syncdb import SyncDatabaseReader, SyncDatabaseWriter
from penstock.calls.run.work import ActionWork
from penstock.clock import Random
from penstock.functions.function import FunctionKind
from penstock.jobs.job import JobId, Work
from penstock.transaction.words import refuses_other_words


@refuses_other_words
class SyncQueryCtx:
    """`QueryCtx` for code that does not await."""

    db: SyncDatabaseReader
    of_kind = FunctionKind.QUERY

    def __init__(self, twin: QueryCtx, wait: Wait) -> None:
        self._twin, self._wait = twin, wait
        self.db = SyncDatabaseReader(twin.db, wait)

    @property
    def auth(self) -> SyncAuth:
        """See `QueryCtx.auth`."""
        return SyncAuth(self._twin.auth, self._wait)

    @property
    def job_calls(self) -> JobCalls:
        """See `QueryCtx.job_calls`."""
        return self._twin.job_calls.waiting(self._wait)

    def now(self, *, every: timedelta | None = None) -> datetime:
        """See `QueryCtx.now`."""
        return self._twin.now(every=every)

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

    check_access = waits(QueryCtx.check_access)
    sql = waits(QueryCtx.sql)
    run_query = waits(QueryCtx.run_query)


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

    rate_limit = waits(MutationCtx.rate_limit)
    check_fence = waits(MutationCtx.check_fence)
    run_mutation = waits(MutationCtx.run_mutation)


@refuses_other_words
class SyncActionCtx:
    """`ActionCtx` for code that does not await."""

    of_kind = FunctionKind.ACTION

    def __init__(self, twin: ActionCtx, wait: Wait) -> None:
        self._twin, self._wait = twin, wait

    @property
    def auth(self) -> SyncAuth:
        """See `ActionCtx.auth`."""
        return SyncAuth(self._twin.auth, self._wait)

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

    check_access = waits(ActionCtx.check_access)
    rate_limit = waits(ActionCtx.rate_limit)

    def with_lock(self, key: str, *, wait: timedelta = WAIT, lease: timedelta = LEASE) -> SyncLockBlock:
        """See `ActionCtx.with_lock`. No thread is cancelled: `LockLost` comes at the end of the block."""
        return SyncLockBlock(self._twin.with_lock(key, wait=wait, lease=lease), self._wait)

    run_query = waits(ActionCtx.run_query)
    run_mutation = waits(ActionCtx.run_mutation)
    run_action = waits(ActionCtx.run_action)


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

    progress = waits(ActionWork.progress)
    complete_later = waits(ActionWork.complete_later)


@refuses_other_words
class SyncAuth:
    """`Auth` for code that does not await."""

    def __init__(self, twin: Auth, wait: Wait) -> None:
        self._twin, self._wait = twin, wait

    get_user_identity = waits(Auth.get_user_identity)
    require = waits(Auth.require)


@refuses_other_words
class SyncScheduler:
    """`Scheduler` for code that does not await."""

    def __init__(self, twin: Scheduler, wait: Wait) -> None:
        self._twin, self._wait = twin, wait

    run_after = waits(Scheduler.run_after)
    run_at = waits(Scheduler.run_at)
    cancel = waits(Scheduler.cancel)
    retry = waits(Scheduler.retry)
    get = waits(Scheduler.get)
    complete = waits(Scheduler.complete)
    fail = waits(Scheduler.fail)


class SyncSender:
    """`Sender` for code that does not await."""

    def __init__(self, twin: Sender, wait: Wait) -> None:
        self._twin, self._wait = twin, wait

    send = waits(Sender.send)
