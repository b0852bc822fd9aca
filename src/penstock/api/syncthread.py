"""A backend on the event loop of a thread of its own, for programs that do not await, with its rules for forks.

Leaves opening and running a backend to `app`.
"""

from __future__ import annotations

import _thread
import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager
from copy import copy
from typing import Any, TypeVar

from penstock.api.backend import CallerBackend
from penstock.calls.run.bridge import run_loop
from penstock.errors import ContextError
from penstock.identity.identity import Identity
from penstock.store.session import not_open

R = TypeVar("R")
Opening = Callable[[], AbstractAsyncContextManager[CallerBackend]]


class Thread:
    """A backend that is open on the event loop of a thread of its own, until `close`.

    Attributes:
        backend: The backend.
    """

    def __init__(self, opening: Opening) -> None:
        self._pid = os.getpid()
        self._opening = opening
        self._opened: Future[CallerBackend] = Future()
        self._ended: Future[None] = Future()
        self._answers: set[Future[Any]] = set()
        self._is_over = False
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        refuse_on_a_loop()
        refuse_green_threads()
        # A daemon: it ends when the program does, which closes it before that.
        threading.Thread(target=self._work, name="penstock-sync", daemon=True).start()
        try:
            self.backend = self._opened.result()
        except BaseException:
            self._opened.add_done_callback(self._leave)
            raise

    @property
    def is_of_another_process(self) -> bool:
        """Whether this process was forked from the one that opened it, and so has no such thread."""
        return self._pid != os.getpid()

    def wait(self, call: Coroutine[Any, Any, R]) -> R:
        """Run a call on the loop; its result.

        Raises:
            ContextError: It is closed, or of another process; or the caller runs on an event loop, which would stop.
        """
        try:
            self._check()
        except ContextError:
            call.close()
            raise
        answer = self._begin(call)
        try:
            return answer.result()
        except CancelledError as error:
            call.close()  # which was perhaps never begun
            raise not_open() from error
        finally:
            self._answers.discard(answer)
            answer.cancel()  # of a caller who was interrupted; else it is done

    def do(self, work: Callable[[], R]) -> R:
        """Run a function on the loop that is not awaited. Raises the errors of `wait`."""

        async def call() -> R:
            return work()

        return self.wait(call())

    def with_identity(self, identity: Identity | None) -> Thread:
        """This thread, with a backend for calls of a user."""
        other = copy(self)
        other.backend = self.backend.with_identity(identity)
        return other

    def close(self) -> None:
        """Close the backend, as leaving ``app.open()`` does, and wait for that."""
        if self.is_of_another_process or self._ended.done():
            return
        self._loop.call_soon_threadsafe(self._stop.set)
        self._ended.result()

    def _check(self) -> None:
        refuse_on_a_loop()
        if self.is_of_another_process:
            raise ContextError(
                "The backend was opened before this process was forked, so its connections belong to the parent.",
                fix="Open it in each process after the fork, or use app.sync, which does that.",
            )
        if self._is_over:
            raise not_open()

    def _begin(self, call: Coroutine[Any, Any, R]) -> Future[R]:
        try:
            answer = asyncio.run_coroutine_threadsafe(call, self._loop)
        except RuntimeError as error:  # the loop was closed since that was checked
            call.close()
            raise not_open() from error
        self._answers.add(answer)
        if self._loop.is_closed():  # before `_work` could know of this one
            answer.cancel()
        return answer

    def _leave(self, opened: Future[CallerBackend]) -> None:
        """Stop, once it is open: nobody waits for it any more."""
        if opened.exception() is None:
            self._loop.call_soon_threadsafe(self._stop.set)

    def _work(self) -> None:
        try:
            run_loop(asyncio.new_event_loop(), self._live())
        except BaseException as error:  # noqa: BLE001 - told to who opens or closes
            told: Future[Any] = self._ended if self._opened.done() else self._opened
            told.set_exception(error)
        for answer in self._answers.copy():  # calls that came between the last turn of the loop and its end
            answer.cancel()
        if not self._ended.done():
            self._ended.set_result(None)

    async def _live(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with self._opening() as backend:
                self._opened.set_result(backend)
                await self._stop.wait()
        finally:
            self._is_over = True


def refuse_on_a_loop() -> None:
    """Raise `ContextError` on an event loop, which waiting would stop."""
    if asyncio._get_running_loop() is not None:  # noqa: SLF001 - the only way to ask without an exception
        raise ContextError(
            "app.sync was used on an event loop, which it would block.", fix="Use app.open() and await there."
        )


def refuse_green_threads() -> None:
    """Raise `ContextError` where a library has replaced threads: the loop would run in the thread that waits for it."""
    starts = _thread.start_new_thread.__module__
    if starts != _thread.__name__:
        raise ContextError(
            f"app.sync needs threads of the system, and {starts.partition('.')[0]} has replaced them in this process.",
            fix="Serve with threads, such as gunicorn --worker-class gthread --threads 8.",
        )
