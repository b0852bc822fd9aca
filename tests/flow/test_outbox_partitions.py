"""Outboxes that are partitioned by a column: a row that has None there is in no partition, and "None" is one."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from stage.items import ONCE, POLICIES, Item, broken, rows_before, several, staged
from stage.outboxes import drain, states
from stage.told import events

from penstock.outbox.message import Message


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


async def test_rows_without_partition_are_under_way_beside_each_other_and_those_of_none_are_not(
    database_url: str,
) -> None:
    stage, under_way, most = staged(partition_by="lane", parallelism=4), dict[str, int](), dict[str, int]()
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
        await stage.insert(test, *[Item(lane=lane) for lane in (None, "None", None, "None", None)])
        await drain(test)
    assert most == {"None": 3, "'None'": 1}


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


async def test_events_tell_no_key_of_a_row_without_partition(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    outboxes = {policy: {"on_failure": policy} for policy in POLICIES}
    stage = several(outboxes, start="end", partition_by="lane", retry=ONCE)
    stage.fails = lambda _message: broken()
    async with stage.open(database_url) as test:
        await stage.insert(test, Item(lane=None))
        await drain(test)
        for one in events(caplog, "outbox.failed"):
            await stage.app.outboxes.skip(test, one["outbox"], one["message"], "a test")
        await drain(test, timedelta(seconds=2))
        await stage.insert(test, Item(lane="x"))
        await drain(test)
        for policy in outboxes:
            for name in ("outbox.failed", "outbox.parked" if policy == "park" else "outbox.halted"):
                assert [one["key"] for one in events(caplog, name) if one["outbox"] == policy] == [None, "x"]
