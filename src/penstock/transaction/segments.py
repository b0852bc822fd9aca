"""Pieces of an index's order: equal first columns, and bounds on the next one. Every read is a sequence of them.

Owns the parts of a range: the rest after a row, and the rows between two, are a few segments, each served by an index.
Owns the errors about columns and values that do not fit the index. Pure: values in, conditions out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any, Literal, NamedTuple

from penstock.changes.readset import Bound, RangeRead
from penstock.errors import ValueInvalid
from penstock.schema.index import Index
from penstock.store.sql.statements import Condition, TableStatements

Direction = Literal["asc", "desc"]


class Segment(NamedTuple):
    """Rows whose first columns equal `prefix`, and whose next column lies between bounds, or is or is not NULL.

    Values are in the form in which the store holds them.
    """

    prefix: tuple[Any, ...] = ()
    lower: Bound | None = None
    upper: Bound | None = None
    null: bool | None = None
    # another one that holds it, whose conditions hold too; only where they are not known to
    within: Segment | None = None

    def conditions(self, order: Sequence[str]) -> tuple[tuple[Condition, ...], list[Any]]:
        found: list[Condition] = []
        args: list[Any] = []
        segment: Segment | None = self
        while segment is not None:
            for place, (column, value) in enumerate(zip(order, segment.prefix, strict=False)):
                if segment is not self and value == self.prefix[place]:
                    continue
                found.append(Condition(column, "is null" if value is None else "="))
                if value is not None:
                    args.append(value)
            if segment.null is not None:
                found.append(Condition(order[len(segment.prefix)], "is null" if segment.null else "is not null"))
            for bound, strict, loose in ((segment.lower, ">", ">="), (segment.upper, "<", "<=")):
                if bound is not None:
                    column = order[len(segment.prefix)]
                    found.append(Condition(column, loose if bound.inclusive else strict))  # type: ignore[arg-type]
                    args.append(bound.value)
            segment = segment.within
        return tuple(found), args

    def read(self, table: str, index: str | None, order: tuple[str, ...]) -> RangeRead:
        prefix = (*self.prefix, None) if self.null else self.prefix
        nulls = self.lower is None and self.upper is None and self.null is not False
        return RangeRead(table, index, order, prefix, self.lower, self.upper, nulls)


class Order(NamedTuple):
    """The order in which an index is read. No two rows are equal in all its columns."""

    columns: tuple[str, ...]
    optional: Sequence[bool]  # for each column, whether it may be NULL, which comes before all values
    direction: Direction
    # whether values that differ here differ in the database too: another program's may compare otherwise
    exact: bool = True

    def after(self, start: Segment, row: Sequence[Any]) -> list[Segment]:
        """The rest of a segment after a row, in order."""
        return [
            segment
            for place in range(len(self.columns) - 1, len(start.prefix) - 1, -1)
            for segment in self.beyond(start, place, row)
        ]

    def until(self, start: Segment, row: Sequence[Any]) -> list[Segment]:
        """The part of a segment up to a row and with it, in order."""
        back, last = self._replace(direction="asc" if self.direction == "desc" else "desc"), len(self.columns) - 1
        return [
            segment
            for place in range(len(start.prefix), len(self.columns))
            for segment in reversed(back.beyond(start, place, row, inclusive=place == last))
        ]

    def after_until(self, whole: Segment, first: Sequence[Any], last: Sequence[Any]) -> list[Segment]:
        """The part of a segment after a row, up to another and with it, in order."""
        found: list[Segment] = []
        for rest in self.after(whole, first):
            for part in self.until(whole, last):
                shared = min(len(rest.prefix), len(part.prefix))
                pairs = zip(first[:shared], last[:shared], strict=True)
                if first[shared] == last[shared] or (self.exact and not all(starmap(_are_equal, pairs))):
                    continue  # no row lies in both
                if (both := _both(rest, part, self.direction)) is not None:
                    found.append(both)
        return found

    def beyond(self, start: Segment, place: int, row: Sequence[Any], *, inclusive: bool = False) -> list[Segment]:
        """The rows of a segment that equal a row up to a place, and come after it there."""
        prefix, value, within = tuple(row[:place]), row[place], start.within
        lower, upper = (start.lower, start.upper) if place == len(start.prefix) else (None, None)
        if value is None:
            if self.direction == "asc":
                return [Segment(prefix, null=None if inclusive else False, within=within)]
            return [Segment(prefix, null=True, within=within)] if inclusive else []
        bound = Bound(value, inclusive)
        if self.direction == "asc":
            return [Segment(prefix, bound, upper, within=within)]
        below = Segment(prefix, lower, bound, within=within)
        only_below = lower or upper or not self.optional[place]
        return [below] if only_below else [below, Segment(prefix, null=True, within=within)]


def _are_equal(one: Any, other: Any) -> bool:
    """As the database says: NaN equals itself."""
    return bool(one == other or (one != one and other != other))  # noqa: PLR0124 - NaN


def _both(rest: Segment, part: Segment, direction: Direction) -> Segment | None:
    """The rows in the rest after a row that are also in the part up to another; None if there cannot be any."""
    if rest.prefix != part.prefix:
        return rest._replace(within=part) if len(rest.prefix) >= len(part.prefix) else part._replace(within=rest)
    lower, upper = (rest.lower, part.upper) if direction == "asc" else (part.lower, rest.upper)
    bounded = lower is not None or upper is not None
    nulls = {rest.null, part.null} - {None}
    if len(nulls) > 1 or (True in nulls and bounded):
        return None
    return Segment(rest.prefix, lower, upper, None if bounded else next(iter(nulls), None), rest.within)


@dataclass(frozen=True, slots=True)
class Range:
    """Values between two bounds; a bound is a value and whether it belongs to the range. None is in no range."""

    lower: tuple[Any, bool] | None = None
    upper: tuple[Any, bool] | None = None

    def __and__(self, other: Range) -> Range:
        if (self.lower and other.lower) or (self.upper and other.upper):
            raise ValueInvalid("A range has at most one lower and one upper bound.", fix="Combine one of each.")
        return Range(self.lower or other.lower, self.upper or other.upper)


def gt(value: Any) -> Range:
    """Greater than a value."""
    return Range(lower=(value, False))


def gte(value: Any) -> Range:
    """Greater than or equal to a value."""
    return Range(lower=(value, True))


def lt(value: Any) -> Range:
    """Less than a value."""
    return Range(upper=(value, False))


def lte(value: Any) -> Range:
    """Less than or equal to a value."""
    return Range(upper=(value, True))


def between(low: Any, high: Any) -> Range:
    """From `low` to `high`, both included."""
    return Range(lower=(low, True), upper=(high, True))


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
