"""Readers of the change feed are woken when another program writes, and look by themselves if that may be too early."""

from __future__ import annotations

import asyncio

from stage.feed import feed, opened, write
from stage.waits import until

from penstock.changes.position import BEGINNING
from penstock.store.contract.feed import BACKSTOP, BY_ITSELF
from penstock.store.contract.session import Statement
from penstock.store.contract.store import Store


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
