"""Workers that ran before another program declared an outbox: no update is merged with another one of its row."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from race.test_shared_transactions import drained
from race.test_workers import make_worker
from stage.outboxes import OutboxStage, drain, sql

from penstock import App, Id, MutationCtx, Table
from penstock.app import Backend
from penstock.calls.jobs.group import Groups
from penstock.store.session import Statement
from penstock.testing import TestApp
from penstock.transaction.shared import Shared

NOW = timedelta(0)
MANY = 12

old = App()


class Item(Table, name="item"):
    note: str = ""
    calls: int = 0


@old.internal_mutation
async def add(ctx: MutationCtx, count: int) -> list[Id[Item]]:
    return await ctx.db.insert_many(Item(note=str(one)) for one in range(count))


@old.internal_mutation
async def call(ctx: MutationCtx, item: Id[Item]) -> None:
    row = await ctx.db.get(Item, item)
    assert row is not None
    await ctx.db.patch(Item, item, calls=row.calls + 1)


@old.internal_mutation
async def there_and_back(ctx: MutationCtx, item: Id[Item]) -> None:
    await ctx.db.patch(Item, item, note="away")
    await ctx.db.patch(Item, item, note="0")


@old.internal_mutation
async def replace(ctx: MutationCtx, item: Id[Item]) -> None:
    await ctx.db.insert(Item(note="new"))
    await ctx.db.delete(Item, item)


def declared(name: str = "send") -> OutboxStage:
    """Another program, with an outbox of the table."""
    stage = OutboxStage(Item)
    stage.outbox(Item, name, on=("insert", "update", "delete"), start="end")
    return stage


async def calls(backend: Backend, *items: Id[Item]) -> None:
    for item in items:
        await backend.scheduler.run_after(NOW, call, item)


def told(stage: OutboxStage) -> list[tuple[str, str, int]]:
    found = [(one.kind, one.row.note, one.row.calls) for one in stage.got if one.row is not None]
    stage.got.clear()
    return found


async def test_changes_by_jobs_that_share_a_transaction_are_told_each_and_in_order(database_url: str) -> None:
    async with TestApp(old, database_url) as one:
        worker = make_worker(one)
        a, b = await one.run_mutation(add, 2)
        await calls(one, *[a] * 5)
        await drained(worker)  # merged, as nobody counts them
        stage = declared()
        async with stage.open(database_url, clock=one.clock) as two:
            assert "item" not in one.engine.statements.ordered
            await drain(two)
            await calls(one, a, b, a, b, a)
            await one.scheduler.run_after(NOW, there_and_back, a)
            await drained(worker)
            await drain(two)
            notes = ["0", "1", "0", "1", "0", "away", "0"]
            assert told(stage) == [("update", *one) for one in zip(notes, [6, 1, 7, 2, 8, 8, 8], strict=True)]
            for item in (a, b):
                await one.scheduler.run_after(NOW, replace, item)
            await drained(worker)
            await drain(two)
            assert [one.kind for one in stage.got] == ["insert", "delete"] * 2
        await worker.finish()


async def test_a_worker_learns_of_outboxes_when_it_renews_its_lease(database_url: str) -> None:
    async with TestApp(old, database_url) as one:
        worker = make_worker(one)
        await worker.tick()
        async with declared().open(database_url, clock=one.clock):
            assert "item" not in one.engine.statements.ordered
            one.clock.advance(timedelta(seconds=one.config.lease * 0.3))
            await worker.tick()
            assert "item" in one.engine.statements.ordered
        await worker.finish()


async def test_updates_are_told_each_by_a_transaction_that_had_begun_before(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its snapshot shows nothing of the outbox; on SQLite nobody declares while a transaction is open."""
    begun, goes_on, know = asyncio.Event(), asyncio.Event(), Groups._know

    async def held(group: Groups, shared: Shared, *rest: Any) -> Any:
        assert not await shared.session.fetch(Statement("select * from penstock.outbox"))
        begun.set()
        await goes_on.wait()
        return await know(group, shared, *rest)

    async with TestApp(old, postgres_url) as one:
        worker = make_worker(one)
        (item,) = await one.run_mutation(add, 1)
        await calls(one, *[item] * MANY)
        stage = declared()
        monkeypatch.setattr(Groups, "_know", held)
        working = asyncio.ensure_future(drained(worker))
        await begun.wait()
        async with stage.open(postgres_url, clock=one.clock) as two:
            goes_on.set()
            await working
            await drain(two)
            assert told(stage) == [("update", "0", number + 1) for number in range(MANY)]
        await worker.finish()


async def test_updates_are_merged_again_when_the_last_outbox_of_the_table_is_gone(postgres_url: str) -> None:
    marker = "select count(*) from pg_proc where pronamespace = 'penstock'::regnamespace and proname ~ '^each_'"

    async def is_marked(test: TestApp) -> bool:
        return bool((await sql(test, marker))[0][0])

    first, second = declared("a"), declared("b")
    async with first.open(postgres_url) as one, second.open(postgres_url, clock=one.clock) as two:
        assert await is_marked(one)
        await first.app.outboxes.drop(one, "a")
        assert await is_marked(one)
        await second.app.outboxes.drop(two, "b")
        assert not await is_marked(one)
    async with declared("a").open(postgres_url, clock=one.clock) as three:
        assert await is_marked(three)
