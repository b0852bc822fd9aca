"""The methods of a running app for programs that do not await.

Generated, with `PENSTOCK_WRITE_SYNC=1 python -m pytest tests/house/test_house_sync.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar

from penstock.api.syncthread import Thread
from penstock.calls.enqueue.jobs import JobCalls
from penstock.calls.locks.blocks import LEASE, WAIT, SyncLockBlock
from penstock.calls.run.syncctx import SyncScheduler
from penstock.functions.function import ActionFunction, MutationFunction, QueryFunction
from penstock.jobs.filter import ALL_JOBS, JobFilter
from penstock.jobs.job import JobId, JobStatus
from penstock.store.contract.pools import PoolRow

P = ParamSpec("P")
R = TypeVar("R")


class SyncBackendWords:
    """`Backend` for code that does not await."""

    def _thread(self) -> Thread:
        raise NotImplementedError

    @property
    def job_calls(self) -> JobCalls:
        """See `Backend.job_calls`."""
        thread = self._thread()
        return thread.backend.job_calls.waiting(thread.wait)

    @property
    def scheduler(self) -> SyncScheduler:
        """See `Backend.scheduler`."""
        thread = self._thread()
        return SyncScheduler(thread.backend.scheduler, thread.wait)

    def run_query(self, function: QueryFunction[Any, P, R, Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """See `Backend.run_query`."""
        thread = self._thread()
        return thread.wait(thread.backend.run_query(function, *args, **kwargs))

    def run_mutation(self, function: MutationFunction[Any, P, R, Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """See `Backend.run_mutation`."""
        thread = self._thread()
        return thread.wait(thread.backend.run_mutation(function, *args, **kwargs))

    def run_action(self, function: ActionFunction[Any, P, R, Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """See `Backend.run_action`."""
        thread = self._thread()
        return thread.wait(thread.backend.run_action(function, *args, **kwargs))

    def with_lock(self, key: str, *, wait: timedelta = WAIT, lease: timedelta = LEASE) -> SyncLockBlock:
        """See `Backend.with_lock`. No thread is cancelled: `LockLost` comes at the end of the block."""
        thread = self._thread()
        return SyncLockBlock(thread.backend.with_lock(key, wait=wait, lease=lease), thread.wait)

    def wake(self) -> None:
        """See `Backend.wake`."""
        thread = self._thread()
        thread.do(thread.backend.wake)

    def job(self, job: JobId) -> JobStatus | None:
        """See `Backend.job`."""
        thread = self._thread()
        return thread.wait(thread.backend.job(job))

    def pools(self) -> list[PoolRow]:
        """See `Backend.pools`."""
        thread = self._thread()
        return thread.wait(thread.backend.pools())

    def jobs(self, state: str | None = None, limit: int = 100, *, where: JobFilter = ALL_JOBS) -> list[JobStatus]:
        """See `Backend.jobs`."""
        thread = self._thread()
        return thread.wait(thread.backend.jobs(state, limit, where=where))

    def job_counts(self) -> Mapping[str, int]:
        """See `Backend.job_counts`."""
        thread = self._thread()
        return thread.wait(thread.backend.job_counts())
