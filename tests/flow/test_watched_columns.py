"""Migrations of other programs that drop a watched column, rename it, or give it another type, under a running program.

PostgreSQL refuses what a trigger depends on; what its owner does then is tried as `docs/changes.md` tells it.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from typing import Any

import asyncpg
import psycopg
import pytest
from stage.databases import run_sql, sql
from stage.outboxes import OutboxStage, drain, outbox_row

from penstock import DeclarationError, Table
from penstock.api.holding import hold, release
from penstock.testing import TestApp

MAKE = "create table part (nr integer primary key, name text, note text, extra text)"
DROP = "alter table part drop column name"
RETYPE = "alter table part alter column name type varchar(99)"


class Part(Table, source="part", key="nr", managed=False):
    nr: int
    name: str | None = None
    note: str | None = None


class Nameless(Table, source="part", key="nr", managed=False):
    nr: int
    note: str | None = None


class Hearing:
    """A program that hears of updates, by a task or an outbox, and what it heard of."""

    def __init__(self, by: str, table: type[Table] = Part, **options: Any) -> None:
        self.by = by
        self.stage = OutboxStage(table)
        if by == "task":
            self.stage.task(table, **options)
        else:
            self.stage.outbox(table, on=("insert", "update"), **options)

    async def rows(self, test: TestApp, passing: timedelta = timedelta(0)) -> list[int]:
        """The keys of rows that it heard of since it was last asked; the pruner looks too if a time passes."""
        if passing:
            test.clock.advance(passing)
            await test.make_service("pruner").tick()
        await test.run_until_idle(advance=False, raise_errors=False)
        await drain(test)
        got, self.stage.got[:] = list(self.stage.got), []
        return [*self.stage.ids(), *(one.row.nr for one in got if one.row is not None)]


WATCHING = [("task", {}), ("task", {"watch": ("name",)}), ("outbox", {"fields": ("name",)})]
watching = pytest.mark.parametrize(("by", "options"), WATCHING, ids=["task, anything", "task, watch", "outbox, fields"])


async def states(test: TestApp) -> list[str]:
    return [row.state for row in await test.engine.store.interests.list() if not row.interest.on_demand]


async def told(test: TestApp) -> list[str]:
    """The kinds of change that the feed tells of."""
    feed = "penstock.change" if test.engine.store.dialect.schemas else "penstock_change"
    return [row[0] for row in await sql(test, f"select kinds from {feed} order by seq")]


async def lost(test: TestApp) -> bool:
    """Whether the outbox has halted, as changes were lost."""
    trouble = (await outbox_row(test)).trouble
    return trouble is not None and "ChangesLost" in trouble.error


@watching
async def test_a_watched_column_is_not_dropped_by_mistake(database_url: str, by: str, options: dict[str, Any]) -> None:
    hearing = Hearing(by, **options)
    await run_sql(database_url, MAKE)
    async with hearing.stage.open(database_url) as test:
        if database_url.startswith("postgres"):
            with pytest.raises(asyncpg.DependentObjectsStillExistError, match="cannot drop column name"):
                await run_sql(database_url, DROP)
            with pytest.raises(asyncpg.FeatureNotSupportedError, match="used in a trigger definition"):
                await run_sql(database_url, RETYPE)
        else:
            with pytest.raises(sqlite3.OperationalError, match="error in trigger _penstock_change_1_"):
                await run_sql(database_url, DROP)
        await run_sql(database_url, "insert into part (nr, name) values (1, 'a')")
        assert await hearing.rows(test) == [1]
        assert await states(test) == ["ok"]


@watching
async def test_a_program_without_the_column_that_starts_first_misses_nothing(
    database_url: str, by: str, options: dict[str, Any]
) -> None:
    first = Hearing(by, **options)
    second = Hearing(by, Nameless, **({"fields": ("note",)} if by == "outbox" else {}))
    await run_sql(database_url, MAKE)
    async with first.stage.open(database_url) as test:
        await run_sql(database_url, "insert into part (nr, name) values (1, 'a')")
        assert await first.rows(test) == [1]
    async with second.stage.open(database_url, clock=test.clock) as test:
        await second.rows(test)
        await run_sql(database_url, DROP, "insert into part (nr) values (2)")
        assert await second.rows(test, timedelta(minutes=2)) == [2]
        assert await states(test) == ["ok"]


@watching
async def test_a_type_is_changed_without_the_trigger_and_a_column_is_dropped_with_it(
    postgres_url: str, by: str, options: dict[str, Any]
) -> None:
    hearing = Hearing(by, **options)
    await run_sql(postgres_url, MAKE)
    async with hearing.stage.open(postgres_url) as test:
        await run_sql(postgres_url, "insert into part (nr, name) values (1, 'a')")
        assert await hearing.rows(test) == [1]
        await run_sql(postgres_url, "drop trigger _penstock_change_1_update on part", RETYPE)
        await run_sql(postgres_url, "update part set name = 'b'")
        assert await hearing.rows(test) == []
        assert await states(test) == ["missing"]
        missed = await hearing.rows(test, timedelta(minutes=2))
        assert await states(test) == ["ok"], "the pruner has made it again"
        assert missed == [1] if by == "task" else await lost(test), "all rows are looked at"
        await run_sql(postgres_url, f"{DROP} cascade", "insert into part (nr) values (2)")
        assert await hearing.rows(test, timedelta(minutes=2)) == []
        assert await states(test) == ["missing"], "it does not fit the table"
    second = Hearing(by, Nameless)
    async with second.stage.open(postgres_url, clock=test.clock) as test:
        assert await states(test) == ["ok"], "a program without the column has made it"
        assert 2 in await second.rows(test) if by == "task" else await lost(test)


# ----- tables that are held


async def test_a_write_to_a_held_table_is_told_as_lost_and_a_missing_column_by_name(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    hearing = Hearing("outbox", fields=("name",))
    await run_sql(database_url, MAKE)
    async with hearing.stage.open(database_url) as test:
        assert await hearing.rows(test) == []
        interests = test.engine.store.interests
        (name,) = [row.interest.name for row in await interests.list() if not row.interest.on_demand]
        assert name in await interests.hold("part")
        assert await states(test) == ["held"]
        await run_sql(database_url, "alter table part drop column extra")
        assert await interests.release("part") == []
        assert (await states(test), await told(test)) == (["ok"], []), "nobody wrote it"
        await interests.hold("part")
        pruner = test.make_service("pruner")
        for _ in range(4):
            await pruner.tick()
            test.clock.advance(timedelta(minutes=1))
        assert await states(test) == ["held"], "the pruner leaves it alone"
        logged = [vars(one)["facts"] for one in caplog.records if vars(one).get("event") == "changes.interest_broken"]
        assert [one["state"] for one in logged if one["interest"] == name] == ["held"], "once, after a minute"
        await run_sql(database_url, "insert into part (nr, name) values (1, 'a')", "update part set nr = 2")
        assert {one.split(",")[0] for one in await told(test)} == {"lost"}
        await run_sql(database_url, "alter table part drop column name")
        assert await interests.release("part") == [name]
        await hearing.rows(test)
        assert await lost(test)


LIKE = MAKE.replace("part", "part_new")
SWAP = ("alter table part rename to part_old", "alter table part_new rename to part")
COPY = (LIKE, "insert into part_new select * from part", "drop table part", "alter table part_new rename to part")


async def test_a_swapped_table_is_told_as_lost_and_captured_in_place_of_the_old_one(database_url: str) -> None:
    hearing = Hearing("task")
    await run_sql(database_url, MAKE, LIKE, "insert into part_new (nr) values (7)")
    async with hearing.stage.open(database_url) as test:
        await asyncio.to_thread(holding, database_url, *SWAP)
        assert (await states(test), [one.split(",")[0] for one in await told(test)]) == (["ok"], ["lost"])
        assert await hearing.rows(test) == [7], "all rows are scanned"
        before = await told(test)
        await run_sql(database_url, "insert into part_old (nr) values (1)", "insert into part (nr) values (8)")
        assert (await told(test))[len(before) :] == ["enter"], "of the table with its name only"
        if database_url.startswith("sqlite"):  # as Alembic and Django change a table there
            await asyncio.to_thread(holding, database_url, *COPY)
            assert (await states(test), (await told(test))[len(before) :]) == (["ok"], ["enter"])


def holding(url: str, *statements: str) -> None:
    """Run statements on the held table, in one transaction."""
    connect: Callable[[str], Any] = psycopg.connect if url.startswith("postgres") else sqlite3.connect
    with closing(connect(url.removeprefix("sqlite:///"))) as connection, connection:
        hold(connection, "part")
        for statement in statements:
            connection.execute(statement)
        release(connection, "part")


async def test_partitions_that_come_and_go_while_a_table_is_held_are_told_as_lost(postgres_url: str) -> None:
    hearing = Hearing("task")
    range_of = "for values from ({}) to ({})"
    await run_sql(
        postgres_url,
        f"{MAKE} partition by range (nr)",
        f"create table part_1 partition of part {range_of.format(0, 10)}",
        f"{LIKE.replace('part_new', 'part_2')}",
        "insert into part_2 (nr) values (11)",
    )
    async with hearing.stage.open(postgres_url) as test:
        attach = f"alter table part attach partition part_2 {range_of.format(10, 20)}"
        await asyncio.to_thread(holding, postgres_url, attach)
        assert (await states(test), await told(test)) == (["ok"], ["lost"])
        assert await hearing.rows(test) == [11]
        await run_sql(postgres_url, "insert into part_1 (nr) values (1)", "truncate part_2")
        assert (await told(test))[1:] == ["enter", "truncate"]
        await asyncio.to_thread(holding, postgres_url, "alter table part detach partition part_1")
        assert (await states(test), (await told(test))[3:]) == (["ok"], ["lost"])
        await run_sql(postgres_url, "truncate part_1", "insert into part (nr) values (12)")
        assert (await told(test))[4:] == ["enter"], "of the partition that is left"


# ----- what cannot be captured


class Viewed(Table, source="viewed", key="nr", managed=False):
    nr: int


class Bare(Table, source="bare", key="nr", managed=False):
    nr: int


async def written(url: str) -> dict[str, list[Any]]:
    """All that is written of what programs declare."""
    async with OutboxStage().open(url) as test:
        schema = "penstock_" if url.startswith("sqlite") else "penstock."
        names = ("outbox", "change_reader", "interest", "task", "cron", "function", "pool", "topic")
        return {name: await sql(test, f"select * from {schema}{name} order by 1") for name in names}


async def test_what_cannot_be_captured_is_refused_and_leaves_what_was_declared(database_url: str) -> None:
    await run_sql(database_url, MAKE, "create view viewed as select nr from part", "create table bare (nr integer)")
    first, changed = OutboxStage(Part), OutboxStage(Part)
    first.outbox(Part, "first")
    changed.outbox(Part, "first", on=("insert", "update"))
    async with first.open(database_url) as test:
        await drain(test)
        row = await outbox_row(test, "first")
    before = await written(database_url)

    async def refuse(stage: OutboxStage, why: str) -> None:
        stage.app.workpool("pool", max_parallelism=3)
        stage.outbox("topic", "second")
        with pytest.raises(DeclarationError, match=why):
            async with stage.open(database_url):
                pass

    await refuse(Hearing("outbox", Bare).stage, "not told apart")
    for by in ("outbox", "task"):
        await refuse(Hearing(by, Viewed).stage, "viewed is a view")
        assert await written(database_url) == before
    await run_sql(
        database_url,
        "drop view viewed",
        "drop table part",
        "create view part as select 1 as nr, 'a' as name, 'a' as note",
    )
    await refuse(changed, "part is a view")
    await run_sql(database_url, "drop view part", MAKE)
    assert await written(database_url) == before
    async with first.open(database_url, clock=test.clock) as test:
        assert await outbox_row(test, "first") == row
