"""Segments and ranges: what is left of a range after any of its rows is exactly the rows that follow, once each."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stage.needs import examples

from penstock.changes.readset import Bound
from penstock.live.ranges import TableRanges
from penstock.schema.fields import Kind
from penstock.transaction.segments import Direction, Order, Segment

ORDER = ("a", "b", "id")
OPTIONAL = (True, True, False)
Row = tuple[int | None, int | None, int]


def place(row: Row) -> tuple[Any, ...]:
    """NULL before all values, as the stores order."""
    return tuple((value is not None, value or 0) for value in row)


def matches(segment: Segment, row: Row) -> bool:
    """Whether SQL would find the row: a comparison with NULL is not true."""
    conditions, args = segment.conditions(ORDER)
    values = iter(args)
    for condition in conditions:
        value = row[ORDER.index(condition.column)]
        if condition.takes_value:
            if value is None or not compare(value, condition.comparison, next(values)):
                return False
        elif (value is None) != (condition.comparison == "is null"):
            return False
    return next(values, None) is None


def compare(value: int, comparison: str, wanted: int) -> bool:
    return {
        "=": value == wanted, ">": value > wanted, ">=": value >= wanted, "<": value < wanted, "<=": value <= wanted,
    }[comparison]  # fmt: skip


def read(segments: list[Segment], rows: list[Row], direction: str) -> list[Row]:
    """What reading the segments one after the other gives."""
    found = []
    for segment in segments:
        found += sorted((row for row in rows if matches(segment, row)), key=place, reverse=direction == "desc")
    return found


VALUES = st.none() | st.integers(0, 3)
ROWS = st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=12).map(
    lambda pairs: [(a, b, number) for number, (a, b) in enumerate(pairs)]
)
BOUNDS = st.none() | st.builds(Bound, st.integers(0, 3), st.booleans())
STARTS = st.builds(
    Segment, st.just(()) | st.tuples(VALUES) | st.tuples(VALUES, VALUES), BOUNDS, BOUNDS, st.none(), st.none()
)
DIRECTIONS = st.sampled_from(["asc", "desc"])


@settings(max_examples=examples(400))
@given(ROWS, STARTS, DIRECTIONS)
def test_after_each_row_come_exactly_those_that_follow_it(
    rows: list[Row], start: Segment, direction: Direction
) -> None:
    everything = read([start], rows, direction)
    for number, row in enumerate(everything):
        rest = Order(ORDER, OPTIONAL, direction).after(start, row)
        assert read(rest, rows, direction) == everything[number + 1 :]


@settings(max_examples=examples(400))
@given(ROWS, STARTS, DIRECTIONS, st.data())
def test_the_rows_up_to_each_row_and_between_any_two_are_exactly_those(
    rows: list[Row], start: Segment, direction: Direction, data: st.DataObject
) -> None:
    everything = read([start], rows, direction)
    for last, end in enumerate(everything):
        order = Order(ORDER, OPTIONAL, direction, exact=data.draw(st.booleans()))
        part = order.until(start, end)
        assert read(part, rows, direction) == everything[: last + 1]
        first = data.draw(st.integers(0, len(everything) - 1))
        part = order.after_until(start, everything[first], end)
        assert read(part, rows, direction) == everything[first + 1 : last + 1]
        noted = TableRanges[int](dict.fromkeys(ORDER, Kind.INTEGER), (), lambda _kind, value: value)
        for one in part:
            noted.add(0, one.read("note", "by_a", ORDER))
        for row in rows:
            covered = any(noted.readers_of(dict(zip(ORDER, row, strict=True))))
            assert covered or row not in everything[first + 1 : last + 1]
            if covered and first <= last and not any(one.null is False for one in part):
                assert row in everything[first + 1 : last + 1], "nothing else is noted"


@settings(max_examples=examples(400))
@given(ROWS, STARTS, DIRECTIONS, st.tuples(VALUES, VALUES, st.integers(-1, 20)))
def test_after_a_row_that_never_was_nothing_comes_from_outside(
    rows: list[Row], start: Segment, direction: Direction, forged: Row
) -> None:
    forged_inside = (*start.prefix, *forged[len(start.prefix) :])
    rest = Order(ORDER, OPTIONAL, direction).after(start._replace(within=start), forged_inside)
    inside = read([start], rows, direction)
    found = read(rest, rows, direction)
    assert set(found) <= set(inside)
    assert len(found) == len(set(found))


@pytest.mark.parametrize("null", [None, True, False])
def test_what_was_read_is_noted_at_least(null: bool | None) -> None:
    segment = Segment((1,), Bound(2, inclusive=True) if null is None else None, None, null)
    read = segment.read("note", "by_a", ORDER)
    assert (read.table, read.index, read.columns) == ("note", "by_a", ORDER)
    assert read.prefix == ((1, None) if null else (1,))
    assert (read.lower, read.upper) == (segment.lower, segment.upper)
