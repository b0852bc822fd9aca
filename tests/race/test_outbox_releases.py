"""Two releases of a program that declare an outbox differently, and do so at once."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from stage.outboxes import OutboxStage, Sent, drain, failing, outbox_row

from penstock import Index, MutationCtx, NonRetryableError, Table
from penstock.outbox.backfill import BackfillProgress
from penstock.store.nouns.outboxes import OutboxPlan

AFTER = timedelta(seconds=5)


class Item(Table):
    note: str = ""
    value: int = 0

    by_value = Index("value")


async def clear(ctx: MutationCtx) -> None:
    async for one in ctx.db.query(Sent):
        await ctx.db.delete(Sent, one.id)


def release(**options: Any) -> OutboxStage:
    stage = OutboxStage(Item)
    stage.outbox(Item, **options)
    return stage


async def test_a_relay_that_takes_an_outbox_while_a_newer_release_declares_it_leaves_it(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = release(start="end"), release(start="end", on_failure="park", version=2)
    one.fails = two.fails = failing(lambda: NonRetryableError("no"), "bad")
    async with one.open(database_url) as test:
        changes = test.engine.store.changes
        take, declared = changes.take, asyncio.Event()

        async def late(reader: str, lease: int) -> Any:
            if not declared.is_set():
                declared.set()
                async with two.open(database_url, clock=test.clock):
                    pass
            return await take(reader, lease)

        monkeypatch.setattr(changes, "take", late)
        await one.insert(test, Item(note="bad"), Item(note="b"))
        for _ in range(2):
            await drain(test, AFTER)
        assert declared.is_set()
        assert one.texts() == one.tried == []
        async with two.open(database_url, clock=test.clock) as later:
            await drain(later)
            assert two.texts() == ["b"], "it may have it at once"


async def test_of_two_that_make_an_outbox_known_at_once_the_newer_one_says_how_it_is(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newer one looks before the older one has added it."""
    one, two = release(), release(on=("insert", "update"), version=2)
    async with OutboxStage(Item).open(database_url) as test:
        store = test.engine.store.outboxes
        plans: list[OutboxPlan] = [next(iter(stage.app.outboxes)).plan() for stage in (one, two)]
        look, looked = store._list, asyncio.Event()

        async def early(name: str | None) -> Any:
            found = await look(name)
            if not looked.is_set():
                looked.set()
                assert found == []
                assert (await store.declare(plans[0], None, test.clock.now())).plan == plans[0]
            return found

        monkeypatch.setattr(store, "_list", early)
        assert (await store.declare(plans[1], None, test.clock.now())).plan == plans[1]
        assert (await outbox_row(test)).plan == plans[1]


async def test_of_two_that_make_an_outbox_known_at_once_the_older_one_changes_nothing(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = release(), release(on=("insert", "update"), version=2)
    async with OutboxStage(Item).open(database_url) as test:
        store = test.engine.store.outboxes
        plans: list[OutboxPlan] = [next(iter(stage.app.outboxes)).plan() for stage in (two, one)]
        look, looked = store._list, asyncio.Event()

        async def early(name: str | None) -> Any:
            found = await look(name)
            if not looked.is_set():
                looked.set()
                await store.declare(plans[0], None, test.clock.now())
            return found

        monkeypatch.setattr(store, "_list", early)
        assert (await store.declare(plans[1], None, test.clock.now())).plan == plans[0]


@pytest.mark.parametrize("rows", [3, 40])
async def test_a_rebuild_beside_the_start_of_a_release_with_another_order_hands_over_each_row_once(
    database_url: str, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """The newer release is declared when the rebuild has looked in which order rows are read."""
    one = release(mutation=True, reset=clear)
    two = release(mutation=True, reset=clear, order_by="value", version=2)
    async with one.open(database_url) as test:
        ids = await one.insert(test, *(Item(note=f"n{n}", value=1000 - n) for n in range(rows)))
        await drain(test)
        interests, began = test.engine.store.interests, asyncio.Event()
        look = interests.list

        async def late() -> Any:
            found = await look()
            if not began.is_set():
                began.set()
                async with two.open(database_url, clock=test.clock):
                    pass
            return found

        monkeypatch.setattr(interests, "list", late)
        await one.app.outboxes.rebuild(test, "send")
        assert began.is_set()
        async with two.open(database_url, clock=test.clock) as later:
            left = (await outbox_row(later)).backfill
            assert left is not None
            assert BackfillProgress.parse(left).order == ("value",)
            await later.relay.tick()
            await later.relay.outboxes[0].tick()
            await two.patch(later, Item, ids[0], value=-5)
            await drain(later)
            assert sorted(await two.written(later)) == sorted(f"n{n}" for n in range(rows))
