"""Outboxes that are partitioned by a column: a row that has None there is in no partition, and "None" is one."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from stage.outboxes import OutboxStage, drain, failing, states
from stage.reactive import Stage
from stage.told import events

from penstock import Retry, Table
from penstock.outbox.message import Message

SOON = Retry.fixed(timedelta(seconds=10), max_attempts=3, jitter=0)


class Item(Table):
    note: str = ""
    lane: str | None = None


@pytest.mark.parametrize("older", [False, True])
async def test_only_what_is_of_its_row_waits_for_a_message_without_partition(database_url: str, *, older: bool) -> None:
    rows = [Item(note="a"), Item(note="b"), Item(note="c", lane="None"), Item(note="d", lane="None")]
    stage = OutboxStage(Item)
    stage.outbox(Item, on=("insert", "update"), on_failure="halt_key", partition_by="lane", retry=SOON)
    stage.fails = failing(lambda: ValueError("no"), "a", "c")
    ids = list[Any]()
    if older:
        before = Stage(Item)
        async with before.open(database_url) as test:
            ids = await before.insert(test, *rows)
    async with stage.open(database_url) as test:
        ids = ids or await stage.insert(test, *rows)
        await drain(test)
        await stage.patch(test, Item, ids[0], note="a2")
        await stage.patch(test, Item, ids[1], note="b2")
        await stage.insert(test, Item(note="e"))
        await drain(test)
        assert [(one.row and one.row.note, one.key) for one in stage.got] == [("b", None), ("b2", None), ("e", None)]
        assert sorted(await states(test)) == ["halted", "halted", "waiting", "waiting"]
        stage.fails = lambda _message: None
        stage.got.clear()
        await drain(test, timedelta(seconds=10))
        await drain(test)
        assert [one for one in stage.texts() if "a" in one] == ["a", "update a2"]


async def test_rows_without_partition_are_under_way_beside_each_other_and_those_of_none_are_not(
    database_url: str,
) -> None:
    stage, under_way, most = OutboxStage(Item), dict[str, int](), dict[str, int]()
    stage.outbox(Item, partition_by="lane", parallelism=4)
    together = asyncio.Event()

    async def during(_ctx: Any, message: Message[Any]) -> None:
        lane = repr(message.row.lane if message.row else "")
        under_way[lane] = under_way.get(lane, 0) + 1
        most[lane] = max(most.get(lane, 0), under_way[lane])
        if under_way.get("None") == 3:
            together.set()
        if lane == "None":
            await together.wait()
        under_way[lane] -= 1

    stage.during = during
    async with stage.open(database_url) as test:
        await drain(test)
        await stage.insert(test, Item(), Item(lane="None"), Item(), Item(lane="None"), Item())
        await drain(test)
    assert most == {"None": 3, "'None'": 1}


@pytest.mark.parametrize("filter_", [lambda row: row.note == "a", lambda row: row.note.matches("^a")])
async def test_what_leaves_while_its_partition_changes_comes_behind_what_was_told_of_it_before(
    database_url: str, filter_: Any
) -> None:
    stage = OutboxStage(Item)
    options: dict[str, Any] = {"on_failure": "halt_key", "partition_by": "lane", "retry": SOON}
    stage.outbox(Item, on=("insert", "update", "delete"), filter=filter_, start="end", **options)
    stage.fails = failing(lambda: ValueError("no"), "a")
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


@pytest.mark.parametrize("policy", ["halt", "halt_key", "park"])
async def test_events_tell_no_key_of_a_row_without_partition(
    database_url: str, caplog: pytest.LogCaptureFixture, policy: str
) -> None:
    stage = OutboxStage(Item)
    once = Retry.fixed(timedelta(seconds=10), max_attempts=1, jitter=0)
    stage.outbox(Item, start="end", on_failure=policy, partition_by="lane", retry=once)
    stage.fails = lambda _message: ValueError("no")
    async with stage.open(database_url) as test:
        await stage.insert(test, Item())
        await drain(test)
        await stage.app.outboxes.skip(test, "send", events(caplog, "outbox.failed")[0]["message"], "a test")
        await drain(test, timedelta(seconds=2))
        await stage.insert(test, Item(lane="x"))
        await drain(test)
        for name in ("outbox.failed", "outbox.parked" if policy == "park" else "outbox.halted"):
            assert [one["key"] for one in events(caplog, name)] == [None, "x"]
