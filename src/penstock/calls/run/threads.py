"""Threads for functions written with def: a place in one is taken before the work that needs it begins.

Owns how many run at once, and which of them run functions whose callers have given up. Nothing ends a thread from
outside, so such a function holds its place until it ends by itself, and the threads do not keep a process alive.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Any, Self, TypeVar

from penstock.clock import profile_timer, yield_thread
from penstock.errors import Overloaded

R = TypeVar("R")

_LARGE = 16 * 1024
_MOMENT = 1.0  # seconds in which what was given up mostly ends: its statement is cut off, and its next call refused

_APART = ThreadPoolExecutor(
    1, "penstock-apart"
)  # reading JSON holds the interpreter: two would keep calls waiting twice
_GOING_ON: contextvars.ContextVar[list[Future[Any]] | None] = contextvars.ContextVar("going_on", default=None)


@contextmanager
def going_on() -> Iterator[list[Future[Any]]]:
    """What goes on in threads though those that had called it in this block have given up."""
    noted: list[Future[Any]] = []
    token = _GOING_ON.set(noted)
    try:
        yield noted
    finally:
        _GOING_ON.reset(token)


class Threads:
    """A number of threads, started when first needed.

    Args:
        name: What the threads are called.
        count: How many there are, at most.
        patient: Whether to wait for a place even if all run functions whose callers have given up; for work that can
            be ended from outside.
    """

    def __init__(self, name: str, count: int, *, patient: bool = False) -> None:
        self._name = name
        self._count = self._free = count
        self._patient = patient
        self._started = 0
        self._line: deque[tuple[Place, asyncio.Future[None]]] = deque()
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._given_up: list[str] = []
        self._stuck = False
        self._soon_stuck: asyncio.TimerHandle | None = None
        self._taken: list[str] = []
        self._empty = asyncio.Event()

    def place(self, what: str, **facts: Any) -> Place:
        """A place in a thread, to be held with ``async with``.

        Args:
            what: The function that will run there.
            **facts: Facts of the error if there is none.

        Raises:
            Overloaded: On entering: for longer than a moment, all threads run functions whose callers have given up.
        """
        return Place(self, what, facts)

    async def idle(self, seconds: float) -> list[str]:
        """Wait until nothing runs, for this time at most; the functions that still run then."""
        self._empty.clear()
        if self._taken:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._empty.wait()
        return list(self._taken)

    def close(self) -> None:
        """End the threads; one whose function still runs is left to itself."""
        if self._soon_stuck is not None:
            self._soon_stuck.cancel()
        for _ in range(self._started):
            self._work.put(None)

    # ----- for places

    async def take(self, place: Place) -> None:
        """Wait for a place, first come, first served."""
        if self._free:
            self._free -= 1
        else:
            await self._stand_in_line(place)
        self._taken.append(place.what)

    def submit(self, work: Callable[[], None]) -> None:
        """Have a thread do some work; there is one for each place."""
        if self._started < self._count - self._free:
            self._started += 1
            name = f"{self._name}-{self._started}"
            threading.Thread(target=_work, args=(self._work,), name=name, daemon=True).start()
        self._work.put(work)

    def give_up(self, place: Place) -> None:
        """Its caller has gone, but its work goes on."""
        self._given_up.append(place.what)
        if len(self._given_up) == self._count and not self._patient:
            self._soon_stuck = asyncio.get_running_loop().call_later(_MOMENT, self._refuse_all)

    def release(self, place: Place, *, given_up: bool = False) -> None:
        """Its work has ended."""
        self._taken.remove(place.what)
        if given_up:
            self._given_up.remove(place.what)
        self._stuck = False
        if self._soon_stuck is not None:
            self._soon_stuck.cancel()
            self._soon_stuck = None
        if not self._taken:
            self._empty.set()
        self._hand_on()

    # ----- steps

    def _refuse_all(self) -> None:
        """Who waits, and who comes until a thread is free, would wait for nobody knows how long."""
        self._stuck = True
        while self._line:
            waiting, turn = self._line.popleft()
            if not turn.done():
                turn.set_exception(self._refusal(waiting))

    async def _stand_in_line(self, place: Place) -> None:
        if self._stuck:
            raise self._refusal(place)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append((place, turn))
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._hand_on()
            raise

    def _hand_on(self) -> None:
        while self._line:
            _, turn = self._line.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def _refusal(self, place: Place) -> Overloaded:
        functions = ", ".join(sorted(set(self._given_up)))
        return Overloaded(
            f"{place.what} found no thread: all {self._count} are busy with timed-out calls of {functions} that "
            "have not ended.",
            fix="Give blocking calls in def functions a timeout of their own.",
            **place.facts,
        )


class Place:
    """A place in a thread; for the time of a block, and until the work that was begun in it has ended.

    Attributes:
        what: The function that runs in it.
        facts: Facts of the error if there is no place.
    """

    __slots__ = ("_future", "_threads", "facts", "what")

    def __init__(self, threads: Threads, what: str, facts: dict[str, Any]) -> None:
        self._threads = threads
        self._future: Future[Any] | None = None
        self.what = what
        self.facts = facts

    async def __aenter__(self) -> Self:
        await self._threads.take(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        future = self._future
        if future is None or future.done():
            self._threads.release(self)
            return
        loop = asyncio.get_running_loop()

        def ended(_: Future[Any]) -> None:
            with suppress(RuntimeError):  # the loop is closed, and with it all is over
                loop.call_soon_threadsafe(lambda: self._threads.release(self, given_up=True))

        self._threads.give_up(self)
        if (noted := _GOING_ON.get()) is not None:
            noted.append(future)
        future.add_done_callback(ended)

    async def run(self, work: Callable[[], R]) -> R:
        """Do blocking work in the thread, in the context of the caller; one piece at a time."""
        future: Future[R] = Future()
        context = contextvars.copy_context()
        self._future = future
        self._threads.submit(lambda: _do(future, lambda: context.run(work)))
        return await asyncio.wrap_future(future)


def is_small(size: int) -> bool:
    """Whether work on so many bytes is done sooner than a thread could begin it."""
    return size <= _LARGE


async def apart(size: int, work: Callable[[], R]) -> R:
    """Do work that takes longer the more bytes there are, such as checking them; if there are many, in one thread."""
    if is_small(size):
        return work()
    return await asyncio.get_running_loop().run_in_executor(_APART, contextvars.copy_context().run, _do_and_yield, work)


def _do_and_yield(work: Callable[[], R]) -> R:
    """Do some work, then let the event loop do all of its own that has waited, not only its next step."""
    begun = profile_timer()
    try:
        return work()
    finally:
        yield_thread(begun)


def _work(given: SimpleQueue[Callable[[], None] | None]) -> None:
    while (work := given.get()) is not None:
        work()
        del work  # an idle thread keeps nothing alive


def _do(future: Future[R], work: Callable[[], R]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except StopIteration as error:  # which no future can hold
        future.set_exception(RuntimeError(f"StopIteration: {error}"))
    except BaseException as error:  # noqa: BLE001 - whatever it raises is its caller's
        future.set_exception(error)
    else:
        future.set_result(result)
