"""Outboxes that begin with their rows in a declared order: nothing is missed or doubled, whatever moves meanwhile."""

from __future__ import annotations

import logging
from collections import Counter
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from flow.items import ONCE, Item, handed, pieces, rows_before, several, staged, valued
from stage.databases import run_sql, sql
from stage.outboxes import OutboxStage, Sent, aside, drain, outbox_row, send
from stage.waits import events

from penstock import DeclarationError, MutationCtx, Table
from penstock.testing import TestClock


class Odd(Table, source="odd", key=("tenant", "number"), managed=False):
    tenant: int
    number: int
    note: str


ORDERED: dict[str, Any] = {"order_by": "value", "batch": 3}


async def test_rows_come_in_the_order_of_columns_and_then_of_their_keys(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "penstock")
    values = [(2, 1), (1, 9), (2, 0), (1, -1), (0, 5), (1, 9), (-3, 7)]
    rows = [Item(note=str(number), value=one, other=two) for number, (one, two) in enumerate(values)]
    ids = await rows_before(database_url, *rows)
    keys = [str(one) for one in ids]
    orders: dict[str, list[int]] = {
        "value": sorted(range(len(values)), key=lambda at: (values[at][0], keys[at])),
        "other": sorted(range(len(values)), key=lambda at: (values[at][1], keys[at])),
        "note": sorted(range(len(values)), key=str),
        "value other": sorted(range(len(values)), key=lambda at: (*values[at], keys[at])),
        "id": sorted(range(len(values)), key=lambda at: keys[at]),
        "creation_time": list(range(len(values))),
    }
    stage = several({order: {"order_by": order.split(), "batch": 3} for order in orders})
    async with stage.open(database_url) as test:
        told = [one["columns"] for one in events(caplog, "outbox.unindexed")]
        assert sorted(told) == ["creation_time", "note", "other"], "only these have no index"
        await stage.insert(test, Item(note="new", value=-9, other=-9))
        await drain(test)
        got = await handed(stage, test)
        assert got == {order: [*map(str, numbers), "new"] for order, numbers in orders.items()}
        assert (await outbox_row(test, "value")).backfill is None
    caplog.clear()
    async with stage.open(database_url, clock=test.clock):
        assert "outbox.unindexed" not in caplog.text, "all rows were handed over"


@pytest.mark.parametrize("on", [("insert",), ("insert", "update"), ("insert", "update", "delete")])
@pytest.mark.parametrize("mutation", [False, True])
@pytest.mark.parametrize("order", ["value", ()])
async def test_rows_that_move_meanwhile_are_handed_over_once(
    database_url: str, order: Any, on: tuple[str, ...], *, mutation: bool
) -> None:
    count, clock = 40, TestClock(seed=len(on) + 7 * mutation)
    ids = await rows_before(database_url, *[Item(note=str(one), value=one * 10) for one in range(count)])
    places: list[Any] = [one if order else str(ids[one]) for one in range(count)]
    stage = staged(**ORDERED | {"order_by": order}, on=on, mutation=mutation)
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
        (texts,) = (await handed(stage, test)).values()
    inserted = Counter(text for text in texts if not text.startswith(("update", "delete")))
    assert max(inserted.values()) == 1, [text for text, number in inserted.items() if number > 1]
    assert {str(one) for one in range(count) if one not in gone} <= inserted.keys(), "none is missed"
    assert {f"new {turn}" for turn in range(1, turns + 1)} <= inserted.keys()
    calm = [places[int(text)] for text in texts if text.isdigit() and int(text) not in moved]
    assert calm == sorted(calm), "what did not move comes in its order"
    new = [text for text in texts if text.startswith("new")]
    assert order or new == [f"new {turn}" for turn in range(1, turns + 1)], "and what is new after it"
    for text in texts:
        kind, _, note = text.partition(" ")
        if kind == "update" and (order or note in inserted):
            assert texts.index(note) < texts.index(text), "a change comes after the row"
        elif kind == "update":
            assert int(note) in gone, "the row was deleted before its key was reached"


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


async def test_fields_that_did_not_change_make_no_message_though_the_order_did(database_url: str) -> None:
    ids = await rows_before(database_url, *valued(4))
    stage = staged(**ORDERED, on=("insert", "update"), fields=("note",))
    async with stage.open(database_url) as test:
        await drain(test)
        assert stage.texts() == ["0", "1", "2", "3"]
        await stage.patch(test, Item, ids[0], value=7)
        await stage.patch(test, Item, ids[1], value=7, note="one")
        await drain(test)
        assert stage.texts() == ["update one"]


async def test_the_reader_moves_with_the_older_rows_that_are_handed_over(database_url: str) -> None:
    await rows_before(database_url, *valued(300))
    stage = staged(batch=1)
    stage.outbox("topic", "second")
    async with stage.open(database_url) as test:
        changes = test.engine.store.changes
        await pieces(test)
        for last in (False, False, True):
            await send(test, "topic", "1")
            await (drain(test) if last else pieces(test))
            (reader,) = [one for one in await changes.readers() if one.name == "outbox:send"]
            assert (await changes.lag(reader.position, 1000)).rows == 0
            assert ((await outbox_row(test)).backfill is None) is last


