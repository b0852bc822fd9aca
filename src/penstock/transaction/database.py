"""`ctx.db`: rows by id, and the beginning of queries. Every verb names its table.

Owns get, insert, patch, replace and delete; each notes its reads and writes. Leaves reading many rows to `scan`.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Never, TypeVar, cast

from penstock.changes.readset import RangeRead
from penstock.errors import ConstraintViolation, RowNotFound, UniqueViolation, ValueInvalid
from penstock.schema.ids import Id, RowId, format_id
from penstock.schema.table import Table, TableDefinition, definition_of
from penstock.store.session import Change, Row, Statement
from penstock.store.sql.statements import TableStatements
from penstock.transaction.rows import check_index_keys, read_row, unique_violation, validate_row
from penstock.transaction.rules import CallersRule, Verb, rule_of
from penstock.transaction.scan import Scan
from penstock.transaction.tracking import OfCall, track_calls
from penstock.transaction.transaction import Scope
from penstock.transaction.words import refuses_other_words

T = TypeVar("T", bound=Table)

_UNKNOWN: Any = object()


@refuses_other_words
class DatabaseReader(OfCall):
    """Reads typed tables in one snapshot."""

    __slots__ = ("_calls", "_scope", "_transaction")

    def __init__(self, scope: Scope) -> None:
        self._scope = self._calls = scope
        self._transaction = scope.transaction

    def get(self, table: type[T], row_id: RowId[T]) -> Coroutine[Any, Any, T | None]:
        """One row by its id, or None if there is none. If its key has several columns, that is a tuple of their values.

        Raises:
            IdInvalid: It is no id of this table.
        """
        return self._scope.track(self._get(table, row_id))

    def query(self, table: type[T]) -> Scan[T]:
        """Begin a query over a table; see `Scan` for how it goes on."""
        return Scan(self._scope, table)

    async def _get(self, table: type[T], row_id: RowId[T]) -> T | None:
        statements = self._scope.table(table)
        key = statements.definition.encode_key(row_id)
        rule = await rule_of(self._scope, statements, "read")
        async with self._scope.lock:
            row = await self._load(statements, key)
        found = None if row is None else cast("T", read_row(statements, row))
        return None if found is None or (rule is not None and not rule.allows(found)) else found

    async def _load(self, statements: TableStatements, key: Any) -> Row | None:
        """The row with a key as the store holds it; asked for once in a transaction."""
        transaction, definition = self._transaction, statements.definition
        known = transaction.rows.get((definition.table, key), _UNKNOWN)
        if known is not _UNKNOWN:
            transaction.assumes |= bool(transaction.writes)
            return cast("Row | None", known)
        looked_for = tuple(transaction.key_args(statements, key))
        transaction.note_range(RangeRead(definition.name, None, definition.key, looked_for))
        rows = await transaction.fetch_row(statements, key)
        transaction.count_rows(statements, rows)
        row = rows[0] if rows else None
        transaction.rows[definition.table, key] = row
        return row


@refuses_other_words
class DatabaseWriter(DatabaseReader):
    """Reads and writes typed tables in one serializable transaction. Reads see earlier writes."""

    __slots__ = ()

    def insert(self, row: T, *more: Never) -> Coroutine[Any, Any, Id[T]]:
        """Store a new row; its id. It gets `ctx.now()` as its creation time.

        Raises:
            UniqueViolation: A unique index already holds its key.
            AccessDenied: The table's rules do not let the caller insert it.
            ValueInvalid: A value cannot be stored.
            LimitExceeded: The row, or the transaction, is too large.
        """
        return self._scope.track(self._insert(row, more))

    @track_calls
    async def insert_many(self, rows: Iterable[T]) -> list[Id[T]]:
        """Store many new rows, in order; their ids. Raises the errors of `insert`."""
        return [await self._insert(row) for row in rows]

    @track_calls
    async def patch(self, table: type[T], row_id: RowId[T], /, *more: Never, **changes: Any) -> T:
        """Change some fields of a row; the row as it is then.

        Raises:
            RowNotFound: There is no such row, or none that the caller may read.
            AccessDenied: The table's rules do not let the caller change it.
            ValueInvalid: A field is unknown, or its value does not fit the table.
            UniqueViolation: A unique index already holds its new key.
        """
        if more:
            raise ValueInvalid("patch takes changes by name.", fix=f"Write patch(Booking, row_id, {_by_name(more)}).")
        read, rule = await self._rules(table, "patch")
        async with self._scope.lock:
            statements, key, old = await self._existing(table, row_id, read, rule)
            definition = statements.definition
            for name in changes:
                if definition.column(name).name not in table.model_fields or name in definition.key:
                    raise ValueInvalid(f"{definition.name}.{name} cannot be changed.")
            fields = read_row(statements, old).__dict__
            row = validate_row(definition, {name: fields[name] for name in table.model_fields} | changes)
            return cast("T", await self._write(statements, key, old, row, tuple(changes), rule))

    @track_calls
    async def replace(self, table: type[T], row_id: RowId[T], row: T) -> T:
        """Change all fields of a row to those of another; the row as it is then. Raises the errors of `patch`."""
        if type(row) is not table:
            raise ValueInvalid(f"replace takes a row of {definition_of(table).name}, not {type(row).__name__}.")
        read, rule = await self._rules(table, "patch")
        async with self._scope.lock:
            statements, key, old = await self._existing(table, row_id, read, rule)
            definition = statements.definition
            if not definition.managed:
                self._check_key(definition, key, row)
            left = {*definition.key, *statements.generated}
            names = tuple(name for name in table.model_fields if name not in left)
            return cast("T", await self._write(statements, key, old, row, names, rule))

    @track_calls
    async def delete(self, table: type[T], row_id: RowId[T]) -> None:
        """Delete a row.

        Raises:
            RowNotFound: There is no such row, or none that the caller may read.
            AccessDenied: The table's rules do not let the caller delete it.
        """
        read, rule = await self._rules(table, "delete")
        async with self._scope.lock:
            statements, key, old = await self._existing(table, row_id, read, rule)
            definition = statements.definition
            self._transaction.count_write(definition.name, None)
            args = self._transaction.key_args(statements, key)
            if self._transaction.foresees(definition):
                await self._transaction.change_row(Change(definition, key, statements.delete(), args, (old,)))
            else:
                async with self._transaction.branch():
                    await self._transaction.execute(statements.delete(), args)
            self._note(definition, key, None)

    # ----- insert

    async def _insert(self, row: T, more: tuple[Any, ...] = ()) -> Id[T]:
        if more or not isinstance(row, Table):
            given = (row, *more)
            raise ValueInvalid(
                f"insert takes a row of a table, not {', '.join(type(one).__name__ for one in given)}.",
                fix=f"Write insert(YourTable({_by_name(given)})).",
            )
        statements = self._scope.table(type(row))
        rule = await rule_of(self._scope, statements, "insert")
        if statements.definition.managed:
            return cast("Id[T]", await self._insert_managed(statements, row, rule))
        return cast("Id[T]", await self._insert_user_owned(statements, row, rule))

    async def _insert_managed(self, statements: TableStatements, row: Table, rule: CallersRule | None) -> Id[Any]:
        transaction, definition = self._transaction, statements.definition
        row_id = Id[Any](format_id(definition.id_prefix, transaction.clock.uuid7()))
        values = statements.encode(definition.encode_row(row, row_id, transaction.now))
        if rule is not None:
            rule.check(read_row(statements, values))
        check_index_keys(statements, values)
        transaction.count_write(definition.name, values)
        async with self._scope.lock:
            if not transaction.foresees(definition):
                async with transaction.branch():
                    if not await transaction.execute(statements.insert(), values) and statements.unique_columns:
                        raise unique_violation(definition)
            elif not statements.unique_columns:
                await transaction.change_row(Change(definition, row_id, statements.insert(), values, (values,)))
            elif not await transaction.execute(statements.insert(), values):
                raise unique_violation(definition)
            self._note(definition, row_id, values)
        return row_id

    async def _insert_user_owned(self, statements: TableStatements, row: Table, rule: CallersRule | None) -> Id[Any]:
        """Optional columns that are None are left to the defaults of the user's table."""
        transaction, definition = self._transaction, statements.definition
        neutral = definition.encode_row(row, "", transaction.now)
        given = {
            column.name: value
            for column, value in zip(definition.columns, neutral, strict=True)
            if value is not None or not column.optional
        }
        args = [statements.encode_written(name, value) for name, value in given.items()]
        transaction.count_write(definition.name, args)
        async with self._scope.lock:
            new = await self._send_user_owned(statements, statements.insert(tuple(given)), args, rule)
            key = definition.key_in(statements.decode_fields((new,))[0])
            self._note(definition, key, new)
        return Id(key) if len(definition.key) == 1 else key

    # ----- patch, replace, delete

    async def _rules(self, table: type[Table], verb: Verb) -> tuple[CallersRule | None, CallersRule | None]:
        """The rules for reading and for writing a row."""
        statements = self._scope.table(table)
        return await rule_of(self._scope, statements, "read"), await rule_of(self._scope, statements, verb)

    async def _existing(
        self, table: type[T], row_id: RowId[T], read: CallersRule | None, rule: CallersRule | None
    ) -> tuple[TableStatements, Any, Row]:
        """The row with an id, which the caller may read and write."""
        statements = self._scope.table(table)
        key = statements.definition.encode_key(row_id)
        row = await self._load(statements, key)
        if row is None or (read is not None and not read.allows(read_row(statements, row))):
            raise RowNotFound(
                f"Table {statements.definition.name} has no row {row_id}.",
                table=statements.definition.name,
                id=str(row_id),
            )
        if rule is not None:
            rule.check(read_row(statements, row))
        return statements, key, row

    def _check_key(self, definition: TableDefinition, key: Any, row: Table) -> None:
        for column, value in zip(definition.key_columns, definition.key_values(key), strict=True):
            if row.__dict__[column.name] is not None and definition.encode_field(column, row) != value:
                raise ValueInvalid(f"{definition.name}.{column.name} cannot be changed.")

    async def _write(
        self,
        statements: TableStatements,
        key: Any,
        old: Row,
        row: Table,
        names: tuple[str, ...],
        rule: CallersRule | None,
    ) -> Table:
        definition = statements.definition
        new = list(old)
        for name in names:
            column = definition.column(name)
            new[definition.positions[name]] = statements.encode_written(name, definition.encode_field(column, row))
        if names:
            if rule is not None:
                rule.check(read_row(statements, new))
            check_index_keys(statements, new)
            self._transaction.count_write(definition.name, new)
            args = [new[definition.positions[name]] for name in names]
            args += self._transaction.key_args(statements, key)
            change = Change(definition, key, statements.update(names), args, (old, new))
            after = await self._update(statements, names, change, rule)
            self._note(definition, key, after)
            return read_row(statements, after)
        return read_row(statements, new)

    async def _update(
        self,
        statements: TableStatements,
        names: tuple[str, ...],
        change: Change,
        rule: CallersRule | None,
    ) -> Row:
        transaction, definition = self._transaction, statements.definition
        if not definition.managed:
            return await self._send_user_owned(statements, change.statement, change.args, rule)
        foreseen = transaction.foresees(definition)
        if foreseen and statements.unique_columns.isdisjoint(names):
            await transaction.change_row(change)
            return change.images[-1]
        try:
            async with transaction.branch():
                await transaction.execute(change.statement, change.args)
        except UniqueViolation as error:
            raise unique_violation(definition, names) from error
        if foreseen:
            return change.images[-1]
        found = await transaction.fetch(statements.get(), statements.key_args(change.key))
        return found[0] if found else change.images[-1]

    # ----- shared steps

    async def _send_user_owned(
        self, statements: TableStatements, statement: Statement, args: Sequence[Any], rule: CallersRule | None
    ) -> Row:
        """Write a row of a user-owned table, which may change or refuse it; the row as it is then."""
        name = statements.definition.name
        async with self._transaction.branch():
            rows = await self._transaction.fetch(statement, args)
            if not rows:
                raise ConstraintViolation(f"Table {name} did not take the row.", table=name)
            if rule is not None:
                rule.check(read_row(statements, rows[0]))
        return rows[0]

    def _note(self, definition: TableDefinition, key: Any, new: Row | None) -> None:
        self._transaction.writes.append((definition.name, key))
        if self._transaction.foresees(definition):
            self._transaction.rows[definition.table, key] = new
            self._transaction.forget_facts(definition.name)
        else:
            self._transaction.forget_rows()  # the user's triggers and cascades may have changed any row


def _by_name(given: Iterable[Any]) -> str:
    """A dict as keyword arguments, for errors."""
    names = [name for one in given if isinstance(one, dict) for name in one]
    return ", ".join(f"{name}=…" for name in names) or "…"
