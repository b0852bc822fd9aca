"""Outboxes that begin with their rows in a declared order: nothing is missed or doubled, whatever moves meanwhile."""

from __future__ import annotations

import logging
from collections import Counter
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from stage.outboxes import OutboxStage, Sent, drain, failing, outbox_row, run_sql, sql, states
from stage.reactive import Stage

from penstock import DeclarationError, Index, MutationCtx, Retry, Table
from penstock.testing import TestApp, TestClock

NEVER = Retry.fixed(timedelta(seconds=10), max_attempts=1, jitter=0)


class Item(Table):
    note: str = ""
    value: int = 0
    other: int = 0
    maybe: int | None = None
    tags: tuple[str, ...] = ()

    by_value = Index("value")
    by_both = Index("value", "other")


class Odd(Table, source="odd", key=("tenant", "number"), managed=False):
    tenant: int
    number: int
    note: str


def staged(**options: Any) -> OutboxStage:
    stage = OutboxStage(Item)
    stage.outbox(Item, **{"order_by": "value", "batch": 3, **options})
    return stage


async def rows_before(url: str, *rows: Item) -> list[Any]:
    """Rows that are there before any outbox is; their ids."""
    stage = Stage(Item)
    async with stage.open(url) as test:
        return await stage.insert(test, *rows)


async def pieces(test: TestApp, count: int = 1) -> None:
    """Hand over that many pieces."""
    await test.relay.tick()
    for _ in range(count):
        await test.relay.outboxes[0].tick()


async def test_rows_come_in_the_order_of_a_column_and_then_of_their_keys(database_url: str) -> None:
    values = [5, 1, 3, 1, 9, -2, 3, 3, 1, 0]
    ids = await rows_before(database_url, *[Item(note=str(number), value=one) for number, one in enumerate(values)])
    stage = staged()
    async with stage.open(database_url) as test:
        await pieces(test, 2)
        await stage.insert(test, Item(note="new", value=-9))
        await drain(test)
        order = sorted(range(len(values)), key=lambda number: (values[number], str(ids[number])))
        assert stage.texts() == [*map(str, order), "new"]
        assert (await outbox_row(test)).backfill is None


async def test_rows_come_in_the_order_of_two_columns_or_of_when_they_were_made(database_url: str) -> None:
    values = [(2, 1), (1, 9), (2, 0), (1, -1), (0, 5)]
    rows = [Item(note=str(number), value=one, other=two) for number, (one, two) in enumerate(values)]
    await rows_before(database_url, *rows)
    stage = OutboxStage(Item)
    stage.outbox(Item, order_by=("value", "other"))
    stage.outbox(Item, "made", order_by="creation_time", mutation=True)
    async with stage.open(database_url) as test:
        await drain(test)
        assert stage.texts() == ["4", "3", "1", "2", "0"]
        assert await stage.written(test) == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("on", [("insert",), ("insert", "update"), ("insert", "update", "delete")])
@pytest.mark.parametrize("mutation", [False, True])
async def test_rows_that_move_meanwhile_are_handed_over_once(
    database_url: str, on: tuple[str, ...], *, mutation: bool
) -> None:
    count, clock = 40, TestClock(seed=len(on) + 7 * mutation)
    ids = await rows_before(database_url, *[Item(note=str(one), value=one * 10) for one in range(count)])
    stage = staged(on=on, mutation=mutation)
    moved, gone, turns = set[int](), set[int](), 0
    async with stage.open(database_url) as test:
        while turns < 4 or (await outbox_row(test)).backfill is not None:
            turns += 1
            await pieces(test)
            for _ in range(below(clock, 4) if turns < 60 else 0):
                one = below(clock, count)
                if one not in gone and below(clock, 10) == 0:
                    gone.add(one)
                    await stage.delete(test, Item, ids[one])
                elif one not in gone:
                    moved.add(one)
                    await stage.patch(test, Item, ids[one], value=below(clock, count * 10) - 5)
            ids += await stage.insert(test, Item(note=f"new {turns}", value=below(clock, count * 10)))
        await drain(test)
        texts = await stage.written(test) if mutation else stage.texts()
    inserted = Counter(text for text in texts if not text.startswith(("update", "delete")))
    assert max(inserted.values()) == 1, [text for text, number in inserted.items() if number > 1]
    assert {str(one) for one in range(count) if one not in gone} <= inserted.keys(), "none is missed"
    assert {f"new {turn}" for turn in range(1, turns + 1)} <= inserted.keys()
    calm = [int(text) for text in texts if text.isdigit() and int(text) not in moved]
    assert calm == sorted(calm), "what did not move comes in its order"
    for text in texts:
        kind, _, note = text.partition(" ")
        if kind == "update":
            assert texts.index(note) < texts.index(text), "a change comes after the row"


