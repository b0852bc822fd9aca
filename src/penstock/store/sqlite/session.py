"""One transaction on SQLite: a snapshot on a read connection, or a turn on the write connection."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from penstock.changes.readset import RangeRead
from penstock.errors import ConfigError, ContextError, DatabaseFull, DatabaseUnavailable, DataError
from penstock.schema.table import TableDefinition
from penstock.store.session import PIECE_ROWS, Change, Row, Statement, TriggerFound, call_after_end
from penstock.store.sqlite.connection import run_in_thread
from penstock.store.sqlite.errors import is_text_invalid, text_invalid, translate
from penstock.values import total_bytes

# Statements that SQLite's own read-only mode lets pass, such as COMMIT, would end a transaction that others share.
_QUERY = re.compile(r"(\s|--[^\n]*(\n|$)|/\*.*?\*/)*(select|with|values|explain)\b", re.IGNORECASE | re.DOTALL)

T = TypeVar("T")
WriteAlone = Callable[[Statement, Sequence[Any]], Awaitable[None]]

_escaped = partial(str, encoding="utf-8", errors="surrogateescape")


def _rows(connection: sqlite3.Connection, statement: Statement, args: Sequence[Any]) -> list[Row]:
    """The rows of a statement. An error about text that is no UTF-8 names the row of the table."""
    cursor = connection.cursor()
    if statement.by_name:
        cursor.row_factory = sqlite3.Row
    try:
        return cursor.execute(statement.sql, args).fetchall()
    except sqlite3.OperationalError as error:
        if statement.of is None or not is_text_invalid(error):
            raise
        connection.text_factory = _escaped
        try:
            rows = connection.execute(statement.sql, args).fetchall()
        finally:
            connection.text_factory = str
        raise text_invalid(error, statement.of, rows) from error
    finally:
        cursor.close()  # the traceback of an error would keep it, and its snapshot


class SqliteSession:
    """A transaction that has begun; subclasses end it."""

    passed = False
    writable = False  # whether its connection writes, when no statement forbids it

    def __init__(self, connection: sqlite3.Connection, executor: Executor, timeout: float) -> None:
        self._connection = connection
        self._executor = executor
        self._timeout = timeout
        self._ended = False
        self._under_way: set[asyncio.Task[Any]] = set()

    async def fetch(self, statement: Statement, args: Sequence[Any] = ()) -> Sequence[Row]:
        """Run a statement; its rows."""
        connection = self._use()
        if not statement.bounded:
            return await self._in_thread(lambda: _rows(connection, statement, args))
        try:
            return _rows(connection, statement, args)
        except (sqlite3.Error, OverflowError, UnicodeEncodeError) as error:
            raise self._meaning(error) from error

    async def execute(self, statement: Statement, args: Sequence[Any] = ()) -> int:
        """Run a statement; the number of rows it changed."""
        connection = self._use()
        if not statement.bounded:
            return await self._in_thread(lambda: connection.execute(statement.sql, args).rowcount)
        try:
            return connection.execute(statement.sql, args).rowcount
        except (sqlite3.Error, OverflowError, UnicodeEncodeError) as error:
            raise self._meaning(error) from error

    async def fetch_range(self, _read: RangeRead, statement: Statement, args: Sequence[Any]) -> Sequence[Row]:
        """Run a statement that reads rows of a range."""
        return await self.fetch(statement, args)

    async def change(self, change: Change) -> None:
        """Change a row."""
        await self.execute(change.statement, change.args)

    async def refuse_trigger(self, of: TableDefinition, look: Statement) -> None:
        """Raise TriggerFound if a look at a table finds one."""
        if await self.fetch(look):
            raise TriggerFound(of.name)

    async def execute_many(self, statement: Statement, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each of many rows."""
        try:
            self._use().executemany(statement.sql, rows)
        except (sqlite3.Error, OverflowError, UnicodeEncodeError) as error:
            raise self._meaning(error) from error

    async def fetch_read_only(
        self, sql: str, args: Sequence[Any], limit: int, most_bytes: int
    ) -> tuple[list[str], Sequence[Row]]:
        connection = self._use()
        if not _QUERY.match(sql):
            raise DataError("ctx.sql takes a query that returns rows.", fix="Write with ctx.db.")

        def read() -> tuple[list[str], Sequence[Row]]:
            connection.execute("pragma query_only = on")
            try:
                cursor = connection.execute(sql, args)
                rows: list[Row] = []
                size = 0
                while len(rows) <= limit and size <= most_bytes:
                    piece = cursor.fetchmany(min(PIECE_ROWS, limit + 1 - len(rows)))
                    if not piece:
                        break
                    rows += piece
                    size += total_bytes(chain.from_iterable(piece))
                return [column[0] for column in cursor.description or ()], rows
            finally:
                connection.execute(f"pragma query_only = {not self.writable:d}")

        try:
            return await self._in_thread(read)
        except sqlite3.Warning as error:  # two statements; later versions of Python say it with another class
            raise DataError(f"ctx.sql: {error}") from error
        except (ConfigError, DataError) as error:
            raise DataError(f"ctx.sql: {error.__cause__}.", fix="It only reads; write with ctx.db.") from error

    async def savepoint(self, name: str) -> None:
        self._plain(f"savepoint {name}")

    async def release(self, name: str) -> None:
        self._plain(f"release {name}")

    async def rollback_to(self, name: str) -> None:
        await self._leave()
        self._plain(f"rollback to {name}")
        self._plain(f"release {name}")

    def _use(self) -> sqlite3.Connection:
        if self._ended:
            raise ContextError("This transaction has ended.", fix="Use a ctx only while its function runs.")
        return self._connection

    def _meaning(self, error: BaseException) -> BaseException:
        """The error of penstock's tree. Where the database fails, none of the transaction stays.

        SQLite takes only the statement back if it fired a trigger; a function that goes on would commit a part.
        """
        found = translate(error)
        lost = isinstance(found, DatabaseFull | DatabaseUnavailable)
        if lost and self.writable and self._connection.in_transaction:
            self._connection.rollback()
        return found

    def _plain(self, sql: str) -> None:
        try:
            self._use().execute(sql)
        except sqlite3.Error as error:
            raise self._meaning(error) from error

    async def _leave(self) -> None:
        """Interrupt statements under way in threads, whose callers are gone, and wait until the connection is free.

        A statement on the event loop would wait for the thread's, and all else with it.
        """
        cancelled: asyncio.CancelledError | None = None
        while self._under_way:
            for task in self._under_way:
                task.cancel()
            try:
                await asyncio.wait(self._under_way)
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled

    async def _in_thread(self, work: Callable[[], T]) -> T:
        task = asyncio.get_running_loop().create_task(
            run_in_thread(self._executor, self._connection, work, self._timeout)
        )
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        try:
            return await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
            raise call_after_end() from None
        except (sqlite3.Error, OverflowError, UnicodeEncodeError) as error:
            raise self._meaning(error) from error
