"""One transaction on PostgreSQL.

Owns its connection until commit or rollback, and turns the driver's errors into penstock's. A snapshot for a single
statement needs no transaction: one round trip instead of two.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from itertools import chain, groupby
from typing import Any, NoReturn

import asyncpg

from penstock.changes.position import Snapshot
from penstock.changes.readset import RangeRead
from penstock.clock import SystemClock
from penstock.errors import (
    ContextError,
    DatabaseBusy,
    DatabaseUnavailable,
    DataError,
    Overloaded,
    PenstockError,
    RowInvalid,
)
from penstock.schema.table import TableDefinition
from penstock.store.postgres.connections import TO_END, Connections, is_dropped
from penstock.store.postgres.dialect import POSTGRES
from penstock.store.postgres.errors import REFUSALS, had_no_effect, is_connection_lost, translate, uncertain
from penstock.store.postgres.kept import MANY, MOST_KEPT, MOST_PREPARED, spell
from penstock.store.postgres.route import Connection
from penstock.store.session import (
    EVERY_QUEUE,
    PIECE_ROWS,
    Change,
    NeedsTransaction,
    Row,
    Statement,
    call_after_end,
    is_concerned,
)
from penstock.values import total_bytes

BEGIN_READ = "begin isolation level repeatable read read only"
BEGIN_WRITE = "begin isolation level serializable"
BEGIN_INTERNAL = "begin isolation level read committed"
_MOST_STALE = 10  # connections in a row that turn out to be gone; then the database is
_END_READ_ONLY = "rollback to savepoint read_only; release savepoint read_only"


async def begin(connections: Connections, how: str, queue: int | None = None) -> PostgresSession:
    """Start a transaction, on another connection if the first one turns out to be gone; and wait in its queue."""
    lock = "" if queue is None else connections.dialect.qualify(_lock(queue))
    stale = 0
    while True:
        connection, left = await connections.acquire_lingering(how)
        pooled = connections.route.pooled  # where a transaction that lingers would keep others waiting
        session = PostgresSession(connections, connection, how, lingers=not pooled)
        try:
            if pooled:
                await _begin_pooled(session, connections, how)
                if lock:
                    await session.begin(lock)
            elif left == how == BEGIN_WRITE:
                if lock:
                    await session.begin(lock)
            else:
                await session.begin(f"rollback; {how}; {lock}" if left else f"{how}; {lock}")
        except DatabaseUnavailable:
            connections.drop_free()
            stale += 1
            if not (await connections.wait_for_server(stale) if pooled else stale < _MOST_STALE):
                raise
        else:
            return session


def _lock(queue: int) -> str:
    """Wait for earlier ones in a queue. LOCK TABLE takes no snapshot, and holds through a pooler."""
    table = "mutation_queue" if queue == EVERY_QUEUE else f"mutation_queue_{queue}"
    return f"lock table penstock.{table} in exclusive mode"


async def _begin_pooled(session: PostgresSession, connections: Connections, how: str) -> None:
    """Start a transaction with its settings, as soon as the pooler has a connection to lend."""
    try:
        async with asyncio.timeout(connections.wait):
            await session.begin(f"{how}; {connections.route.local_settings}")
    except TimeoutError:
        raise Overloaded(
            f"The pooler gave no connection to the database for {connections.wait:g} seconds.",
            fix="Check that the database runs; raise the pooler's pool size, or look for transactions that take long.",
        ) from None


class PostgresSession:
    """A transaction that has begun.

    If it `lingers`, the rollback of a snapshot is left to the next user of the connection, and the commit of a write
    begins the next one (see `Connections.release`). Changes are kept back then, and sent with what comes next.
    """

    __slots__ = (
        "_connection",
        "_connections",
        "_doubtful",
        "_ended",
        "_how",
        "_kept",
        "_lingers",
        "asked_at",
        "passed",
        "shown",
    )

    def __init__(self, connections: Connections, connection: Connection, how: str, *, lingers: bool) -> None:
        self._connections = connections
        self._connection: Connection | None = connection
        self._how = how
        self._lingers = lingers
        self._kept: list[tuple[Change, str]] = []  # with the text of each
        self._doubtful = False
        self._ended = False
        self.passed = False
        self.asked_at: float | None = None
        self.shown: Snapshot | None = None  # on a replica: what is known to be shown; those in `open` may be, too
        connections.watch(self)

    async def begin(self, how: str) -> None:
        """Start the transaction; if that fails, the connection is dropped."""
        try:
            await self._plain(how)
        except BaseException:
            self._end(broken=True)
            raise

    def end_alone(self) -> None:
        """Give the connection back after a statement outside of a transaction."""
        connection = self._connection
        broken = self._doubtful or self.asked_at is not None or is_dropped()
        self._end(broken=broken or connection is None or connection.is_closed())

    def cut(self) -> None:
        """Cut the connection: the server has not answered for too long."""
        if self._connection is not None:
            self._connection.terminate()

    async def fetch(self, statement: Statement, args: Sequence[Any] = ()) -> Sequence[Row]:
        """Run a statement; its rows."""
        if self._kept:
            await self._send_kept()
        return await self._fetch(statement, args)

    async def _fetch(self, statement: Statement, args: Sequence[Any]) -> Sequence[Row]:
        try:
            found: Sequence[Row] = await self._call("fetch", statement.sql, *args)
        except PenstockError as error:
            if not _is_unreadable(error.__cause__):
                raise
            raise await self._unreadable(error, statement.sql, args, statement.of) from error.__cause__
        return found

    async def execute(self, statement: Statement, args: Sequence[Any] = ()) -> int:
        """Run a statement; the number of rows it changed."""
        status: str = await self._ask("execute", statement.sql, *args)
        count = status.rpartition(" ")[2]
        return int(count) if count.isdigit() else 0

    async def fetch_range(self, read: RangeRead, statement: Statement, args: Sequence[Any]) -> Sequence[Row]:
        """Run a statement that reads rows of a range; changes of other rows are kept back further."""
        if self._kept:
            if is_concerned(read, (change for change, _text in self._kept)):
                await self._send_kept()
            else:
                self.passed = True
        return await self._fetch(statement, args)

    async def change(self, change: Change) -> None:
        """Change a row: together with what comes next, if that can be."""
        connection, statement, args = self._use(), change.statement, change.args
        keeps = self._lingers and not connection.is_closed()  # the server may have ended it since the last statement
        prepared = connection.prepared.get(statement.sql) if keeps else None
        if prepared is None and keeps and len(connection.prepared) < MOST_PREPARED:
            name = f"penstock_{len(connection.prepared)}"
            prepared = await self._ask("prepare", statement.sql, name=name)
            connection.prepared[statement.sql] = prepared
        text = None if prepared is None else spell(prepared.get_name(), args)
        if text is None:
            await self.execute(statement, args)
            return
        self._kept.append((change, text))
        if len(self._kept) >= MOST_KEPT:
            await self._send_kept()

    async def refuse_trigger(self, of: TableDefinition, look: Statement) -> None:
        """Have the database raise TriggerFound if a look at a table finds one."""
        await self.change(Change(of, None, look, (), ()))

    async def execute_many(self, statement: Statement, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each of many rows, without waiting for each."""
        await self._ask("executemany", statement.sql, rows)

    @property
    def _schema(self) -> str:
        return self._connections.dialect.schema

    async def copy(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Insert many rows into a table of penstock's own, the fast way."""
        await self._ask("copy_records_to_table", table, schema_name=self._schema, records=rows, columns=columns)

    async def copy_binary(self, table: str, columns: Sequence[str], pieces: Iterable[bytes]) -> None:
        """Copy rows in the binary form of COPY. After each piece all else that is ready has its turn."""
        source = self._in_turn(pieces)
        await self._ask(
            "copy_to_table", table, schema_name=self._schema, source=source, columns=columns, format="binary"
        )

    async def fetch_read_only(
        self, sql: str, args: Sequence[Any], limit: int, most_bytes: int
    ) -> tuple[list[str], Sequence[Row]]:
        await self._plain("savepoint read_only; set transaction read only; set local enable_seqscan = on")
        connection = self._use()
        self.asked_at = self._connections.now
        try:
            statement = await connection.prepare(sql)
            self._check()
            names = [attribute.name for attribute in statement.get_attributes()]
            rows: list[Row] = []
            if names:
                cursor = await statement.cursor(*args)
                size = 0
                while len(rows) <= limit and size <= most_bytes:
                    self._check()
                    self.asked_at = self._connections.now
                    piece = await cursor.fetch(min(PIECE_ROWS, limit + 1 - len(rows)))
                    rows += piece
                    if len(piece) < PIECE_ROWS:
                        break
                    size += total_bytes(chain.from_iterable(piece))
        except BaseException as error:
            raise await self._read_only_failed(error, sql, args) from error
        finally:
            self.asked_at = None
        await self._plain(_END_READ_ONLY)
        if not names:
            raise DataError("ctx.sql takes a query that returns rows.", fix="Write with ctx.db.")
        return names, rows

    async def _read_only_failed(self, error: BaseException, sql: str, args: Sequence[Any]) -> BaseException:
        """The meaning of a failure; the transaction goes on without the statement, if its connection still can."""
        self.asked_at = None
        if self._ended:
            return self._failure(error)
        if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
            await self._plain(_END_READ_ONLY)
            return DataError("ctx.sql only reads.", fix="Write with ctx.db.")
        meant = self._failure(error)
        if self._doubtful:
            return meant
        await self._plain(_END_READ_ONLY)
        if _is_unreadable(error):
            return await self._unreadable(error, sql, args)
        return DataError(f"ctx.sql: {error}.") if isinstance(error, asyncpg.InterfaceError | ValueError) else meant

    async def _unreadable(
        self, error: BaseException, sql: str, args: Sequence[Any], table: TableDefinition | None = None
    ) -> RowInvalid:
        """The error that names the value of an answer that the driver cannot read. The transaction goes on."""
        facts: dict[str, Any] = {} if table is None else {"table": table.name}
        value: Any = error.__cause__ or error
        await self._plain("savepoint unreadable")
        with contextlib.suppress(PenstockError):  # of a statement that writes
            if found := await _find_unreadable(self._ask, sql, args):
                column, value, row = found
                if table is not None and row.keys() >= set(table.key):
                    facts["row"] = table.key_in(row)
                facts["column"] = column
        await self._plain("rollback to savepoint unreadable; release savepoint unreadable")
        named = ", ".join(f"{what} {fact}" for what, fact in facts.items())
        what = f"The database holds a value that Python cannot represent: {named}{named and ': '}{value}."
        return RowInvalid(what, fix="Correct the row, or do not read the column.", **facts)

    async def savepoint(self, name: str) -> None:
        await self._plain(f"savepoint {name}")

    async def release(self, name: str) -> None:
        await self._plain(f"release savepoint {name}")

    async def rollback_to(self, name: str) -> None:
        self._kept.clear()  # all of them since the savepoint
        await self._plain(f"rollback to savepoint {name}; release savepoint {name}")

    async def commit(self) -> None:
        if len(self._kept) >= MANY:
            await self._send_kept()
        connection = self._use()
        self._ended = True
        if connection.is_closed():
            self._end(broken=True)
            raise DatabaseUnavailable("The connection to the database was lost before the commit.", fix="Try again.")
        self.asked_at = self._connections.now
        chains = self._lingers and self._how is BEGIN_WRITE
        try:
            status = await connection.execute(self._texts("commit and chain" if chains else "commit"))
        except BaseException as error:
            meant = self._translate(error)
            broken = self._doubtful or not isinstance(error, asyncpg.PostgresError)
            self._end(broken=broken, left=TO_END if self._kept and not broken else "")
            if self._doubtful and isinstance(error, Exception) and not had_no_effect(error):
                meant = uncertain(error)
            raise meant from error
        self._end(broken=False, left=self._how if chains and status == "COMMIT" else TO_END if chains else "")
        if status != "COMMIT":
            raise ContextError(
                "The transaction had failed before its commit, and was rolled back.",
                fix="Do not catch database errors inside a mutation; run what may fail with ctx.run_mutation.",
            )

    async def rollback(self) -> None:
        connection = self._connection
        if connection is None:
            return
        self._ended = True
        # The caller of an unawaited statement has still to read its answer, and may yet use the connection.
        broken = self._doubtful or self.asked_at is not None or connection.is_closed() or is_dropped()
        if broken or (self._lingers and self._how is BEGIN_READ):
            self._end(broken=broken, left="" if broken else self._how)
            return
        self.asked_at = self._connections.now
        broken = True
        try:
            with contextlib.suppress(*REFUSALS):
                await connection.execute("rollback")
                broken = False
        finally:
            self._end(broken=broken)

    def _use(self) -> Connection:
        if self._ended:
            raise ContextError("This transaction has ended.", fix="Use a ctx only while its function runs.")
        # A statement that its function left behind is still being answered: this one will be refused by the driver.
        self._doubtful |= self.asked_at is not None
        return self._connection

    def _check(self) -> None:
        """Raise if the transaction has ended between two steps of one call: the connection may be another's."""
        if self._ended:
            raise call_after_end()

    async def _send_kept(self) -> None:
        kept, self._kept = self._kept, []
        texts: list[str] = []
        for statement, group in groupby(kept, key=lambda one: one[0].statement):
            changes = list(group)
            if len(changes) < MANY:
                texts += [text for _change, text in changes]
                continue
            if texts:
                await self._call("execute", "; ".join(texts))
                texts = []
            await self._call("executemany", statement.sql, [change.args for change, _text in changes])
        if texts:
            await self._call("execute", "; ".join(texts))

    def _texts(self, *more: str) -> str:
        return "; ".join([*(text for _change, text in self._kept), *more])

    def _plain(self, sql: str) -> Coroutine[Any, Any, None]:
        return self._ask("execute", sql)

    async def _ask(self, verb: str, *args: Any, **options: Any) -> Any:
        """Call a method of the connection, after the changes that are kept back."""
        if self._kept:
            await self._send_kept()
        return await self._call(verb, *args, **options)

    async def _call(self, verb: str, *args: Any, **options: Any) -> Any:
        """Call a method of the connection, which is watched until it answers."""
        connection = self._use()
        self.asked_at = self._connections.now
        try:
            return await getattr(connection, verb)(*args, **options)
        except BaseException as error:
            raise self._failure(error) from error
        finally:
            self.asked_at = None

    async def _in_turn(self, pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
        clock = SystemClock()
        for piece in pieces:
            yield piece
            await clock.sleep(0)
            self.asked_at = self._connections.now  # the server has taken the pieces before

    def _failure(self, error: BaseException) -> BaseException:
        meant = self._translate(error)
        return call_after_end() if self._ended and isinstance(error, Exception) else meant

    def _translate(self, error: BaseException) -> BaseException:
        # A call that was cut off may still be answered: the connection cannot be used again.
        self._doubtful |= isinstance(error, asyncio.CancelledError | TimeoutError) or is_connection_lost(error)
        return translate(error)

    def _end(self, *, broken: bool, left: str = "") -> None:
        self._ended = True
        self._kept.clear()
        if self._connection is not None:
            connection, self._connection = self._connection, None
            self._connections.unwatch(self)
            self._connections.release(connection, broken=broken, left=left)


_Ask = Callable[..., Awaitable[Any]]  # a method of the connection, by its name


def _is_unreadable(error: BaseException | None) -> bool:
    """Whether the driver could not read a value of an answer."""
    otherwise = (asyncpg.InterfaceError, UnicodeEncodeError)  # of a parameter
    return isinstance(error, OverflowError | ValueError) and not isinstance(error, otherwise)


async def _find_unreadable(ask: _Ask, sql: str, args: Sequence[Any]) -> tuple[str, str, dict[str, Any]] | None:
    """The column, the value as text, and the row as JSON has it: the driver is given the texts of each column again."""
    columns = (await ask("prepare", sql)).get_attributes()
    texts = ", ".join(f"found.{POSTGRES.quote(one.name)}::text" for one in columns)
    rows = await ask("fetch", f"select {texts}, row_to_json(found)::text from ({sql}) as found", *args)
    for place, one in enumerate(columns):
        again = f'select given::"{one.type.schema}"."{one.type.name}" from unnest($1::text[]) as given'
        part = rows
        while not await _can_read(ask, again, [row[place] for row in part]):
            if len(part) == 1:
                return one.name.removesuffix("~"), part[0][place], json.loads(part[0][-1])
            half = part[: len(part) // 2]
            part = part[len(half) :] if await _can_read(ask, again, [row[place] for row in half]) else half
    return None


async def _can_read(ask: _Ask, sql: str, texts: Sequence[str]) -> bool:
    try:
        await ask("fetch", sql, texts)
    except PenstockError as error:
        if _is_unreadable(error.__cause__):
            return False
        raise
    return True


class SingleStatement:
    """Runs one statement of penstock's own on a managed table, by itself. Views of users may have code of their own."""

    __slots__ = ("_connections", "_ended", "_used")
    passed = False

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._used = self._ended = False

    async def fetch(self, statement: Statement, args: Sequence[Any] = ()) -> Sequence[Row]:
        """Run a statement; its rows."""
        if self._ended:
            raise call_after_end()
        if self._used or not statement.reads or statement.of is None or not statement.of.managed:
            raise NeedsTransaction
        self._used = True
        connection = await self._connections.acquire()
        session = PostgresSession(self._connections, connection, BEGIN_READ, lingers=False)
        try:
            return await session.fetch(statement, args)
        except DatabaseBusy:  # it took too long, and would again
            raise
        except DatabaseUnavailable as error:
            self._connections.drop_free()
            raise NeedsTransaction(lasts=False) from error
        except PenstockError as error:
            raise NeedsTransaction(lasts=False) from error
        finally:
            session.end_alone()

    def fetch_range(
        self, _read: RangeRead, statement: Statement, args: Sequence[Any]
    ) -> Coroutine[Any, Any, Sequence[Row]]:
        """Run a statement that reads rows of a range."""
        return self.fetch(statement, args)

    async def rollback(self) -> None:
        """End: nothing is open."""
        self._ended = True

    async def _refuse(self, *_: object) -> NoReturn:
        raise call_after_end() if self._ended else NeedsTransaction()

    execute = execute_many = fetch_read_only = change = savepoint = release = rollback_to = commit = refuse_trigger = (
        _refuse
    )
