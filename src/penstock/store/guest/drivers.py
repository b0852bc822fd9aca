"""How each driver of the user's runs a statement in the transaction that is open on its connection.

Owns what is the driver's own: cursors, style of parameters, and what its connection tells of its state. Nothing here
imports a driver: whoever has a connection has imported it. The words are coroutines for all; a sync driver's never
wait, so that `guest.session` can finish them without an event loop.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timezone
from typing import Any, Protocol
from uuid import UUID

from penstock.errors import ContextError
from penstock.store.contract.session import Row
from penstock.store.guest.parameters import AS_IT_IS, NAMED, NAMED_WITHOUT_UUID, Style
from penstock.store.guest.refusals import aborted, lost, not_open

_FAILED = 3  # the state of a transaction after an error, in psycopg and psycopg2 alike
_BROKEN = 2  # what psycopg2 says of a connection that broke
_UUID_OIDS = (2950,)
_UUID_ARRAY_OIDS = (2951,)


class Driver(Protocol):
    """One connection of the user's, in the words of its driver.

    Attributes:
        name: The driver, as errors name it.
        dialect: ``sqlite`` or ``postgres``.
        is_async: Whether its words wait for an event loop.
    """

    name: str
    dialect: str
    is_async: bool

    def check(self) -> None:
        """Raise if the connection tells that it can run nothing: closed, lost, its transaction failed."""

    async def fetch(self, sql: str, values: Sequence[Any]) -> Sequence[Row]:
        """Run a statement; its rows."""

    async def execute(self, sql: str, values: Sequence[Any]) -> int:
        """Run a statement; the number of rows it changed."""

    async def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each of many rows, of which there is one at least."""


async def answer(given: Any) -> Any:
    """What a call of a driver gives: at once, or when it is awaited."""
    return await given if inspect.isawaitable(given) else given


class CursorDriver:
    """A driver that runs statements on cursors; subclasses know how theirs are made."""

    name: str
    dialect: str
    style: Style

    def __init__(self, connection: Any, *, is_async: bool) -> None:
        self._connection = connection
        self.is_async = is_async

    async def fetch(self, sql: str, values: Sequence[Any]) -> Sequence[Row]:
        """Run a statement; its rows."""
        async with self._cursor() as cursor:
            await answer(cursor.execute(self.style.sql(sql), self.style.values(values)))
            return await answer(cursor.fetchall()) if cursor.description else []

    async def execute(self, sql: str, values: Sequence[Any]) -> int:
        """Run a statement; the number of rows it changed."""
        async with self._cursor() as cursor:
            await answer(cursor.execute(self.style.sql(sql), self.style.values(values)))
            changed: int = cursor.rowcount
            return max(0, changed)

    async def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each of many rows."""
        async with self._cursor() as cursor:
            await answer(cursor.executemany(self.style.sql(sql), [self.style.values(row) for row in rows]))

    @asynccontextmanager
    async def _cursor(self) -> AsyncIterator[Any]:
        cursor = await self._open_cursor()
        try:
            yield cursor
        finally:
            await answer(cursor.close())

    async def _open_cursor(self) -> Any:
        raise NotImplementedError


class PsycopgDriver(CursorDriver):
    """psycopg 3, sync and async."""

    name = "psycopg"
    dialect = "postgres"
    style = NAMED

    def check(self) -> None:
        """Raise if the connection can run nothing."""
        check_psycopg(self._connection)

    async def _open_cursor(self) -> Any:
        # Not connection.cursor(): its rows and its style of parameters are as the user has set them.
        psycopg = sys.modules["psycopg"]
        cursor_class = psycopg.AsyncCursor if self.is_async else psycopg.Cursor
        return plain_cursor(cursor_class(self._connection, row_factory=sys.modules["psycopg.rows"].tuple_row))


class Psycopg2Driver(CursorDriver):
    """psycopg2."""

    name = "psycopg2"
    dialect = "postgres"
    style = NAMED_WITHOUT_UUID

    def check(self) -> None:
        """Raise if the connection can run nothing."""
        check_psycopg2(self._connection)

    async def _open_cursor(self) -> Any:
        cursor_class = sys.modules["psycopg2.extensions"].cursor
        return plain_cursor(self._connection.cursor(cursor_factory=cursor_class))


class SqliteDriver(CursorDriver):
    """sqlite3 and aiosqlite."""

    dialect = "sqlite"
    style = AS_IT_IS

    def __init__(self, connection: Any, *, is_async: bool) -> None:
        super().__init__(connection, is_async=is_async)
        self.name = "aiosqlite" if is_async else "sqlite3"

    def check(self) -> None:
        """Raise if the connection can run nothing."""
        check_sqlite(self._connection, is_async=self.is_async)

    async def fetch(self, sql: str, values: Sequence[Any]) -> Sequence[Row]:
        """Run a statement; its rows."""
        factory = self._connection.text_factory
        if factory is not str and factory(b"a") != "a":
            raise ContextError(
                f"The text_factory of the {self.name} connection does not return str.",
                fix="Read penstock's tables on a connection whose text_factory is str.",
            )
        return await super().fetch(sql, values)

    async def _open_cursor(self) -> Any:
        cursor = await answer(self._connection.cursor())
        cursor.row_factory = None
        return cursor


class AsyncpgDriver:
    """asyncpg: its connections, and those that a pool of its has lent."""

    name = "asyncpg"
    dialect = "postgres"
    is_async = True

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def check(self) -> None:
        """Raise if the connection is closed. That its transaction has failed is told by the server only."""
        if self._connection.is_closed():
            raise not_open(self.name)

    async def fetch(self, sql: str, values: Sequence[Any]) -> Sequence[Row]:
        """Run a statement; its rows."""
        return await self._connection.fetch(sql, *values)  # type: ignore[no-any-return]

    async def execute(self, sql: str, values: Sequence[Any]) -> int:
        """Run a statement; the number of rows it changed."""
        status: str = await self._connection.execute(sql, *values)
        count = status.rpartition(" ")[2]
        return int(count) if count.isdigit() else 0

    async def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each of many rows."""
        await self._connection.executemany(sql, rows)


