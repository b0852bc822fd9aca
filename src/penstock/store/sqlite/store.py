"""The SQLite store: one file, one writer, readers that do not block it."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from penstock.clock import Clock, SystemClock
from penstock.config import Config
from penstock.errors import ContextError, DatabaseBusy, DeclarationError
from penstock.schema.table import TableDefinition
from penstock.store.nouns.pools import Pools
from penstock.store.nouns.rates import Rates
from penstock.store.session import Statement, not_open
from penstock.store.sql.dialect import Dialect
from penstock.store.sql.queries import load_queries
from penstock.store.sqlite.access import SqliteAccess
from penstock.store.sqlite.catalog import SqliteCatalog
from penstock.store.sqlite.changes import SqliteChanges
from penstock.store.sqlite.connection import Readers, connect
from penstock.store.sqlite.dialect import SQLITE
from penstock.store.sqlite.errors import translate
from penstock.store.sqlite.interests import SqliteInterests
from penstock.store.sqlite.jobs import SqliteGates, SqliteJobs
from penstock.store.sqlite.leases import Extensions, SqliteLeases
from penstock.store.sqlite.searches import SqliteSearches
from penstock.store.sqlite.session import SqliteSession
from penstock.store.sqlite.signals import SqliteSignals
from penstock.store.sqlite.tasks import SqliteTaskEnds, SqliteTasks
from penstock.store.sqlite.writer import LOG_BYTES, Writer
from penstock.store.store import Store

T = TypeVar("T")

_FOR_SERVICES = 2
_PAUSE = 0.005


class SqliteStore(Store):
    """See `store.Store`."""

    writers: int = 1_000  # they take turns, and share commits
    signals: SqliteSignals

    def __init__(self, path: Path, config: Config, clock: Clock) -> None:
        self._path = path
        self._config = config
        self.dialect: Dialect = SQLITE.in_schema(config.schema)
        self.replica = None
        self._machine = SystemClock()
        self._queries = load_queries("store", self.dialect)
        self._pin_sql = self._queries["pin"].statement.sql
        self._executor: ThreadPoolExecutor | None = None
        self._writer: Writer | None = None
        self._keep_mode = False
        self._readers = self._make_readers(config.max_connections)
        # Services have connections of their own: no number of calls may keep a worker from its leases.
        self._for_services = self._make_readers(_FOR_SERVICES)
        access = SqliteAccess(partial(self._begin_read, self._for_services), self.begin_write, self.dialect)
        self.rates = Rates(access)
        gates, ends = SqliteGates(access, self.rates), SqliteTaskEnds(access)
        self.jobs = SqliteJobs(access, self._write_alone, gates, ends)
        self.pools = Pools(access)
        self.searches = SqliteSearches(access)
        self.interests = SqliteInterests(access)
        self.changes = SqliteChanges(access)
        self.tasks = SqliteTasks(access, self.changes, self.jobs, ends, clock)
        self.leases = SqliteLeases(access, self.jobs, Extensions(path, self.dialect.schema), clock)
        self._add_shared(access, SqliteAccess(self.begin_read, self.begin_write, self.dialect), ends)
        self.catalog = SqliteCatalog(path, config.database_wait, self.dialect)
        self.signals = SqliteSignals(
            path, lambda: self._connect(read_only=True), self._queries["version"], self._machine
        )

    async def open(self, *, look: bool = False, for_leases: bool = False) -> None:  # noqa: ARG002 - which need all
        """Open the file, creating it if need be; to `look` only, it stays in the journal mode that it is in."""
        self._keep_mode = look
        # As many threads as connections: a caller with a connection does not wait for a thread.
        self._executor = ThreadPoolExecutor(self._config.max_connections, thread_name_prefix="penstock-sqlite-reader")
        connection = await self._connect(read_only=False)
        connection.execute("pragma wal_autocheckpoint = 0")  # the writer does it next to the commits
        connection.execute(f"pragma journal_size_limit = {LOG_BYTES}")
        self._writer = Writer(connection, self._path, self._config.database_wait)

    async def close(self) -> None:
        await self.signals.close()
        if self._writer is not None and self._executor is not None:
            await self._writer.settle()
            self._executor.shutdown()
            self._readers.close()
            self._for_services.close()
            self._writer.close()
        self._writer = self._executor = None

    async def begin_read(self) -> ReadSession:
        return await self._begin_read(self._readers)

    async def _begin_read(self, readers: Readers) -> ReadSession:
        executor = self._executor
        if executor is None:
            raise not_open()
        connection = await readers.acquire()
        try:
            await self._pin(connection)
        except BaseException as error:
            readers.release(connection, broken=True)
            raise translate(error) from error
        return ReadSession(connection, executor, self._config.statement_timeout, readers)

    async def begin_write(self, queue: int | None = None) -> WriteSession:  # noqa: ARG002 - all writers queue here
        writer = self._writer
        if writer is None:
            raise not_open()
        await writer.take_turn()
        return WriteSession(writer, self._config.statement_timeout)

    async def _write_alone(self, statement: Statement, args: Sequence[Any]) -> None:
        writer = self._writer
        if writer is None:
            raise not_open()
        await writer.run(statement.sql, args)

    def check_definition(self, definition: TableDefinition) -> None:
        if "." in definition.name:
            raise DeclarationError(
                f"Table {definition.table.__name__}: SQLite has no schemas, so there is no {definition.name}.",
                fix="Use a source without a dot, or PostgreSQL.",
            )

    async def _connect(self, *, read_only: bool) -> sqlite3.Connection:
        """A new connection."""
        how: dict[str, Any] = {"synchronous": self._config.synchronous, "keep_mode": self._keep_mode}
        return await self._wait_for_lock(lambda: connect(self._path, **how, read_only=read_only, wait=0))

    def _make_readers(self, size: int) -> Readers:
        return Readers(lambda: self._connect(read_only=True), size=size, wait=self._config.database_wait)

    async def _pin(self, connection: sqlite3.Connection) -> None:
        """Begin, and take the snapshot now."""

        def begin() -> None:
            try:
                connection.execute("begin")
                connection.execute(self._pin_sql).fetchall()
            except sqlite3.Error as error:
                if connection.in_transaction:
                    connection.execute("rollback")
                raise translate(error) from error

        await self._wait_for_lock(begin)

    async def _wait_for_lock(self, step: Callable[[], T]) -> T:
        """The result of a step; a lock that another process holds over the whole file is waited for."""
        deadline = self._machine.monotonic() + self._config.database_wait
        while True:
            try:
                return step()
            except DatabaseBusy as error:
                if self._machine.monotonic() > deadline:
                    raise DatabaseBusy(
                        f"Another process has locked the database for {self._config.database_wait:g} seconds.",
                        fix="Try again; or find the process that locks it.",
                    ) from error
            await self._machine.sleep(_PAUSE)


class ReadSession(SqliteSession):
    """A snapshot."""

    def __init__(self, connection: sqlite3.Connection, executor: Executor, timeout: float, readers: Readers) -> None:
        super().__init__(connection, executor, timeout)
        self._readers = readers

    async def commit(self) -> None:
        await self.rollback()

    async def rollback(self) -> None:
        if self._ended:
            return
        self._ended = True
        try:
            await self._leave()
        finally:
            broken = True
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("rollback")
                broken = False
            self._readers.release(self._connection, broken=broken)


class WriteSession(SqliteSession):
    """A turn on the write connection. Its statements run in the writer's thread: no query makes them wait."""

    writable = True

    def __init__(self, writer: Writer, timeout: float) -> None:
        super().__init__(writer.connection, writer.executor, timeout)
        self._writer = writer

    def _use(self) -> sqlite3.Connection:
        connection = super()._use()
        if not connection.in_transaction:  # new writes would stay, and the earlier ones are gone
            raise ContextError(
                "The transaction has failed before this call, and can only be rolled back.",
                fix="Do not catch database errors inside a mutation.",
            )
        return connection

    async def commit(self) -> None:
        self._use()
        self._ended = True
        await self._writer.finish()

    async def rollback(self) -> None:
        if not self._ended:
            self._ended = True
            cancelled = isinstance(sys.exception(), asyncio.CancelledError)
            try:
                await self._leave()
            finally:
                await self._writer.undo(wait=not cancelled)
