"""The synchronous face of a backend: the same words for programs that do not await, from any thread.

Owns a thread with an event loop, on which the backend runs, and what a fork means for it. Leaves opening and running a
backend to `app`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # noqa: F401 - see the end of this file
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from types import TracebackType
from typing import Any, ParamSpec, Protocol, Self, TypeVar

from penstock.calls.enqueue.jobs import JobCalls
from penstock.calls.enqueue.scheduler import Scheduler
from penstock.calls.locks.blocks import LEASE, WAIT, LockBlock, SyncLockBlock
from penstock.calls.run.engine import Engine
from penstock.calls.run.runner import Runner
from penstock.calls.run.syncctx import SyncScheduler
from penstock.errors import ContextError
from penstock.functions.function import ActionFunction, MutationFunction, QueryFunction
from penstock.jobs.job import JobId, JobStatus
from penstock.store.contract.pools import PoolRow
from penstock.store.contract.session import not_open

P = ParamSpec("P")
R = TypeVar("R")


class Asynchronous(Protocol):
    """A backend, as its synchronous face needs it."""

    runner: Runner
    engine: Engine
    job_calls: JobCalls
    scheduler: Scheduler

    async def job(self, job: JobId) -> JobStatus | None:
        """How a job stands."""

    async def jobs(self, state: str | None = None, limit: int = 100) -> list[JobStatus]:
        """Jobs in one state, or in all."""

    async def job_counts(self) -> Mapping[str, int]:
        """How many jobs stand where."""

    async def pools(self) -> list[PoolRow]:
        """The pools that the database knows."""

    def wake(self) -> None:
        """Tell workers that there is work."""


Opening = Callable[[], AbstractAsyncContextManager[Asynchronous]]


class Thread:
    """A backend that is open on the event loop of a thread of its own, until `close`.

    Attributes:
        backend: The backend.
    """

    def __init__(self, opening: Opening) -> None:
        self._pid = os.getpid()
        self._opening = opening
        self._opened: Future[Asynchronous] = Future()
        self._ended: Future[None] = Future()
        self._answers: set[Future[Any]] = set()
        self._is_over = False
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        refuse_on_a_loop()
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
            ContextError: It is closed, or of another process; or who calls runs on an event loop, which would stop.
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

    def _leave(self, opened: Future[Asynchronous]) -> None:
        """Stop, once it is open: nobody waits for it any more."""
        if opened.exception() is None:
            self._loop.call_soon_threadsafe(self._stop.set)

    def _work(self) -> None:
        try:
            _run(self._live())
        except BaseException as error:  # noqa: BLE001 - told to who opens or closes
            told: Future[Any] = self._ended if self._opened.done() else self._opened
            told.set_exception(error)
        for answer in self._answers.copy():  # what came between the last turn of the loop and its end
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


def _run(main: Coroutine[Any, Any, None]) -> None:
    """Run on a new event loop, like `asyncio.run`, but start no thread to end it: Python 3.12 refuses one at exit."""
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(main)
    finally:
        loop.run_until_complete(_cancel_others())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _cancel_others() -> None:
    """Cancel all other tasks, and those that they begin as they end, such as to close a connection."""
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


def refuse_on_a_loop() -> None:
    """Raise `ContextError` on an event loop, which waiting would stop."""
    if asyncio._get_running_loop() is not None:  # noqa: SLF001 - the only way to ask without an exception
        raise ContextError(
            "app.sync was used on an event loop, which it would block.", fix="Use app.open() and await there."
        )


class SyncWords:
    """What a synchronous backend can do; each word waits and gives its result. See `Backend`."""

    def _thread(self) -> Thread:
        raise NotImplementedError

    @property
    def job_calls(self) -> JobCalls:
        """Jobs, as pools enqueue and look at them."""
        thread = self._thread()
        return thread.backend.job_calls.waiting(thread.wait)

    @property
    def scheduler(self) -> SyncScheduler:
        """Functions to run later, each as a job stored at once."""
        thread = self._thread()
        return SyncScheduler(thread.backend.scheduler, thread.wait)

    def run_query(self, function: QueryFunction[Any, P, R, Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a query in a snapshot."""
        thread = self._thread()
        return thread.wait(thread.backend.runner.run_query(function, args, kwargs))

    def run_mutation(self, function: MutationFunction[Any, P, R, Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a mutation in a serializable transaction, again if it conflicts.

        Raises:
            Conflict: It conflicted more often than the settings allow.
            DatabaseUnavailable: The database was lost; ``facts["uncertain"]`` says whether it may have taken effect.
        """
        thread = self._thread()
        return thread.wait(thread.backend.runner.run_mutation(function, args, kwargs))

    def run_action(self, function: ActionFunction[Any, P, R, Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run an action."""
        thread = self._thread()
        return thread.wait(thread.backend.runner.run_action(function, args, kwargs))

    def job(self, job: JobId) -> JobStatus | None:
        """How a job stands; None if it is unknown, or its status has expired."""
        thread = self._thread()
        return thread.wait(thread.backend.job(job))

    def jobs(self, state: str | None = None, limit: int = 100) -> list[JobStatus]:
        """Jobs in one state (pending, running, success, failed, canceled) or in all, newest first."""
        thread = self._thread()
        return thread.wait(thread.backend.jobs(state, limit))

    def job_counts(self) -> Mapping[str, int]:
        """How many jobs are ready, scheduled, running, and in each finished state."""
        thread = self._thread()
        return thread.wait(thread.backend.job_counts())

    def pools(self) -> list[PoolRow]:
        """The pools that the database knows, by name: their limits, and how many of their jobs stand where."""
        thread = self._thread()
        return thread.wait(thread.backend.pools())

    def with_lock(self, key: str, *, wait: timedelta = WAIT, lease: timedelta = LEASE) -> SyncLockBlock:
        """See `ActionCtx.with_lock`. No thread is cancelled: `LockLost` comes at the end of the block."""
        thread = self._thread()
        return SyncLockBlock(LockBlock(thread.backend.runner, key, wait, lease), thread.wait)

    def wake(self) -> None:
        """Tell the workers of all processes that there is work, which a transaction of your own has committed."""
        thread = self._thread()
        thread.wait(_wake(thread.backend))


class SyncBackend(SyncWords):
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


class SyncApp(SyncWords):
    """An app for programs that do not await: `App.sync`.

    Its words run on one backend, which is opened with the settings in force when one of them is first used, is shared
    by all threads, and is closed when the program ends. A process that was forked opens one of its own.

    Args:
        open_app: `App.open`.
    """

    def __init__(self, open_app: Callable[..., AbstractAsyncContextManager[Asynchronous]]) -> None:
        self._open_app = open_app
        self._lock = threading.Lock()
        self._shared: Thread | None = None
        _all.add(self)

    def open(self, database: str | None = None, **settings: Any) -> SyncBackend:
        """Run this app for the time of a ``with`` block, beside what is shared.

        Args:
            database: URL of its database; by default as the settings say.
            **settings: As for `App.open`: services to run, such as ``services=("worker",)``, and settings.
        """
        return SyncBackend(lambda: self._open_app(database, **settings))

    def close(self) -> None:
        """Close what is shared, if it is open. The next word opens it again."""
        with self._lock:
            shared, self._shared = self._shared, None
        if shared is not None:
            shared.close()

    def forget(self) -> None:
        """In a process that was just forked: leave to the other one what is its own."""
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


async def _wake(backend: Asynchronous) -> None:
    backend.wake()


if hasattr(os, "register_at_fork"):  # nowhere else do processes fork
    os.register_at_fork(after_in_child=_after_fork)
# Not atexit, which comes when no thread pool takes work any more: the stores need theirs to close. What was registered
# last comes first, so the module of thread pools is imported above.
threading._register_atexit(_at_exit)  # type: ignore[attr-defined]  # noqa: SLF001 - as concurrent.futures does
