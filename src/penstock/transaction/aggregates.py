"""Counts, sums and extremes, computed by the database. The whole range counts as read."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from datetime import timedelta
from decimal import Decimal
from itertools import chain
from typing import Any

from penstock.changes.readset import RangeRead
from penstock.dataclass import dataclass
from penstock.errors import ValueInvalid
from penstock.schema.fields import Kind
from penstock.store.session import Row
from penstock.store.sql.dialect import ALL
from penstock.store.sql.statements import TableStatements
from penstock.transaction.rules import rule_of
from penstock.transaction.segments import Segment
from penstock.transaction.transaction import Scope
from penstock.values import total_bytes

_ZERO: dict[Kind, Any] = {Kind.INTEGER: 0, Kind.REAL: 0.0, Kind.DECIMAL: Decimal(0), Kind.INTERVAL: timedelta(0)}
_ORDERED = frozenset(Kind) - {Kind.BOOLEAN, Kind.JSON, Kind.UUID, Kind.BYTES, Kind.ENCRYPTED}


@dataclass(frozen=True, slots=True)
class Aggregated:
    """Rows to count, or to compute of: all of a range together, or each group of equal `columns`."""

    scope: Scope
    statements: TableStatements
    read: RangeRead
    segment: Segment
    columns: tuple[str, ...] = ()

    async def fetch(self, what: str, column: str | None) -> Sequence[Row]:
        """The columns and then the aggregate of each group."""
        self._check(what, column)
        conditions, args = self.segment.conditions(self.read.columns)
        transaction, rule = self.scope.transaction, await rule_of(self.scope, self.statements, "read")
        where = ALL if rule is None else rule.exact_where(self.read.columns, self.segment.prefix, what)
        args += where.args
        transaction.note_range(self.read)
        async with self.scope.lock:
            statement = self.statements.aggregate(conditions, what, column, self.columns, where)
            rows = await transaction.fetch(statement, (*args, transaction.rows_left + 1) if self.columns else args)
        if self.columns:
            transaction.count_read(len(rows), total_bytes(chain.from_iterable(rows)))
        return rows

    def _check(self, what: str, column: str | None) -> None:
        if column is None:
            return
        definition = self.statements.definition
        kind = definition.column(column).kind
        if kind not in (_ZERO if what == "sum" else _ORDERED):
            raise ValueInvalid(f"{definition.name}.{column} is {kind.value}, which has no {what}.")

    def value(self, what: str, column: str | None, value: Any) -> Any:
        if column is None:
            return value
        if what != "sum":
            return self.decode(column, value)
        kind = self.statements.definition.column(column).kind
        if value is None:
            return _ZERO[kind]
        return int(value) if kind is Kind.INTEGER else self.statements.dialect.decode_value(kind, value)

    def decode(self, name: str, value: Any) -> Any:
        column = self.statements.definition.column(name)
        neutral = self.statements.dialect.decode_value(column.kind, value)
        return neutral if neutral is None or column.decode is None else column.decode(neutral)


async def aggregate(rows: Aggregated, what: str, column: str | None = None) -> Any:
    return rows.value(what, column, (await rows.fetch(what, column))[0][0])


class Groups:
    """Rows in groups of equal columns. Each verb gives a dict from the group's value, or tuple of values.

    Each group counts as a row that is read.
    """

    def __init__(self, rows: Aggregated) -> None:
        self._rows = rows

    def count(self) -> Coroutine[Any, Any, dict[Any, int]]:
        """The number of rows in each group."""
        return self._rows.scope.track(self._group("count", None))

    def sum(self, column: str) -> Coroutine[Any, Any, dict[Any, Any]]:
        """The sum of a column in each group."""
        return self._rows.scope.track(self._group("sum", column))

    def min(self, column: str) -> Coroutine[Any, Any, dict[Any, Any]]:
        """The least value of a column in each group."""
        return self._rows.scope.track(self._group("min", column))

    def max(self, column: str) -> Coroutine[Any, Any, dict[Any, Any]]:
        """The greatest value of a column in each group."""
        return self._rows.scope.track(self._group("max", column))

    async def _group(self, what: str, column: str | None) -> dict[Any, Any]:
        rows, found = self._rows, {}
        for row in await rows.fetch(what, column):
            key = tuple(rows.decode(name, value) for name, value in zip(rows.columns, row, strict=False))
            found[key[0] if len(key) == 1 else key] = rows.value(what, column, row[-1])
        return found
