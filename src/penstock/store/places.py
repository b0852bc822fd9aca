"""Places for expensive things, such as connections and threads: a fixed number of them, and a queue of waiting callers.

Owns the order of the queue. Leaves making and ending the things to its users.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from penstock.errors import Overloaded

T = TypeVar("T")


class Line(Generic[T]):
    """At most `size` things. Callers that find none free wait, first come, first served, for up to `wait` seconds."""

    def __init__(self, size: int, wait: float | None = None) -> None:
        self._size = size
        self._wait = wait
        self._held = 0
        self._free: list[T] = []
        self._waiting: deque[asyncio.Future[T | None]] = deque()

    async def take(self, fits: Callable[[T], bool] = bool) -> T | None:
        """A thing that was given back, or None: there is a place for a new one. Either is to be given back.

        Among free things it is the last that fits, or else the last.

        Raises:
            Overloaded: None was free in time.
        """
        if self._free:
            chosen = next((place for place in reversed(range(len(self._free))) if fits(self._free[place])), -1)
            return self._free.pop(chosen)
        if self._held < self._size:
            self._held += 1
            return None
        return await self._wait_in_line()

    def give(self, thing: T | None) -> None:
        """Give a thing, or the place of one that is gone, to the first in line, or to the next caller."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(thing)
                return
        if thing is None:
            self._held -= 1
        else:
            self._free.append(thing)

    def refuse(self, error: type[Exception]) -> None:
        """Raise an error for each caller that waits now."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(error)

    def take_free(self, fits: Callable[[T], bool]) -> list[T]:
        """Take the free things that fit, each to be given back."""
        found = [thing for thing in self._free if fits(thing)]
        self._free = [thing for thing in self._free if not fits(thing)]
        return found

    def drop_free(self, keep: int = 0) -> list[T]:
        """Remove idle things above a limit, the last given back first; their places become free."""
        dropped = self._free[keep:]
        del self._free[keep:]
        self._held -= len(dropped)
        return dropped

    async def _wait_in_line(self) -> T | None:
        turn: asyncio.Future[T | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            if self._wait is None:
                return await turn
            async with asyncio.timeout(self._wait):
                return await turn
        except BaseException as error:
            if turn in self._waiting:
                self._waiting.remove(turn)
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.give(turn.result())  # it came too late
            if not isinstance(error, TimeoutError):
                raise
            raise Overloaded(
                f"No database connection was free for {self._wait:g} seconds: all {self._size} are in use.",
                fix="Raise max_connections, or look for queries and transactions that take long.",
            ) from None
