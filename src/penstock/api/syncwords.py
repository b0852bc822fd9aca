"""The methods of a running app for programs that do not await."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar

from penstock.api.backend import CallerBackend
from penstock.api.live import SyncWatch
from penstock.api.syncthread import Thread
from penstock.calls.locks.blocks import LEASE, WAIT, SyncLockBlock
from penstock.calls.run.bridge import Wait
from penstock.calls.run.face import Face
from penstock.functions.function import QueryFunction
from penstock.identity.identity import Identity

P = ParamSpec("P")
R = TypeVar("R")


class SyncCallerBackend(Face, of=CallerBackend):
    """`CallerBackend` for code that does not await."""

    def __init__(self, thread: Callable[[], Thread]) -> None:
        self._thread = thread

    def _reach(self) -> tuple[CallerBackend, Wait]:
        thread = self._thread()
        return thread.backend, thread.wait  # both of one thread: another may close it

    def live(self, function: QueryFunction[Any, P, R, Any], /, *args: P.args, **kwargs: P.kwargs) -> SyncWatch[R]:
        """See `CallerBackend.live`."""
        thread = self._thread()
        watch = thread.do(lambda: thread.backend.live(function, *args, **kwargs))
        return SyncWatch(watch, thread.wait)

    def with_identity(self, identity: Identity | None) -> SyncCallerBackend:
        """See `CallerBackend.with_identity`."""
        thread = self._thread()
        return SyncCallerBackend(lambda: thread.with_identity(identity))

    def with_lock(self, key: str, *, wait: timedelta = WAIT, lease: timedelta = LEASE) -> SyncLockBlock:
        """See `CallerBackend.with_lock`. No thread is cancelled: `LockLost` comes at the end of the block."""
        backend, waits = self._reach()
        return SyncLockBlock(backend.with_lock(key, wait=wait, lease=lease), waits)

    def wake(self) -> None:
        """See `CallerBackend.wake`."""
        thread = self._thread()
        thread.do(thread.backend.wake)
