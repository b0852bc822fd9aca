"""The ctx of reactive tasks written with def."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from penstock.calls.handlers.taskctx import MutationTaskCtx, OfTask, TaskBatchCtx, TaskBatchRun, TaskCtx
from penstock.calls.run.bridge import Wait
from penstock.calls.run.face import Face
from penstock.calls.run.syncctx import SyncActionCtx, SyncMutationCtx
from penstock.schema.table import Table
from penstock.store.guest.session import finish, guest_session

T = TypeVar("T", bound=Table)


class SyncOfTask(Face, Generic[T], of=OfTask):
    """`OfTask` for code that does not await."""


class SyncTaskCtx(SyncOfTask[T], SyncActionCtx, of=TaskCtx):
    """`TaskCtx` for code that does not await."""

    def mark_completed(self, connection: Any = None) -> None:
        """See `TaskCtx.mark_completed`. A connection is one without ``await``."""
        if connection is None:
            self._wait(self._twin.mark_completed())
            return
        guest_session(connection).check_sync()
        finish(self._twin.mark_completed(connection))


class SyncMutationTaskCtx(SyncOfTask[T], SyncMutationCtx, of=MutationTaskCtx):
    """`MutationTaskCtx` for code that does not await."""


class SyncTaskBatchRun(SyncTaskCtx[T], of=TaskBatchRun):
    """`TaskBatchRun` for code that does not await."""


class SyncTaskBatchCtx(SyncActionCtx, Generic[T], of=TaskBatchCtx):
    """`TaskBatchCtx` for code that does not await."""

    runs: list[SyncTaskBatchRun[T]]

    def __init__(self, twin: TaskBatchCtx[T], wait: Wait) -> None:
        super().__init__(twin, wait)
        self.runs = [SyncTaskBatchRun(one, wait) for one in twin.runs]

    def get_documents(self, fields: Sequence[str] | None = None) -> dict[SyncTaskBatchRun[T], T]:
        """See `TaskBatchCtx.get_documents`."""
        faces = dict(zip(self._twin.runs, self.runs, strict=True))
        return {faces[run]: row for run, row in self._wait(self._twin.get_documents(fields)).items()}
