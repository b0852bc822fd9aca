"""What is put aside while rows are handed over that are older than their outbox, and how far the feed is read then."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from stage.outboxes import OutboxStage, aside, drain, failing, outbox_row, states
from stage.reactive import Stage

from penstock import Index, Retry, Table
from penstock.testing import TestApp

NEVER = Retry(max_attempts=1)
COUNT = 9


class Item(Table, name="item"):
    note: str = ""
    value: int = 0

    by_value = Index("value")


class Other(Table, name="other"):
    note: str = ""


def staged(**options: Any) -> OutboxStage:
    stage = OutboxStage(Item)
    stage.outbox(Item, **{"order_by": "value", "batch": 1, "retry": NEVER, **options})
    return stage


async def rows_before(url: str, count: int = COUNT) -> list[Any]:
    """Rows that are there before any outbox is; their ids."""
    stage = Stage(Item)
    async with stage.open(url) as test:
        return await stage.insert(test, *[Item(note=str(one), value=one) for one in range(count)])


async def pieces(test: TestApp, count: int = 1) -> None:
    """Hand over that many pieces."""
    await test.relay.tick()
    for _ in range(count):
        await test.relay.lines[0].tick()


# ----- rows that come by their changes


@pytest.mark.parametrize("on", [("insert",), ("insert", "update")])
@pytest.mark.parametrize(("policy", "state"), [("park", "parked"), ("halt_key", "halted")])
async def test_a_row_that_came_by_its_change_and_failed_stays_aside_wherever_the_outbox_is_moved(
    database_url: str, policy: Any, state: str, on: tuple[str, ...]
) -> None:
    ids = await rows_before(database_url)
    stage = staged(on_failure=policy, on=on)
    stage.fails = failing(lambda: ValueError("no"), "7")
    async with stage.open(database_url) as test:
        await pieces(test, 4)
        await stage.patch(test, Item, ids[7], value=-100)
        await drain(test)
        assert (await outbox_row(test)).backfill is None
        (before,) = await aside(test)
        assert (before.state, before.change.kind, before.turned) == (state, "enter", True)
        for _ in range(2):
            await stage.app.outboxes.move(test, "send", "beginning")
            await drain(test)
            assert await aside(test) == [before]
        assert Counter(stage.texts()) == Counter(str(one) for one in range(COUNT) if one != 7)
        stage.fails = lambda _message: None
        await stage.app.outboxes.retry(test, "send")
        await drain(test, timedelta(seconds=2))
        assert (stage.texts(), await aside(test)) == (["7"], [])


@pytest.mark.parametrize("on", [("insert",), ("insert", "update")])
async def test_rows_that_came_by_their_changes_and_wait_are_handed_over_once_though_the_outbox_is_moved(
    database_url: str, on: tuple[str, ...]
) -> None:
    ids = await rows_before(database_url)
    stage = staged(on=on)
    stage.fails = failing(lambda: ValueError("no"), "new")
    async with stage.open(database_url) as test:
        await pieces(test, 4)
        await stage.insert(test, Item(note="new", value=-1))
        for one in (5, 8):
            await stage.patch(test, Item, ids[one], value=-100)
        await drain(test)
        assert ((await outbox_row(test)).backfill, await states(test)) == (None, ["waiting"] * 3)
        await stage.app.outboxes.move(test, "send", "beginning")
        assert [one.change.kind for one in await aside(test)] == ["enter"] * 2, "the new one is read again"
        stage.fails = lambda _message: None
        await stage.app.outboxes.retry(test, "send")
        await drain(test, timedelta(seconds=2))
        assert Counter(stage.texts()) == Counter([*map(str, range(COUNT)), "new"])
        assert len({one.id for one in stage.got}) == len(stage.got)


async def test_the_end_passes_rows_by_that_came_by_their_changes(database_url: str) -> None:
    ids = await rows_before(database_url)
    stage = staged()
    stage.fails = failing(lambda: ValueError("no"), "8")
    async with stage.open(database_url) as test:
        await pieces(test, 4)
        for one in (8, 5):
            await stage.patch(test, Item, ids[one], value=-100)
        await drain(test)
        assert await states(test) == ["waiting"] * 2
        await stage.app.outboxes.move(test, "send", "end")
        stage.fails = lambda _message: None
        await drain(test, timedelta(seconds=2))
        assert (await aside(test), {"5", "8"} & {*stage.texts()}) == ([], set())
