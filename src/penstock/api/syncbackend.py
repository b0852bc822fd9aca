"""The synchronous face of a backend: the same words for programs that do not await, from any thread.

Owns when a backend is opened, shared, closed, and left behind by a fork. Leaves its thread to `syncthread`.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - see the end of this file
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Self

from penstock.api.backend import CallerBackend
from penstock.api.syncthread import Opening, Thread, refuse_on_a_loop
from penstock.api.syncwords import SyncCallerBackend
from penstock.errors import ContextError


class SyncBackend(SyncCallerBackend):
    """A running app for programs that do not await. Made with ``app.sync.open()``, and used in ``with``."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._own: Thread | None = None

    def __enter__(self) -> Self:
        if self._own is not None:
            raise ContextError("This backend was opened before.", fix="Open another one with app.sync.open().")
        self._own = Thread(self._opening)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._own is not None:
            self._own.close()

    def _thread(self) -> Thread:
        if self._own is None:
            raise ContextError("The backend is not open.", fix="Write with app.sync.open() as backend.")
        return self._own


class SyncApp(SyncCallerBackend):
    """An app for programs that do not await: `App.sync`.

    Its words run on one backend, which all threads share. It opens at the first use, with the settings in force then,
    and closes when the program ends. A process that was forked opens one of its own.

    Args:
        open_app: `App.open`.
    """

    def __init__(self, open_app: Callable[..., AbstractAsyncContextManager[CallerBackend]]) -> None:
        self._open_app = open_app
        self._lock = threading.Lock()
        self._shared: Thread | None = None
        _all.add(self)

    def open(self, database: str | None = None, **settings: Any) -> SyncBackend:
        """Run this app for the time of a ``with`` block, on a backend of its own.

        Args:
            database: URL of its database; by default as the settings say.
            **settings: As for `App.open`: services to run, such as ``services="all"``, and settings.
        """
        return SyncBackend(lambda: self._open_app(database, **settings))

    def close(self) -> None:
        """Close the shared backend, if it is open. The next call opens it again."""
        with self._lock:
            shared, self._shared = self._shared, None
        if shared is not None:
            shared.close()

    def forget(self) -> None:
        """Leave the parent's backend to the parent, in a process that was just forked."""
        if self._shared is not None:
            _of_others.append(self._shared)
        self._lock, self._shared = threading.Lock(), None

    def _thread(self) -> Thread:
        shared = self._shared
        if shared is not None:
            return shared
        refuse_on_a_loop()
        with self._lock:
            if self._shared is None:
                self._shared = Thread(self._open_app)
            return self._shared


_all: weakref.WeakSet[SyncApp] = weakref.WeakSet()
_of_others: list[Thread] = []  # never collected: that would close connections which another process uses


def _after_fork() -> None:
    for app in list(_all):
        app.forget()


def _at_exit() -> None:
    for app in list(_all):
        app.close()


if hasattr(os, "register_at_fork"):  # nowhere else do processes fork
    os.register_at_fork(after_in_child=_after_fork)
# Not atexit, which comes when no thread pool takes work any more: the stores need theirs to close. The last function
# to register runs first, so the module of thread pools is imported above.
threading._register_atexit(_at_exit)  # type: ignore[attr-defined]  # noqa: SLF001 - as concurrent.futures does
