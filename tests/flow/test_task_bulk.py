"""A bulk update of a table with a task: planners need no more memory for more rows, and keep no writer waiting."""

from __future__ import annotations

import asyncio
import tracemalloc
from typing import Any

import asyncpg
import pytest
from stage import outboxes
from stage.crews import Crew, crew, run_sql
from stage.waits import until

from penstock import App, Table, TaskCtx
from penstock.testing import gate

ROWS, TIMES = 2_100, 3  # more than are read at once
_WAITING = (
    "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    " and pid <> pg_backend_pid()"
)
_HELD = "select from penstock.task_record where key = $1 for update"


class Part(Table, source="part", key="nr", managed=False):
    nr: int
    name: str | None = None
    weight: int = 0


app = App()


@app.reactive_task(Part, filter=lambda part: part.name == "x", watch=("weight",))
async def sync(ctx: TaskCtx[Part]) -> None:
    raise AssertionError("only planners are at work here")


async def prepare(url: str) -> None:
    await outboxes.run_sql(url, "create table part (nr integer primary key, name text, weight integer)")


async def insert(one: Crew, first: int, last: int) -> None:
    """Insert rows that the task is about, and plan for them."""
    series = f"with recursive series(n) as (select {first} union all select n + 1 from series where n < {last})"
    await run_sql(one.backend, f"insert into part select n, 'x', 1 from ({series} select n from series) numbers")
    await one.plan()


async def most_memory(one: Crew) -> int:
    """How much more memory than before it takes at most to plan for an update of all rows."""
    await run_sql(one.backend, "update part set weight = weight + 1")
    tracemalloc.start()
    try:
        await one.plan()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


async def generations(one: Crew) -> set[tuple[Any, ...]]:
    """Which generations the records of rows have that are there."""
    table = "penstock.task_record" if one.backend.engine.store.dialect.schemas else "penstock_task_record"
    return {
        tuple(row) for row in await run_sql(one.backend, f"select distinct generation from {table} where gone is null")
    }


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_planning_a_bulk_update_takes_no_more_memory_for_more_rows(database_url: str) -> None:
    await prepare(database_url)
    async with crew(app, database_url, lease=300.0) as one:  # what traces memory plans slowly
        await insert(one, 1, ROWS)
        few = await most_memory(one)
        await insert(one, ROWS + 1, TIMES * ROWS)
        many = await most_memory(one)
        assert await generations(one) == {(2,), (3,)}, "all were planned"
        assert many < 1.5 * few, f"{few} bytes for {ROWS} rows, {many} for {TIMES} times as many"


@pytest.mark.parametrize("point", ["planner.read", "planner.planned"])
async def test_writers_go_on_while_a_planner_is_in_the_middle_of_a_bulk_update(database_url: str, point: str) -> None:
    await prepare(database_url)
    async with crew(app, database_url) as one:
        await insert(one, 1, 100)
        await run_sql(one.backend, "update part set weight = 2")
        with gate(point, most=1) as held:
            planning = asyncio.create_task(one.plan())
            await held.arrived()
            await run_sql(one.backend, "update part set weight = 3", "delete from part where nr = 100")
            held.open()
            await planning
        await one.plan()
        assert await generations(one) == {(3,)}


async def test_writers_go_on_while_a_planner_holds_the_records_of_their_rows(postgres_url: str) -> None:
    """PostgreSQL only: on SQLite nobody writes meanwhile, and a planner writes a piece at a time."""
    await prepare(postgres_url)
    async with crew(app, postgres_url) as one:
        await insert(one, 1, 100)
        connection, writer = await asyncpg.connect(postgres_url), await asyncpg.connect(postgres_url)
        try:
            await run_sql(one.backend, "update part set weight = 2")
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute(_HELD, "[99]")  # the last key, so that the planner has all others by then
            planning = asyncio.create_task(one.plan())
            await until(lambda: _is_one(connection))
            await writer.execute("set lock_timeout = '200ms'")
            assert await writer.execute("update part set weight = 3") == "UPDATE 100"
            assert await writer.execute("delete from part where nr = 50") == "DELETE 1"
            await transaction.rollback()
            await planning
            await one.plan()
        finally:
            await connection.close()
            await writer.close()
        assert await generations(one) == {(3,)}


async def _is_one(connection: asyncpg.Connection) -> bool:
    return bool(await connection.fetchval(_WAITING) == 1)
