"""The change feed while transactions overlap in every way: all is read, once, and causes come first."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from stage.databases import run_sql
from stage.feed import NOW, READER, Reader, Writer, Written, check, entry, feed, move, told, write
from stage.needs import examples
from stage.outboxes import OutboxStage, drain
from stage.postgres import server
from stage.waits import until

from penstock import Table
from penstock.changes.position import BEGINNING, Position
from penstock.errors import Conflict, DatabaseBusy
from penstock.store.nouns.changes import BACKSTOP, Rotation
from penstock.store.postgres import signals
from penstock.store.postgres.access import run
from penstock.store.postgres.changes import TURN
from penstock.store.sql.queries import Query
from penstock.store.store import Store

WRITERS, TRANSACTIONS = 24, examples(100)
INTO_SLOT_0 = (
    "insert into penstock.change (slot, xid, interests, kinds, key, changed_at) "
    "values (0, pg_current_xact_id()::text::bigint, '1', 'enter', '[2, 1]', now())"
)
TTL = timedelta(seconds=30)


@asynccontextmanager
async def connections(url: str, count: int) -> AsyncIterator[list[Any]]:
    """Connections of other programs."""
    async with AsyncExitStack() as stack:
        made = [await asyncpg.connect(url) for _ in range(count)]
        for connection in made:
            stack.push_async_callback(connection.close)
        yield made


async def read_all(store: Store, position: Position) -> tuple[list[str], Position]:
    """All entries that are still to be read, and the position after them."""
    batch = await store.changes.read(position, 1000)
    assert batch.complete
    return told(batch), batch.position


# ----- order


@pytest.mark.parametrize("limit", [3, 1000])
async def test_24_writers_that_hold_their_transactions_open(postgres_url: str, limit: int) -> None:
    async with feed(postgres_url) as store, connections(postgres_url, WRITERS) as own:
        written = Written()
        reader = Reader(store, await lease_of(store), limit)
        writing = [
            asyncio.create_task(Writer(connection, number, written).run(TRANSACTIONS))
            for number, connection in enumerate(own)
        ]
        emptied = 0
        for hour in itertools.count(1):
            await reader.step()
            emptied += (await store.changes.rotate(NOW + timedelta(hours=hour), 4)).emptied
            if all(task.done() for task in writing):
                break
        await asyncio.gather(*writing)
        assert emptied or limit < 10, "slots are emptied under way, unless the reader is slow"
        while not await reader.step():
            pass
        assert len(written.entries) > WRITERS * TRANSACTIONS
        check(reader.changes, written.entries, set(written.tallies))


async def test_a_reader_that_is_too_far_behind_to_sort_begins_all_the_same(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with feed(postgres_url) as store, connections(postgres_url, 2) as [slow, quick]:
        await slow.execute(f"begin; {entry(9, 1)}")
        await quick.execute(f"{entry(1, 1)}; {entry(1, 2)}; {entry(1, 3)}")
        first = await store.changes.read(BEGINNING, 2)
        _, middle = await read_all(store, first.position)
        await slow.execute(f"{entry(9, 2)}; commit")
        await quick.execute(entry(1, 4))
        expected = [await to_the_end(store, at) for at in (BEGINNING, first.position, middle)]
        assert expected[2] == ["9.1", "9.2", "1.4"]
        asked = set[str]()

        async def too_slow(own: Any, query: Query, values: dict[str, Any]) -> Any:
            asked.add(query.name)
            if query.name == "begin":
                raise DatabaseBusy("A statement was stopped.", slow=True)
            return await run(own, query, values)

        monkeypatch.setattr("penstock.store.postgres.access.run", too_slow)
        assert [await to_the_end(store, at) for at in (BEGINNING, first.position, middle)] == expected
        assert asked == {"begin", "begin_far", "go_on"}


# ----- room


async def test_an_old_snapshot_writes_late_into_a_slot_that_was_left(postgres_url: str) -> None:
    async with feed(postgres_url) as store, connections(postgres_url, 2) as [old, quick]:
        lease = await lease_of(store)
        await quick.execute(entry(1, 1))
        await old.execute("begin isolation level repeatable read; select 1 from penstock.change_slot")
        found, position = await read_all(store, BEGINNING)
        assert found == ["1.1"]
        assert await move(store, lease, BEGINNING, position)
        await turn(store)
        await quick.execute("begin; select * from penstock.change_0")
        assert await store.changes.rotate(NOW, 9) == Rotation(kept=1), "it is in use"
        await quick.execute("commit")
        await old.execute(INTO_SLOT_0)  # as a trigger that is still about to do what it was told to before
        await quick.execute(entry(1, 2))
        assert await store.changes.rotate(NOW, 9) == Rotation(kept=1), "it has not ended"
        found, later = await read_all(store, position)
        assert found == ["1.2"]
        assert await move(store, lease, position, later)
        await old.execute("commit")
        assert await store.changes.rotate(NOW, 9) == Rotation(kept=1), "the reader has not read it"
        found, last = await read_all(store, later)
        assert found == ["2.1"]
        assert await move(store, lease, later, last)
        assert await store.changes.rotate(NOW, 9) == Rotation(emptied=1)
        assert await own_rows(quick, 0) == 0
        assert await own_rows(quick, 1) == 1
        await old.execute(f"begin isolation level repeatable read; {INTO_SLOT_0}; commit")
        assert (await read_all(store, last))[0] == ["2.1"], "one that writes into an emptied slot is read all the same"


# ----- another server


async def test_a_restored_database_loses_nothing_and_repeats_nothing(postgres_url: str) -> None:
    """As if the dump came from a server that had counted a million transactions more than this one."""
    async with feed(postgres_url) as store, connections(postgres_url, 3) as [one, other, slow]:
        lease = await lease_of(store)
        for name in ("half", "far", "end"):
            await store.changes.register(name, NOW, BEGINNING)
        await slow.execute(f"begin; {entry(9, 1)}")
        await one.execute(f"{entry(1, 1)}; {entry(1, 2)}")
        await other.execute(entry(2, 1))
        positions = {"half": (await store.changes.read(BEGINNING, 2)).position, "far": BEGINNING}
        batch = await store.changes.read(BEGINNING, 10)
        positions[READER] = batch.position
        await slow.execute("commit")
        await one.execute(entry(1, 3))
        positions["end"] = (await store.changes.read(BEGINNING, 10)).position
        expected = {name: told(await store.changes.read(at, 10)) for name, at in positions.items()}
        assert expected == {
            READER: ["9.1", "1.3"],
            "half": ["2.1", "9.1", "1.3"],
            "far": ["9.1", "1.1", "1.2", "2.1", "1.3"],
            "end": [],
        }
        await pretend_restored(one, positions)
        await one.execute(entry(3, 1))  # before anybody reads
        assert await store.changes.take(READER, lease) is not None
        places = {row.name: row.position for row in await store.changes.readers()}
        for number in range(2, 4):
            found = {name: await to_the_end(store, at) for name, at in places.items()}
            assert found == {name: [*told_before, "3.1"] for name, told_before in expected.items()}, "once and in order"
            await one.execute(f"select {number}")
        await other.execute(entry(3, 2))
        assert await to_the_end(store, places["end"]) == ["3.1", "3.2"]
        assert await other.fetchval("select max(seq) - min(seq) from penstock.change") < 100


async def test_a_server_that_has_crashed_takes_no_position_that_was_read_before() -> None:
    """It gives numbers of undone transactions anew, which were not on the disk, and which the position has passed."""
    with server("wal_writer_delay = '10s'\n") as own:
        async with feed(own.url) as store:
            lease = await lease_of(store)
            async with connections(own.url, 1) as [one]:
                await one.execute(entry(1, 1))
            await own.spend_numbers(3000, "rollback")
            before = await store.changes.read(BEGINNING, 100)
            await own.restart()
            async with connections(own.url, 1) as [other]:
                await other.execute(entry(1, 2))
            await own.spend_numbers(3100, "commit")
            assert not await move(store, lease, BEGINNING, before.position)
            with pytest.raises(Conflict, match="has crashed"):
                await store.changes.read(before.position, 100)
            position = await store.changes.take(READER, lease)
            assert position == BEGINNING
            batch = await store.changes.read(position, 100)
            assert told(batch) == ["1.1", "1.2"]
            assert await move(store, lease, BEGINNING, batch.position)


async def pretend_restored(connection: Any, positions: dict[str, Position]) -> None:
    """Make the feed and its readers as those of a server that had counted further."""
    await connection.execute("update penstock.change set xid = xid + 1000000")
    for name, position in positions.items():
        text = str(position.shift(-1_000_000))
        await connection.execute("update penstock.change_reader set position = $1 where name = $2", text, name)
    await connection.execute("update penstock.change_slot set origin = 'elsewhere'")


async def to_the_end(store: Store, position: Position) -> list[str]:
    found = []
    while True:
        batch = await store.changes.read(position, 2)
        found += told(batch)
        position = batch.position
        if batch.complete:
            return found


async def turn(store: Store, slot: int = 1) -> None:
    """Have changes written into another slot from now on."""
    await write(
        store,
        f"update penstock.change_slot set slot = {slot}, since = '{NOW.isoformat()}'",
        TURN.format(slot=slot),
    )


async def lease_of(store: Store, *, take: bool = True) -> int:
    lease = await store.leases.take("reader", TTL, NOW)
    if take:
        await store.changes.take(READER, lease)
    return lease


async def own_rows(connection: Any, slot: int) -> int:
    count: int = await connection.fetchval(f"select count(*) from penstock.change_{slot}")
    return count


class Item(Table, source="item", key="number", managed=False):
    number: int


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


async def test_a_position_of_another_server_is_noticed_while_reading(postgres_url: str) -> None:
    async with feed(postgres_url) as store, connections(postgres_url, 1) as [one]:
        await one.execute(entry(1, 1))
        _, position = await read_all(store, BEGINNING)
        ahead = position.shift(-1_000_000)
        await store.changes.place(READER, NOW, ahead)
        await one.execute("update penstock.change set xid = xid + 1000000")
        await one.execute(entry(1, 2))
        with pytest.raises(Conflict, match="another server"):
            await store.changes.read(ahead, 10)
        position_now = await store.changes.take(READER, await lease_of(store, take=False))
        assert position_now is not None
        assert await to_the_end(store, position_now) == ["1.2"]
