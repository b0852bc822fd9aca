"""PostgreSQL's description of its tables, and changes of the schema under a lock that all processes respect.

Owns the waits for locks. The right to change the schema is an advisory lock, held by a connection of its own and asked
for again and again. A statement that waited for it would hold a snapshot, for which building an index concurrently
waits in turn. That connection stays open for a second, as a start takes the lock several times. Each change then takes
table locks of its own, and gives up soon if it cannot have them. A transaction that waits for one blocks all others
behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

import asyncpg

from penstock.clock import Clock, SystemClock
from penstock.errors import DatabaseBusy
from penstock.observe.logs import event as log_event
from penstock.schema.stored import StoredCheck, StoredColumn, StoredIndex, StoredTable
from penstock.store.nouns.catalog import Change
from penstock.store.postgres.access import run
from penstock.store.postgres.connections import Connections
from penstock.store.postgres.dialect import POSTGRES
from penstock.store.postgres.errors import REFUSALS, translate
from penstock.store.postgres.route import Connection
from penstock.store.session import Row
from penstock.store.sql.dialect import SCHEMA
from penstock.store.sql.queries import Query, load_queries
from penstock.values import decode_json

LOCK_WAIT = 60.0  # seconds for another process that changes the schema
TABLE_LOCK_WAIT = 5.0  # seconds for a table lock, in each attempt; between them 0.5, 1, 2, 4 and 8 seconds pass
TABLE_LOCK_ATTEMPTS = 6
_SETTINGS = """
set lock_timeout = '10min';  -- for what runs alone: it keeps nobody waiting
set statement_timeout = 0;
set idle_in_transaction_session_timeout = 0;
set enable_seqscan = on;
set standard_conforming_strings = on;
"""
_SHORT_LOCKS = "set local lock_timeout = '{wait}s'; set local statement_timeout = 0"
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 2.0
_UNHURRIED = 7 * 86400.0  # seconds for one statement: an index of a big table takes its time
_KEPT = 1.0  # seconds until the connection that held the lock is closed, unless it is needed again
# Through a pooler a transaction holds the lock, which does nothing else. Sent without parameters, it leaves no snapshot
# open, for which building an index would wait.
_HOLD = """
begin isolation level read committed;
set local idle_in_transaction_session_timeout = 0;
select where pg_try_advisory_xact_lock({});
"""
_LOST_RACE = (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError)

_CHOICES = re.compile(r'\((?:\w+|"(?:[^"]|"")+") = (?:ANY \(ARRAY\[(?P<many>.*)\]\)|(?P<one>.*))\)', re.DOTALL)
_CHOICE = re.compile(r"'((?:[^']|'')*)'::(\w+)|(-?\d+)")


class _Description(ABC):
    """See `store.nouns.Description`."""

    _queries: Mapping[str, Query]

    @abstractmethod
    async def _fetch(self, query: Query, values: dict[str, Any]) -> Sequence[Row]:
        """The rows of a query."""

    async def read_tables(self, names: Sequence[str]) -> dict[str, StoredTable]:
        quoted = {POSTGRES.table(name): name for name in names}
        rows: Sequence[Any] = await self._fetch(self._queries["tables"], {"names": list(quoted)})
        return {quoted[row["asked"]]: _table(row) for row in rows}

    async def tables_in_use(self) -> list[str]:
        return [name for (name,) in await self._fetch(self._queries["kept"], {})]

    async def list_migrations(self) -> set[str]:
        ((has_some,),) = await self._fetch(self._queries["has_migrations"], {})
        return {name for (name,) in await self._fetch(self._queries["migrations"], {})} if has_some else set()


class PostgresCatalog(_Description):
    """See `store.nouns.Catalog`.

    Long statements and changes use `direct`, which leads to the server itself if there is a way past the pooler.
    """

    def __init__(self, connections: Connections, direct: Connections) -> None:
        self._connections = connections
        self._direct = direct
        self._clock = SystemClock()
        self._queries = load_queries("catalog", connections.dialect)
        schema = connections.dialect.schema
        name = schema.encode() if schema == SCHEMA else sha256(schema.encode()).digest()[:8]
        self._key = int.from_bytes(name, "big", signed=True)
        self._kept: Connection | None = None

    async def count(self, sql: str) -> int:
        async with self._connection() as connection:
            return int(await _value(connection, sql))

    @contextlib.asynccontextmanager
    async def lock(self) -> AsyncIterator[PostgresSchemaLock]:
        if self._direct.route.pooled:
            async with self._connection() as connection, self._connection() as holder:
                await self._take_lock(lambda: _hold(holder, self._key))
                yield PostgresSchemaLock(connection, self._clock, self._queries, None)
        else:
            async with self._reuse_connection() as connection:
                await _run(connection, _SETTINGS)
                await self._take_lock(lambda: _value(connection, "select pg_try_advisory_lock($1)", self._key))
                yield PostgresSchemaLock(connection, self._clock, self._queries, self._connections)

    async def close(self) -> None:
        """Close the connection that held the lock."""
        if self._kept is not None:
            self._let_go(self._kept)

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        connection = await self._direct.connect()
        try:
            yield connection
            with contextlib.suppress(*REFUSALS):
                await connection.close(timeout=TABLE_LOCK_WAIT)
        finally:
            connection.terminate()

    @contextlib.asynccontextmanager
    async def _reuse_connection(self) -> AsyncIterator[Connection]:
        """The one that the block before has left, or a new one. A lock that it holds ends with it, even by a kill."""
        kept, self._kept = self._kept, None
        connection: Connection = await self._direct.connect() if kept is None or kept.is_closed() else kept
        try:
            yield connection
            with contextlib.suppress(*REFUSALS):
                await connection.execute("select pg_advisory_unlock_all()", timeout=TABLE_LOCK_WAIT)
                if self._kept is None:
                    self._kept = connection
                    asyncio.get_running_loop().call_later(_KEPT, self._let_go, connection)
        finally:
            if connection is not self._kept:
                connection.terminate()

    def _let_go(self, connection: Connection) -> None:
        is_unused = self._kept is connection
        if is_unused:
            self._kept = None
            connection.terminate()

    async def _take_lock(self, attempt: Callable[[], Awaitable[bool]]) -> None:
        deadline, pause = self._clock.monotonic() + LOCK_WAIT, _FIRST_PAUSE
        while not await attempt():
            if self._clock.monotonic() > deadline:
                raise DatabaseBusy(
                    f"Another process has been changing the schema of the database for {LOCK_WAIT:g} seconds.",
                    fix="Wait until it is done (it may be building an index), then start again.",
                )
            await self._clock.sleep(pause * (0.5 + self._clock.random()))
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _fetch(self, query: Query, values: dict[str, Any]) -> Sequence[Row]:
        return await run(self._connections, query, values)


class PostgresSchemaLock(_Description):
    """See `store.nouns.SchemaLock`.

    `others` are the connections that read the catalog: they have read it before, and a new one takes ten times as long.
    Through a pooler there are none (`None`), as it may have none left. A pooler keeps no settings either.
    """

    def __init__(
        self, connection: Connection, clock: Clock, queries: Mapping[str, Query], others: Connections | None
    ) -> None:
        self._connection = connection
        self._others = others
        self._clock = clock
        self._queries = queries

    async def count(self, sql: str) -> int:
        return int(await _value(self._connection, sql))

    async def migrate(self, name: str, sql: str) -> None:
        record = self._queries["record_migration"]

        async def work() -> None:
            await self._connection.execute(sql, timeout=_UNHURRIED)
            await self._connection.execute(record.statement.sql, *record.args({"name": name}))

        await self._together(f"migration {name}", work)

    async def apply(self, change: Change) -> None:
        async def work() -> None:
            await self._connection.execute(";\n".join(change.statements), timeout=_UNHURRIED)

        try:
            if change.alone:
                await _run(self._connection, change.statements[0])
            else:
                await self._together(f"table {change.table}", work)
        except Exception:
            await self._undo(change)
            raise

    async def _together(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """One transaction with short locks, tried again if others hold theirs for too long."""
        for attempt in range(TABLE_LOCK_ATTEMPTS):
            if attempt:
                await self._clock.sleep(TABLE_LOCK_WAIT / 20 * 2**attempt)
            try:
                async with self._connection.transaction():
                    await self._connection.execute(_SHORT_LOCKS.format(wait=TABLE_LOCK_WAIT))
                    await work()
            except _LOST_RACE as error:
                log_event("schema.waiting", logging.WARNING, change=what, attempt=attempt + 1, error=error)
            except Exception as error:
                raise translate(error) from error
            else:
                return
        raise DatabaseBusy(
            f"The schema change of {what} did not get its lock in {TABLE_LOCK_ATTEMPTS} attempts of "
            f"{TABLE_LOCK_WAIT:g} seconds: a transaction on it stays open.",
            fix="Look for long transactions in pg_stat_activity, then start again.",
        )

    async def _undo(self, change: Change) -> None:
        if not change.undo or self._connection.is_closed():
            return
        try:
            if self._others is not None:
                await _run(self._connection, f"set lock_timeout = '{TABLE_LOCK_WAIT}s'")
            await _run(self._connection, change.undo)
        except Exception as error:  # noqa: BLE001 - the error that led here counts; the next push cleans up
            log_event("schema.leftover", logging.WARNING, table=change.table, undo=change.undo, error=error)

    async def _fetch(self, query: Query, values: dict[str, Any]) -> Sequence[Row]:
        if self._others is not None:
            return await run(self._others, query, values)
        with _translate_errors():
            rows: Sequence[Row] = await self._connection.fetch(query.statement.sql, *query.args(values))
        return rows


# ----- statements


@contextlib.contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise translate(error) from error


async def _run(connection: Connection, sql: str) -> None:
    with _translate_errors():
        await connection.execute(sql, timeout=_UNHURRIED)


async def _hold(connection: Connection, key: int) -> bool:
    """Begin a transaction that holds the lock; whether it could be had."""
    with _translate_errors():
        held: str = await connection.execute(_HOLD.format(key))
        if held != "SELECT 1":
            await connection.execute("rollback")
    return held == "SELECT 1"


async def _value(connection: Connection, sql: str, *args: Any) -> Any:
    with _translate_errors():
        return await connection.fetchval(sql, *args, timeout=_UNHURRIED)


# ----- stored tables


def _table(row: Any) -> StoredTable:
    columns, indexes, checks = (decode_json(row[part] or "[]") for part in ("columns", "indexes", "checks"))
    key = sorted((position, column["name"]) for column in columns if (position := column.pop("key")))
    return StoredTable(
        name=row["name"],
        columns={column["name"]: StoredColumn(**column) for column in columns},
        indexes={index["name"]: _index(index) for index in indexes if index["origin"] != "pk"},
        checks={check["name"]: _check(check) for check in checks},
        key=tuple(name for _position, name in key),
        kind=row["kind"],
        schema=row["schema"],
    )


def _index(index: dict[str, Any]) -> StoredIndex:
    columns = tuple(map(_index_column, index["columns"]))
    return StoredIndex(index["name"], columns, index["unique"], index["valid"], index["extra"])


def _index_column(column: dict[str, Any]) -> str:
    if column["name"] is None:
        spelled = f"({column['expression']})"
    else:
        spelled = POSTGRES.quote(column["name"]) + (" collate" if column["collated"] else "")
    if column["descending"]:
        return f"{spelled} desc" + ("" if column["nulls_first"] else " nulls last")
    return f"{spelled} nulls first" if column["nulls_first"] else spelled


def _check(check: dict[str, Any]) -> StoredCheck:
    """A check, with the choices it allows if it is of the form that ``in (…)`` is kept in."""
    found = _CHOICES.fullmatch(check["expression"])
    tokens = _CHOICE.findall(found["many"] or found["one"]) if found else []
    choices = (text.replace("''", "'") if kind == "text" else int(number or text) for text, kind, number in tokens)
    return StoredCheck(check["name"], frozenset(choices), check["valid"])