async def test_a_row_that_moves_twice_between_two_looks_is_judged_by_where_it_was(database_url: str) -> None:
    ids = await rows_before(database_url, *[Item(note=str(one), value=one) for one in range(9)])
    stage = staged()
    async with stage.open(database_url) as test:
        await pieces(test)
        for value in (-1, 100):  # from before it was reached to behind, and on again
            await stage.patch(test, Item, ids[8], value=value)
        for value in (50, -1, 60):  # one that was handed over
            await stage.patch(test, Item, ids[0], value=value)
        await stage.patch(test, Item, ids[2], value=70)  # the last of these
        await drain(test)
        assert stage.texts() == [str(one) for one in range(9)]


@pytest.mark.parametrize("to", ["beginning", "where it is"])
async def test_rows_that_moved_come_once_though_the_outbox_is_moved_back(database_url: str, to: str) -> None:
    ids = await rows_before(database_url, *[Item(note=str(one), value=one) for one in range(9)])
    stage = staged()
    async with stage.open(database_url) as test:
        await pieces(test)
        await stage.patch(test, Item, ids[4], value=-1)  # behind what was handed over
        await stage.patch(test, Item, ids[1], value=20)
        await stage.insert(test, Item(note="new", value=3))
        await pieces(test, 2)  # now where it was before has been passed, too
        place = to if to == "beginning" else (await stage.app.outboxes.list(test))[0].position
        assert place is not None
        await stage.app.outboxes.move(test, "send", place)
        await drain(test, timedelta(seconds=2))
        assert Counter(stage.texts()) == Counter([*map(str, range(9)), "new"])


async def test_fields_that_did_not_change_make_no_message_though_the_order_did(database_url: str) -> None:
    ids = await rows_before(database_url, *[Item(note=str(one), value=one) for one in range(4)])
    stage = staged(on=("insert", "update"), fields=("note",))
    async with stage.open(database_url) as test:
        await drain(test)
        assert stage.texts() == ["0", "1", "2", "3"]
        await stage.patch(test, Item, ids[0], value=7)
        await stage.patch(test, Item, ids[1], value=7, note="one")
        await drain(test)
        assert stage.texts() == ["update one"]


async def test_any_number_of_rows_move_that_were_handed_over(database_url: str) -> None:
    await rows_before(database_url, *[Item(note=str(one), value=one) for one in range(1010)])
    many, single = staged(batch=500), staged(batch=1)
    async with many.open(database_url) as test:
        await pieces(test, 2)
        clock = test.clock
    async with single.open(database_url, clock=clock) as test:
        await sql(test, "update item set value = value - 9999 where value < 1000")
        await drain(test, timedelta(minutes=1))
        assert single.texts() == [str(one) for one in range(1000, 1010)]
        assert await states(test) == []


@pytest.mark.parametrize("policy", ["halt_key", "park"])
async def test_a_row_that_is_put_aside_and_moves_comes_once(database_url: str, policy: Any) -> None:
    ids = await rows_before(database_url, *[Item(note=str(one), value=one) for one in range(9)])
    stage = staged(batch=None, on_failure=policy, retry=NEVER)
    stage.fails = failing(lambda: ValueError("no"), "2")
    async with stage.open(database_url) as test:
        await pieces(test, 4)
        await stage.patch(test, Item, ids[2], value=100)
        await drain(test)
        stage.fails = lambda _message: None
        await test.engine.store.outboxes.retry("send", test.clock.now())
        await drain(test, timedelta(seconds=2))
        assert Counter(stage.texts()) == Counter(map(str, range(9)))


async def test_it_is_rebuilt_in_its_order(database_url: str) -> None:
    stage = OutboxStage(Item)
    stage.outbox(Item, mutation=True, order_by="value", start="end", reset=clear)
    async with stage.open(database_url) as test:
        await stage.insert(test, *[Item(note=str(one), value=-one) for one in range(5)])
        await drain(test)
        assert await stage.written(test) == ["0", "1", "2", "3", "4"], "as they were written"
        await stage.app.outboxes.rebuild(test, "send")
        await drain(test, timedelta(seconds=2))
        assert await stage.written(test) == ["4", "3", "2", "1", "0"]


