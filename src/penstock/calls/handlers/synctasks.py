"""The ctx of reactive tasks written with def.

Generated, with `PENSTOCK_WRITE_SYNC=1 python -m pytest tests/house/test_house_sync.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from penstock.calls.handlers.taskctx import MutationTaskCtx, OfTask, TaskBatchCtx, TaskBatchRun, TaskCtx
from penstock.calls.handlers.taskrun import TaskRun
from penstock.calls.run.bridge import Given, Wait, passes
from penstock.calls.run.syncctx import SyncActionCtx, SyncMutationCtx
from penstock.schema.table import Table
from penstock.store.guest.session import finish, guest_session

T = TypeVar("T", bound=Table)


class SyncTaskCtx(OfTask[T], SyncActionCtx):
    """`TaskCtx` for code that does not await."""

    _run = Given[TaskRun]("_run")
    _twin: TaskCtx[T]

    def get_document(self, fields: Sequence[str] | None = None) -> T:
        """See `TaskCtx.get_document`."""
        return self._wait(self._twin.get_document(fields))

    def mark_completed(self, connection: Any = None) -> None:
        """See `TaskCtx.mark_completed`. A connection is one without ``await``."""
        if connection is None:
            self._wait(self._twin.mark_completed())
            return
        guest_session(connection).check_sync()
        finish(self._twin.mark_completed(connection))


class SyncMutationTaskCtx(OfTask[T], SyncMutationCtx):
    """`MutationTaskCtx` for code that does not await."""

    _run = Given[TaskRun]("_run")
    _twin: MutationTaskCtx[T]

    def get_document(self, fields: Sequence[str] | None = None) -> T:
        """See `MutationTaskCtx.get_document`."""
        return self._wait(self._twin.get_document(fields))


class SyncTaskBatchRun(SyncTaskCtx[T]):
    """`TaskBatchRun` for code that does not await."""

    _twin: TaskBatchRun[T]
    fail = passes(TaskBatchRun.fail)


class SyncTaskBatchCtx(SyncActionCtx, Generic[T]):
    """`TaskBatchCtx` for code that does not await."""

    runs: list[SyncTaskBatchRun[T]]
    _twin: TaskBatchCtx[T]

    def __init__(self, twin: TaskBatchCtx[T], wait: Wait) -> None:
        super().__init__(twin, wait)
        self.runs = [SyncTaskBatchRun(one, wait) for one in twin.runs]

    def get_documents(self, fields: Sequence[str] | None = None) -> dict[SyncTaskBatchRun[T], T]:
        """See `TaskBatchCtx.get_documents`."""
        faces = dict(zip(self._twin.runs, self.runs, strict=True))
        return {faces[run]: row for run, row in self._wait(self._twin.get_documents(fields)).items()}

    log = passes(TaskBatchCtx.log)
    throttle_all = passes(TaskBatchCtx.throttle_all)
