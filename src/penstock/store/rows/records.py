"""Records as rows, and the rows of users' tables that a filter picks: what both stores share."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from penstock.reactive.evaluate import holds
from penstock.reactive.expression import Condition
from penstock.schema.table import TableDefinition
from penstock.store.contract.records import RecordQuery, RecordState, SourcePiece
from penstock.store.contract.session import OpenTransaction, Statement
from penstock.store.sql.conditions import condition_sql
from penstock.store.sql.dialect import Dialect, placeholder, row_of
from penstock.store.sql.values import stored_values

_ROW = "r"


def state_of(row: Sequence[Any], job: UUID, times: Sequence[datetime | None]) -> RecordState:
    """A record from its row, with its id and its times in Python's form."""
    changed_at, due_at, run_at, started_at, finished_at = times
    assert changed_at is not None and due_at is not None  # noqa: PT018, S101 - columns that are never null
    return RecordState(
        task=row[0],
        key=row[1],
        job=job,
        generation=row[3],
        live=bool(row[4]),
        change=row[5],
        changed_at=changed_at,
        due_at=due_at,
        gone=row[8],
        state=row[9],
        attempt=row[10],
        run_at=run_at,
        started_at=started_at,
        finished_at=finished_at,
        error=row[14],
    )


def where_values(where: RecordQuery) -> dict[str, Any]:
    """A filter as the parameters of a query."""
    return {
        "tasks": None if where.tasks is None else list(where.tasks),
        "states": None if where.states is None else list(where.states),
        "error": where.error,
        "has_error": where.has_error,
    }


async def matching_rows(
    session: OpenTransaction,
    dialect: Dialect,
    definition: TableDefinition,
    condition: Condition,
    limit: int,
    after: Sequence[Any] | None,
    key_text: str,
    known: str = "",
) -> SourcePiece:
    """Rows of a table that meet a condition, in the order of their keys.

    Args:
        session: The session to read them in.
        dialect: The store's.
        definition: The table.
        condition: The condition they meet; asked in Python where the store's SQL is wider.
        limit: The number of rows to read.
        after: The last key in the driver's form, column by column; None from the beginning.
        key_text: SQL that spells the key of a row, called ``r``, as the change feed does.
        known: A condition that is true of rows that have a key; empty if all have.
    """
    asked = condition_sql(condition, definition, dialect, _ROW, own=True)
    columns = () if asked.exact else asked.columns
    key = [f"{_ROW}.{dialect.quote(name)}" for name in definition.key]
    listed = ", ".join((key_text, *key, *(f"{_ROW}.{dialect.quote(name)}" for name in columns)))
    args = [*(after or ()), limit]
    also = f" and {known}" if known else ""
    also += "" if after is None else f" and {row_of(key)} > {row_of(_given(dialect, definition))}"
    sql = f"select {listed} from {dialect.table(definition.name)} {_ROW} where {asked.sql}{also}"
    sql += f" order by {', '.join(key)} limit {placeholder(dialect.parameter, len(args))}"
    rows = await session.fetch(Statement(sql, bounded=False, reads=True), args)
    end = 1 + len(key)
    found = [row[0] for row in rows if asked.exact or _holds(dialect, definition, condition, columns, row[end:])]
    return SourcePiece(found, tuple(rows[-1][1:end]) if len(rows) == limit else None)


async def spelled_key(
    session: OpenTransaction,
    dialect: Dialect,
    definition: TableDefinition,
    key: Sequence[Any],
    key_text: str,
    types: Sequence[str],
) -> str:
    """A key as the change feed spells it: that of the row, whose columns may have other types than is declared.

    Args:
        session: The session to look for the row in.
        dialect: The store's.
        definition: The table.
        key: The key in the driver's form, column by column.
        key_text: SQL that spells the key of a row, called ``r``.
        types: SQL behind each value that gives it a type, where there is no row.
    """
    names = [dialect.quote(name) for name in definition.key]
    given = _given(dialect, definition)
    is_it = " and ".join(f"{_ROW}.{name} = {value}" for name, value in zip(names, given, strict=True))
    sql = f"select {key_text} from {dialect.table(definition.name)} {_ROW} where {is_it}"
    rows = await session.fetch(Statement(sql, reads=True), key)
    if not rows:
        columns = (
            f"{placeholder(dialect.parameter, number)}{kind} as {name}"
            for number, (name, kind) in enumerate(zip(names, types, strict=True), 1)
        )
        sql = f"select {key_text} from (select {', '.join(columns)}) {_ROW}"
        rows = await session.fetch(Statement(sql, reads=True), key)
    text: str = rows[0][0]
    return text


def _given(dialect: Dialect, definition: TableDefinition) -> list[str]:
    """The parameters for a key."""
    found = []
    for number, column in enumerate(definition.key_columns, 1):
        cast = dialect.casts.get(column.kind)
        found.append(placeholder(dialect.parameter, number) + (f"::{cast}" if cast else ""))
    return found


def _holds(
    dialect: Dialect, definition: TableDefinition, condition: Condition, columns: Sequence[str], row: Sequence[Any]
) -> bool:
    stored = dict(zip(columns, row, strict=True))
    return holds(condition, stored_values(dialect, definition, stored, columns))
