"""Admission of mutations: how many runs of one function go on at the same time in this process.

Databases detect conflicts by page, so writers of different rows can conflict too. Each conflict halves the limit of its
function; each success raises it a little. A function with a low limit queues: its runs go one after another across all
processes, in the order of the database's lock queue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from zlib import crc32

from penstock.store.contract.session import EVERY_QUEUE, QUEUES

_LESS = 0.5
_MORE, _MORE_QUEUED = 0.05, 0.01
_QUEUED = 2.0  # below this limit the function queues; two runs of a process do, so that one waits while one runs
_LOST = 0.5  # below this limit it conflicts with other functions too, and waits for all queues
_LEAST = 0.25
_LONGEST_WAIT = 0.25


class Admission:
    """Admits the runs of one process; at most `most` of a function at the same time."""

    def __init__(self, most: int) -> None:
        self._most = float(most)
        self._functions: dict[str, _FunctionAdmission] = {}

    async def begin(self, function: str, *, again: bool) -> int | None:
        """Wait for admission; the database queue that the run joins, or None."""
        one = self._functions.get(function)
        if one is None:
            one = self._functions[function] = _FunctionAdmission(self._most)
        await one.begin(again=again)
        if not one.queued:
            return None
        return EVERY_QUEUE if one.limit < _LOST else 1 + crc32(function.encode()) % QUEUES

    def end(self, function: str, *, conflict: bool) -> None:
        """End a run, which has conflicted or not."""
        self._functions[function].end(conflict=conflict)

    def queues(self, function: str) -> bool:
        """Whether the next run of a function joins a queue."""
        one = self._functions.get(function)
        return one is not None and one.queued


class _FunctionAdmission:
    """Admission of one function: first come, first served, but a run that starts again goes first."""

    def __init__(self, most: float) -> None:
        self._most = self.limit = most
        self._running = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def queued(self) -> bool:
        return self.limit < min(_QUEUED, self._most)

    @property
    def _is_free(self) -> bool:
        return self._running < max(self.limit, min(_QUEUED, self._most))

    async def begin(self, *, again: bool) -> None:
        if self._is_free and (again or not self._waiting):
            self._running += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if again:
            self._waiting.appendleft(turn)
        else:
            self._waiting.append(turn)
        try:
            await asyncio.wait([turn], timeout=_LONGEST_WAIT)
            if self.queued:
                await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self._end()
            turn.cancel()
            raise
        if not turn.done():  # no run waits long for a slow one that it may run beside
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
        while self._waiting and self._is_free:
            turn = self._waiting.popleft()
            if not turn.done():
                self._running += 1
                turn.set_result(None)
