"""Pieces of an index's order: equal first columns, and bounds on the next one. Every read is a sequence of them.

Owns the continuation of a read after a row: the rest of a range is a few segments, each of which an index serves.
Pure: values in, conditions out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from penstock.changes.readset import Bound, RangeRead
from penstock.errors import ValueInvalid
from penstock.store.sql.statements import Condition

Direction = Literal["asc", "desc"]


class Segment(NamedTuple):
    """Rows whose first columns equal `prefix`, and whose next column lies between bounds, or is or is not NULL.

    Values are in the form in which the store holds them.
    """

    prefix: tuple[Any, ...] = ()
    lower: Bound | None = None
    upper: Bound | None = None
    null: bool | None = None
    # the segment that it is the rest of, whose bounds hold too; only where they are not known to
    within: Segment | None = None

    def conditions(self, order: Sequence[str]) -> tuple[tuple[Condition, ...], list[Any]]:
        found: list[Condition] = []
        args: list[Any] = []
        for column, value in zip(order, self.prefix, strict=False):
            found.append(Condition(column, "is null" if value is None else "="))
            if value is not None:
                args.append(value)
        if self.null is not None:
            found.append(Condition(order[len(self.prefix)], "is null" if self.null else "is not null"))
        for segment in (self,) if self.within is None else (self, self.within):
            for bound, strict, loose in ((segment.lower, ">", ">="), (segment.upper, "<", "<=")):
                if bound is not None:
                    column = order[len(segment.prefix)]
                    found.append(Condition(column, loose if bound.inclusive else strict))  # type: ignore[arg-type]
                    args.append(bound.value)
        return tuple(found), args

    def read(self, table: str, index: str | None, order: tuple[str, ...]) -> RangeRead:
        return RangeRead(table, index, order, self.prefix, self.lower, self.upper)


def after(
    start: Segment, order: Sequence[str], optional: Sequence[bool], row: Sequence[Any], direction: Direction
) -> list[Segment]:
    """The rest of a segment after a row, in order.

    The last column of the order is unique and never NULL; in the others NULL comes before all values.
    """
    fixed = len(start.prefix)
    found: list[Segment] = []
    for place in range(len(order) - 1, fixed - 1, -1):
        prefix, value = tuple(row[:place]), row[place]
        bounds = (start.lower, start.upper) if place == fixed else (None, None)
        may_be_null = optional[place] and not (place == fixed and (start.lower or start.upper))
        found += _beyond(prefix, value, bounds, may_be_null, direction)
    return found if start.within is None else [segment._replace(within=start.within) for segment in found]


def _beyond(
    prefix: tuple[Any, ...],
    value: Any,
    bounds: tuple[Bound | None, Bound | None],
    may_be_null: bool,
    direction: Direction,
) -> list[Segment]:
    lower, upper = bounds
    if direction == "asc":
        if value is None:
            return [Segment(prefix, null=False)]
        return [Segment(prefix, Bound(value, inclusive=False), upper)]
    if value is None:
        return []
    below = Segment(prefix, lower, Bound(value, inclusive=False))
    return [below, Segment(prefix, null=True)] if may_be_null else [below]


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
