"""Threads for functions written with def: a function takes its place in a thread before its work begins.

Nothing ends a thread from outside. So a function whose caller has given up holds its place until it returns. The
threads do not keep a process alive.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Self, TypeVar

from penstock.errors import Overloaded
from penstock.functions.function import AnyFunction
from penstock.observe.timing import time_step
from penstock.store.places import Line

R = TypeVar("R")

_LARGE = 16 * 1024
_TURNS = 8  # of the event loop, in which it takes on a connection, reads a request and answers it
_TURNS_WAIT = 1.0  # seconds to wait for them, as a loop may have stopped
_MOMENT = 1.0  # seconds in which an abandoned function mostly ends: its statement is cut off, its next call refused

_OFFLOAD = ThreadPoolExecutor(1, "penstock-offload")  # only one, since reading JSON holds the interpreter


class Threads:
    """A number of threads, started when first needed.

    Args:
        name: The name of the threads.
        count: The largest number of threads.
        patient: Whether to wait for a place even if all are held by abandoned functions, as these can be ended.
    """

    def __init__(self, name: str, count: int, *, patient: bool = False) -> None:
        self._name = name
        self._count = count
        self._patient = patient
        self._line: Line[None] = Line(count)
        self._started = 0
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()  # None ends a thread
        self._abandoned: list[str] = []
        self._stuck = False
        self._soon_stuck: asyncio.TimerHandle | None = None
        self._taken: list[str] = []
        self._empty = asyncio.Event()

    def place(self, what: str, lingering: list[Future[Any]] | None = None, **facts: Any) -> Place:
        """A place in a thread for a function, to be held with ``async with``.

        Entering raises Overloaded, with these facts, if all threads are held by abandoned functions for a while. A
        function that goes on after its caller has given up is added to `lingering`.
        """
        return Place(self, what, lingering, facts)

    async def idle(self, seconds: float) -> list[str]:
        """Wait until nothing runs, for this time at most; the functions that still run."""
        self._empty.clear()
        if self._taken:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._empty.wait()
        return list(self._taken)

    def close(self) -> None:
        """End the threads; a thread whose function still runs ends after it."""
        if self._soon_stuck is not None:
            self._soon_stuck.cancel()
        for _ in range(self._started):
            self._work.put(None)

    # ----- for places

    async def take(self, place: Place) -> None:
        """Wait for a place."""
        if self._stuck:
            raise self._refusal(place)
        try:
            await self._line.take()
        except _Stuck:
            raise self._refusal(place) from None
        self._taken.append(place.what)

    def submit(self, work: Callable[[], None]) -> None:
        """Have a thread do the work of a place that is taken."""
        if self._started < len(self._taken):
            name = f"{self._name}-{self._started + 1}"
            threading.Thread(target=_do_all, args=(self._work,), name=name, daemon=True).start()
            self._started += 1
        self._work.put(work)

    def abandon(self, place: Place) -> None:
        """Note that the caller has gone, but the work goes on."""
        self._abandoned.append(place.what)
        if len(self._abandoned) == self._count and not self._patient:
            self._soon_stuck = asyncio.get_running_loop().call_later(_MOMENT, self._refuse_all)

    def release(self, place: Place, *, abandoned: bool = False) -> None:
        """Give a place back."""
        self._taken.remove(place.what)
        if abandoned:
            self._abandoned.remove(place.what)
        self._stuck = False
        if self._soon_stuck is not None:
            self._soon_stuck.cancel()
            self._soon_stuck = None
        if not self._taken:
            self._empty.set()
        self._line.give(None)

    # ----- steps

    def _refuse_all(self) -> None:
        """Refuse all callers until a thread is free, as nobody knows when that will be."""
        self._stuck = True
        self._line.refuse(_Stuck)

    def _refusal(self, place: Place) -> Overloaded:
        functions = ", ".join(sorted(set(self._abandoned)))
        return Overloaded(
            f"{place.what} found no thread: all {self._count} are busy with timed-out calls of {functions} that "
            "have not ended.",
            fix="Give blocking calls in def functions a timeout of their own.",
            **place.facts,
        )


class _Stuck(Exception):
    """No thread will be free for long."""


class Place:
    """A place in a thread, held for the time of a block and until the function in it has ended."""

    __slots__ = ("_future", "_lingering", "_threads", "facts", "what")

    def __init__(self, threads: Threads, what: str, lingering: list[Future[Any]] | None, facts: dict[str, Any]) -> None:
        self._threads = threads
        self._lingering = lingering
        self._future: Future[Any] | None = None
        self.what = what
        self.facts = facts

    async def __aenter__(self) -> Self:
        with time_step("waits"):
            await self._threads.take(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        future = self._future
        if future is None or future.done():
            self._threads.release(self)
            return
        loop = asyncio.get_running_loop()

        def on_end(_: Future[Any]) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(lambda: self._threads.release(self, abandoned=True))

        self._threads.abandon(self)
        if self._lingering is not None:
            self._lingering.append(future)
        future.add_done_callback(on_end)

    async def run(self, work: Callable[[], R]) -> R:
        future: Future[R] = Future()
        context = contextvars.copy_context()
        self._threads.submit(lambda: _do(future, lambda: context.run(work)))
        self._future = future
        return await asyncio.wrap_future(future)


async def offload(size: int, work: Callable[[], R]) -> R:
    """Run work on this number of bytes, such as checking them; in a thread if there are many."""
    if size <= _LARGE:  # sooner done than a thread could begin
        return work()
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_OFFLOAD, contextvars.copy_context().run, _do_and_yield, work, loop)


async def check_args(function: AnyFunction, args: bytes | str) -> dict[str, Any]:
    """Check JSON arguments of a function; in a thread if they are large."""
    check = function.signature.check_json
    return check(args) if len(args) <= _LARGE else await offload(len(args), lambda: check(args))


def _do_and_yield(work: Callable[[], R], loop: asyncio.AbstractEventLoop) -> R:
    """Run a piece of work, then let the event loop answer others before the next piece holds the interpreter."""
    try:
        return work()
    finally:
        caught_up = threading.Event()
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_turn, loop, _TURNS, caught_up)
            caught_up.wait(_TURNS_WAIT)


def _turn(loop: asyncio.AbstractEventLoop, left: int, caught_up: threading.Event) -> None:
    if left:
        loop.call_soon(_turn, loop, left - 1, caught_up)
    else:
        caught_up.set()


def _do_all(work: SimpleQueue[Callable[[], None] | None]) -> None:
    while (one := work.get()) is not None:
        one()
        del one  # so that an idle thread keeps nothing alive


def _do(future: Future[R], work: Callable[[], R]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except StopIteration as error:  # no future can hold it
        future.set_exception(RuntimeError(f"StopIteration: {error}"))
    except BaseException as error:  # noqa: BLE001 - whatever it raises is its caller's
        future.set_exception(error)
    else:
        future.set_result(result)
