"""Loading: many rows at once, each with the id and the creation time it comes with.

Owns how `penstock import` writes. What it writes counts against no limit but the size of a row, and is not noted in the
write set, so that millions of rows may take part in one transaction. Leaves ending it to `commit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.errors import DataError, InputError
from penstock.schema.fields import Kind
from penstock.store.sql.statements import TableStatements
from penstock.transaction.rows import check_index_keys
from penstock.transaction.transaction import Transaction


async def load_rows(transaction: Transaction, statements: TableStatements, rows: Sequence[Sequence[Any]]) -> None:
    """Insert rows as the store takes them, their keys included.

    Raises:
        UniqueViolation: A key is there already; like every error of one row, it names the row in ``facts["row"]``,
            counted from 0, and nothing of `rows` is stored.
    """
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
        await _find_refused(transaction, statements, rows)
        raise


async def advance_numbers(transaction: Transaction, statements: TableStatements) -> None:
    """Let the numbers that the database gives to rows of a user-owned table go on after those that were loaded."""
    for column in statements.definition.columns:
        statement = statements.advance(column.name) if column.kind is Kind.INTEGER else None
        if statement is not None and not statements.definition.managed:
            await transaction.fetch(statement, (statements.table, column.name))


async def clear_table(transaction: Transaction, statements: TableStatements) -> int:
    """Delete all rows of a table; how many there were."""
    return await transaction.execute(statements.clear(), ())


async def _find_refused(transaction: Transaction, statements: TableStatements, rows: Sequence[Sequence[Any]]) -> None:
    """Insert rows one by one, until the one that is refused names itself; its transaction can only be undone."""
    for place, row in enumerate(rows):
        try:
            await transaction.execute(statements.load(), row)
        except (DataError, InputError) as error:
            error.facts["row"] = place
            raise
