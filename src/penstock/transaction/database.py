"""`ctx.db`: rows by id, and the beginning of queries. Every verb names its table.

Owns get, insert, patch, replace and delete, each noting what it read and wrote. Leaves reading many rows to `scan`.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar, cast

from penstock.changes.readset import RangeRead
from penstock.changes.writeset import RowChange
from penstock.errors import RowNotFound, UniqueViolation, ValueInvalid
from penstock.schema.ids import Id, format_id
from penstock.schema.table import Table
from penstock.store.contract import Row
from penstock.store.statements import TableStatements
from penstock.transaction.rows import check_index_keys, read_row, unique_violation, validate_row
from penstock.transaction.scan import Scan
from penstock.transaction.transaction import Scope

T = TypeVar("T", bound=Table)

_UNKNOWN: Any = object()


class DatabaseReader:
    """Reads typed tables in one snapshot."""

    __slots__ = ("_scope", "_transaction")

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._transaction = scope.transaction

    def get(self, table: type[T], row_id: Id[T]) -> Coroutine[Any, Any, T | None]:
        """One row by its id, or None if there is none.

        Raises:
            IdInvalid: It is no id of this table.
        """
        return self._scope.track(self._get(table, row_id))

    def query(self, table: type[T]) -> Scan[T]:
        """Begin a query over a table; see `Scan` for how it goes on."""
        return Scan(self._scope, table)

    async def _get(self, table: type[T], row_id: Id[T]) -> T | None:
        statements = self._transaction.table(table)
        row = await self._load(statements, statements.definition.encode_key(row_id))
        return None if row is None else cast("T", read_row(statements, row))

    async def _load(self, statements: TableStatements, key: Any) -> Row | None:
        """The row with a key as the store holds it; asked for once in a transaction."""
        transaction, definition = self._transaction, statements.definition
        known = transaction.rows.get((definition.table, key), _UNKNOWN)
        if known is not _UNKNOWN:
            return cast("Row | None", known)
        async with self._scope.lock:
            rows = await transaction.fetch(statements.get(), (statements.encode_one(definition.key, key),))
        transaction.note_rows(RangeRead(definition.name, None, (definition.key,), (key,)), rows)
        row = rows[0] if rows else None
        transaction.rows[definition.table, key] = row
        return row


class DatabaseWriter(DatabaseReader):
    """Reads and writes typed tables in one serializable transaction. Reads see what was written before them."""

    __slots__ = ()

    def insert(self, row: T) -> Coroutine[Any, Any, Id[T]]:
        """Store a new row; its id. It gets `ctx.now()` as its creation time.

        Raises:
            UniqueViolation: A unique index already holds its key.
            ValueInvalid: A value cannot be stored.
            LimitExceeded: The row, or the transaction, is too large.
        """
        return self._scope.track(self._insert(row))

    def insert_many(self, rows: Iterable[T]) -> Coroutine[Any, Any, list[Id[T]]]:
        """Store many new rows, in order; their ids. Raises what `insert` raises."""
        return self._scope.track(self._insert_many(rows))

    def patch(self, table: type[T], row_id: Id[T], /, **changes: Any) -> Coroutine[Any, Any, T]:
        """Change some fields of a row; the row as it is then.

        Raises:
            RowNotFound: There is no such row.
            ValueInvalid: A field is unknown, or its value is not what the table declares.
            UniqueViolation: A unique index already holds its new key.
        """
        return self._scope.track(self._patch(table, row_id, changes))

    def replace(self, table: type[T], row_id: Id[T], row: T) -> Coroutine[Any, Any, T]:
        """Change all fields of a row to those of another; the row as it is then. Raises what `patch` raises."""
        return self._scope.track(self._replace(table, row_id, row))

    def delete(self, table: type[T], row_id: Id[T]) -> Coroutine[Any, Any, None]:
        """Delete a row.

        Raises:
            RowNotFound: There is no such row.
        """
        return self._scope.track(self._delete(table, row_id))

    # ----- insert

    async def _insert(self, row: T) -> Id[T]:
        if not isinstance(row, Table):
            raise ValueInvalid(
                f"insert takes a row of a table, not {type(row).__name__}.", fix="Write insert(Booking(…))."
            )
        statements = self._transaction.table(type(row))
        if statements.definition.managed:
            return cast("Id[T]", await self._insert_managed(statements, row))
        return cast("Id[T]", await self._insert_user_owned(statements, row))

    async def _insert_many(self, rows: Iterable[T]) -> list[Id[T]]:
        return [await self._insert(row) for row in rows]

    async def _insert_managed(self, statements: TableStatements, row: Table) -> Id[Any]:
        transaction, definition = self._transaction, statements.definition
        row_id = Id[Any](format_id(definition.name, transaction.clock.uuid7()))
        values = statements.encode(definition.encode_row(row, row_id, transaction.now))
        check_index_keys(statements, values)
        transaction.note_write(RowChange(definition.name, row_id, None, values))
        async with self._scope.lock:
            stored = await transaction.execute(statements.insert(), values)
        if not stored:
            raise unique_violation(definition)
        transaction.rows[definition.table, row_id] = values
        return row_id

    async def _insert_user_owned(self, statements: TableStatements, row: Table) -> Id[Any]:
        """Columns that are None and optional are left to the defaults of the user's table."""
        transaction, definition = self._transaction, statements.definition
        neutral = definition.encode_row(row, "", transaction.now)
        given = {
            column.name: value
            for column, value in zip(definition.columns, neutral, strict=True)
            if value is not None or not column.optional
        }
        args = [statements.encode_one(name, value) for name, value in given.items()]
        async with self._scope.lock:
            rows = await transaction.fetch(statements.insert(tuple(given)), args)
        key = statements.decode_fields(rows[0])[definition.key]
        transaction.note_write(RowChange(definition.name, key, None, rows[0]))
        transaction.rows[definition.table, key] = rows[0]
        return Id(key)

    # ----- patch, replace, delete

    async def _patch(self, table: type[T], row_id: Id[T], changes: dict[str, Any]) -> T:
        statements, key, old = await self._existing(table, row_id)
        definition = statements.definition
        for name in changes:
            if definition.column(name).name in {definition.key, "creation_time"}:
                raise ValueInvalid(f"{definition.name}.{name} cannot be changed.")
        old_fields = statements.decode_fields(old)
        merged = {name: old_fields[name] for name in table.model_fields} | changes
        row = validate_row(definition, merged)
        return cast("T", await self._write(statements, key, old, row, tuple(changes)))

    async def _replace(self, table: type[T], row_id: Id[T], row: T) -> T:
        if type(row) is not table:
            raise ValueInvalid(f"replace takes a row of {table.__name__}, not {type(row).__name__}.")
        statements, key, old = await self._existing(table, row_id)
        names = tuple(name for name in table.model_fields if name != statements.definition.key)
        return cast("T", await self._write(statements, key, old, row, names))

    async def _delete(self, table: type[T], row_id: Id[T]) -> None:
        statements, key, old = await self._existing(table, row_id)
        definition, transaction = statements.definition, self._transaction
        transaction.note_write(RowChange(definition.name, key, old, None))
        async with self._scope.lock:
            await transaction.execute(statements.delete(), (statements.encode_one(definition.key, key),))
        transaction.rows[definition.table, key] = None

    async def _existing(self, table: type[T], row_id: Id[T]) -> tuple[TableStatements, Any, Row]:
        statements = self._transaction.table(table)
        key = statements.definition.encode_key(row_id)
        row = await self._load(statements, key)
        if row is None:
            raise RowNotFound(
                f"Table {statements.definition.name} has no row {row_id}.",
                table=statements.definition.name,
                id=str(row_id),
            )
        return statements, key, row

    async def _write(
        self, statements: TableStatements, key: Any, old: Row, row: Table, names: tuple[str, ...]
    ) -> Table:
        definition, transaction = statements.definition, self._transaction
        new = list(old)
        for name in names:
            column = definition.column(name)
            value = row.__dict__[name]
            if value is None and not column.optional:
                raise ValueInvalid(f"{definition.name}.{name} cannot be None.")
            new[definition.positions[name]] = statements.encode_one(
                name, None if value is None else column.encode(value)
            )
        if names:
            check_index_keys(statements, new)
            args = [new[definition.positions[name]] for name in names]
            args.append(statements.encode_one(definition.key, key))
            new = await self._update(statements, names, args, new)
            transaction.note_write(RowChange(definition.name, key, old, new))
            transaction.rows[definition.table, key] = new
        return read_row(statements, new)

    async def _update(
        self, statements: TableStatements, names: tuple[str, ...], args: list[Any], new: list[Any]
    ) -> list[Any]:
        """Send the update; behind a savepoint if it may violate a unique index, so that the transaction can go on."""
        transaction, statement = self._transaction, statements.update(names)
        guarded = not statements.unique_columns.isdisjoint(names)
        async with self._scope.lock:
            branch = await transaction.begin_branch() if guarded else None
            try:
                if statements.definition.managed:
                    await transaction.execute(statement, args)
                else:
                    new = list((await transaction.fetch(statement, args))[0])
            except UniqueViolation:
                if branch is not None:
                    await transaction.session.rollback_to(branch.name)
                raise
            if branch is not None:
                await transaction.keep_branch(branch)
        return new