async def test_another_order_holds_from_the_next_beginning_on(database_url: str) -> None:
    ids = await rows_before(database_url, *[Item(note=str(one), value=one, other=-one) for one in range(12)])
    first, second = staged(**ORDERED), staged(order_by="other")
    async with first.open(database_url) as test:
        await pieces(test, 2)
        assert first.texts() == ["0", "1", "2", "3", "4", "5"]
        clock = test.clock
    async with second.open(database_url, clock=clock) as test:
        await second.patch(test, Item, ids[0], value=100)
        await second.patch(test, Item, ids[11], value=-1)
        await drain(test, timedelta(minutes=1))
        assert second.texts() == ["6", "7", "8", "9", "10", "11"], "none is missed, and none comes twice"


KINDS: dict[str, tuple[Any, str, str, str]] = {
    "text": (str, "text", "text", "'' 'a' 'B' 'b' 'ä' 'ab' 'Z' '_' '\u2028' 'é' 'e'"),
    "collated": (str, 'text collate "ucs_basic"', "text collate nocase", "'a' 'B' 'b' 'A' 'ä' 'ab' 'Ab'"),
    "float": (float, "float8", "real", "0.1 0.2 0.30000000000000004 0.3 1e300 -1e-300 5e-324 1 1e22"),
    "single": (float, "real", "real", "0.1 0.2 0.3 1e30 -1e-30 16777217 16777216"),
    "numeric": (Decimal, "numeric", "numeric", "1 1.0 10 9 -3.14 0.1 0.10 12345678901234567890.5 2"),
    "integer": (int, "bigint", "integer", "9223372036854775807 -9223372036854775808 0 10 9 9007199254740993"),
    "time": (
        datetime,
        "timestamptz",
        "text",
        " ".join(f"'2026-0{1 + n % 3}-01T0{n}:00:00.{n}00001+0{n % 4}:00'" for n in range(9)),
    ),
    "uuid": (UUID, "uuid", "text", " ".join(f"'{n:032x}'" for n in (9, 10, 2**127, 5, 2**64, 0))),
    "bytes": (bytes, "bytea", "blob", " ".join(f"x'{one}'" for one in ("", "00", "ff", "00ff", "61", "6162"))),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_the_order_is_that_of_the_database(database_url: str, kind: str) -> None:
    lite = database_url.startswith("sqlite")
    annotation, on_postgres, on_sqlite, given = KINDS[kind]
    values = (given if lite or kind != "bytes" else given.replace("x'", "'\\x")).split(" ")

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
        # One that was handed over moves on, and one that was not moves back: each is known by its place.
        before = stage.texts()
        first, last = before[-1], expected[-1]
        for number, place in ((first, "desc"), (last, "asc")):
            to = f"(select o.value from valued o order by o.value {place} limit 1)"
            await run_sql(database_url, f"update valued set value = {to} where number = {number}")
        await drain(test)
        rest = stage.texts()
    assert Counter(before + rest) == Counter(expected)
    calm = [note for note in expected if note not in {first, last}]
    assert [note for note in before + rest if note in calm] == calm


async def test_a_column_that_may_be_null_in_the_database_is_refused(database_url: str) -> None:
    await run_sql(
        database_url, "create table odd (tenant integer, number integer, note text, primary key (tenant, number))"
    )
    stage = OutboxStage(Odd)
    stage.outbox(Odd, order_by="note")
    with pytest.raises(DeclarationError, match="note of odd may be NULL"):
        async with stage.open(database_url):
            pass


async def clear(ctx: MutationCtx) -> None:
    async for one in ctx.db.query(Sent):
        await ctx.db.delete(Sent, one.id)


def below(clock: TestClock, end: int) -> int:
    return int(clock.random() * end)


COUNT = 9
ONE_BY_ONE: dict[str, Any] = {"order_by": "value", "batch": 1, "retry": ONCE}


@pytest.mark.parametrize("on", [("insert",), ("insert", "update")])
@pytest.mark.parametrize(("policy", "state"), [("park", "parked"), ("halt_key", "halted")])
async def test_a_row_that_came_by_its_change_and_failed_stays_aside_wherever_the_outbox_is_moved(
    database_url: str, policy: Any, state: str, on: tuple[str, ...]
) -> None:
    ids = await rows_before(database_url, *valued(COUNT))
    stage = staged("7", **ONE_BY_ONE, on_failure=policy, on=on)
    async with stage.open(database_url) as test:
        await pieces(test, 4)
        await stage.patch(test, Item, ids[7], value=-100)
        await drain(test)
        assert (await outbox_row(test)).backfill is None
        (before,) = await aside(test)
        assert (before.state, before.change.kind, before.as_insert) == (state, "enter", True)
        for _ in range(2):
            await stage.app.outboxes.move(test, "send", "beginning")
            await drain(test)
            assert await aside(test) == [before]
        assert Counter(stage.texts()) == Counter(str(one) for one in range(COUNT) if one != 7)
        stage.fails = lambda _message: None
        await stage.app.outboxes.retry(test, "send")
        await drain(test, timedelta(seconds=2))
        assert (stage.texts(), await aside(test)) == (["7"], [])
