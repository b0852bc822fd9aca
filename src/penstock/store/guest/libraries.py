"""Connections of libraries that stand above a driver: SQLAlchemy's and Django's.

They are asked in their own words, so that what they do around a statement (beginning a transaction, logging, hooks)
happens; whether the transaction has failed is asked of the driver below.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.store.contract.session import Row
from penstock.store.guest.drivers import (
    CursorDriver,
    answer,
    check_psycopg,
    check_psycopg2,
    check_sqlite,
    plain_cursor,
)
from penstock.store.guest.parameters import AS_IT_IS, NAMED, NAMED_WITHOUT_UUID, NAMELESS, Style
from penstock.store.guest.refusals import aborted, not_open, unknown, unknown_driver

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


class SqlalchemyDriver:
    """A Connection or a Session of SQLAlchemy, sync or async.

    Args:
        given: What the user passed.
        is_session: Whether it is a Session, which gives the connection of its transaction.
        is_async: Whether it is one of SQLAlchemy's async forms.
    """

    def __init__(self, given: Any, *, is_session: bool, is_async: bool) -> None:
        self._given = given
        self._is_session = is_session
        self.is_async = is_async
        self.name = "SQLAlchemy"
        dialect = self._sync_given().get_bind().dialect if is_session else given.engine.dialect
        style = _STYLES.get((dialect.name, dialect.driver))
        if style is None:
            raise unknown_driver(f"SQLAlchemy over {dialect.name}+{dialect.driver}")
        self._style = style
        self.dialect = _DIALECTS[dialect.name]

    def check(self) -> None:
        """Raise if the connection can run nothing."""
        given = self._sync_given()
        if self._is_session:
            if not given.is_active:
                raise aborted(self.name)
            return  # its connection is known when a statement runs
        if given is None or given.closed:
            raise not_open(self.name)
        self._check_connection(given)

    def _check_connection(self, connection: Any) -> None:
        """Raise if a sync Connection, or the sync side of an async one, can run nothing."""
        transaction = connection.get_transaction()
        if connection.invalidated or (transaction is not None and not transaction.is_active):
            raise aborted(self.name)
        raw = connection.connection.driver_connection
        match connection.dialect.driver:
            case "psycopg" | "psycopg_async":
                check_psycopg(raw)
            case "psycopg2":
                check_psycopg2(raw)
            case "pysqlite":
                check_sqlite(raw, is_async=False)

    async def fetch(self, sql: str, values: Sequence[Any]) -> Sequence[Row]:
        """Run a statement; its rows."""
        result = await self._run(sql, self._style.values(values))
        return result.all() if result.returns_rows else []

    async def execute(self, sql: str, values: Sequence[Any]) -> int:
        """Run a statement; the number of rows it changed."""
        result = await self._run(sql, self._style.values(values))
        changed: int = result.rowcount
        return max(0, changed)

    async def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each of many rows."""
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
            raise unknown(connection)
        dialect = _DIALECTS.get(connection.vendor)
        if dialect is None:
            raise unknown_driver(f"Django to {connection.display_name}")
        self.dialect = dialect
        self.style = NAMED_WITHOUT_UUID if dialect == "postgres" else NAMELESS

    def check(self) -> None:
        """Raise if the connection can run nothing. One that is closed outside of atomic() connects by itself."""
        connection = self._connection
        connection.validate_thread_sharing()
        if connection.closed_in_transaction:
            raise not_open(self.name)
        if connection.in_atomic_block and connection.needs_rollback:
            raise aborted(self.name)
        if connection.connection is not None and self.dialect == "postgres":
            is_psycopg2 = type(connection.connection).__module__.startswith("psycopg2")
            (check_psycopg2 if is_psycopg2 else check_psycopg)(connection.connection)

    async def _open_cursor(self) -> Any:
        cursor = self._connection.cursor()
        if self.dialect == "postgres":
            plain_cursor(cursor.cursor)
        return cursor
