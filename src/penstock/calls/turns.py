"""Turns of the mutations of one process: as many beside each other as do each other no harm.

Owns how many run at once. Databases find conflicts by pages, not by rows, so on small tables many writers that have
nothing to do with each other can make each other start again without end. Each conflict therefore halves how many run
beside each other, down to one, which conflicts with nobody here; each success raises it a little.
"""

from __future__ import annotations

import asyncio
from collections import deque

_LESS = 0.5
_MORE = 0.05
_LONGEST_WAIT = 0.25


class Turns:
    """Gives turns, first come, first served; whoever starts again goes first.

    Args:
        most: How many run beside each other when there is no conflict.
    """

    def __init__(self, most: int) -> None:
        self._most = float(most)
        self._limit = float(most)
        self._running = 0
        self._line: deque[asyncio.Future[None]] = deque()

    async def begin(self, *, again: bool) -> None:
        """Wait for a turn; not for long, as nobody shall wait for a few slow ones."""
        if self._running < self._limit and (again or not self._line):
            self._running += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if again:
            self._line.appendleft(turn)
        else:
            self._line.append(turn)
        try:
            async with asyncio.timeout(_LONGEST_WAIT):
                await turn
        except BaseException as error:
            given = turn.done() and not turn.cancelled()
            turn.cancel()
            if not isinstance(error, TimeoutError):
                if given:
                    self._end()
                raise
            if not given:
                self._running += 1

    def end(self, *, conflict: bool) -> None:
        """End a turn, and tell whether it was in conflict with another."""
        if conflict:
            self._limit = max(1.0, self._limit * _LESS)
        elif self._limit < self._most:
            self._limit = min(self._most, self._limit + _MORE)
        self._end()

    def _end(self) -> None:
        self._running -= 1
        while self._line and self._running < self._limit:
            turn = self._line.popleft()
            if not turn.done():
                self._running += 1
                turn.set_result(None)
