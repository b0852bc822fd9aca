"""The end of a run while another transaction writes the record of its row: it waits, and then knows what was written.

PostgreSQL only: on SQLite nobody writes meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
from asyncpg.transaction import Transaction
from stage.crews import Crew, crew
from stage.reacting import Done, Item, booking, done
from stage.waits import until

from penstock import App, Id, TaskCtx
from penstock.store.nouns.tasks import RecordRow

telling = App(tables=[Done])
told: list[tuple[str, int]] = []
_WAITING = (
    "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    " and pid <> pg_backend_pid()"
)
_HOLD = "select from penstock.task_record where key = $1 for update"


@telling.reactive_task(Item, name="tell", filter=lambda item: item.status == "open", watch=("value",))
async def tell(ctx: TaskCtx[Item]) -> None:
    """Tell the outside world which state of an item this is."""
    told.append((str(ctx.doc_id), (await ctx.get_document()).value))


@pytest.fixture(autouse=True)
def nothing_told() -> Iterator[None]:
    told.clear()
    yield
    told.clear()


async def items_of(one: Crew, count: int) -> list[Id[Any]]:
    """So many items whose runs wait, and one more that has had its run, with the last key of all."""
    items = [await one.run("put", value=1, status="closed") for _ in range(count)]
    last = await one.run("put", value=1)
    await one.settle_down()
    for item in items:
        await one.run("patch", item=item, status="open")
    await one.plan()
    return [*items, last]


async def record(one: Crew, item: Id[Any]) -> RecordRow:
    """What is kept of an item."""
    store = one.backend.engine.store
    session = await store.begin_read()
    try:
        (task,) = await store.tasks.list()
        found = await store.tasks.find(session, task.id, f'["{item}"]')
    finally:
        await session.rollback()
    assert found is not None
    return found


async def stand(one: Crew, items: Sequence[Id[Any]]) -> list[tuple[bool, int, str | None]]:
    """Whether there is a job for each of some items, how many changes they had, and whether they are gone."""
    found = [await record(one, item) for item in items]
    return [(row.live, row.generation, row.gone) for row in found]


@asynccontextmanager
async def other(url: str) -> AsyncIterator[tuple[asyncpg.Connection, Transaction]]:
    """A connection of another program, in a transaction."""
    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()
    try:
        yield connection, transaction
    finally:
        await connection.close()


async def waiting(connection: asyncpg.Connection, count: int) -> None:
    """Wait until so many others wait for locks."""

    async def are() -> bool:
        return bool(await connection.fetchval(_WAITING) == count)

    await until(are)


async def settle_beside_a_planner(one: Crew, url: str, last: Id[Any]) -> None:
    """End the runs that a worker has made, while a planner has the records of their rows and waits for the last one."""
    await one.run("patch", item=last, value=7)
    async with other(url) as (connection, transaction):
        await connection.execute(_HOLD, f'["{last}"]')
        planning = asyncio.create_task(one.planner.tick())
        await waiting(connection, 1)
        settling = asyncio.create_task(one.worker.tick())
        await waiting(connection, 2)
        await transaction.rollback()
        await asyncio.gather(planning, settling)


async def test_a_row_that_changed_while_its_end_waited_runs_once_more(postgres_url: str) -> None:
    async with crew(telling, postgres_url) as one:
        item, last = await items_of(one, 1)
        await one.worker.tick()
        await one.worker.wait_for_jobs()
        await one.run("patch", item=item, value=2)
        await settle_beside_a_planner(one, postgres_url, last)
        assert await stand(one, [item]) == [(True, 2, None)]
        await one.settle_down()
        assert await stand(one, [item]) == [(False, 2, None)]
        assert sorted(told) == sorted([(item, 1), (item, 2), (last, 1), (last, 7)])


async def test_a_row_that_was_only_written_while_its_end_waited_is_done(postgres_url: str) -> None:
    """It left the filter: no reason to run, as its record says. That it has no job any more is written after that."""
    async with crew(telling, postgres_url) as one:
        item, last = await items_of(one, 1)
        await one.worker.tick()
        await one.worker.wait_for_jobs()
        await one.run("patch", item=item, status="closed")
        await settle_beside_a_planner(one, postgres_url, last)
        assert await stand(one, [item]) == [(False, 1, "left")]
        await one.run("patch", item=item, status="open")
        await one.settle_down()
        assert await stand(one, [item]) == [(False, 2, None)], "it can enter again"
        assert sorted(told) == sorted([(item, 1), (item, 1), (last, 1), (last, 7)])


async def test_of_runs_that_end_together_each_learns_what_was_written_of_its_own_row(postgres_url: str) -> None:
    async with crew(telling, postgres_url) as one:
        *items, last = await items_of(one, 6)
        await one.worker.tick()
        await one.worker.wait_for_jobs()
        assert one.worker.open_outcomes == 6
        for changed in items[:2]:
            await one.run("patch", item=changed, value=2)
        for left in items[2:4]:
            await one.run("patch", item=left, status="closed")
        await settle_beside_a_planner(one, postgres_url, last)
        assert await stand(one, items) == [(True, 2, None)] * 2 + [(False, 1, "left")] * 2 + [(False, 1, None)] * 2
        await one.settle_down()
        assert await stand(one, items) == [(False, 2, None)] * 2 + [(False, 1, "left")] * 2 + [(False, 1, None)] * 2
        twice = [(item, value) for item in items[:2] for value in (1, 2)]
        assert sorted(told) == sorted([*twice, *((item, 1) for item in items[2:]), (last, 1), (last, 7)])


async def test_whoever_has_the_record_and_writes_nothing_only_keeps_the_end_waiting(postgres_url: str) -> None:
    async with crew(telling, postgres_url) as one:
        item, _ = await items_of(one, 1)
        await one.worker.tick()
        await one.worker.wait_for_jobs()
        async with other(postgres_url) as (connection, transaction):
            await connection.execute("update penstock.task_record set generation = generation + 1")
            settling = asyncio.create_task(one.worker.tick())
            await waiting(connection, 1)
            await transaction.rollback()
            await settling
        assert await stand(one, [item]) == [(False, 1, None)]


@pytest.mark.parametrize("change", [{"value": 2}, {"status": "closed"}])
async def test_a_mutation_whose_end_waited_has_each_state_once(postgres_url: str, change: dict[str, Any]) -> None:
    """It is serializable: what another has written it cannot have seen, so it runs again, or once more."""
    async with crew(booking, postgres_url) as one:
        *items, last = await items_of(one, 3)
        await one.run("patch", item=last, value=7)
        async with other(postgres_url) as (connection, transaction):
            await connection.execute(_HOLD, f'["{items[0]}"]')
            working = asyncio.create_task(one.work())
            await waiting(connection, 1)
            for item in items:
                await one.run("patch", item=item, **change)
            planning = asyncio.create_task(one.planner.tick())
            await waiting(connection, 2)
            await transaction.rollback()
            await asyncio.gather(working, planning)
        await one.settle_down()
        found = [await one.backend.run_query(done, item=str(item)) for item in items]
        for values in found:
            assert len(values) == len(set(values)), "no state twice"
            assert "status" in change or values[-1] == 2
        gone = "left" if "status" in change else None
        assert [(live, left) for live, _, left in await stand(one, items)] == [(False, gone)] * 3
