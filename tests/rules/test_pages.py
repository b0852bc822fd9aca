"""Cursors: they keep every value, fit one query, and anything else is refused."""

from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.changes.readset import Bound
from penstock.errors import ArgumentsInvalid, CursorInvalid
from penstock.functions.signature import Signature
from penstock.schema.index import Index
from penstock.schema.table import Table, definition_of
from penstock.store.postgres.dialect import POSTGRES
from penstock.store.sqlite.dialect import SQLITE
from penstock.transaction.pages import (
    END,
    Page,
    PaginationOptions,
    decode_cursor,
    decode_journal,
    encode_cursor,
    encode_journal,
    fingerprint,
)
from penstock.transaction.segments import Segment
from penstock.values import encode_json

MARK = "0123456789ab"


class Sample(Table):
    text: str
    number: int
    real: float
    truth: bool
    data: bytes
    moment: datetime
    day: date
    span: timedelta
    price: Decimal
    uuid: UUID


COLUMNS = definition_of(Sample).columns[2:]


@given(
    st.tuples(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False),
        st.booleans(),
        st.binary(),
        st.datetimes(timezones=st.just(UTC)),
        st.dates(),
        st.timedeltas(timedelta(days=-100_000_000), timedelta(days=100_000_000)),
        st.decimals(allow_nan=False, allow_infinity=False, places=10),
        st.uuids(),
    )
)
def test_a_cursor_keeps_every_value_of_every_kind(values: tuple[Any, ...]) -> None:
    found = decode_cursor(encode_cursor(MARK, values), MARK, COLUMNS, POSTGRES)
    assert found is not END
    assert found == list(values)
    assert [type(value) for value in found] == [type(value) for value in values]


def test_none_is_a_value_and_no_values_are_the_end() -> None:
    assert decode_cursor(encode_cursor(MARK, [None] * 10), MARK, COLUMNS, POSTGRES) == [None] * 10
    assert decode_cursor(encode_cursor(MARK, END), MARK, COLUMNS, POSTGRES) is END


