"""Runs statements in the transaction that is open on the user's connection, for each driver and library above one.

Owns cursors, styles of parameters, and the state of a connection. It imports no driver: a caller with a connection has
imported it. All methods are coroutines. Those of a sync driver never wait, so `guest.session` can finish them without
an event loop.
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
from penstock.store.guest.parameters import AS_IT_IS, NAMED, NAMED_WITHOUT_UUID, NAMELESS, Style
from penstock.store.guest.refusals import connection_lost, no_connection, no_driver, not_open, transaction_aborted

Found = tuple[Sequence[str], Sequence[Sequence[Any]]]  # the names of columns, and rows
_FAILED = 3  # the state of a transaction after an error, in psycopg and psycopg2 alike
_BROKEN = 2  # psycopg2's mark of a connection that broke
_UUID_OIDS = (2950,)
_UUID_ARRAY_OIDS = (2951,)


# By the names of SQLAlchemy: of the database and of the driver.
_STYLES: dict[tuple[str, str], Style] = {
    ("postgresql", "psycopg"): NAMED,
    ("postgresql", "psycopg_async"): NAMED,
    ("postgresql", "psycopg2"): NAMED_WITHOUT_UUID,
    ("postgresql", "asyncpg"): AS_IT_IS,
    ("sqlite", "pysqlite"): AS_IT_IS,
    ("sqlite", "aiosqlite"): AS_IT_IS,
}
_DIALECTS = {"postgresql": "postgres", "sqlite": "sqlite"}


class Driver(Protocol):
    """One connection of the user's, in the words of its driver."""

    name: str  # the driver, as errors name it
    dialect: str  # ``sqlite`` or ``postgres``
    is_async: bool  # whether its methods wait for an event loop

    def check(self) -> None:
        """Raise if the connection can run nothing: it is closed or lost, or its transaction has failed."""

    async def fetch(self, sql: str, values: Sequence[Any]) -> Found:
        """Run a statement; the names of its columns, and its rows."""

    async def execute(self, sql: str, values: Sequence[Any]) -> int:
        """Run a statement; the number of rows it changed."""

    async def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each of many rows, at least one."""


async def answer(given: Any) -> Any:
    """The result of a driver's call, awaited if it must be."""
    return await given if inspect.isawaitable(given) else given


class CursorDriver:
    """A driver that runs statements on cursors; each subclass makes its own."""

    name: str
    dialect: str
    style: Style

    def __init__(self, connection: Any, *, is_async: bool) -> None:
        self._connection = connection
        self.is_async = is_async

    async def fetch(self, sql: str, values: Sequence[Any]) -> Found:
        async with self._cursor() as cursor:
            await answer(cursor.execute(self.style.sql(sql), self.style.values(values)))
            if not cursor.description:
                return (), ()
            return [column[0] for column in cursor.description], await answer(cursor.fetchall())

    async def execute(self, sql: str, values: Sequence[Any]) -> int:
        async with self._cursor() as cursor:
            await answer(cursor.execute(self.style.sql(sql), self.style.values(values)))
            changed: int = cursor.rowcount
            return max(0, changed)

    async def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
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
        check_psycopg(self._connection)

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
        check_sqlite(self._connection, is_async=self.is_async)

    async def fetch(self, sql: str, values: Sequence[Any]) -> Found:
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
    """asyncpg: its connections, and the ones lent by a pool of its own."""

    name = "asyncpg"
    dialect = "postgres"
    is_async = True

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def check(self) -> None:
        if self._connection.is_closed():
            raise not_open(self.name)  # whether its transaction has failed, only the server tells

    async def fetch(self, sql: str, values: Sequence[Any]) -> Found:
        rows = await self._connection.fetch(sql, *values)
        return [*rows[0].keys()] if rows else (), rows

    async def execute(self, sql: str, values: Sequence[Any]) -> int:
        status: str = await self._connection.execute(sql, *values)
        count = status.rpartition(" ")[2]
        return int(count) if count.isdigit() else 0

    async def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        await self._connection.executemany(sql, rows)


# ----- libraries above a driver: asked in their own words, so that their hooks and logging happen


