# mypy: disable-error-code="union-attr"
"""Outboxes: which changes are messages, and how handlers get them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from stage.outboxes import OutboxStage, aside, drain, failing, send, sql, text_of

from penstock import ActionCtx, App, DeclarationError, Index, MutationCtx, Retry, Table
from penstock.clock import SystemClock
from penstock.outbox.message import Message
from penstock.sync import ActionCtx as SyncActionCtx
from penstock.sync import MutationCtx as SyncMutationCtx
from penstock.testing import TestApp


class Item(Table):
    note: str = ""
    lane: str | None = "a"
    value: int = 0


class Copy(Table):
    note: str

    by_note = Index("note")


@dataclass
class Order:
    number: int
    note: str = "none"


FILTERS: dict[str, Callable[[Any], Any]] = {
    "exact": lambda row: row.value > 0,
    "wide": lambda row: row.note.matches("^y"),  # which SQLite cannot say
}


@pytest.mark.parametrize("wanted", [("insert",), ("update",), ("delete",), ("insert", "update", "delete")])
@pytest.mark.parametrize("how", FILTERS)
async def test_rows_are_inserted_as_they_enter_a_filter_and_deleted_as_they_leave(
    database_url: str, how: str, wanted: Any
) -> None:
    stage = OutboxStage(Item)
    stage.outbox(Item, filter=FILTERS[how], on=wanted)
    out: dict[str, Any] = {"value": 0, "note": "n"}
    async with stage.open(database_url) as test:
        await drain(test)
        one, two = await stage.insert(test, Item(note="y1", value=1), Item(note="n", value=0))
        await stage.patch(test, Item, one, note="y2", value=2)
        await stage.patch(test, Item, one, **out)
        await stage.patch(test, Item, one, lane="b")
        await stage.patch(test, Item, two, note="y3", value=3)
        await stage.patch(test, Item, two, note="y4", value=4)
        await stage.delete(test, Item, two)
        await stage.delete(test, Item, one)
        await drain(test)
        expected = [
            ("insert", None, "y1"),
            ("update", "y1", "y2"),
            ("delete", "y2", None),
            ("insert", None, "y3"),
            ("update", "y3", "y4"),
            ("delete", "y4", None),
        ]
        keys = [str(one)] * 3 + [str(two)] * 3
        assert [(got.key, got.kind, note(got.previous), note(got.row)) for got in stage.got] == [
            (key, *change) for key, change in zip(keys, expected, strict=True) if change[0] in wanted
        ]
        numbers = [got.number for got in stage.got]
        assert numbers == sorted(set(numbers))
        assert len({got.id for got in stage.got}) == len(stage.got)
        assert all((got.outbox, got.older, got.attempt, got.topic) == ("send", False, 1, None) for got in stage.got)


def note(row: Any) -> str | None:
    return None if row is None else row.note


@pytest.mark.parametrize("how", FILTERS)
async def test_with_fields_other_columns_are_no_updates_and_are_not_there(database_url: str, how: str) -> None:
    stage = OutboxStage(Item)
    stage.outbox(Item, on=("update",), fields=("note",), filter=FILTERS[how])
    async with stage.open(database_url) as test:
        await drain(test)
        (one,) = await stage.insert(test, Item(note="y1", value=1))
        await stage.patch(test, Item, one, lane="b")
        await stage.patch(test, Item, one, note="y2")
        await drain(test)
        assert stage.texts() == ["update y2"]


async def test_each_kind_of_handler_gets_its_messages(database_url: str) -> None:  # noqa: C901 - one of each kind
    app, got = App(tables=[Item, Copy]), list[tuple[str, Any]]()

    def keep(name: str, given: Any) -> None:
        got.append((name, [one.note for one in given] if isinstance(given, list) else given.note))

    @app.outbox(Item)
    async def act(ctx: ActionCtx, item: Item) -> None:
        keep("act", item)

    @app.outbox(Item)
    def act_in_a_thread(ctx: SyncActionCtx, item: Item) -> None:
        keep("act_in_a_thread", item)

    @app.outbox(Item, batch=2)
    async def act_on_many(ctx: ActionCtx, items: list[Item]) -> None:
        keep("act_on_many", items)

    @app.outbox(Item, batch=2)
    def act_on_many_in_a_thread(ctx: SyncActionCtx, items: list[Item]) -> None:
        keep("act_on_many_in_a_thread", items)

    @app.outbox(Item)
    async def write(ctx: MutationCtx, item: Item) -> None:
        await ctx.db.insert(Copy(note=f"write {item.note}"))

    @app.outbox(Item)
    def write_in_a_thread(ctx: SyncMutationCtx, item: Item) -> None:
        ctx.db.insert(Copy(note=f"write_in_a_thread {item.note}"))

    @app.outbox(Item, batch=2)
    async def write_many(ctx: MutationCtx, items: list[Message[Item]]) -> None:
        for item in items:
            assert item.row is not None
            await ctx.db.insert(Copy(note=f"write_many {item.row.note}"))

    @app.mutation
    async def put(ctx: MutationCtx) -> None:
        for text in "abc":
            await ctx.db.insert(Item(note=text))

    @app.query
    async def copies(ctx: Any) -> list[str]:
        return [row.note for row in await ctx.db.query(Copy).with_index(Copy.by_note).collect()]

    async with TestApp(app, database_url) as test:
        await test.relay.drain()
        await test.run_mutation(put)
        await test.relay.drain()
        for name in ("act", "act_in_a_thread"):
            assert [text for one, text in got if one == name] == ["a", "b", "c"]
        for name in ("act_on_many", "act_on_many_in_a_thread"):
            assert [text for one, text in got if one == name] == [["a", "b"], ["c"]]
        names = ("write", "write_in_a_thread", "write_many")
        assert await test.run_query(copies) == sorted(f"{name} {text}" for name in names for text in "abc")


@pytest.mark.parametrize("partitioned", [False, True])
async def test_each_key_is_in_order_and_no_more_run_at_once_than_may(database_url: str, *, partitioned: bool) -> None:
    stage = OutboxStage(Item)
    options: dict[str, Any] = {"partition_by": "lane"} if partitioned else {}
    stage.outbox(Item, on=("insert", "update"), parallelism=3, **options)
    running, most = dict[str, int](), 0

    async def during(_ctx: Any, message: Message[Item]) -> None:
        nonlocal most
        key = message.key or ""
        running[key] = running.get(key, 0) + 1
        most = max(most, sum(running.values()))
        assert running[key] == 1, "one of a key at a time"
        for _ in range(1 + message.number % 7):
            await SystemClock().sleep(0)
        running[key] -= 1

    stage.during = during
    async with stage.open(database_url) as test:
        await drain(test)
        ids = await stage.insert(test, *[Item(lane=lane, note=f"{lane}.0") for lane in "abcdef"])
        for number in range(1, 6):
            for lane, one in zip("abcdef", ids, strict=True):
                await stage.patch(test, Item, one, note=f"{lane}.{number}")
        await drain(test)
        assert most == 3
        for lane in "abcdef":
            texts = [text_of(one).removeprefix("update ") for one in stage.got]
            assert [text for text in texts if text[0] == lane] == [f"{lane}.{number}" for number in range(6)]
        assert {one.key for one in stage.got} == (set("abcdef") if partitioned else set(map(str, ids)))


async def test_a_truncate_comes_after_what_was_before_it_and_before_what_was_after(postgres_url: str) -> None:
    stage = OutboxStage(Item)
    stage.outbox(Item, on=("insert", "truncate"), parallelism=5)

    async def during(_ctx: Any, message: Message[Item]) -> None:
        for _ in range(0 if message.kind == "truncate" else 10):
            await SystemClock().sleep(0)

    stage.during = during
    async with stage.open(postgres_url) as test:
        await drain(test)
        await stage.insert(test, *[Item(note=text) for text in "abc"])
        await sql(test, 'truncate "item"')
        await stage.insert(test, *[Item(note=text) for text in "def"])
        await drain(test)
        texts = stage.texts()
        assert (set(texts[:3]), texts[3], set(texts[4:])) == (set("abc"), "truncate", set("def"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"keep_for": timedelta(days=367)}, "keep_for is a timedelta of up to a year, not "),
        ({"keep_for": timedelta(seconds=-1)}, "keep_for is a timedelta of up to a year, not "),
        ({"keep_for": 60}, "keep_for is a timedelta of up to a year, not 60"),
        ({"linger": timedelta(hours=1), "batch": 2}, "linger is a timedelta of up to a minute, not "),
    ],
)
def test_times_that_are_too_long_are_refused(options: Any, says: str) -> None:
    with pytest.raises(DeclarationError, match=says):
        OutboxStage(Item).outbox(Item, **options)


def test_a_truncate_cannot_wait_for_one_key() -> None:
    with pytest.raises(DeclarationError, match="all keys"):
        OutboxStage(Item).outbox(Item, on=("truncate",), on_failure="halt_key")


async def test_a_batch_lingers_until_it_is_full_or_its_time_is_over(database_url: str) -> None:
    stage = OutboxStage(Item)
    stage.outbox(Item, batch=3, linger=timedelta(seconds=10))
    async with stage.open(database_url) as test:
        await drain(test)
        await stage.insert(test, Item(note="a"))
        await drain(test)
        await drain(test, timedelta(seconds=9))
        assert stage.texts() == []
        await stage.insert(test, Item(note="b"))
        await drain(test, timedelta(seconds=1))
        assert (stage.texts(), stage.calls) == (["a", "b"], [2])
        await stage.insert(test, *[Item(note=text) for text in "cdef"])
        await drain(test)
        assert (stage.texts(), stage.calls) == (["c", "d", "e"], [2, 3])
        await drain(test, timedelta(seconds=10))
        assert stage.texts() == ["f"]


# ----- topics


async def test_payloads_are_as_the_annotation_says_or_fail(database_url: str) -> None:
    app, got = App(), list[Any]()

    @app.outbox("orders", name="take", on_failure="park", retry=Retry(max_attempts=1))
    async def take(ctx: ActionCtx, order: Order) -> None:
        got.append(order)

    @app.outbox("orders", name="whole")
    async def take_whole(ctx: ActionCtx, message: Message[Any]) -> None:
        got.append((message.key, message.topic, message.kind, message.payload))

    async with TestApp(app, database_url) as test:
        await drain(test)
        for payload, key in [
            ('{"number": 1}', None),
            ('{"number": "x"}', "k"),
            ("null", "[vip"),
            ('{"number": 2, "note": "ž\\u0000"}', '["k"]'),
        ]:
            assert await send(test, "orders", payload, key)
        assert not await send(test, "nobody's", "1")
        await drain(test)
        assert [one for one in got if isinstance(one, Order)] == [Order(1), Order(2, "ž\0")]
        parked = await aside(test, "take")
        assert [(one.state, one.key) for one in parked] == [("parked", "k"), ("parked", "[vip")]
        assert all("DataError" in one.trouble.error for one in parked)
        assert [one[0] for one in got if isinstance(one, tuple)] == [None, "k", "[vip", '["k"]']
        assert got[-1][1:3] == ("orders", "message")


@pytest.mark.parametrize("start", ["beginning", "end"])
async def test_a_topic_begins_with_what_is_kept_or_with_what_comes(database_url: str, start: Any) -> None:
    before = OutboxStage()
    before.outbox("t", "first")
    async with before.open(database_url) as test:
        await send(test, "t", '"old"')
    stage = OutboxStage()
    stage.outbox("t", start=start)
    async with stage.open(database_url) as test:
        await send(test, "t", '"new"')
        await drain(test)
        assert stage.texts() == (["old", "new"] if start == "beginning" else ["new"])


# ----- identity


@pytest.mark.parametrize("policy", ["halt", "halt_key", "park"])
async def test_a_message_has_one_id_however_often_it_is_handed_over(database_url: str, policy: str) -> None:
    stage = OutboxStage(Item)
    stage.outbox(Item, on_failure=policy, on=("insert", "update"))
    stage.outbox(Item, "other", on=("insert", "update"))
    attempts = list[tuple[str, int]]()

    async def during(_ctx: Any, message: Message[Item]) -> None:
        if message.outbox == "send" and text_of(message) == "a":
            attempts.append((message.id, message.attempt))

    stage.during, stage.fails = during, failing(lambda: ValueError("no"), "a")
    async with stage.open(database_url) as test:
        (one,) = await stage.insert(test, Item(note="a"))
        await drain(test)
        await stage.patch(test, Item, one, note="b")
    async with stage.open(database_url, clock=test.clock) as test:
        for _ in range(12):
            await drain(test, timedelta(minutes=2))
        stage.fails = lambda _message: None
        await test.engine.store.outboxes.retry("send", test.clock.now())
        await drain(test, timedelta(seconds=2))
        assert len({id_ for id_, _ in attempts}) == 1
        assert [number for _, number in attempts][:3] == [1, 2, 3]
        by_id = {(got.outbox, text_of(got)): got.id for got in stage.got}
        assert len(set(by_id.values())) == len(by_id) >= 2