def forged(content: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")


GOOD: list[Any] = ["a", 1, 0.5, True, "AA==", "2030-01-01T00:00:00Z", "2030-01-01", "PT1S", "1.5", str(UUID(int=1))]


def test_what_is_spelled_right_is_taken() -> None:
    assert decode_cursor(forged([MARK, GOOD]), MARK, COLUMNS, POSTGRES) is not None


@pytest.mark.parametrize(
    ("place", "values"),
    [
        (0, [1, True, [], {}, "a\0"]),
        (1, ["1.5", "NaN", "1E+999999999", 1.5, True, 2**63, -(2**63) - 1, 10**30, []]),
        (2, ["x", True, 2**63, []]),
        (3, [1, "true", []]),
        (4, ["ä", "A", 5]),
        (5, ["2030-01-01T00:00:00", "2030-01-01", "soon", 5, "0001-01-01T00:00:00+01:00", "9999-12-31T23:00:00-02:00"]),
        (6, ["2030-13-01", "2030-01-01T00:00:01Z", 5]),
        (7, ["soon", "P999999999D", 5]),
        (8, ["cheap", True, 2**63, []]),
        (9, ["x", 5]),
    ],
)
def test_a_value_that_no_row_could_have_is_refused(place: int, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(CursorInvalid):
            decode_cursor(forged([MARK, [*GOOD[:place], value, *GOOD[place + 1 :]]]), MARK, COLUMNS, POSTGRES)


@pytest.mark.parametrize(
    ("place", "taken", "refused"),
    [
        (0, [["YQ=="]], [["ä"], [1], [], ["YQ==", "YQ=="]]),
        (1, [["7"]], [[1], []]),
        (3, [0, 1], ["x", 2, []]),
        (5, ["2030-01-01 12:00:00", "2030-01-01T12:00:00+01:00"], ["soon", 5, []]),
        (6, ["2030-01-01", "20300101"], ["2030-13-01", 5]),
        (7, [1, 1.0], ["PT1S", 2**63, 1e300, []]),
        (8, [1.5, "1.50"], ["cheap", 10**30, []]),
        (9, [UUID(int=1).hex, str(UUID(int=1)).upper()], ["x", 5]),
    ],
)
def test_a_cursor_keeps_what_another_program_has_spelled_otherwise(
    place: int, taken: list[Any], refused: list[Any]
) -> None:
    as_stored = [*GOOD[:3], 1, GOOD[4], "2030-01-01T00:00:00.000000Z", GOOD[6], 1, *GOOD[8:]]
    for value in taken:
        found = decode_cursor(
            forged([MARK, [*as_stored[:place], value, *as_stored[place + 1 :]]]), MARK, COLUMNS, SQLITE
        )
        assert found is not END
        assert found[place] == {0: b"a", 1: "7"}.get(place, value)
    for value in refused:
        with pytest.raises(CursorInvalid):
            decode_cursor(forged([MARK, [*as_stored[:place], value, *as_stored[place + 1 :]]]), MARK, COLUMNS, SQLITE)


@given(st.text() | st.binary().map(lambda data: base64.urlsafe_b64encode(data).decode()))
def test_garbage_is_refused(text: str) -> None:
    with pytest.raises(CursorInvalid, match="not one of this query"):
        decode_cursor(text, MARK, COLUMNS, POSTGRES)


def test_a_cursor_fits_what_was_asked_and_nothing_else() -> None:
    by_text, by_number = Index("text"), Index("number")
    by_text.name, by_number.name = "by_text", "by_number"
    asked: list[tuple[str, Index | None, Segment, str]] = [
        ("note", None, Segment(), "asc"),
        ("note", None, Segment(), "desc"),
        ("other", None, Segment(), "asc"),
        ("note", by_text, Segment(), "asc"),
        ("note", by_number, Segment(), "asc"),
        ("note", by_number, Segment((1,)), "asc"),
        ("note", by_number, Segment((None,)), "asc"),
        ("note", by_number, Segment(("1",)), "asc"),
        ("note", by_number, Segment((), Bound(1, inclusive=True)), "asc"),
        ("note", by_number, Segment((), Bound(1, inclusive=False)), "asc"),
        ("note", by_number, Segment((), None, Bound(1, inclusive=True)), "asc"),
    ]
    marks = [fingerprint(*question) for question in asked]
    assert len(set(marks)) == len(marks)
    assert marks == [fingerprint(*question) for question in asked]
    with pytest.raises(CursorInvalid):
        decode_cursor(encode_cursor(marks[0], GOOD), marks[1], COLUMNS, POSTGRES)


def test_a_function_takes_the_page_that_a_client_asks_for() -> None:
    async def listed(ctx: object, customer: str, pagination_opts: PaginationOptions) -> None: ...

    signature = Signature(listed, "shop:listed")
    sent = {
        "customer": "Ada",
        "paginationOpts": {
            "numItems": 5.0, "cursor": None, "endCursor": "x", "id": 1, "maximumRowsRead": 9, "maximumBytesRead": 9.0,
        },
    }  # fmt: skip
    asked = PaginationOptions(num_items=5, end_cursor="x", id=1, maximum_rows_read=9, maximum_bytes_read=9)
    found = signature.check_json(json.dumps(sent))
    assert found == {"customer": "Ada", "pagination_opts": asked}
    assert signature.check(found) == found
    assert signature.check_json(encode_json(found, "arguments")) == found, "as a job keeps them"
    for options in ({"numItems": 0}, {"numItems": 10_001}, {"numItems": "5"}, {"numItems": 5, "x": 1}, {"cursor": 5}):
        with pytest.raises(ArgumentsInvalid, match="paginationOpts"):
            signature.check_json(json.dumps(sent | {"paginationOpts": options}))


def test_other_rows_keep_the_ends_and_the_status_of_a_page() -> None:
    page = Page[int](page=[1, 2], is_done=True, continue_cursor="c", split_cursor="s", page_status="SplitRequired")
    assert dict(page.replace_rows(("one",))) == {**dict(page), "page": ["one"]}


def test_a_journal_keeps_the_ends_of_pages() -> None:
    assert encode_journal([]) is None
    assert decode_journal(None) == []
    assert decode_journal(encode_journal(["a", "", "b"])) == ["a", "", "b"]
    for text in ("", "x", "{}", "[1]", "[null]", '"a"'):
        with pytest.raises(CursorInvalid, match=r"^InvalidCursor: "):
            decode_journal(text)
