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
from penstock.calls.run.bridge import Face, Given, passes, waits
from penstock.calls.run.context import ActionCtx, MutationCtx, QueryCtx
from penstock.calls.run.syncdb import SyncDatabaseReader, SyncDatabaseWriter
from penstock.calls.run.work import ActionWork
from penstock.clock import Random
from penstock.functions.function import FunctionKind
from penstock.jobs.job import JobId, Work
from penstock.transaction.words import refuses_other_words


class SyncActionWork(Face[ActionWork]):
    """`ActionWork` for code that does not await."""

    id = Given[JobId](ActionWork.id)
    attempt = Given[int](ActionWork.attempt)
    deadline = Given[datetime | None](ActionWork.deadline)
    cancelled = Given[bool](ActionWork.cancelled)
    progress = waits(ActionWork.progress)
    complete_later = waits(ActionWork.complete_later)


@refuses_other_words
class SyncAuth(Face[Auth]):
    """`Auth` for code that does not await."""

    get_user_identity = waits(Auth.get_user_identity)
    require = waits(Auth.require)


@refuses_other_words
class SyncScheduler(Face[Scheduler]):
    """`Scheduler` for code that does not await."""

    run_after = waits(Scheduler.run_after)
    run_at = waits(Scheduler.run_at)
    cancel = waits(Scheduler.cancel)
    retry = waits(Scheduler.retry)
    get = waits(Scheduler.get)
    complete = waits(Scheduler.complete)
    fail = waits(Scheduler.fail)


class SyncSender(Face[Sender]):
    """`Sender` for code that does not await."""

    send = waits(Sender.send)


@refuses_other_words
class SyncQueryCtx(Face[QueryCtx]):
    """`QueryCtx` for code that does not await."""

    db = Given("db", SyncDatabaseReader)
    of_kind = FunctionKind.QUERY
    auth = Given(QueryCtx.auth, SyncAuth)
    job_calls = Given(QueryCtx.job_calls, JobCalls.waiting)
    now = passes(QueryCtx.now)
    random = Given[Random](QueryCtx.random)
    is_job = Given[bool](QueryCtx.is_job)
    work = Given[Work](QueryCtx.work)
    check_access = waits(QueryCtx.check_access)
    sql = waits(QueryCtx.sql)
    run_query = waits(QueryCtx.run_query)


@refuses_other_words
class SyncMutationCtx(SyncQueryCtx):
    """`MutationCtx` for code that does not await."""

    db = Given("db", SyncDatabaseWriter)
    of_kind = FunctionKind.MUTATION
    _twin: MutationCtx
    scheduler = Given(MutationCtx.scheduler, SyncScheduler)
    outbox = Given(MutationCtx.outbox, SyncSender)
    rate_limit = waits(MutationCtx.rate_limit)
    check_fence = waits(MutationCtx.check_fence)
    run_mutation = waits(MutationCtx.run_mutation)


@refuses_other_words
class SyncActionCtx(Face[ActionCtx]):
    """`ActionCtx` for code that does not await."""

    of_kind = FunctionKind.ACTION
    auth = Given(ActionCtx.auth, SyncAuth)
    job_calls = Given(ActionCtx.job_calls, JobCalls.waiting)
    scheduler = Given(ActionCtx.scheduler, SyncScheduler)
    outbox = Given(ActionCtx.outbox, SyncSender)
    cancelled = Given[bool](ActionCtx.cancelled)

    def wait_cancelled(self, seconds: float) -> bool:
        """See `ActionCtx.wait_cancelled`. Not without an end, as nothing else ends the wait of a thread."""
        return self._wait(self._twin.wait_cancelled(seconds))

    is_job = Given[bool](ActionCtx.is_job)
    work = Given(ActionCtx.work, SyncActionWork)
    now = passes(ActionCtx.now)
    random = Given[Random](ActionCtx.random)
    check_access = waits(ActionCtx.check_access)
    rate_limit = waits(ActionCtx.rate_limit)

    def with_lock(self, key: str, *, wait: timedelta = WAIT, lease: timedelta = LEASE) -> SyncLockBlock:
        """See `ActionCtx.with_lock`. No thread is cancelled: `LockLost` comes at the end of the block."""
        return SyncLockBlock(self._twin.with_lock(key, wait=wait, lease=lease), self._wait)

    run_query = waits(ActionCtx.run_query)
    run_mutation = waits(ActionCtx.run_mutation)
    run_action = waits(ActionCtx.run_action)
