"""One database transaction that several mutations use, one after another: each can be undone alone.

Owns the shared state: the known rows, the changes kept back to be sent together, and for each mutation a part, with a
savepoint once it needs one. Each sees what those before it have done, as if they had committed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from itertools import chain, groupby
from typing import Any, TypeVar

from penstock.changes.readset import RangeRead
from penstock.errors import Conflict, ContextError, TryAgain
from penstock.schema.table import Table, TableDefinition
from penstock.store.session import Change, ChangedRows, Row, Session, Statement, is_concerned
from penstock.store.sql.statements import TableStatements

T = TypeVar("T")
Key = tuple[type[Table], Any]
# what statements gave, by their text and parameters, and how many rows each might give: the last parameter
Ahead = dict[tuple[str, tuple[Any, ...]], tuple[int, list[Row]]]

_SAVEPOINT = "part"
_MOST_READS = 4  # of a part, that are remembered
_UNKNOWN: Any = object()


class Shared:
    """A session that mutations share. Changes of `ordered` tables are messages, sent one by one, in order."""

    def __init__(self, session: Session, ordered: Collection[str] = ()) -> None:
        self.session = session
        self._ordered = ordered
        self.found: set[str] = set()  # names of such tables that were not known
        self.reordered: set[str] = set()  # tables whose changes were sent in another order than they were made
        # an error that no savepoint undoes: nothing of this transaction may be committed
        self.failure: BaseException | None = None
        self.rows: dict[Key, Row | None] = {}  # rows as those have left them who have ended well
        # generations of records of reactive tasks, by task and key; read before the session began
        self.generations: Mapping[tuple[int, str], int | None] = {}
        self.ahead: Ahead = {}  # reads of ranges that parts will likely make
        self.changed = ChangedRows()  # by all parts so far
        self.passed = False  # whether something was told of rows, or read, before changes that were made earlier
        self.statements = 0  # the number of statements sent
        self.kept_back: list[Change] = []
        self._keys: set[Key] = set()

    def part(self, *, careful: bool) -> Part:
        """The part of the next mutation; that of the one before it has ended. A careful one can be undone alone."""
        return Part(self, careful=careful)

    async def know(self, statements: TableStatements, keys: Sequence[Any]) -> None:
        """Read rows at once that will likely be asked for one by one.

        A key that is not found is read again: a user's table may spell it differently, as a time without a zone.
        """
        table, definition = statements.definition.table, statements.definition
        rows = await self.surely(self.session.fetch(*statements.get_many(keys)))
        self.rows.update({(table, definition.key_at(row)): row for row in rows})

    def keep_back(self, changes: Sequence[Change], keys: set[Key]) -> None:
        self.kept_back += changes
        self._keys |= keys

    def keeps_back(self, key: Key) -> bool:
        return key in self._keys

    async def send_all(self) -> None:
        if self.kept_back:
            changes, self.kept_back = self.kept_back, []
            self._keys = set()
            await self.send(changes)

    async def send(self, changes: Sequence[Change]) -> None:
        together: dict[tuple[str, Statement], list[Change]] = {}
        by: dict[Key, Statement] = {}
        if self._ordered:
            changes = await self._send_in_order(changes)
        for change in changes:
            if by.setdefault(change.row, change.statement) is not change.statement:
                await self._send_together(together)
                together, by = {}, {change.row: change.statement}
            together.setdefault((change.of.name, change.statement), []).append(change)
        await self._send_together(together)

    async def _send_in_order(self, changes: Sequence[Change]) -> list[Change]:
        others: list[Change] = []
        following: list[tuple[Statement, Sequence[Any]]] = []
        for change in changes:
            if change.of.name in self._ordered:
                following.append((change.statement, change.args))
            else:
                others.append(change)
        for statement, group in groupby(following, key=lambda one: one[0]):
            await self.surely(self.session.execute_many(statement, [args for _statement, args in group]))
        return others

    async def _send_together(self, changes: dict[tuple[str, Statement], list[Change]]) -> None:
        names = [name for name, _statement in changes]
        self.reordered.update(name for name in names if names.count(name) > 1)
        for (name, statement), found in changes.items():
            rows = [change.args for change in found]
            if len(rows) == 1:
                await self.surely(self.session.change(found[0]))
            elif statement.many is not None:
                last = {row[-1]: row for row in rows}  # one statement changes the same columns each time
                lists = [list(values) for values in zip(*last.values(), strict=True)]
                if not await self.surely(self.session.execute(statement.many, lists)):
                    await self.surely(self.refuse({name}))
            else:
                await self.surely(self.session.execute_many(statement, rows))

    async def refuse(self, tables: Collection[str]) -> None:
        """Begin again: an outbox counts each change of these tables, in its order, and nobody knew."""
        self.found.update(tables)
        raise Conflict(f"An outbox of {', '.join(tables)} was declared meanwhile.")

    async def surely(self, work: Awaitable[T]) -> T:
        """Await a step for all: if it fails, all fail."""
        self.statements += 1
        try:
            return await work
        except BaseException as error:
            self.failure = error
            raise


class NeedsSavepoint(Exception):
    """A part has to be undone alone, and has no savepoint: all run again."""


class Part:
    """The part of one mutation. Most end well, so only a careful part spends statements on savepoints."""

    def __init__(self, shared: Shared, *, careful: bool) -> None:
        self._shared = shared
        self._careful = careful
        self._session = shared.session
        self._own: list[Change] = []
        self._keys: set[Key] = set()
        self._sent = False  # whether statements of its own were sent: behind its savepoint, if it is careful
        self._calls = 0
        self._ended = False
        self.reads: list[tuple[Statement, tuple[Any, ...]]] = []  # its first reads of ranges

    # ----- its end

    def keep(self, rows: dict[Key, Row | None]) -> None:
        """End well, and leave these rows known. The savepoint goes with the transaction."""
        self._end()
        self._shared.rows.update(rows)
        self._shared.keep_back(self._own, self._keys)

    @property
    def passed(self) -> bool:
        return self._shared.passed

    async def undo(self) -> bool:
        """End after an error: nothing of it stays. Whether that took a savepoint."""
        self._end()
        if self._sent and self._shared.failure is None:
            await self._shared.surely(self._undo(_SAVEPOINT))
        return self._sent

    def _end(self) -> None:
        self._ended = True
        if self._calls:  # which its function began and left behind, and which may still change something
            self._shared.failure = self._shared.failure or Conflict("A call was not finished in a shared transaction.")

    # ----- rows by their keys

    @property
    def generations(self) -> Mapping[tuple[int, str], int | None]:
        return self._shared.generations

    async def row(self, statements: TableStatements, key: Any, args: Sequence[Any]) -> Sequence[Row]:
        name = (statements.definition.table, key)
        known = self._shared.rows.get(name, _UNKNOWN)
        if known is not _UNKNOWN:
            self._shared.passed |= self._shared.changed.any
            return () if known is None else (known,)
        if self._careful or name in self._keys or self._shared.keeps_back(name):
            await self._send(anyway=self._careful)
        return await self._read(lambda: self._session.fetch(statements.get(), args))

    async def change(self, change: Change) -> None:
        """Keep back a change of a row, whose outcome is known beforehand."""
        self._use()
        self._shared.changed.add(change)
        self._own.append(change)
        self._keys.add(change.row)

    def forget_rows(self) -> None:
        self._shared.rows.clear()

    # ----- as a session

    async def fetch(self, statement: Statement, args: Sequence[Any] = ()) -> Sequence[Row]:
        if not statement.reads:
            self._forget_ahead(statement)
            return await self._write(lambda: self._session.fetch(statement, args))
        await self._send(anyway=self._careful)
        return await self._read(lambda: self._session.fetch(statement, args))

    async def fetch_range(self, read: RangeRead, statement: Statement, args: Sequence[Any]) -> Sequence[Row]:
        """Run a statement that reads rows of a range; changes of other rows are kept back further."""
        shared, limit = self._shared, args[-1]
        if len(self.reads) < _MOST_READS:
            self.reads.append((statement, tuple(args)))
        if (ahead := shared.ahead.get((statement.sql, tuple(args[:-1])))) is not None:
            most, rows = ahead
            if (len(rows) < most or limit <= most) and not shared.changed.concern(read):
                self._use()
                shared.passed |= shared.changed.any
                return rows[:limit]
        shared.passed |= bool(shared.kept_back or self._own)
        if self._careful or is_concerned(read, chain(self._shared.kept_back, self._own)):
            await self._send(anyway=self._careful)
        return await self._read(lambda: self._session.fetch_range(read, statement, args))

    async def execute(self, statement: Statement, args: Sequence[Any] = ()) -> int:
        self._forget_ahead(statement)
        return await self._write(lambda: self._session.execute(statement, args))

    async def execute_many(self, statement: Statement, rows: Sequence[Sequence[Any]]) -> None:
        self._forget_ahead(statement)
        await self._write(lambda: self._session.execute_many(statement, rows))

    async def fetch_read_only(
        self, sql: str, args: Sequence[Any], limit: int, most_bytes: int
    ) -> tuple[list[str], Sequence[Row]]:
        """Any SQL that only reads; behind a savepoint, since it may fail."""
        return await self._write(lambda: self._session.fetch_read_only(sql, args, limit, most_bytes))

    async def refuse_trigger(self, of: TableDefinition, look: Statement) -> None:
        await self._write(lambda: self._session.refuse_trigger(of, look))

    async def savepoint(self, name: str) -> None:
        if self._careful:
            await self._write(lambda: self._session.savepoint(name))
        else:
            await self._send(anyway=True)

    async def release(self, name: str) -> None:
        if self._careful:
            await self._write(lambda: self._session.release(name))

    async def rollback_to(self, name: str) -> None:
        """Undo all since a savepoint, before which nothing was kept back."""
        self._own.clear()
        self._keys.clear()
        await self._call(lambda: self._undo(name))

    async def commit(self) -> None:
        raise ContextError("This transaction is shared and cannot end alone.")

    async def rollback(self) -> None:
        raise ContextError("This transaction is shared and cannot end alone.")

    # ----- steps

    def _forget_ahead(self, statement: Statement) -> None:
        """Forget what was read ahead, before a statement that may change more rows than it says."""
        if statement.of is not None:  # and is not about penstock's own tables
            self._shared.ahead.clear()

    async def _undo(self, savepoint: str) -> None:
        if not self._careful:
            self._shared.failure = NeedsSavepoint()
            raise self._shared.failure
        await self._session.rollback_to(savepoint)

    async def _read(self, work: Callable[[], Awaitable[T]]) -> T:
        return await self._call(lambda: self._alone(work))

    async def _write(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run a step that may fail, or be undone: after the changes that were kept back."""
        await self._send(anyway=True)
        return await self._read(work)

    async def _alone(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run a step of its own. Without a savepoint, one that fails takes all with it."""
        shared = self._shared
        if self._careful:
            shared.statements += 1
            return await work()
        try:
            return await shared.surely(work())
        except Exception as error:
            if isinstance(error, TryAgain):
                raise
            shared.failure = NeedsSavepoint()
            raise shared.failure from error

    async def _send(self, *, anyway: bool = False) -> None:
        """Send the changes that are kept back: those of others first, so that a savepoint stands before its own."""
        shared = self._shared
        await self._call(shared.send_all)
        if (self._own or anyway) and not self._sent:
            if self._careful:
                await self._call(lambda: shared.surely(self._session.savepoint(_SAVEPOINT)))
            self._sent = True
        if self._own:
            own, self._own = self._own, []
            self._keys.clear()
            await self._call(lambda: shared.send(own))

    async def _call(self, work: Callable[[], Awaitable[T]]) -> T:
        self._use()
        self._calls += 1
        try:
            return await work()
        finally:
            self._calls -= 1

    def _use(self) -> None:
        if self._ended:
            raise ContextError("This transaction has ended.", fix="Use a ctx only while its function runs.")
