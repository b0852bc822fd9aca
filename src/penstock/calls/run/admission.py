"""Admission of mutations: how many runs of one function go on at once in this process.

Databases find conflicts by pages, not by rows, so writers of different rows can conflict too. Each conflict halves the
limit of its function, and each success raises it a little. A function whose limit is low queues: its runs go one after
another across all processes, in the order of the database's lock queue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from zlib import crc32

from penstock.store.contract.session import EVERY_QUEUE, QUEUES

_LESS = 0.5
_MORE, _MORE_QUEUED = 0.05, 0.01
_QUEUED = 2.0  # below: runs of the function queue. Two of a process do, so that one waits while the other runs
_LOST = 0.5  # below: it conflicted in its own queue too, so with another function: it waits for all queues
_LEAST = 0.25
_LONGEST_WAIT = 0.25


class Admission:
    """Gives turns to the functions of one process.

    Args:
        most: How many runs of a function go on at once when there is no conflict.
    """

    def __init__(self, most: int) -> None:
        self._most = float(most)
        self._functions: dict[str, _FunctionAdmission] = {}

    async def begin(self, function: str, *, again: bool) -> int | None:
        """Wait for a turn; the queue of the database that the run joins, or None."""
        turns = self._functions.get(function)
        if turns is None:
            turns = self._functions[function] = _FunctionAdmission(self._most)
        await turns.begin(again=again)
        if not turns.queued:
            return None
        return EVERY_QUEUE if turns.limit < _LOST else 1 + crc32(function.encode()) % QUEUES

    def end(self, function: str, *, conflict: bool) -> None:
        """End a turn, and tell whether it was in conflict with another."""
        self._functions[function].end(conflict=conflict)

    def queues(self, function: str) -> bool:
        """Whether the next run of a function joins a queue."""
        turns = self._functions.get(function)
        return turns is not None and turns.queued


class _FunctionAdmission:
    """The turns of one function: first come, first served, but whoever starts again goes first."""

    def __init__(self, most: float) -> None:
        self._most = self.limit = most
        self._running = 0
        self._line: deque[asyncio.Future[None]] = deque()

    @property
    def queued(self) -> bool:
        return self.limit < min(_QUEUED, self._most)

    @property
    def _is_free(self) -> bool:
        return self._running < max(self.limit, min(_QUEUED, self._most))

    async def begin(self, *, again: bool) -> None:
        if self._is_free and (again or not self._line):
            self._running += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if again:
            self._line.appendleft(turn)
        else:
            self._line.append(turn)
        try:
            await asyncio.wait([turn], timeout=_LONGEST_WAIT)
            if self.queued:
                await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self._end()
            turn.cancel()
            raise
        if not turn.done():  # nobody waits long for a slow one whom he may run beside
            turn.cancel()
            self._running += 1

    def end(self, *, conflict: bool) -> None:
        if conflict:
            self.limit = max(_LEAST, self.limit * _LESS)
        else:
            self.limit = min(self._most, self.limit + (_MORE_QUEUED if self.queued else _MORE))
        self._end()

    def _end(self) -> None:
        self._running -= 1
        while self._line and self._is_free:
            turn = self._line.popleft()
            if not turn.done():
                self._running += 1
                turn.set_result(None)
