"""Bad input and faults of reactive tasks: tables of other programs, in whatever state, and writers of all kinds."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from stage import outboxes
from stage.stories import Crew, crew, run_sql
from stage.waits import until

from penstock import App, DeclarationError, MutationTaskCtx, PenstockError, Retry, SchemaMismatch, Table, TaskCtx
from penstock.clock import random_of
from penstock.observe import points
from penstock.testing import TestClock, gate

MANY, AGAIN = 4_500, 500


class Part(Table, source="part", key="nr", managed=False):
    nr: int
    name: str | None = None
    weight: int = 0


class Foreign(Table, source="depot.part", key="nr", managed=False):
    nr: int
    name: str | None = None


class Wide(Table, source="part", key="nr", managed=False):
    nr: int
    name: str | None = None
    colour: str | None = None


class Thin(Table, source="part", key="nr", managed=False):
    nr: int
    name: str | None = None


class Loose(Table, source="loose", key="name", managed=False):
    name: str
    weight: int | None = None


handled: list[tuple[Any, Any]] = []
NAMED = App()
LIGHT = App()
FOREIGN = App()
WIDE = App()
LOOSE = App()
EMPTY = App()
BULK = App()
ONCE = Retry(max_attempts=1)


@NAMED.reactive_task(Part, watch=("name",), retry=ONCE)
async def named(ctx: MutationTaskCtx[Part]) -> None:
    handled.append((ctx.doc_id, (await ctx.get_document()).name))


@LIGHT.reactive_task(
    Part, filter=lambda part: part.weight < 10, watch=("name", lambda part: part.weight * 2), retry=ONCE
)
async def light(ctx: TaskCtx[Part]) -> None:
    handled.append((ctx.doc_id, (await ctx.get_document()).weight))


@FOREIGN.reactive_task(Foreign, retry=ONCE)
async def foreign(ctx: TaskCtx[Foreign]) -> None:
    handled.append((ctx.doc_id, (await ctx.get_document()).name))


@WIDE.reactive_task(Wide, filter=lambda part: part.colour == "red", watch=("colour",), retry=ONCE)
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


# ----- what is refused


async def test_columns_that_the_table_has_not_are_refused_at_the_start(database_url: str) -> None:
    await outboxes.run_sql(database_url, PARTS)
    with pytest.raises((SchemaMismatch, DeclarationError), match="colour"):
        async with WIDE.open(database_url):
            pass
    async with EMPTY.open(database_url) as backend:
        await run_sql(backend, "insert into part (nr, name) values (1, 'a')")
        assert await backend.engine.store.interests.list() == []


async def test_views_are_refused(database_url: str) -> None:
    await outboxes.run_sql(
        database_url,
        "create table real_part (nr integer primary key, name text, weight integer)",
        "create view part as select * from real_part",
    )
    with pytest.raises(PenstockError, match="view"):
        async with NAMED.open(database_url):
            pass


# ----- tables of other programs


async def test_rows_of_a_table_with_integer_keys_are_handled_whoever_writes_them(database_url: str) -> None:
    await outboxes.run_sql(database_url, PARTS, "insert into part values (-5, 'before', 1)")
    async with crew(NAMED, database_url) as one:
        await one.settle_down()
        assert handled == [(-5, "before")], "rows older than the task are handled too"
        await run_sql(
            one.backend,
            "insert into part values (1, 'a', 1), (2, 'b', 1)",
            "update part set name = 'c' where nr = 2",
            "update part set weight = 2",
            "update part set nr = 3 where nr = 1",
        )
        await one.settle_down()
        assert sorted(handled[1:]) == [(2, "c"), (3, "a")]
        await run_sql(one.backend, "delete from part")
        await one.settle_down()
        assert len(handled) == 3


async def test_rows_of_a_table_without_a_primary_key_are_told_apart_by_the_declared_column(database_url: str) -> None:
    await outboxes.run_sql(database_url, "create table loose (name text, weight integer)")
    async with crew(LOOSE, database_url) as one:
        await run_sql(one.backend, "insert into loose values ('a', 1), ('ä \"''{}', 2)")
        await one.settle_down()
        assert sorted(handled) == [("a", 1), ("ä \"'{}", 2)]
        await run_sql(one.backend, "insert into loose values (null, 3)", "update loose set weight = 4 where name = 'a'")
        await one.settle_down()
        assert ("a", 4) in handled, "a row without a key holds up nobody"


async def test_a_value_that_is_none_of_its_column_holds_up_nobody(sqlite_url: str) -> None:
    """SQLite only, where a column takes what it is given."""
    await outboxes.run_sql(sqlite_url, PARTS)
    async with crew(LIGHT, sqlite_url) as one:
        await run_sql(
            one.backend,
            "insert into part values (1, 'a', 'heavy'), (2, x'ff', 5), (3, 'c', 1.5), (4, 'd', 9223372036854775807)",
            "insert into part values (5, 'e', 5)",
            "update part set weight = x'00' where nr = 4",
        )
        await one.settle_down()
        assert (5, 5) in handled
        assert not {1, 4} & {key for key, _ in handled}


# ----- columns that go, and come back


WIDE_PARTS = "create table part (nr integer primary key, name text, colour text)"
DROP_COLOUR = "alter table part drop column colour cascade"


async def interest_states(one: Crew) -> list[str]:
    return [row.state for row in await one.backend.engine.store.interests.list()]


async def looked_after(one: Crew) -> None:
    """The pruner looks at what captures, and rows are looked at that this calls for."""
    pruner = one.backend.make_service("pruner")
    one.clock.advance(timedelta(minutes=2))
    await pruner.tick()
    await one.settle_down()


async def audited(one: Crew, after: timedelta) -> None:
    """Let the planner look for some time, in which it looks at all rows again if that is an hour ago."""
    one.clock.advance(after)
    for _ in range(10):
        await one.plan()
        one.clock.advance(timedelta(seconds=1))


def watching() -> App:
    """An app whose task watches a column that its filter does not look at."""
    app = App()
    app.reactive_task(Wide, filter=lambda part: part.name == "a", watch=("colour",), retry=ONCE, name="wide")(wide)
    return app


@pytest.mark.parametrize(
    ("app", "state"), [(WIDE, "missing"), (watching(), "altered")], ids=["of a filter", "of a watch"]
)
async def test_a_column_that_is_dropped_with_all_that_depends_on_it_is_noticed_and_mended(
    app: App, state: str, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """PostgreSQL only: SQLite drops no column that a trigger reads."""
    await outboxes.run_sql(postgres_url, WIDE_PARTS)
    async with crew(app, postgres_url) as one:
        await run_sql(one.backend, "insert into part values (1, 'a', 'red')")
        await one.settle_down()
        await run_sql(one.backend, DROP_COLOUR)
        await run_sql(
            one.backend, "insert into part (nr, name) values (2, 'a')", "update part set name = 'b' where nr = 1"
        )
        assert await interest_states(one) == [state]
        await looked_after(one)
        told = [record.getMessage() for record in caplog.records if "changes.interest_broken" in record.getMessage()]
        assert len(told) == 1, "once, however often it is looked at"
        assert f"state={state}" in told[0]
        assert "mended=False" in told[0]
        assert "colour" in told[0]
        assert handled == [(1, "red")]

        await run_sql(one.backend, "alter table part add column colour text")
        await run_sql(one.backend, "update part set name = 'a', colour = 'red'")
        for _ in range(3):
            await looked_after(one)
        assert await interest_states(one) == ["ok"]
        assert sorted(set(handled)) == [(1, "red"), (2, "red")], "what was written meanwhile is found"
        await run_sql(one.backend, "insert into part values (3, 'a', 'red')")
        await one.settle_down()
        assert (3, "red") in handled


async def test_a_task_whose_rows_cannot_be_looked_at_holds_up_no_writer_and_no_other_task(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    both = App()
    both.reactive_task(Wide, filter=lambda part: part.colour == "red", retry=ONCE, name="a wide one")(wide)
    both.reactive_task(Loose, watch=("weight",), retry=ONCE, name="other")(loose)
    await outboxes.run_sql(database_url, WIDE_PARTS, "create table loose (name text primary key, weight integer)")
    async with crew(both, database_url) as one:
        await one.settle_down()
        await run_sql(one.backend, "alter table part rename column colour to hue")
        await run_sql(one.backend, "insert into part (nr, name) values (2, 'b')", "insert into loose values ('x', 1)")
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
        await run_sql(one.backend, "alter table part rename column hue to colour")
        await audited(one, timedelta(minutes=61))
        (again, _) = await one.backend.engine.store.tasks.list()
        assert again.reconciled_at is not None
        assert wide_row.reconciled_at is not None
        assert again.reconciled_at > wide_row.reconciled_at


async def test_a_program_that_needs_a_dropped_column_does_not_start_and_one_without_goes_on(postgres_url: str) -> None:
    clock = TestClock()
    await outboxes.run_sql(postgres_url, WIDE_PARTS)
    async with crew(WIDE, postgres_url, clock) as one:
        await run_sql(one.backend, "insert into part values (1, 'a', 'red')")
        await one.settle_down()
    await outboxes.run_sql(postgres_url, DROP_COLOUR, "insert into part values (2, 'b')")
    with pytest.raises(SchemaMismatch, match="colour"):
        async with WIDE.open(postgres_url):
            pass

    mended = App()

    @mended.reactive_task(Thin, filter=lambda part: part.name == "b", name=f"{wide.__module__}:wide", retry=ONCE)
    async def thin(ctx: TaskCtx[Thin]) -> None:
        handled.append((ctx.doc_id, (await ctx.get_document()).name))

    async with crew(mended, postgres_url, clock) as one:
        await one.settle_down()
        assert await interest_states(one) == ["ok"]
        await run_sql(one.backend, "insert into part values (3, 'b')")
        await one.settle_down()
        assert handled == [(1, "red"), (2, "b"), (3, "b")]


# ----- writers of all kinds


@pytest.mark.timeout(300)
async def test_a_bulk_update_is_read_in_pieces_and_each_row_is_planned_once(database_url: str) -> None:
    await outboxes.run_sql(database_url, PARTS)
    sizes: list[int] = []

    async def look(changes: list[Any]) -> None:
        sizes.append(len(changes))

    async with crew(BULK, database_url) as one:
        await one.plan()
        series = f"with recursive series(n) as (select 1 union all select n + 1 from series where n < {MANY})"
        await run_sql(one.backend, f"insert into part select n, 'a', 1 from ({series} select n from series) numbers")
        points.arm("planner.read", look)
        try:
            await run_sql(one.backend, "update part set name = 'x'")
            await one.plan()
            await run_sql(one.backend, f"update part set weight = 2 where nr <= {AGAIN}")
            await one.plan()
        finally:
            points.disarm("planner.read")
        assert sum(sizes) == MANY + AGAIN
        assert max(sizes) <= 2000
        counts = {place: count for place, count in (await one.backend.job_counts()).items() if count}
        assert counts == {"ready": MANY}, "changes of pending rows make no more jobs"
        jobs = await one.backend.jobs(limit=MANY)
        assert Counter(job.args["generation"] for job in jobs) == {2: AGAIN, 1: MANY - AGAIN}


async def test_rows_in_another_schema_and_in_partitions_are_handled(postgres_url: str) -> None:
    await outboxes.run_sql(
        postgres_url,
        "create schema depot",
        "create table depot.part (nr integer primary key, name text) partition by range (nr)",
        "create table depot.part_low partition of depot.part for values from (0) to (100)",
        "create table depot.part_high partition of depot.part for values from (100) to (200)",
    )
    async with crew(FOREIGN, postgres_url) as one:
        await run_sql(one.backend, "insert into depot.part values (1, 'a'), (101, 'b')")
        await run_sql(one.backend, "insert into depot.part_high values (102, 'c')")
        await one.settle_down()
        assert sorted(handled) == [(1, "a"), (101, "b"), (102, "c")]
        await run_sql(one.backend, "update depot.part set nr = 103, name = 'd' where nr = 1")
        await one.settle_down()
        assert handled[-1] == (103, "d")
        await run_sql(one.backend, "create table depot.part_top partition of depot.part for values from (200) to (300)")
        await run_sql(one.backend, "insert into depot.part values (201, 'e')")
        await one.settle_down()
        assert handled[-1] == (201, "e"), "of partitions that came later too"


async def test_of_a_truncated_table_nothing_is_run_any_more(postgres_url: str) -> None:
    await outboxes.run_sql(postgres_url, PARTS)
    async with crew(NAMED, postgres_url) as one:
        await run_sql(one.backend, "insert into part values (1, 'a', 1), (2, 'b', 1)")
        await one.plan()
        await run_sql(one.backend, "truncate part", "insert into part values (2, 'c', 1)")
        await one.settle_down()
        assert handled == [(2, "c")]
        assert Counter(job.state.value for job in await one.backend.jobs()) == {"success": 1, "skipped": 1}


# ----- clocks


async def test_a_row_that_cannot_be_kept_keeps_none_of_the_others(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a key this long PostgreSQL takes the row itself, and not one that is a little longer."""
    letters = random_of(1)
    longer, long = ("".join(chr(letters.randrange(48, 122)) for _ in range(length)) for length in (2680, 2500))
    short = [f"label {number}" for number in range(20)]
    await outboxes.run_sql(database_url, "create table loose (name text primary key, weight integer)")
    async with crew(LOOSE, database_url) as one:
        names = (*short[:10], longer, long, *short[10:])
        await run_sql(one.backend, *(f"insert into loose values ('{name}', 1)" for name in names))
        await one.settle_down()
        assert {key for key, _ in handled} - {longer} == {*short, long}
        refused = [record for record in caplog.records if getattr(record, "event", "") == "planner.row_refused"]
        assert bool(refused) is database_url.startswith("postgres")


# ----- bulk updates

ROWS, TIMES = 2_100, 3  # more than are read at once
_WAITING = (
    "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    " and pid <> pg_backend_pid()"
)
_HELD = "select from penstock.task_record where key = $1 for update"


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
    await outboxes.run_sql(database_url, PARTS)
    async with crew(BULK, database_url, lease=300.0) as one:  # what traces memory plans slowly
        await insert(one, 1, ROWS)
        few = await most_memory(one)
        await insert(one, ROWS + 1, TIMES * ROWS)
        many = await most_memory(one)
        assert await generations(one) == {(2,), (3,)}, "all were planned"
        assert many < 1.5 * few, f"{few} bytes for {ROWS} rows, {many} for {TIMES} times as many"


@pytest.mark.parametrize("point", ["planner.read", "planner.planned"])
async def test_writers_go_on_while_a_planner_is_in_the_middle_of_a_bulk_update(database_url: str, point: str) -> None:
    await outboxes.run_sql(database_url, PARTS)
    async with crew(BULK, database_url) as one:
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
    await outboxes.run_sql(postgres_url, PARTS)
    async with crew(BULK, postgres_url) as one:
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
