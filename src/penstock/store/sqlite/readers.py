"""Connections that read a SQLite file: opened when needed, used again, closed when many stand idle.

Owns the count of connections and who waits for one.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import Awaitable, Callable

from penstock.errors import Overloaded
from penstock.store.contract import not_open

_KEPT = 8  # idle connections kept open: each holds files open and pages in memory


class Readers:
    """At most `size` connections; those who find none free wait in line.

    Args:
        connect: Opens a connection.
        size: How many connections at most.
        wait: Seconds to wait for a free connection before giving up.
    """

    def __init__(self, connect: Callable[[], Awaitable[sqlite3.Connection]], *, size: int, wait: float) -> None:
        self._connect = connect
        self._size = size
        self._wait = wait
        self._free: list[sqlite3.Connection] = []
        self._waiting: deque[asyncio.Future[sqlite3.Connection | None]] = deque()
        self._open = 0
        self._closed = False

    async def acquire(self) -> sqlite3.Connection:
        """A connection, to be given back with `release`.

        Raises:
            Overloaded: None was free in time.
            DatabaseUnavailable: The file cannot be opened.
            ContextError: The store is closed.
        """
        if self._closed:
            raise not_open()
        if self._free:
            return self._free.pop()
        if self._open < self._size:
            self._open += 1
        else:
            connection = await self._wait_in_line()
            if connection is not None:
                return connection
        try:
            return await self._connect()
        except BaseException:
            self._pass_on(None)
            raise

    def release(self, connection: sqlite3.Connection, *, broken: bool = False) -> None:
        """Give a connection back; a broken one is closed."""
        if broken or self._closed:
            connection.close()
            self._pass_on(None)
        else:
            self._pass_on(connection)

    def close(self) -> None:
        """Close all free connections, and others as they are given back."""
        self._closed = True
        while self._free:
            self._free.pop().close()
            self._open -= 1

    async def _wait_in_line(self) -> sqlite3.Connection | None:
        """A connection that somebody gave back, or None for the place of one that is gone."""
        turn: asyncio.Future[sqlite3.Connection | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(self._wait):
                return await turn
        except BaseException as error:
            if turn in self._waiting:
                self._waiting.remove(turn)
            if turn.done() and not turn.cancelled():
                self._pass_on(turn.result())  # it came too late
            if not isinstance(error, TimeoutError):
                raise
            raise Overloaded(
                f"No database connection was free for {self._wait:g} seconds: all {self._size} are in use.",
                fix="Raise max_connections, or look for queries that take long.",
            ) from None

    def _pass_on(self, connection: sqlite3.Connection | None) -> None:
        """Give a connection, or the place of one that is gone, to the first in line."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(connection)
                return
        if connection is not None and len(self._free) < _KEPT:
            self._free.append(connection)
            return
        self._open -= 1
        if connection is not None:
            connection.close()
