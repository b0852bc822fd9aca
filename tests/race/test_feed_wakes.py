"""Readers of the change feed are woken when another program writes, and look by themselves if that may be too early."""

from __future__ import annotations

import asyncio

import pytest
from stage.feed import feed, opened, write
from stage.outboxes import OutboxStage, drain, run_sql
from stage.waits import until

from penstock import Table
from penstock.changes.position import BEGINNING
from penstock.store.nouns.changes import BACKSTOP, BY_ITSELF
from penstock.store.postgres import signals
from penstock.store.session import Statement
from penstock.store.store import Store


class Item(Table, source="item", key="number", managed=False):
    number: int


async def told(store: Store, reader: asyncio.Event) -> None:
    """Have a reader that has read all there is told of what is written from now on."""
    store.signals.subscribe(reader)
    position = (await store.changes.read(BEGINNING, 10)).position

    async def is_told() -> bool:
        return store.signals.until_fed(reader, position) == BACKSTOP

    await until(is_told)
    reader.clear()


async def test_a_reader_is_woken_by_what_another_program_writes(empty_database_url: str) -> None:
    async with feed(empty_database_url) as store, opened(empty_database_url) as other:
        reader = asyncio.Event()
        await told(store, reader)
        await write(other, "insert into entry values (1, 1, '')")
        async with asyncio.timeout(BACKSTOP * 5):
            await reader.wait()


async def test_a_reader_looks_by_itself_while_somebody_writes_who_has_not_committed(postgres_url: str) -> None:
    async with feed(postgres_url) as store, opened(postgres_url) as other:
        reader = asyncio.Event()
        await told(store, reader)
        session = await other.begin_write()
        try:
            await session.execute(Statement("insert into entry values (1, 1, '')"))
            async with asyncio.timeout(BACKSTOP * 5):
                await reader.wait()
            seen = await store.changes.read(BEGINNING, 10)
            assert (seen.changes, store.signals.until_fed(reader, seen.position)) == ([], BY_ITSELF)
            await session.commit()
        finally:
            await session.rollback()
        seen = await store.changes.read(seen.position, 10)
        assert len(seen.changes) == 1


async def test_who_is_told_of_nothing_looks_as_often_as_before(postgres_url: str) -> None:
    async with feed(postgres_url) as store:
        position = (await store.changes.read(BEGINNING, 10)).position
        assert store.signals.until_fed(asyncio.Event(), position) == BY_ITSELF, "it does not listen"


async def test_an_idle_outbox_is_told_of_what_another_program_writes(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "_READS", 0.1)  # so that it counts as idle soon after the last write
    stage = OutboxStage(Item)
    stage.outbox(Item, start="end")
    await run_sql(empty_database_url, "create table item (number integer primary key)")
    async with stage.open(empty_database_url) as test:
        await run_sql(empty_database_url, "insert into item values (1)")
        await drain(test)
        (outbox,) = test.relay.outboxes
        test.engine.store.signals.subscribe(outbox.wake)

        async def is_idle() -> bool:
            return await outbox.tick() == BACKSTOP

        await until(is_idle)
        monkeypatch.setattr(signals, "_READS", 60)
        await outbox.tick()
        outbox.wake.clear()
        await run_sql(empty_database_url, "insert into item values (2)")
        async with asyncio.timeout(BACKSTOP * 5):
            await outbox.wake.wait()
