# mypy: disable-error-code="union-attr"
"""Outboxes: which changes are messages, and how handlers get them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from flow.items import FILTERS, ONCE, POLICIES, Item, begun, handed, of, rows_before, several, staged, valued
from stage.databases import sql
from stage.outboxes import OutboxStage, drain, outbox_row, send, states, text_of

from penstock import ActionCtx, App, Index, MutationCtx, Retry, Table
from penstock.changes.position import BEGINNING
from penstock.changes.rotation import SLOT_AGE
from penstock.clock import SystemClock
from penstock.outbox.message import Message
from penstock.services.pruner import Pruner
from penstock.sync import ActionCtx as SyncActionCtx
from penstock.sync import MutationCtx as SyncMutationCtx
from penstock.testing import TestApp


class Copy(Table):
    note: str

    by_note = Index("note")


ALL = ("insert", "update", "delete")


@pytest.mark.parametrize("how", FILTERS)
async def test_rows_are_inserted_as_they_enter_a_filter_and_deleted_as_they_leave(database_url: str, how: str) -> None:
    outboxes: dict[str, dict[str, Any]] = {kind: {"on": (kind,)} for kind in ALL}
    outboxes |= {"all": {"on": ALL}, "notes": {"on": ("update",), "fields": ("note",)}}
    stage = several(outboxes, filter=FILTERS[how])
    out: dict[str, Any] = {"value": 0, "note": "n"}
    async with stage.open(database_url) as test:
        await drain(test)
        one, two = await stage.insert(test, Item(note="y1", value=1), Item(note="n", value=0))
        await stage.patch(test, Item, one, note="y2", value=2)
        await stage.patch(test, Item, one, value=3)
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
            ("update", "y2", "y2"),
            ("delete", "y2", None),
            ("insert", None, "y3"),
            ("update", "y3", "y4"),
            ("delete", "y4", None),
        ]
        keys = [str(one)] * 4 + [str(two)] * 3
        for outbox in (*ALL, "all"):
            got = [one for one in stage.got if one.outbox == outbox]
            assert [(one.key, one.kind, note(one.previous), note(one.row)) for one in got] == [
                (key, *change) for key, change in zip(keys, expected, strict=True) if outbox in {"all", change[0]}
            ]
            numbers = [one.number for one in got]
            assert numbers == sorted(set(numbers))
            assert len({one.id for one in got}) == len(got)
        assert all((one.older, one.attempt, one.topic) == (False, 1, None) for one in stage.got)
        assert (await handed(stage, test))["notes"] == ["update y2", "update y4"], "other columns are no updates"


def note(row: Any) -> str | None:
    return None if row is None else row.note


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


async def test_a_topic_begins_with_what_is_kept_or_with_what_comes(database_url: str) -> None:
    before = OutboxStage()
    before.outbox("t", "first")
    async with before.open(database_url) as test:
        await send(test, "t", '"old"')
    stage = OutboxStage()
    for start in ("beginning", "end"):
        stage.outbox("t", start, start=start)
    async with stage.open(database_url) as test:
        await send(test, "t", '"new"')
        await drain(test)
        assert await handed(stage, test) == {"beginning": ["old", "new"], "end": ["new"]}


async def test_a_message_has_one_id_however_often_it_is_handed_over(database_url: str) -> None:
    outboxes: dict[str, dict[str, Any]] = {policy: {"on_failure": policy} for policy in POLICIES} | {"other": {}}
    stage = several(outboxes, "a", on=("insert", "update"))
    attempts = {policy: list[tuple[str, int]]() for policy in outboxes}

    async def during(_ctx: Any, message: Message[Item]) -> None:
        if text_of(message) == "a":
            attempts[message.outbox].append((message.id, message.attempt))

    stage.during = during
    async with begun(stage, database_url, "a") as test:
        ((one,),) = await sql(test, "select id from item")
        await stage.patch(test, Item, one, note="b")
    async with stage.open(database_url, clock=test.clock) as test:
        for _ in range(12):
            await drain(test, timedelta(minutes=2))
        stage.fails = lambda _message: None
        for policy in POLICIES:
            await test.engine.store.outboxes.retry(policy, test.clock.now())
        await drain(test, timedelta(seconds=2))
        for policy in POLICIES:
            assert len({id_ for id_, _ in attempts[policy]}) == 1, policy
            assert [number for _, number in attempts[policy]][:3] == [1, 2, 3]
        by_id = {(got.outbox, text_of(got)): got.id for got in stage.got}
        assert len(set(by_id.values())) == len(by_id) >= 6


FIVE = timedelta(seconds=5)


async def test_a_batch_lingers_until_it_is_full_or_its_time_is_over(database_url: str) -> None:
    stage = staged(batch=3, linger=2 * FIVE)
    async with begun(stage, database_url, "a") as test:
        await drain(test, timedelta(seconds=9))
        assert stage.texts() == []
        await stage.insert(test, *of("b"))
        await drain(test, timedelta(seconds=1))
        assert (stage.texts(), stage.calls) == (["a", "b"], [2])
        await stage.insert(test, *of(*"cdef"))
        await drain(test)
        assert (stage.texts(), stage.calls) == (["c", "d", "e"], [2, 3])
        await drain(test, 2 * FIVE)
        assert stage.texts() == ["f"]


@pytest.mark.parametrize("mutation", [False, True])
async def test_pieces_of_a_batch_that_failed_wait_no_more(database_url: str, *, mutation: bool) -> None:
    stage = staged("21", batch=64, linger=FIVE, on_failure="park", retry=ONCE, mutation=mutation)
    async with begun(stage, database_url, *map(str, range(40))) as test:
        assert stage.calls == []
        await drain(test, FIVE)
        got = await stage.written(test) if mutation else list(dict.fromkeys(stage.texts()))
        assert got == [str(number) for number in range(40) if number != 21]
        await stage.insert(test, *of("a"))
        await drain(test)
        assert stage.texts() == [], "others wait as before"
        await drain(test, FIVE)
        assert (await outbox_row(test)).delivered == 40


async def test_retries_of_others_do_not_have_a_batch_wait_longer(database_url: str) -> None:
    retry = Retry.fixed(timedelta(seconds=2), jitter=0)
    stage = staged("0", batch=3, linger=FIVE, on_failure="halt_key", retry=retry)
    async with begun(stage, database_url, "0", "1", "2") as test:
        assert stage.texts() == ["1", "2"]
        await stage.insert(test, *of("a"))
        for _ in range(4):
            assert stage.texts() == []
            await drain(test, timedelta(seconds=2))
        assert stage.texts() == ["a"]


@pytest.mark.parametrize("order", [(), ("value",)])
async def test_older_rows_fill_batches_of_any_size_and_wait_for_nothing(
    database_url: str, order: tuple[str, ...]
) -> None:
    await rows_before(database_url, *valued(700))
    stage = staged(batch=600, linger=FIVE, order_by=order)
    async with stage.open(database_url) as test:
        await drain(test)
        assert stage.calls == [600, 100]


async def test_what_was_captured_fills_batches_that_are_larger_than_what_is_read_at_once(database_url: str) -> None:
    stage = staged(batch=2500, linger=FIVE, start="end")
    async with stage.open(database_url) as test:
        await drain(test)
        for _ in range(3):
            await stage.insert(test, *valued(1000))
        await drain(test)
        assert stage.calls == [2500]
        await drain(test, FIVE)
        assert stage.calls == [2500, 500]


@pytest.mark.parametrize("older", [False, True])
async def test_only_what_is_of_its_row_waits_for_a_message_without_partition(database_url: str, *, older: bool) -> None:
    rows = [
        Item(note="a", lane=None),
        Item(note="b", lane=None),
        Item(note="c", lane="None"),
        Item(note="d", lane="None"),
    ]
    stage = staged("a", "c", on=("insert", "update"), on_failure="halt_key", partition_by="lane")
    ids = await rows_before(database_url, *rows) if older else []
    async with stage.open(database_url) as test:
        ids = ids or await stage.insert(test, *rows)
        await drain(test)
        await stage.patch(test, Item, ids[0], note="a2")
        await stage.patch(test, Item, ids[1], note="b2")
        await stage.insert(test, Item(note="e", lane=None))
        await drain(test)
        assert [(one.row and one.row.note, one.key) for one in stage.got] == [("b", None), ("b2", None), ("e", None)]
        assert sorted(await states(test)) == ["halted", "halted", "waiting", "waiting"]
        stage.fails = lambda _message: None
        stage.got.clear()
        await drain(test, timedelta(seconds=10))
        await drain(test)
        assert [one for one in stage.texts() if "a" in one] == ["a", "update a2"]


@pytest.mark.parametrize("filter_", [lambda row: row.note == "a", lambda row: row.note.matches("^a")])
async def test_what_leaves_while_its_partition_changes_comes_behind_what_was_told_of_it_before(
    database_url: str, filter_: Any
) -> None:
    options: dict[str, Any] = {"on": ("insert", "update", "delete"), "filter": filter_, "start": "end"}
    stage = staged("a", on_failure="halt_key", partition_by="lane", **options)
    async with stage.open(database_url) as test:
        one, other = await stage.insert(test, Item(note="a", lane="x"), Item(note="b", lane="x"))
        await drain(test)
        await stage.patch(test, Item, one, note="b", lane="y")
        await stage.patch(test, Item, other, note="a", lane="y")
        await drain(test)
        assert await states(test) == ["halted", "waiting", "halted"]
        stage.fails = lambda _message: None
        for _ in range(2):
            await drain(test, timedelta(seconds=10))
        got = [(message.kind, message.key) for message in stage.got]
        assert sorted(got) == [("delete", "x"), ("insert", "x"), ("insert", "y")]
        assert got.index(("insert", "x")) < got.index(("delete", "x"))


def listening(topic: str, name: str) -> OutboxStage:
    stage = OutboxStage()
    stage.outbox(topic, name)
    return stage


async def prune(test: TestApp) -> None:
    """Have the pruner look after the feed for a while."""
    pruner = test.make_service("pruner")
    assert isinstance(pruner, Pruner)
    for _ in range(6):
        test.clock.advance(SLOT_AGE)
        await pruner.tick()


async def kept(test: TestApp) -> list[str | None]:
    return [one.after for one in (await test.engine.store.changes.read(BEGINNING, 100)).changes]


async def test_messages_to_a_topic_whose_outbox_was_dropped_hold_up_nobody_and_are_pruned(database_url: str) -> None:
    gone, here, again = listening("gone", "old"), listening("here", "new"), listening("gone", "again")
    async with gone.open(database_url) as test:
        await send(test, "gone", '"read"')
        await drain(test)
        await send(test, "gone", '"unread"')
        await gone.app.outboxes.drop(test, "old")
        assert gone.texts() == ["read"]
    async with here.open(database_url, clock=test.clock) as test:
        for number in range(3):
            assert await send(test, "gone", f'"dead {number}"'), "it is no error to send to it"
            await send(test, "here", f'"{number}"')
        await prune(test)
        assert '"2"' in await kept(test), "it is not delivered yet"
        await drain(test)
        assert here.texts() == ["0", "1", "2"]
        await send(test, "gone", '"dead"')
        for _ in range(2):
            await drain(test, timedelta(seconds=6))  # who has nothing to deliver moves on all the same
        await prune(test)
        assert await kept(test) == []
        await here.app.outboxes.drop(test, "new")
        await send(test, "gone", '"later"')
        assert await kept(test)
        await prune(test)
        assert await kept(test) == [], "there is no reader at all"
    async with again.open(database_url, clock=test.clock) as test:
        await send(test, "gone", '"new"')
        await drain(test)
        assert again.texts() == ["new"]
