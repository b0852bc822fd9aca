"""Counts, sums and extremes, computed by the database. The whole range counts as read."""

from __future__ import annotations

from collections.abc import Coroutine
from datetime import timedelta
from decimal import Decimal
from itertools import chain
from typing import Any

from penstock.changes.readset import RangeRead
from penstock.errors import ValueInvalid
from penstock.schema.fields import Kind
from penstock.store.contract.session import Row
from penstock.store.sql.statements import TableStatements
from penstock.transaction.segments import Segment
from penstock.transaction.transaction import Scope
from penstock.values import total_bytes

_ZERO: dict[Kind, Any] = {
    Kind.INTEGER: 0,
    Kind.REAL: 0.0,
    Kind.DECIMAL: Decimal(0),
    Kind.INTERVAL: timedelta(0),
}
_ORDERED = frozenset(Kind) - {Kind.BOOLEAN, Kind.JSON, Kind.UUID, Kind.BYTES}


class Groups:
    """Rows in groups of equal columns. Each verb gives a dict from the group's value, or tuple of values.

    Each group counts as a row that is read.
    """

    def __init__(
        self,
        scope: Scope,
        statements: TableStatements,
        read: RangeRead,
        segment: Segment,
        columns: tuple[str, ...],
    ) -> None:
        self._scope = scope
        self._statements = statements
        self._read = read
        self._segment = segment
        self._columns = columns

    def count(self) -> Coroutine[Any, Any, dict[Any, int]]:
        """The number of rows in each group."""
        return self._scope.track(self._grouped("count", None))

    def sum(self, column: str) -> Coroutine[Any, Any, dict[Any, Any]]:
        """The sum of a column in each group."""
        return self._scope.track(self._grouped("sum", column))

    def min(self, column: str) -> Coroutine[Any, Any, dict[Any, Any]]:
        """The least value of a column in each group."""
        return self._scope.track(self._grouped("min", column))

    def max(self, column: str) -> Coroutine[Any, Any, dict[Any, Any]]:
        """The greatest value of a column in each group."""
        return self._scope.track(self._grouped("max", column))

    async def _grouped(self, what: str, column: str | None) -> dict[Any, Any]:
        rows = await _run(self._scope, self._statements, self._read, self._segment, what, column, self._columns)
        found = {}
        for row in rows:
            key = tuple(_decode(self._statements, name, value) for name, value in zip(self._columns, row, strict=False))
            found[key[0] if len(key) == 1 else key] = _value(self._statements, what, column, row[-1])
        return found


async def aggregate(
    scope: Scope,
    statements: TableStatements,
    read: RangeRead,
    segment: Segment,
    what: str,
    column: str | None = None,
) -> Any:
    rows = await _run(scope, statements, read, segment, what, column, ())
    return _value(statements, what, column, rows[0][0])


async def _run(
    scope: Scope,
    statements: TableStatements,
    read: RangeRead,
    segment: Segment,
    what: str,
    column: str | None,
    groups: tuple[str, ...],
) -> list[Row]:
    _check(statements, what, column)
    conditions, args = segment.conditions(read.columns)
    transaction = scope.transaction
    async with scope.lock:
        statement = statements.aggregate(conditions, what, column, groups)
        rows = await transaction.fetch(statement, (*args, transaction.rows_left + 1) if groups else args)
    transaction.note_range(read)
    if groups:
        transaction.count_read(len(rows), total_bytes(chain.from_iterable(rows)))
    return list(rows)


def _check(statements: TableStatements, what: str, column: str | None) -> None:
    if column is None:
        return
    kind = statements.definition.column(column).kind
    if kind not in (_ZERO if what == "sum" else _ORDERED):
        raise ValueInvalid(f"{statements.definition.name}.{column} is {kind.value}, which has no {what}.")


def _value(statements: TableStatements, what: str, column: str | None, value: Any) -> Any:
    if column is None:
        return value
    kind = statements.definition.column(column).kind
    if what != "sum":
        return _decode(statements, column, value)
    if value is None:
        return _ZERO[kind]
    return int(value) if kind is Kind.INTEGER else statements.dialect.decode_value(kind, value)


def _decode(statements: TableStatements, name: str, value: Any) -> Any:
    column = statements.definition.column(name)
    neutral = statements.dialect.decode_value(column.kind, value)
    return neutral if neutral is None or column.decode is None else column.decode(neutral)