def check_psycopg(connection: Any) -> None:
    """Raise if a connection of psycopg 3 can run nothing."""
    if connection.closed:
        raise lost("psycopg") if connection.broken else not_open("psycopg")
    if connection.info.transaction_status == _FAILED:
        raise aborted("psycopg")
    if connection.pgconn.pipeline_status:
        raise ContextError(
            "The psycopg connection is in a pipeline, which reports errors too late.",
            fix="Call penstock before or after the pipeline.",
        )


def check_psycopg2(connection: Any) -> None:
    """Raise if a connection of psycopg2 can run nothing."""
    if connection.closed:
        raise lost("psycopg2") if connection.closed == _BROKEN else not_open("psycopg2")
    if connection.info.transaction_status == _FAILED:
        raise aborted("psycopg2")


def check_sqlite(connection: Any, *, is_async: bool) -> None:
    """Raise if a connection of sqlite3 or aiosqlite is closed, or is one of another thread."""
    if not is_async:
        connection.cursor().close()  # sqlite3 tells of both when it makes a cursor
        return
    try:
        connection.total_changes  # noqa: B018 - a property that a closed connection does not have
    except ValueError as error:
        raise not_open("aiosqlite") from error


def plain_cursor(cursor: Any) -> Any:
    """A cursor of psycopg or psycopg2 that gives UUIDs and points in time, whatever its connection was taught."""
    if type(cursor).__module__.startswith("psycopg2"):
        extensions = sys.modules["psycopg2.extensions"]
        uuid = extensions.new_type(_UUID_OIDS, "UUID", lambda text, _: None if text is None else UUID(text))
        extensions.register_type(uuid, cursor)
        extensions.register_type(extensions.new_array_type(_UUID_ARRAY_OIDS, "UUID[]", uuid), cursor)
        cursor.tzinfo_factory = timezone
        return cursor
    types = sys.modules["psycopg.types"]
    cursor.adapters.register_loader("timestamptz", types.datetime.TimestamptzLoader)
    cursor.adapters.register_loader("uuid", types.uuid.UUIDLoader)
    return cursor
