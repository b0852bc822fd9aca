"""From the words of `with_index` to a segment: values are checked as their columns are, and encoded for the store."""

from __future__ import annotations

from typing import Any

from penstock.changes.readset import Bound
from penstock.errors import ValueInvalid
from penstock.schema.index import Index
from penstock.store.sql.statements import TableStatements
from penstock.transaction.ranges import Range
from penstock.transaction.segments import Segment


def segment_of(statements: TableStatements, index: Index, columns: dict[str, Any]) -> Segment:
    """The segment that values and a range of an index's columns describe.

    Raises:
        ValueInvalid: A column is left out or not the index's, or a value is not one of its column.
    """
    names = index.columns[: len(columns)]
    for name in names:
        if name not in columns:
            raise _misfit(index, name, columns)
    prefix: list[Any] = []
    for name in names:
        value = columns[name]
        if not isinstance(value, Range):
            prefix.append(_operand(statements, name, value))
            continue
        if name != names[-1]:
            following = names[len(prefix) + 1]
            raise ValueInvalid(f"Index {index.name}: {following} follows a range.", fix="A range may only stand last.")
        if value == Range():
            raise ValueInvalid(f"Index {index.name}: the range of {name} has no bound.")
        return Segment(tuple(prefix), _bound(statements, name, value.lower), _bound(statements, name, value.upper))
    return Segment(tuple(prefix))


def _misfit(index: Index, name: str, columns: dict[str, Any]) -> ValueInvalid:
    """Why these columns are not the first ones of an index, of which `name` is one that is missing."""
    unknown = columns.keys() - set(index.columns)
    if unknown:
        return ValueInvalid(f"Index {index.name} has no column {', '.join(sorted(unknown))}.", fix=f"It is {index!r}.")
    return ValueInvalid(
        f"Index {index.name}: {name} is left out, but a later column is given.", fix=f"It is {index!r}."
    )


def _bound(statements: TableStatements, name: str, given: tuple[Any, bool] | None) -> Bound | None:
    if given is None:
        return None
    value, inclusive = given
    if value is None:
        raise ValueInvalid(f"{statements.definition.name}.{name}: a bound cannot be None.")
    return Bound(_operand(statements, name, value), inclusive)


def _operand(statements: TableStatements, name: str, value: Any) -> Any:
    """A value to compare a column with, checked as the column's values are."""
    column = statements.definition.column(name)
    if value is None:
        return None
    try:
        checked = column.check(value)
    except ValueError as error:
        kind = type(value).__name__
        raise ValueInvalid(f"{statements.definition.name}.{name}: this {kind} is not a value of its column.") from error
    return statements.encode_one(name, column.encode(checked))
