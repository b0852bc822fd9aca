"""The segment of an index that `with_index` names: values for its first columns, then at most one range.

Owns the errors about columns and values that do not fit the index. Leaves reading to `scan`.
"""

from __future__ import annotations

from typing import Any

from penstock.changes.readset import Bound
from penstock.errors import ValueInvalid
from penstock.schema.index import Index
from penstock.store.sql.statements import TableStatements
from penstock.transaction.segments import Range, Segment


def segment_of(statements: TableStatements, index: Index, columns: dict[str, Any]) -> Segment:
    """The rows of an index with these values in its columns."""
    names = index.columns[: len(columns)]
    for name in names:
        if name not in columns:
            raise _misfit(index, name, columns)
    prefix: list[Any] = []
    for name in names:
        value = columns[name]
        if not isinstance(value, Range):
            least, greatest = statements.ends_of(name, neutral := _operand(statements, name, value))
            if least != greatest and name == names[-1]:
                return Segment(tuple(prefix), Bound(least, inclusive=True), Bound(greatest, inclusive=True))
            prefix.append(statements.encode_one(name, neutral))
            continue
        if name != names[-1]:
            following = names[len(prefix) + 1]
            raise ValueInvalid(f"Index {index.name}: {following} follows a range.", fix="A range may only stand last.")
        if value == Range():
            raise ValueInvalid(f"Index {index.name}: the range of {name} has no bound.")
        lower, upper = _make_bound(statements, name, value.lower, 0), _make_bound(statements, name, value.upper, 1)
        return Segment(tuple(prefix), lower, upper)
    return Segment(tuple(prefix))


def _misfit(index: Index, name: str, columns: dict[str, Any]) -> ValueInvalid:
    unknown = columns.keys() - set(index.columns)
    if unknown:
        return ValueInvalid(
            f"Index {index.name} has no column {', '.join(sorted(unknown))}.",
            fix=f"Its columns are {', '.join(index.columns)}, in this order.",
        )
    return ValueInvalid(
        f"Index {index.name}: {name} is left out, but a later column is given.",
        fix=f"Its columns are {', '.join(index.columns)}; name them from the first one on.",
    )


def _make_bound(statements: TableStatements, name: str, given: tuple[Any, bool] | None, end: int) -> Bound | None:
    if given is None:
        return None
    value, inclusive = given
    if value is None:
        raise ValueInvalid(f"{statements.definition.name}.{name}: a bound cannot be None.")
    ends = statements.ends_of(name, _operand(statements, name, value))
    return Bound(ends[end if inclusive else 1 - end], inclusive)


def _operand(statements: TableStatements, name: str, value: Any) -> Any:
    column = statements.definition.column(name)
    if value is None:
        return None
    try:
        return column.encode(column.check(value))
    except (ValueError, TypeError) as error:
        kind = type(value).__name__
        raise ValueInvalid(f"{statements.definition.name}.{name}: this {kind} is not a value of its column.") from error
