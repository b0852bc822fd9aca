"""SQLite's description of its tables, and changes of the schema in one transaction that no other writer can interrupt.

Owns connections of its own, each open for one question or one push. Asking never creates the file or writes to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from penstock.clock import SystemClock
from penstock.errors import DatabaseBusy
from penstock.schema.stored import StoredColumn, StoredIndex, StoredTable
from penstock.store.nouns.catalog import Change
from penstock.store.sql.dialect import Dialect
from penstock.store.sql.queries import Query, load_queries
from penstock.store.sqlite.connection import connect, run_in_thread
from penstock.store.sqlite.contention import begin_write
from penstock.store.sqlite.dialect import SQLITE
from penstock.store.sqlite.errors import is_busy, translate
from penstock.store.sqlite.functions import register_functions
from penstock.store.sqlite.tabletext import TableText, read_choices, read_table, read_type
from penstock.values import decode_json

T = TypeVar("T")


class _Description(ABC):
    """See `store.nouns.Description`."""

    _queries: Mapping[str, Query]

    @abstractmethod
    async def _ask(self, question: Callable[[sqlite3.Connection], T], nothing: T) -> T:
        """Ask on a connection, in its thread; `nothing` if there is no database."""

    async def read_tables(self, names: Sequence[str]) -> dict[str, StoredTable]:
        query = self._queries["tables"]
        args = query.args({"names": json.dumps(list(names))})
        rows: list[Any] = await self._ask(lambda one: one.execute(query.statement.sql, args).fetchall(), [])
        return {row[0]: _table(*row[1:]) for row in rows}

    async def tables_in_use(self) -> list[str]:
        sql = self._queries["kept"].statement.sql
        return await self._ask(lambda one: [row[0] for row in one.execute(sql)], [])

    async def list_migrations(self) -> set[str]:
        return await self._ask(self._read_migrations, set())

    def _read_migrations(self, connection: sqlite3.Connection) -> set[str]:
        has_any, names = (self._queries[name].statement.sql for name in ("has_migrations", "migrations"))
        is_migrated = connection.execute(has_any).fetchone()[0]
        return {name for (name,) in connection.execute(names)} if is_migrated else set()

    async def count(self, sql: str) -> int:
        return await self._ask(lambda connection: int(connection.execute(sql).fetchone()[0]), 0)


class SqliteCatalog(_Description):
    """See `store.nouns.Catalog`. It waits so many seconds for other writers."""

    def __init__(self, path: Path, wait: float, dialect: Dialect) -> None:
        self._path = path
        self._wait = wait
        self._clock = SystemClock()
        self._queries = load_queries("catalog", dialect)

    @contextlib.asynccontextmanager
    async def lock(self) -> AsyncIterator[SqliteSchemaLock]:
        with ThreadPoolExecutor(1, "penstock-schema") as executor:  # its own, as waiting threads must not block it
            connection = self._open()
            lock = SqliteSchemaLock(connection, executor, self._queries)
            try:
                await self._begin(connection)
                yield lock
                await lock.run(lambda: connection.execute("commit"))
            finally:
                connection.close()  # this undoes an uncommitted transaction

    def _open(self) -> sqlite3.Connection:
        connection = connect(self._path, synchronous="full", read_only=False)
        # A table that is rewritten is copied, dropped and renamed, while other tables refer to it by its name.
        connection.execute("pragma foreign_keys = off")
        connection.execute("pragma legacy_alter_table = on")
        return connection

    async def _begin(self, connection: sqlite3.Connection) -> None:
        try:
            await begin_write(connection, self._clock, self._wait)
        except sqlite3.Error as error:
            if not is_busy(error):
                raise translate(error) from error
            raise DatabaseBusy(
                "Another process has been writing to the database for too long: its schema cannot be changed.",
                fix="Wait until it is done, then start again; or raise database_wait.",
            ) from error

    async def _ask(self, question: Callable[[sqlite3.Connection], T], nothing: T) -> T:
        if not self._path.exists():
            return nothing

        def work() -> T:
            uri = f"{self._path.absolute().as_uri()}?mode=ro"
            with contextlib.closing(
                sqlite3.connect(uri, uri=True, timeout=self._wait, isolation_level=None)
            ) as connection:
                register_functions(connection)
                return question(connection)

        try:
            return await asyncio.to_thread(work)
        except sqlite3.Error as error:
            raise translate(error) from error


class SqliteSchemaLock(_Description):
    """See `store.nouns.SchemaLock`."""

    def __init__(
        self, connection: sqlite3.Connection, executor: ThreadPoolExecutor, queries: Mapping[str, Query]
    ) -> None:
        self._connection = connection
        self._executor = executor
        self._queries = queries

    async def migrate(self, name: str, sql: str) -> None:
        record = self._queries["record_migration"]

        def work() -> None:
            for statement in split_statements(sql):
                self._connection.execute(statement)
            self._connection.execute(record.statement.sql, record.args({"name": name}))

        await self.run(work)

    async def apply(self, change: Change) -> None:
        def work() -> None:
            for statement in change.statements:
                self._connection.execute(statement)

        await self.run(work)

    async def _ask(self, question: Callable[[sqlite3.Connection], T], nothing: T) -> T:  # noqa: ARG002 - it exists
        return await self.run(lambda: question(self._connection))

    async def run(self, work: Callable[[], T]) -> T:
        """Run work in the transaction, in its thread."""
        try:
            return await run_in_thread(self._executor, self._connection, work, None)
        except sqlite3.Error as error:
            raise translate(error) from error


def split_statements(script: str) -> list[str]:
    """The statements of a script, each up to the end of a line. `executescript` would commit first."""
    statements, lines = [], []
    for line in script.splitlines():
        lines.append(line)
        text = "\n".join(lines)
        if sqlite3.complete_statement(text):
            statements.append(text)
            lines = []
    return statements


# ----- stored tables


def _table(name: str, schema: str, kind: str, columns: str, indexes: str, sql: str, attached: str) -> StoredTable:
    text = read_table(sql) if kind == "table" else TableText()
    described = decode_json(columns)
    key = sorted((column["key"], column["name"]) for column in described if column["key"])
    return StoredTable(
        name=name,
        columns={column["name"].lower(): _column(column, text) for column in described},
        indexes={index["name"].lower(): _index(index) for index in decode_json(indexes) if index["origin"] != "pk"},
        checks={check.name: check for part in text.columns.values() for check in read_choices(part)},
        key=tuple(name.lower() for _position, name in key),
        kind=kind,
        schema=schema,
        constraints=text.constraints,
        options=text.options,
        attached=decode_json(attached),
    )


def _column(column: dict[str, Any], text: TableText) -> StoredColumn:
    sql = text.columns.get(column["name"].lower(), "")
    return StoredColumn(
        column["name"],
        read_type(column["type"], sql),
        bool(column["nullable"]),
        filled=bool(column["filled"]),
        generated=bool(column["generated"]),
        sql=sql,
    )


def _index(index: dict[str, Any]) -> StoredIndex:
    columns = tuple(
        SQLITE.quote(column["name"]) + (" desc" if column["descending"] else "") if column["name"] else "(expression)"
        for column in index["columns"]
    )
    return StoredIndex(index["name"], columns, bool(index["unique"]), extra=index["extra"])
