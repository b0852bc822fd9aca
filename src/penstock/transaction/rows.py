"""Rows on their way between users and the store: made, validated, and measured against the indexes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import ValidationError

from penstock.errors import DataError, InputError, LimitExceeded, RowInvalid, UniqueViolation, ValueInvalid
from penstock.schema.fields import Kind
from penstock.schema.table import Table, TableDefinition
from penstock.store.session import Row
from penstock.store.sql.dialect import UNFIT
from penstock.store.sql.statements import TableStatements
from penstock.transaction.transaction import Transaction
from penstock.values import text_bytes


def read_rows(statements: TableStatements, rows: Sequence[Row]) -> Iterable[Table]:
    """Rows as users see them; one that does not fit its declared table raises RowInvalid once it is asked for."""
    try:
        return statements.definition.make_rows(statements.decode_fields(rows))
    except UNFIT:
        return (read_row(statements, row) for row in rows)


def read_row(statements: TableStatements, row: Row) -> Table:
    """A row as users see it; RowInvalid if it does not fit its declared table any more."""
    try:
        return statements.definition.make_rows(statements.decode_fields((row,)))[0]
    except UNFIT as error:
        definition, column = statements.definition, statements.misfit(row)
        said, fix, kind = f"{error}", "Change the declaration, or correct the row.", RowInvalid
        if isinstance(error, RowInvalid):  # it cannot be decrypted
            said, fix, kind = error.what.rstrip("."), error.fix, type(error)
        what = said if column is None else f"column {column}: {said}"
        raise kind(
            f"Table {definition.name}: the row {definition.key_at(row)} does not fit its declaration: {what}.",
            fix=fix,
            table=definition.name,
            row=definition.key_at(row),
            column=column,
        ) from error


def validate_row(definition: TableDefinition, fields: dict[str, Any]) -> Table:
    try:
        return definition.row_type.model_validate(fields, strict=None if definition.managed else False)
    except ValidationError as error:
        details = "; ".join(f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in error.errors())
        raise ValueInvalid(f"Table {definition.name}: {details}.", table=definition.name) from error


def check_index_keys(statements: TableStatements, values: Sequence[Any]) -> None:
    """Refuse a row whose texts are too long for one of its indexes, alike on both stores."""
    for positions in statements.indexed_text:
        size = 0
        for position in positions:
            value = values[position]
            if value is not None:
                size += len(value) if isinstance(value, bytes) else text_bytes(value)
        if size > statements.dialect.max_key_bytes:
            raise LimitExceeded(
                f"Table {statements.definition.name}: a value of {size} bytes is too long for an index "
                f"(at most {statements.dialect.max_key_bytes}).",
                fix="Do not index long texts; index a hash of them.",
                limit=statements.dialect.max_key_bytes,
            )


def unique_violation(definition: TableDefinition, names: Sequence[str] | None = None) -> UniqueViolation:
    """The error of an insert, or of a change of the named columns, that a unique index refused."""
    unique = [
        index.name
        for index in definition.indexes.values()
        if index.unique and (names is None or not set(names).isdisjoint(index.columns))
    ]
    return UniqueViolation(
        f"Table {definition.name}: unique index {' or '.join(unique)} already holds this key.",
        fix="Look for the row before writing it, or catch UniqueViolation.",
        table=definition.name,
        index=unique[0] if len(unique) == 1 else None,
    )


async def load_rows(transaction: Transaction, statements: TableStatements, rows: Sequence[Sequence[Any]]) -> None:
    """Insert rows as the store takes them. An error names its row in ``facts["row"]``, and none is stored."""
    for place, row in enumerate(rows):
        try:
            transaction.check_size(statements.definition.name, row)
            check_index_keys(statements, row)
        except InputError as error:
            error.facts["row"] = place
            raise
    try:
        async with transaction.branch():
            await transaction.execute_many(statements.load(), rows)
    except (DataError, InputError):
        for place, row in enumerate(rows):  # until the refused one names itself: this transaction can only be undone
            try:
                await transaction.execute(statements.load(), row)
            except (DataError, InputError) as error:
                error.facts["row"] = place
                raise
        raise


async def advance_numbers(transaction: Transaction, statements: TableStatements) -> None:
    """Let numbers that the database gives to rows of a user-owned table continue after loaded ones."""
    for column in statements.definition.columns:
        statement = statements.advance(column.name) if column.kind is Kind.INTEGER else None
        if statement is not None and not statements.definition.managed:
            await transaction.fetch(statement, (statements.table, column.name))


def check_count(count: int) -> int:
    """Refuse a number of rows to take that is none."""
    given: object = count
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise ValueInvalid(f"take needs a number of rows, not {given!r}.")
    return count
