"""One connection to a SQLite file. A statement runs on it on the event loop, or in a thread.

Owns the settings of a connection. A statement that touches few rows takes microseconds, less than handing it to a
thread. All others, and any that may wait for a disk or a lock, run in a thread and can be stopped.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import TypeVar

from penstock.errors import ConfigError, DatabaseUnavailable, Overloaded
from penstock.store.places import Line
from penstock.store.session import not_open
from penstock.store.sqlite.errors import translate
from penstock.store.sqlite.functions import register_functions

_OLDEST = (3, 38, 0)  # the operator ->>
_STATEMENTS = 512

T = TypeVar("T")


def connect(
    path: Path, *, synchronous: str, read_only: bool, wait: float = 10.0, keep_mode: bool = False
) -> sqlite3.Connection:
    """Open a connection in autocommit mode, in WAL, that never waits for a lock by itself.

    Args:
        path: The file.
        synchronous: How durable its commits are.
        read_only: Whether it refuses to write.
        wait: Seconds to wait now, blocking the event loop, if another process has the file for itself.
        keep_mode: Whether the file stays in the journal mode that it is in: to switch it is to write to it.

    Raises:
        ConfigError: The file is read-only, no database, or not in UTF-8, or SQLite is too old.
        DatabaseUnavailable: It cannot be opened.
        DatabaseBusy: Another process has the file for itself.
    """
    if sqlite3.sqlite_version_info < _OLDEST:
        raise ConfigError(
            f"SQLite {sqlite3.sqlite_version} is too old: penstock needs 3.38.", fix="Use a newer Python or SQLite."
        )
    if not path.parent.is_dir():
        raise DatabaseUnavailable(f"The folder {path.parent} of the database does not exist.", fix="Create it.")
    try:
        connection = sqlite3.connect(
            path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=_STATEMENTS
        )
    except sqlite3.Error as error:
        raise translate(error) from error
    try:
        connection.execute(f"pragma busy_timeout = {wait * 1000:.0f}")
        mode = "wal" if keep_mode else connection.execute("pragma journal_mode = wal").fetchone()[0]
        encoding = connection.execute("pragma encoding").fetchone()[0]
        connection.execute(f"pragma synchronous = {synchronous}")
        connection.execute("pragma foreign_keys = on")
        connection.execute(f"pragma query_only = {'on' if read_only else 'off'}")
        connection.execute("pragma busy_timeout = 0")
        register_functions(connection)
    except sqlite3.Error as error:
        connection.close()
        raise translate(error) from error
    if mode != "wal":
        connection.close()
        raise ConfigError(f"{path} cannot be switched to write-ahead logging (it is in {mode} mode).")
    if encoding != "UTF-8":  # values are captured as text of that
        connection.close()
        raise ConfigError(
            f"{path} keeps its text as {encoding}: penstock needs UTF-8.",
            fix="Copy it into a new file, which uses UTF-8 by default.",
        )
    return connection


async def run_in_thread(
    executor: Executor, connection: sqlite3.Connection, work: Callable[[], T], seconds: float | None
) -> T:
    """Run work on a connection in a thread. If the caller is cancelled or time is up, the work is interrupted.

    Either way the thread has left the connection when this returns. Work that still waits for a thread never begins.

    Raises:
        Overloaded: No thread was free in time.
    """
    job = executor.submit(work)
    future = asyncio.wrap_future(job)
    try:
        async with asyncio.timeout(seconds):
            return await asyncio.shield(future)
    except asyncio.CancelledError:
        if not job.cancel():
            await _interrupt(connection, future)
        raise
    except TimeoutError:
        if job.cancel():
            raise Overloaded(
                f"No thread was free for {seconds:g} seconds to run a statement.",
                fix="Look for queries that take long.",
            ) from None
        if await _interrupt(connection, future):
            raise asyncio.CancelledError from None
        return future.result()


async def _interrupt(connection: sqlite3.Connection, future: asyncio.Future[T]) -> bool:
    """Stop work that runs in a thread, and wait until it has; whether the caller was cancelled meanwhile."""
    cancelled = False
    while not future.done():
        connection.interrupt()
        try:
            await asyncio.wait([future], timeout=0.05)
        except asyncio.CancelledError:  # the thread is still on the connection
            cancelled = True
    future.exception()  # the result is known, even if nobody reads it
    return cancelled


_KEPT = 8  # idle connections kept open: each holds files open and pages in memory


class Readers:
    """At most `size` connections; callers that find none free wait in line, for up to `wait` seconds."""

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
