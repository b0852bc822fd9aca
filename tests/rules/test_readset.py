"""Read sets: a change concerns a reader if the row was, or is, among what it looked at; never too few."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.changes.readset import Bound, RangeRead, ReadSet, RowChange, WriteSet
from penstock.schema.table import Table, definition_of
from penstock.store.postgres.dialect import POSTGRES
from penstock.store.sql.dialect import Dialect
from penstock.store.sql.statements import TableStatements
from penstock.store.sqlite.dialect import SQLITE

Columns = dict[str, tuple[int, Callable[[Any], Any] | None]]

COLUMNS: Columns = {"id": (0, None), "name": (1, None), "number": (2, None)}
AS_TEXT: Columns = {"id": (0, None), "name": (1, None), "number": (2, Decimal)}
BY_NAME = ("name", "number", "id")


def read(prefix: tuple[Any, ...] = (), lower: Bound | None = None, upper: Bound | None = None) -> RangeRead:
    return RangeRead("note", "by_name", BY_NAME, prefix, lower, upper)


def test_a_range_without_prefix_and_bounds_is_the_whole_table() -> None:
    for row in (("1", "a", 1), ("2", None, None)):
        assert read().covers(row, COLUMNS)


def test_a_prefix_equals_the_first_columns_and_none_is_null() -> None:
    assert read(("a",)).covers(("1", "a", 5), COLUMNS)
    assert not read(("a",)).covers(("1", "b", 5), COLUMNS)
    assert not read(("a",)).covers(("1", None, 5), COLUMNS)
    assert read((None,)).covers(("1", None, 5), COLUMNS)
    assert not read((None,)).covers(("1", "a", 5), COLUMNS)
    assert read(("a", 5)).covers(("1", "a", 5), COLUMNS)
    assert not read(("a", 5)).covers(("1", "a", 6), COLUMNS)


def test_bounds_are_on_the_next_column_and_null_is_in_no_range() -> None:
    inclusive = read(("a",), Bound(3, inclusive=True), Bound(5, inclusive=True))
    exclusive = read(("a",), Bound(3, inclusive=False), Bound(5, inclusive=False))
    covered = [number for number in (None, 2, 3, 4, 5, 6) if inclusive.covers(("1", "a", number), COLUMNS)]
    assert covered == [3, 4, 5]
    assert [number for number in (None, 2, 3, 4, 5, 6) if exclusive.covers(("1", "a", number), COLUMNS)] == [4]
    assert not inclusive.covers(("1", "b", 4), COLUMNS)
    assert read((), Bound("b", inclusive=False)).covers(("1", "c", None), COLUMNS)
    assert not read((), None, Bound("b", inclusive=False)).covers(("1", None, None), COLUMNS)


NUMBERS = st.none() | st.integers(0, 6)
ROWS = st.tuples(st.sampled_from("12"), st.none() | st.sampled_from("abc"), NUMBERS)
BOUNDS = st.none() | st.builds(Bound, st.integers(0, 6), st.booleans())


@given(ROWS, st.none() | st.sampled_from("abc"), BOUNDS, BOUNDS)
def test_a_range_covers_what_sql_would_find(
    row: tuple[str, str | None, int | None], name: str | None, lower: Bound | None, upper: Bound | None
) -> None:
    wanted = row[1] == name
    for bound, below in ((lower, False), (upper, True)):
        if bound is not None:
            number = row[2]
            inside = number is not None and (number < bound.value if below else number > bound.value)
            wanted = wanted and (inside or (bound.inclusive and number == bound.value))
    assert read((name,), lower, upper).covers(row, COLUMNS) == wanted


def test_values_that_are_stored_as_text_are_compared_as_what_they_mean() -> None:
    above_five = read(("a",), Bound("5", inclusive=True))
    for number, covered in (("5", True), ("5.00", True), ("10", True), ("1E+1", True), ("4.9", False), (None, False)):
        assert above_five.covers(("1", "a", number), AS_TEXT) == covered
    assert read(("a", "1.5")).covers(("1", "a", "1.50"), AS_TEXT)
    assert not read(("a", "1.5")).covers(("1", "a", None), AS_TEXT)
    assert read(("a", None)).covers(("1", "a", None), AS_TEXT)


def test_a_change_concerns_a_reader_by_what_it_was_and_by_what_it_is() -> None:
    reads = ReadSet()
    reads.note(read(("a",)))
    inside, outside = ("1", "a", 1), ("1", "b", 1)
    cases = [
        (None, inside, True), (inside, None, True), (inside, inside, True), (inside, outside, True),
        (outside, inside, True), (None, outside, False), (outside, None, False), (outside, outside, False),
    ]  # fmt: skip
    for old, new, concerned in cases:
        assert reads.concerns(RowChange("note", "1", old, new), COLUMNS) == concerned
        assert not reads.concerns(RowChange("other", "1", old, new), COLUMNS)


def test_a_reader_of_nothing_is_concerned_by_nothing_and_one_of_everything_by_all() -> None:
    reads, change = ReadSet(), RowChange("other", "1", None, ("1", "a", 1))
    assert not reads.concerns(change, COLUMNS)
    reads.note_everything()
    assert reads.concerns(change, COLUMNS)
    assert reads.concerns(change, {})


def test_changes_are_kept_in_order() -> None:
    writes = WriteSet()
    changes = [RowChange("note", str(n), None, (n,)) for n in range(3)]
    for change in changes:
        writes.note(change)
    assert writes.changes == changes


class Visit(Table):
    at: datetime
    price: Decimal


@pytest.mark.parametrize("dialect", [SQLITE, POSTGRES], ids=["sqlite", "postgres"])
def test_what_a_driver_gives_is_compared_by_what_it_means(dialect: Dialect) -> None:
    statements = TableStatements(definition_of(Visit), dialect)
    noon, last = datetime(2030, 1, 1, 12, tzinfo=UTC), datetime.max  # noqa: DTZ901 - PostgreSQL's infinity, as it comes
    given = last if dialect is POSTGRES else statements.encode_one("at", last.replace(tzinfo=UTC))
    row = ("visit_1", given, given, statements.encode_one("price", Decimal("9.5")))
    for column, least in (("at", noon), ("price", Decimal(10))):
        bound = Bound(statements.encode_one(column, least), inclusive=True)
        covers = RangeRead("visit", column, (column,), (), lower=bound).covers(row, statements.read_columns)
        assert covers == (column == "at")
