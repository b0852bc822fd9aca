"""The methods of a running app for programs that do not await.

Generated, with `PENSTOCK_WRITE_SYNC=1 python -m pytest tests/house/test_house_sync.py`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ParamSpec, TypeVar

from penstock.api.backend import CallerBackend
from penstock.api.live import SyncWatch
from penstock.api.syncthread import Thread
from penstock.calls.enqueue.jobs import JobCalls
from penstock.calls.locks.blocks import LEASE, WAIT, SyncLockBlock
from penstock.calls.run.bridge import Given, Wait, waits
from penstock.calls.run.syncctx import SyncScheduler
from penstock.functions.function import QueryFunction
from penstock.identity.identity import Identity

P = ParamSpec("P")
R = TypeVar("R")


class SyncCallerBackend:
    """`CallerBackend` for code that does not await."""

    def _thread(self) -> Thread:
        raise NotImplementedError

    def _reach(self) -> tuple[CallerBackend, Wait]:
        thread = self._thread()
        return thread.backend, thread.wait

    job_calls = Given(CallerBackend.job_calls, JobCalls.waiting)
    scheduler = Given(CallerBackend.scheduler, SyncScheduler)
    run_query = waits(CallerBackend.run_query)
    run_mutation = waits(CallerBackend.run_mutation)
    run_action = waits(CallerBackend.run_action)

    def live(self, function: QueryFunction[Any, P, R, Any], /, *args: P.args, **kwargs: P.kwargs) -> SyncWatch[R]:
        """See `CallerBackend.live`."""
        thread = self._thread()
        watch = thread.do(lambda: thread.backend.live(function, *args, **kwargs))
        return SyncWatch(watch, thread.wait)

    def with_identity(self, identity: Identity | None) -> SyncCallerBackend:
        """See `CallerBackend.with_identity`."""
        thread = self._thread()
        face = SyncCallerBackend()
        face._thread = lambda: thread.with_identity(identity)  # type: ignore[method-assign]
        return face

    def with_lock(self, key: str, *, wait: timedelta = WAIT, lease: timedelta = LEASE) -> SyncLockBlock:
        """See `CallerBackend.with_lock`. No thread is cancelled: `LockLost` comes at the end of the block."""
        thread = self._thread()
        return SyncLockBlock(thread.backend.with_lock(key, wait=wait, lease=lease), thread.wait)

    def wake(self) -> None:
        """See `CallerBackend.wake`."""
        thread = self._thread()
        thread.do(thread.backend.wake)

    job = waits(CallerBackend.job)
    pools = waits(CallerBackend.pools)
    jobs = waits(CallerBackend.jobs)
    job_counts = waits(CallerBackend.job_counts)