class SqlalchemyDriver:
    """A Connection or a Session of SQLAlchemy, sync or async."""

    def __init__(self, given: Any, *, is_session: bool, is_async: bool) -> None:
        self._given = given
        self._is_session = is_session
        self.is_async = is_async
        self.name = "SQLAlchemy"
        dialect = self._sync_given().get_bind().dialect if is_session else given.engine.dialect
        style = _STYLES.get((dialect.name, dialect.driver))
        if style is None:
            raise no_driver(f"SQLAlchemy over {dialect.name}+{dialect.driver}")
        self._style = style
        self.dialect = _DIALECTS[dialect.name]

    def check(self) -> None:
        given = self._sync_given()
        if self._is_session:
            if not given.is_active:
                raise transaction_aborted(self.name)
            return  # its connection is known when a statement runs
        if given is None or given.closed:
            raise not_open(self.name)
        self._check_connection(given)

    def _check_connection(self, connection: Any) -> None:
        """Raise if a sync Connection, or the sync side of an async one, can run nothing."""
        transaction = connection.get_transaction()
        if connection.invalidated or (transaction is not None and not transaction.is_active):
            raise transaction_aborted(self.name)
        raw = connection.connection.driver_connection
        match connection.dialect.driver:
            case "psycopg" | "psycopg_async" | "psycopg2":
                check_psycopg(raw)
            case "pysqlite":
                check_sqlite(raw, is_async=False)

    async def fetch(self, sql: str, values: Sequence[Any]) -> Found:
        result = await self._run(sql, self._style.values(values))
        return ([*result.keys()], result.all()) if result.returns_rows else ((), ())

    async def execute(self, sql: str, values: Sequence[Any]) -> int:
        result = await self._run(sql, self._style.values(values))
        changed: int = result.rowcount
        return max(0, changed)

    async def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        await self._run(sql, [self._style.values(row) for row in rows])

    async def _run(self, sql: str, parameters: Any) -> Any:
        connection = self._given
        if self._is_session:
            connection = await answer(self._given.connection())
            self._check_connection(connection.sync_connection if self.is_async else connection)
        return await answer(connection.exec_driver_sql(self._style.sql(sql), parameters))

    def _sync_given(self) -> Any:
        if not self.is_async:
            return self._given
        return self._given.sync_session if self._is_session else self._given.sync_connection


class DjangoDriver(CursorDriver):
    """A connection of Django: ``django.db.connection`` or one of ``django.db.connections``."""

    name = "Django"

    def __init__(self, connection: Any) -> None:
        super().__init__(connection, is_async=False)
        if not hasattr(connection, "vendor"):  # the proxies of Django stand for caches as well
            raise no_connection(connection)
        dialect = _DIALECTS.get(connection.vendor)
        if dialect is None:
            raise no_driver(f"Django to {connection.display_name}")
        self.dialect = dialect
        self.style = NAMED_WITHOUT_UUID if dialect == "postgres" else NAMELESS

    def check(self) -> None:
        connection = self._connection  # one that is closed outside of atomic() connects by itself
        connection.validate_thread_sharing()
        if connection.closed_in_transaction:
            raise not_open(self.name)
        if connection.in_atomic_block and connection.needs_rollback:
            raise transaction_aborted(self.name)
        if connection.connection is not None and self.dialect == "postgres":
            check_psycopg(connection.connection)

    async def _open_cursor(self) -> Any:
        cursor = self._connection.cursor()
        if self.dialect == "postgres":
            plain_cursor(cursor.cursor)
        return cursor


# ----- the state of a connection


def check_psycopg(connection: Any) -> None:
    """Raise if a connection of psycopg 3 or psycopg2 can run nothing."""
    is_third = hasattr(connection, "broken")
    name = "psycopg" if is_third else "psycopg2"
    if connection.closed:
        is_broken = connection.broken if is_third else connection.closed == _BROKEN
        raise connection_lost(name) if is_broken else not_open(name)
    if connection.info.transaction_status == _FAILED:
        raise transaction_aborted(name)
    if is_third and connection.pgconn.pipeline_status:
        raise ContextError(
            "The psycopg connection is in a pipeline, which reports errors too late.",
            fix="Call penstock before or after the pipeline.",
        )


def check_sqlite(connection: Any, *, is_async: bool) -> None:
    """Raise if a connection of sqlite3 or aiosqlite is closed, or is one of another thread."""
    if not is_async:
        connection.cursor().close()  # sqlite3 raises for both when it makes a cursor
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