async def test_another_order_holds_from_the_next_beginning_on(database_url: str) -> None:
    ids = await rows_before(database_url, *[Item(note=str(one), value=one, other=-one) for one in range(12)])
    first, second = staged(), staged(order_by="other")
    async with first.open(database_url) as test:
        await pieces(test, 2)
        assert first.texts() == ["0", "1", "2", "3", "4", "5"]
        clock = test.clock
    async with second.open(database_url, clock=clock) as test:
        await second.patch(test, Item, ids[0], value=100)
        await second.patch(test, Item, ids[11], value=-1)
        await drain(test, timedelta(minutes=1))
        assert second.texts() == ["6", "7", "8", "9", "10", "11"], "none is missed, and none comes twice"


# ----- what databases hold


KINDS: dict[str, tuple[Any, str, str, list[str]]] = {
    "text": (
        str,
        "text",
        "text",
        ["''", "'a'", "'B'", "'b'", "'ä'", "'a b'", "'ab'", "'Z'", "'_'", "'\u2028'", "'é'", "'e'"],
    ),
    "collated": (
        str,
        'text collate "ucs_basic"',
        "text collate nocase",
        ["'a'", "'B'", "'b'", "'A'", "'ä'", "'ab'", "'Ab'"],
    ),
    "float": (
        float,
        "float8",
        "real",
        ["0.1", "0.2", "0.30000000000000004", "0.3", "1e300", "-1e-300", "5e-324", "1", "1e22"],
    ),
    "single": (float, "real", "real", ["0.1", "0.2", "0.3", "1e30", "-1e-30", "16777217", "16777216"]),
    "numeric": (
        Decimal,
        "numeric",
        "numeric",
        ["1", "1.0", "10", "9", "-3.14", "0.1", "0.10", "12345678901234567890.5", "2"],
    ),
    "integer": (
        int,
        "bigint",
        "integer",
        ["9223372036854775807", "-9223372036854775808", "0", "10", "9", "9007199254740993"],
    ),
    "time": (
        datetime,
        "timestamptz",
        "text",
        [f"'2026-0{1 + n % 3}-01 0{n}:00:00.{n}00001+0{n % 4}:00'" for n in range(9)],
    ),
    "uuid": (UUID, "uuid", "text", [f"'{n:032x}'" for n in (9, 10, 2**127, 5, 2**64, 0)]),
    "bytes": (bytes, "bytea", "blob", []),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_the_order_is_that_of_the_database(database_url: str, kind: str) -> None:
    lite = database_url.startswith("sqlite")
    annotation, on_postgres, on_sqlite, values = KINDS[kind]
    if kind == "bytes":
        values = [f"x'{one}'" if lite else f"'\\x{one}'" for one in ("", "00", "ff", "00ff", "61", "6162")]

    class Valued(Table, source="valued", key="number", managed=False):
        number: int
        note: str
        value: annotation  # type: ignore[valid-type]

    column = on_sqlite if lite else on_postgres
    rows = [f"({at}, '{at}', {one})" for at, one in enumerate([*values, *values])]
    await run_sql(
        database_url,
        f"create table valued (number integer primary key, note text not null, value {column} not null)",
        f"insert into valued values {', '.join(rows)}",
    )
    stage = OutboxStage(Valued)
    stage.outbox(Valued, order_by="value", batch=1, fields=("number", "note"))
    async with stage.open(database_url) as test:
        expected = [row[0] for row in await sql(test, "select note from valued order by value, number")]
        await pieces(test, len(values))
        # Those that were handed over and move on, and those that were not and move back: each is known by its place.
        handed = stage.texts()
        first, last = handed[-1], expected[-1]
        for number, place in ((first, "desc"), (last, "asc")):
            to = f"(select o.value from valued o order by o.value {place} limit 1)"
            await run_sql(database_url, f"update valued set value = {to} where number = {number}")
        await drain(test)
        rest = stage.texts()
    assert Counter(handed + rest) == Counter(expected)
    calm = [note for note in expected if note not in {first, last}]
    assert [note for note in handed + rest if note in calm] == calm


async def test_what_was_passed_is_judged_by_the_collation_of_the_column(database_url: str) -> None:
    """C comes behind b where upper and lower case are one, and before a where they are not."""

    class Named(Table, source="named", key="number", managed=False):
        number: int
        note: str
        value: str

    collation = "nocase" if database_url.startswith("sqlite") else '"ucs_basic"'
    await run_sql(
        database_url,
        f"create table named (number integer primary key, note text not null, value text collate {collation} not null)",
        "insert into named values (1, '1', 'a'), (2, '2', 'b'), (3, '3', 'C'), (4, '4', 'd'), (5, '5', 'A')",
    )
    stage = OutboxStage(Named)
    stage.outbox(Named, order_by="value", batch=1)
    async with stage.open(database_url) as test:
        await pieces(test, 3)
        first = stage.texts()
        await run_sql(database_url, "update named set note = note || note, value = 'A'")
        await drain(test)
        rest = stage.texts()
    assert sorted(note[0] for note in first + rest) == list("12345")
    assert all(len(note) == 2 for note in rest)


async def test_rows_with_a_key_of_several_columns(database_url: str) -> None:
    await run_sql(
        database_url,
        "create table odd (tenant integer, number integer, note text not null, primary key (tenant, number))",
        "insert into odd values " + ", ".join(f"({n % 3}, {n}, 'n{n % 4}')" for n in range(24)),
    )
    stage = OutboxStage(Odd)
    stage.outbox(Odd, order_by=("note", "number"), batch=2)
    async with stage.open(database_url) as test:
        await pieces(test, 3)
        await run_sql(database_url, "update odd set number = number + 100 where number in (4, 7, 23)")
        await drain(test)
        got = [(one.row.note, one.row.number) for one in stage.got if one.row is not None]
        expected = sorted((f"n{n % 4}", n) for n in range(24))
        assert [one for one in got if one[1] not in {104, 107, 123, 4, 7, 23}] == [
            one for one in expected if one[1] not in {4, 7, 23}
        ]
        assert {one[1] for one in got} >= {104, 107, 123}


# ----- refused, and told


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"order_by": "none"}, "no field 'none'"),
        ({"order_by": ("value", "value")}, "twice"),
        ({"order_by": "maybe"}, "may be None"),
        ({"order_by": "tags"}, "no order"),
        ({"order_by": "value", "on": ("update",)}, "only with on="),
        ({"order_by": "value", "start": "end"}, "begins behind them"),
    ],
)
def test_what_has_no_order_is_refused(options: Any, says: str) -> None:
    with pytest.raises(DeclarationError, match=says):
        OutboxStage(Item).outbox(Item, **options)


