"""Bad input and faults of reactive tasks: tables of other programs, in whatever state, and writers of all kinds."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from stage.databases import run_sql, sql
from stage.stories import Crew, crew
from stage.waits import until

from penstock import App, Retry, Table, TaskCtx
from penstock.clock import random_of
from penstock.observe import points

MANY, AGAIN = 2_300, 200  # more than are read at once


class Part(Table, source="part", key="nr", managed=False):
    nr: int
    name: str | None = None
    weight: int = 0


class Wide(Table, source="part", key="nr", managed=False):
    nr: int
    name: str | None = None
    colour: str | None = None


class Loose(Table, source="loose", key="name", managed=False):
    name: str
    weight: int | None = None


handled: list[tuple[Any, Any]] = []
LOOSE = App()
BULK = App()
ONCE = Retry(max_attempts=1)


async def wide(ctx: TaskCtx[Wide]) -> None:
    handled.append((ctx.doc_id, (await ctx.get_document()).colour))


@LOOSE.reactive_task(Loose, watch=("weight",), retry=ONCE)
async def loose(ctx: TaskCtx[Loose]) -> None:
    handled.append((ctx.doc_id, (await ctx.get_document()).weight))


@BULK.reactive_task(Part, filter=lambda part: part.name == "x", watch=("weight",), retry=ONCE)
async def bulk(ctx: TaskCtx[Part]) -> None:
    handled.append((ctx.doc_id, None))


@pytest.fixture(autouse=True)
def nothing_handled() -> Iterator[None]:
    handled.clear()
    yield
    handled.clear()


PARTS = "create table part (nr integer primary key, name text, weight integer)"
LOOSE_ROWS = "create table loose (name text primary key, weight integer)"


# ----- tables of other programs


async def test_rows_of_a_table_without_a_primary_key_are_told_apart_by_the_declared_column(database_url: str) -> None:
    await run_sql(database_url, "create table loose (name text, weight integer)")
    async with crew(LOOSE, database_url) as one:
        await sql(one.backend, "insert into loose values ('a', 1), ('ä \"''{}', 2)")
        await one.settle_down()
        assert sorted(handled) == [("a", 1), ("ä \"'{}", 2)]
        await sql(one.backend, "insert into loose values (null, 3)", "update loose set weight = 4 where name = 'a'")
        await one.settle_down()
        assert ("a", 4) in handled, "a row without a key holds up nobody"


WIDE_PARTS = "create table part (nr integer primary key, name text, colour text)"


async def audited(one: Crew, after: timedelta) -> None:
    """Let the planner look for some time, in which it looks at all rows again if that is an hour ago."""
    one.clock.advance(after)
    for _ in range(10):
        await one.plan()
        one.clock.advance(timedelta(seconds=1))


async def test_a_task_whose_rows_cannot_be_looked_at_holds_up_no_writer_and_no_other_task(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    both = App()
    both.reactive_task(Wide, filter=lambda part: part.colour == "red", retry=ONCE, name="a wide one")(wide)
    both.reactive_task(Loose, watch=("weight",), retry=ONCE, name="other")(loose)
    await run_sql(database_url, WIDE_PARTS, LOOSE_ROWS)
    async with crew(both, database_url) as one:
        await one.settle_down()
        await sql(one.backend, "alter table part rename column colour to hue")
        await sql(one.backend, "insert into part (nr, name) values (2, 'b')", "insert into loose values ('x', 1)")
        for _ in range(8):
            await audited(one, timedelta(minutes=20))
            await one.work()
        wide_row, other = await one.backend.engine.store.tasks.list()
        assert other.reconciled_at is not None
        assert one.clock.now() - other.reconciled_at < timedelta(minutes=61)
        told = [record.getMessage() for record in caplog.records if "task.not_reconciled" in record.getMessage()]
        assert len(told) == 1, "once, however often it is tried"
        assert "a wide one" in told[0]
        assert "colour" in told[0]
        assert handled == [("x", 1)]
        await sql(one.backend, "alter table part rename column hue to colour")
        await audited(one, timedelta(minutes=61))
        (again, _) = await one.backend.engine.store.tasks.list()
        assert again.reconciled_at is not None
        assert wide_row.reconciled_at is not None
        assert again.reconciled_at > wide_row.reconciled_at


# ----- writers of all kinds


@pytest.mark.timeout(300)
async def test_a_bulk_update_is_read_in_pieces_and_each_row_is_planned_once(database_url: str) -> None:
    await run_sql(database_url, PARTS)
    sizes: list[int] = []

    async def look(changes: list[Any]) -> None:
        sizes.append(len(changes))

    async with crew(BULK, database_url) as one:
        await one.plan()
        series = f"with recursive series(n) as (select 1 union all select n + 1 from series where n < {MANY})"
        await sql(one.backend, f"insert into part select n, 'a', 1 from ({series} select n from series) numbers")
        points.arm("planner.read", look)
        try:
            await sql(one.backend, "update part set name = 'x'")
            await one.plan()
            await sql(one.backend, f"update part set weight = 2 where nr <= {AGAIN}")
            await one.plan()
        finally:
            points.disarm("planner.read")
        assert sum(sizes) == MANY + AGAIN
        assert max(sizes) <= 2000
        counts = {place: count for place, count in (await one.backend.job_counts()).items() if count}
        assert counts == {"ready": MANY}, "changes of pending rows make no more jobs"
        jobs = await one.backend.jobs(limit=MANY)
        assert Counter(job.args["generation"] for job in jobs) == {2: AGAIN, 1: MANY - AGAIN}


async def test_of_a_truncated_table_nothing_is_run_any_more(postgres_url: str) -> None:
    await run_sql(postgres_url, LOOSE_ROWS)
    async with crew(LOOSE, postgres_url) as one:
        await sql(one.backend, "insert into loose values ('a', 1), ('b', 1)")
        await one.plan()
        await sql(one.backend, "truncate loose", "insert into loose values ('b', 2)")
        await one.settle_down()
        assert handled == [("b", 2)]
        assert Counter(job.state.value for job in await one.backend.jobs()) == {"success": 1, "skipped": 1}


async def test_a_row_that_cannot_be_kept_keeps_none_of_the_others(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a key this long PostgreSQL takes the row itself, and not one that is a little longer."""
    letters = random_of(1)
    longer, long = ("".join(chr(letters.randrange(48, 122)) for _ in range(length)) for length in (2680, 2500))
    short = [f"label {number}" for number in range(20)]
    await run_sql(database_url, LOOSE_ROWS)
    async with crew(LOOSE, database_url) as one:
        names = (*short[:10], longer, long, *short[10:])
        await sql(one.backend, *(f"insert into loose values ('{name}', 1)" for name in names))
        await one.settle_down()
        assert {key for key, _ in handled} - {longer} == {*short, long}
        refused = [record for record in caplog.records if getattr(record, "event", "") == "planner.row_refused"]
        assert bool(refused) is database_url.startswith("postgres")


_WAITING = (
    "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    " and pid <> pg_backend_pid()"
)
_HELD = "select from penstock.task_record where key = $1 for update"


async def test_writers_go_on_while_a_planner_holds_the_records_of_their_rows(postgres_url: str) -> None:
    """PostgreSQL only: on SQLite nobody writes meanwhile, and a planner writes a piece at a time."""
    await run_sql(postgres_url, PARTS)
    async with crew(BULK, postgres_url) as one:
        await sql(one.backend, "insert into part select n, 'x', 1 from generate_series(1, 100) n")
        await one.plan()
        connection, writer = await asyncpg.connect(postgres_url), await asyncpg.connect(postgres_url)
        try:
            await sql(one.backend, "update part set weight = 2")
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
        generations = "select distinct generation from penstock.task_record where gone is null"
        assert [tuple(row) for row in await sql(one.backend, generations)] == [(3,)]


async def _is_one(connection: asyncpg.Connection) -> bool:
    return bool(await connection.fetchval(_WAITING) == 1)
