"""The rules of the change feed: interests, positions, slots, and how much is read."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.changes.change import KINDS, CapturedChange
from penstock.changes.interest import Interest
from penstock.changes.lag import (
    FULL,
    LARGE,
    REMIND_AFTER,
    SLOW_AFTER,
    STOPPED_AFTER,
    LagAlert,
    ReaderLag,
    SentAlert,
    is_news,
    lag_alert,
    retries_at,
)
from penstock.changes.position import BEGINNING, ERA, NOTHING, Position, Snapshot
from penstock.changes.rotation import SLOT_AGE, SLOT_BYTES, Slots
from penstock.errors import CursorInvalid, DeclarationError
from penstock.services.reading import ReadSize
from penstock.store.nouns.captures import FoundTable
from penstock.store.nouns.changes import Batch

NOW = datetime(2030, 1, 1, tzinfo=UTC)

xids = st.integers(3, 60)
snapshots = st.builds(
    lambda end, still_open: Snapshot(end, tuple(sorted(xid for xid in still_open if xid < end))), xids, st.sets(xids)
)
positions = st.builds(Position, snapshots, st.none() | snapshots, st.integers(0, 50), st.integers(0, 50))


# ----- interests


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": "x" * 201},
        {"table": ""},
        {"table": "penstock_change"},
        {"key": ["id", "id"]},
        {"kinds": []},
        {"kinds": ["insert"]},
    ],
)
def test_what_cannot_be_of_interest_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError):
        Interest(**{"name": "a", "table": "t", "key": ["id"], **wrong})


def test_an_interest_is_known_by_all_that_it_says() -> None:
    one = Interest(name="a", table="t", key=["id"], kinds=["change", "enter"], matches="{row}.a = 'x'")
    assert one.digest == replace(one, key=("id",), kinds=("enter", "change")).digest
    others = [
        replace(one, table="u"),
        replace(one, key=["id", "b"]),
        replace(one, matches=None),
        replace(one, watches=[]),
        replace(one, watches=["{row}.a"]),
        replace(one, kinds=KINDS),
        replace(one, before=["a"]),
        replace(one, after=["a"]),
        replace(one, exact=False),
    ]
    assert len({other.digest for other in [one, *others]}) == 10
    assert Interest.parse(one.text()).digest == one.digest
    assert Interest.parse(json.dumps(json.loads(one.text()) | {"later": 1})).name == "a"


def test_a_table_that_another_release_has_described_is_read() -> None:
    said = {"kind": "r", "columns": {"id": "integer"}, "partitions": None, "later": 1}
    found = FoundTable.parse(json.dumps(said | {"triggers": [{"name": "a", "later": 1}]}))
    assert (found.columns, found.partitions, found.trigger_names) == ({"id": "integer"}, (), {("", "a")})


# ----- positions


@given(positions)
def test_a_position_is_its_text(position: Position) -> None:
    assert Position.parse(str(position)) == position


@given(st.text())
def test_text_that_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(CursorInvalid):
        Position.parse(text)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"high": 0', f'"high": {2**63}'),
        ('"last": 0', '"last": NaN'),
        ('"last": 0', f'"last": {-(2**63)}'),
        ('"0:0:"', f'"0:0:{10**30},1"'),
        ("null", '{"a":' * 20_000),
    ],
)
def test_numbers_that_no_store_has_are_no_position(old: str, new: str) -> None:
    text = '{"seen": "0:0:", "batch": null, "last": 0, "high": 0}'
    assert str(Position.parse(text)) == text
    with pytest.raises(CursorInvalid):
        Position.parse(text.replace(old, new))


@given(positions, xids, st.integers(1, 50))
def test_a_position_means_the_same_when_all_transactions_are_moved(position: Position, xid: int, number: int) -> None:
    assert position.shift(ERA).has_passed(xid - ERA, number) == position.has_passed(xid, number)
    assert not position.shift(ERA).has_passed(xid, number), "what a new server writes is still to be read"


def test_the_beginning_is_before_all() -> None:
    assert BEGINNING.shift(ERA).shift(ERA) == BEGINNING
    assert not BEGINNING.has_passed(3 - 100 * ERA, 1)
    assert not NOTHING.shows(3)


@given(snapshots, xids)
def test_a_snapshot_shows_what_it_says(snapshot: Snapshot, xid: int) -> None:
    assert Snapshot.parse(str(snapshot)) == snapshot
    assert snapshot.shows(xid) == (xid < snapshot.end and xid not in snapshot.open)


def test_a_batch_is_read_to_its_end_under_its_own_snapshot() -> None:
    first, later = Snapshot(20, (12,)), Snapshot(30)
    position = BEGINNING.advance(first, [5, 7], complete=False)
    assert position == Position(NOTHING, first, 7, 7)
    position = position.advance(first, [9], complete=True)
    assert position == Position(first, high=9)
    assert position.advance(later, [], complete=True) == Position(later, high=9)
    assert position.advance(later, [8], complete=True).high == 9, "a number that came late"


# ----- slots


def test_slots_follow_one_another_when_they_are_full_or_old() -> None:
    empty = Slots(0, NOW, dict.fromkeys(range(4), 0))
    assert empty.following(NOW + 9 * SLOT_AGE) is None, "there is nothing to leave"
    some = replace(empty, sizes={0: 1, 1: 0, 2: 0, 3: 0})
    assert some.following(NOW + SLOT_AGE - timedelta(seconds=1)) is None
    assert some.following(NOW + SLOT_AGE) == some.following(NOW, early=True) == 1
    assert empty.following(NOW, early=True) is None
    full = replace(empty, sizes={0: SLOT_BYTES, 1: 5, 2: 0, 3: 0})
    assert full.following(NOW) == 2
    assert full.to_empty() == [1]
    last = Slots(3, NOW, {0: 0, 1: 0, 2: 7, 3: SLOT_BYTES})
    assert (last.following(NOW), last.to_empty()) == (0, [2])
    assert Slots(0, NOW, dict.fromkeys(range(4), SLOT_BYTES)).following(NOW) is None


# ----- who is behind


def standing(oldest: timedelta | None, moved: timedelta, rows: int = 1) -> ReaderLag:
    return ReaderLag("r", NOW - moved, rows, None if oldest is None else NOW - oldest)


SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)


@pytest.mark.parametrize(
    ("oldest", "moved", "size", "expected"),
    [
        (None, HOUR, FULL, None),  # there is nothing to read
        (STOPPED_AFTER, STOPPED_AFTER, 0, LagAlert(stopped=True, full=False)),
        (HOUR, STOPPED_AFTER, FULL, LagAlert(stopped=True, full=True)),
        (STOPPED_AFTER - SECOND, HOUR, FULL, None),  # there was nothing to read until now
        (STOPPED_AFTER, SECOND, 0, None),  # it moves, if slowly
        (SLOW_AFTER, SECOND, 0, LagAlert(stopped=False, full=False)),
        (STOPPED_AFTER, SECOND, LARGE, LagAlert(stopped=False, full=False)),
        (STOPPED_AFTER, SECOND, FULL, LagAlert(stopped=False, full=True)),
        (-HOUR, -HOUR, FULL, None),  # clocks that differ
    ],
)
def test_a_reader_is_behind(oldest: timedelta | None, moved: timedelta, size: int, expected: LagAlert | None) -> None:
    assert lag_alert(standing(oldest, moved, 0 if oldest is None else 1), size, NOW) == expected


def test_it_is_told_once_and_again_when_it_is_worse_or_an_hour_has_passed() -> None:
    slow, stopped = LagAlert(stopped=False, full=False), LagAlert(stopped=True, full=False)
    assert is_news(slow, None, NOW)
    assert not is_news(slow, SentAlert(slow, NOW), NOW + REMIND_AFTER - SECOND)
    assert is_news(slow, SentAlert(slow, NOW), NOW + REMIND_AFTER)
    assert is_news(stopped, SentAlert(slow, NOW), NOW)


def test_what_has_failed_is_tried_ever_more_rarely() -> None:
    assert [look for look in range(200) if retries_at(look)] == [0, 1, 2, 4, 8, 16, 32, 60, 64, 120, 128, 180]


MEBIBYTE = 2**20


def batch(number: int, size: int, *, complete: bool = False) -> Batch:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    changes = [CapturedChange(one, 1, "enter", "k", None, "x" * size, at) for one in range(number)]
    return Batch(changes, Position(), complete, Position())


def read(size: ReadSize, bytes_each: int, times: int) -> list[int]:
    """The number of changes in each of some reads, of which none is the last."""
    numbers = []
    for _ in range(times):
        numbers.append(size.number)
        size.adapt(batch(size.number, bytes_each))
    return numbers


def test_it_grows_while_there_is_more() -> None:
    size = ReadSize(2000)
    assert read(size, 100, 6) == [25, 100, 400, 1600, 2000, 2000]
    size.adapt(batch(30, 100, complete=True))
    assert size.number == 100, "what is large may come next"
    size.adapt(batch(0, 0, complete=True))
    assert read(size, 100, 2) == [100, 400]


def test_few_are_read_that_are_large() -> None:
    size = ReadSize(2000)
    numbers = read(size, 4 * MEBIBYTE, 3)
    assert numbers == [25, 4, 4]
    assert read(size, MEBIBYTE // 4, 3) == [4, 16, 64]