def test_a_topic_has_no_rows_to_order() -> None:
    with pytest.raises(DeclarationError, match="for tables"):
        OutboxStage(Item).outbox("topic", order_by="value")


async def test_a_column_that_may_be_null_in_the_database_is_refused(database_url: str) -> None:
    await run_sql(
        database_url, "create table odd (tenant integer, number integer, note text, primary key (tenant, number))"
    )
    stage = OutboxStage(Odd)
    stage.outbox(Odd, order_by="note")
    with pytest.raises(DeclarationError, match="note of odd may be NULL"):
        async with stage.open(database_url):
            pass


@pytest.mark.parametrize("order", ["value", "other", "value other", "id", "note"])
async def test_an_order_without_an_index_is_told(
    database_url: str, caplog: pytest.LogCaptureFixture, order: str
) -> None:
    stage = OutboxStage(Item)
    stage.outbox(Item, order_by=order.split())
    caplog.set_level(logging.WARNING, "penstock")
    async with stage.open(database_url) as test:
        told = [record.facts for record in caplog.records if getattr(record, "event", "") == "outbox.unindexed"]  # type: ignore[attr-defined]
        assert [one["columns"] for one in told] == ([order] if order in {"other", "note"} else [])
        await drain(test)
    caplog.clear()
    async with stage.open(database_url, clock=test.clock):
        assert "outbox.unindexed" not in caplog.text, "all rows were handed over"


async def clear(ctx: MutationCtx) -> None:
    async for one in ctx.db.query(Sent):
        await ctx.db.delete(Sent, one.id)


def below(clock: TestClock, end: int) -> int:
    return int(clock.random() * end)
