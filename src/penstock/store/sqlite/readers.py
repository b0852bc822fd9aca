"""Connections that read a SQLite file: opened when needed, used again, closed when many stand idle.

Owns how connections are opened and closed; `store.places` knows who gets one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable

from penstock.store.contract.session import not_open
from penstock.store.places import Line

_KEPT = 8  # idle connections kept open: each holds files open and pages in memory


class Readers:
    """At most `size` connections; callers that find none free wait in line.

    Args:
        connect: Opens a connection.
        size: The largest number of connections.
        wait: Seconds to wait for a free connection before giving up.
    """

    def __init__(self, connect: Callable[[], Awaitable[sqlite3.Connection]], *, size: int, wait: float) -> None:
        self._connect = connect
        self._line: Line[sqlite3.Connection] = Line(size, wait)
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
        connection = await self._line.take()
        if connection is not None:
            return connection
        try:
            return await self._connect()
        except BaseException:
            self._line.give(None)
            raise

    def release(self, connection: sqlite3.Connection, *, broken: bool = False) -> None:
        """Give a connection back; a broken one is closed."""
        if broken or self._closed:
            connection.close()
            self._line.give(None)
            return
        self._line.give(connection)
        self._close_free(_KEPT)

    def close(self) -> None:
        """Close all free connections, and others as they are given back."""
        self._closed = True
        self._close_free(0)

    def _close_free(self, keep: int) -> None:
        for connection in self._line.drop_free(keep):
            connection.close()
