"""The ctx of functions written with def: they run in threads, and their calls on the event loop."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Generic

from typing_extensions import TypeVar

from penstock.calls.enqueue.jobreader import JobReader
from penstock.calls.enqueue.jobs import JobCalls
from penstock.calls.enqueue.messages import Sender
from penstock.calls.enqueue.scheduler import Scheduler
from penstock.calls.locks.blocks import LEASE, WAIT, LockBlock, SyncLockBlock
from penstock.calls.run.auth import Auth, SigningAuth
from penstock.calls.run.context import ActionCtx, MutationCtx, QueryCtx
from penstock.calls.run.face import FACES, Face, forward
from penstock.calls.run.storage import OpenFile, Storage, StorageReader, StorageWriter
from penstock.calls.run.work import ActionWork
from penstock.calls.workflows.context import WorkflowCtx
from penstock.calls.workflows.events import Event
from penstock.schema.ids import Id
from penstock.schema.table import Table
from penstock.transaction.aggregates import Groups
from penstock.transaction.database import DatabaseReader, DatabaseWriter
from penstock.transaction.scan import Scan
from penstock.transaction.search import Search

T = TypeVar("T", bound=Table)
S = TypeVar("S", default=Any)

FACES[JobCalls] = JobCalls.waiting
FACES[LockBlock] = SyncLockBlock


class SyncGroups(Face, of=Groups):
    """`Groups` for code that does not await."""


class SyncSearch(Face, Generic[T], of=Search):
    """`Search` for code that does not await."""


class SyncScan(Face, Generic[T], of=Scan):
    """`Scan` for code that does not await."""


class SyncDatabaseReader(Face, of=DatabaseReader):
    """`DatabaseReader` for code that does not await."""


class SyncDatabaseWriter(SyncDatabaseReader, of=DatabaseWriter):
    """`DatabaseWriter` for code that does not await."""

    def insert_many(self, rows: Iterable[T]) -> list[Id[T]]:
        """See `DatabaseWriter.insert_many`."""
        return self._wait(self._twin.insert_many(list(rows)))  # the thread iterates, as that may wait


class SyncActionWork(Face, of=ActionWork):
    """`ActionWork` for code that does not await."""


class SyncOpenFile(Face, of=OpenFile):
    """`OpenFile` for code that does not await."""


class SyncStorageReader(Face, of=StorageReader):
    """`StorageReader` for code that does not await."""


class SyncStorageWriter(SyncStorageReader, of=StorageWriter):
    """`StorageWriter` for code that does not await."""


class SyncStorage(SyncStorageWriter, of=Storage):
    """`Storage` for code that does not await."""


class SyncAuth(Face, of=Auth):
    """`Auth` for code that does not await."""


class SyncSigningAuth(SyncAuth, of=SigningAuth):
    """`SigningAuth` for code that does not await."""


class SyncScheduler(Face, of=Scheduler):
    """`Scheduler` for code that does not await."""


class SyncJobReader(Face, of=JobReader):
    """`JobReader` for code that does not await."""


class SyncSender(Face, of=Sender):
    """`Sender` for code that does not await."""


class SyncQueryCtx(Face, of=QueryCtx):
    """`QueryCtx` for code that does not await."""

    db = forward("db")


class SyncMutationCtx(SyncQueryCtx, of=MutationCtx):
    """`MutationCtx` for code that does not await."""


class SyncWorkflowCtx(Face, Generic[S], of=WorkflowCtx):
    """`WorkflowCtx` for code that does not await: its body takes turns with the event loop."""

    def wait_for(self, *events: Event[Any], timeout: timedelta | None = None) -> Any:
        """See `WorkflowCtx.wait_for`."""
        return self._wait(self._twin.wait_for(*events, timeout=timeout))


class SyncActionCtx(Face, of=ActionCtx):
    """`ActionCtx` for code that does not await."""

    def wait_cancelled(self, seconds: float) -> bool:
        """See `ActionCtx.wait_cancelled`. Not without an end, as nothing else ends the wait of a thread."""
        return self._wait(self._twin.wait_cancelled(seconds))

    def with_lock(self, key: str, *, wait: timedelta = WAIT, lease: timedelta = LEASE) -> SyncLockBlock:
        """See `ActionCtx.with_lock`. No thread is cancelled: `LockLost` comes at the end of the block."""
        return SyncLockBlock(self._twin.with_lock(key, wait=wait, lease=lease), self._wait)
