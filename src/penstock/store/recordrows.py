"""Records as rows, and the rows of users' tables that a filter picks: what both stores share."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from penstock.reactive.evaluate import holds
from penstock.reactive.expression import Condition
from penstock.schema.table import TableDefinition
from penstock.store.conditions import condition_sql
from penstock.store.contract import OpenTransaction, Statement
from penstock.store.dialect import Dialect, placeholder
from penstock.store.records import RecordQuery, RecordState, SourcePiece
from penstock.store.values import stored_values

_ROW = "r"


def state_of(row: Sequence[Any], job: UUID, times: Sequence[datetime | None]) -> RecordState:
    """A record from its row, with its id and its times in Python's form."""
    changed_at, due_at, run_at, started_at, finished_at = times
    assert changed_at is not None and due_at is not None  # noqa: PT018, S101 - columns that are never null
    return RecordState(
        task=row[0],
        key=row[1],
        job=UUID(int=job.int),
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
    """A filter as the parameters of a query, for PostgreSQL."""
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
    after: Any,
    key_text: str,
) -> SourcePiece:
    """Rows of a table that meet a condition, in the order of their keys.

    Args:
        session: In which they are read.
        dialect: The store's.
        definition: The table.
        condition: What they have to meet; asked in Python where the store says something wider.
        limit: How many are read.
        after: What the driver has given for the last key; None from the beginning.
        key_text: What spells the key of a row, called ``r``, as the change feed does.
    """
    asked = condition_sql(condition, definition, dialect, _ROW, own=True)
    columns = () if asked.exact else asked.columns
    key = f"{_ROW}.{dialect.quote(definition.key)}"
    listed = ", ".join((key_text, key, *(f"{_ROW}.{dialect.quote(name)}" for name in columns)))
    args = [limit] if after is None else [after, limit]
    also = "" if after is None else f" and {key} > {placeholder(dialect.parameter, 1)}"
    sql = f"select {listed} from {dialect.table(definition.name)} {_ROW} where {asked.sql}{also}"
    sql += f" order by {key} limit {placeholder(dialect.parameter, len(args))}"
    rows = await session.fetch(Statement(sql, bounded=False, reads=True), args)
    found = [row[0] for row in rows if asked.exact or _holds(dialect, definition, condition, columns, row[2:])]
    return SourcePiece(found, rows[-1][1] if len(rows) == limit else None)


def _holds(
    dialect: Dialect, definition: TableDefinition, condition: Condition, columns: Sequence[str], row: Sequence[Any]
) -> bool:
    stored = dict(zip(columns, row, strict=True))
    return holds(condition, stored_values(dialect, definition, stored, columns))
