"""Migrations of other programs that drop a watched column, rename it, or give it another type, under a running program.

PostgreSQL refuses what a trigger depends on; what its owner does then is tried as `docs/changes.md` tells it.
"""

from __future__ import annotations

import sqlite3
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from stage.outboxes import OutboxStage, drain, outbox_row, run_sql, sql

from penstock import Table
from penstock.testing import TestApp

MAKE = "create table part (nr integer primary key, name text, note text)"
DROP = "alter table part drop column name"
RETYPE = "alter table part alter column name type varchar(99)"
IN_USE = "cannot drop column name of table part because other objects depend on it"
NOT_RETYPED = "cannot alter type of a column used in a trigger definition"


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
NOT_WATCHING = [
    ("task", {"on": ("enter", "leave")}),
    ("task", {"filter": lambda part: part.note == "a", "watch": ("name",)}),
    ("outbox", {}),
]
IDS = ["task, anything", "task, watch", "outbox, fields"]


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


@pytest.mark.parametrize(("by", "options"), WATCHING, ids=IDS)
async def test_a_watched_column_is_not_dropped_by_mistake(database_url: str, by: str, options: dict[str, Any]) -> None:
    hearing = Hearing(by, **options)
    await run_sql(database_url, MAKE)
    async with hearing.stage.open(database_url) as test:
        if database_url.startswith("postgres"):
            with pytest.raises(asyncpg.DependentObjectsStillExistError, match=IN_USE):
                await run_sql(database_url, DROP)
            with pytest.raises(asyncpg.FeatureNotSupportedError, match=NOT_RETYPED):
                await run_sql(database_url, RETYPE)
        else:
            with pytest.raises(sqlite3.OperationalError, match="error in trigger _penstock_change_1_"):
                await run_sql(database_url, DROP)
        await run_sql(database_url, "insert into part values (1, 'a', 'a')")
        assert await hearing.rows(test) == [1]
        assert await states(test) == ["ok"]


@pytest.mark.parametrize(("by", "options"), WATCHING, ids=IDS)
async def test_a_watched_column_that_is_renamed_fails_no_write(
    database_url: str, by: str, options: dict[str, Any]
) -> None:
    """PostgreSQL tells of it as lost; SQLite renames it in the triggers."""
    hearing, postgres = Hearing(by, **options), database_url.startswith("postgres")
    await run_sql(database_url, MAKE)
    async with hearing.stage.open(database_url) as test:
        await run_sql(database_url, "insert into part values (1, 'a', 'a')")
        assert await hearing.rows(test) == [1]
        await run_sql(database_url, "alter table part rename column name to title")
        await run_sql(database_url, "update part set title = 'b'")
        assert (await told(test))[-1] == ("lost" if postgres else "change")
        assert await states(test) == ["altered"]


@pytest.mark.parametrize("statement", [DROP, RETYPE])
@pytest.mark.parametrize(("by", "options"), NOT_WATCHING, ids=["task, leave", "task, filter", "outbox"])
async def test_a_column_that_no_condition_of_a_trigger_names_may_go_and_is_told_as_lost(
    postgres_url: str, by: str, options: dict[str, Any], statement: str
) -> None:
    """PostgreSQL only: SQLite refuses to drop what a trigger reads, and has no other types."""
    hearing = Hearing(by, **options)
    await run_sql(postgres_url, MAKE)
    async with hearing.stage.open(postgres_url) as test:
        await run_sql(postgres_url, statement, "insert into part (nr, note) values (2, 'a')")
        assert await told(test) == ["lost" if statement == DROP else "enter"]
        assert await states(test) == ["altered"]


@pytest.mark.parametrize(("by", "options"), WATCHING, ids=IDS)
async def test_a_column_that_is_dropped_with_its_triggers_has_them_made_by_a_program_without_it(
    postgres_url: str, by: str, options: dict[str, Any]
) -> None:
    hearing = Hearing(by, **options)
    await run_sql(postgres_url, MAKE)
    async with hearing.stage.open(postgres_url) as test:
        await run_sql(postgres_url, "insert into part values (1, 'a', 'a')")
        assert await hearing.rows(test) == [1]
        await run_sql(postgres_url, f"{DROP} cascade", "insert into part (nr) values (2)")
        assert await hearing.rows(test, timedelta(minutes=2)) == []
        assert await states(test) == ["missing"], "it does not fit the table"
    second = Hearing(by, Nameless)
    async with second.stage.open(postgres_url, clock=test.clock) as test:
        assert await states(test) == ["ok"]
        if by == "task":
            assert 2 in await second.rows(test), "all rows are looked at"
        else:
            assert await lost(test)


@pytest.mark.parametrize(("by", "options"), WATCHING, ids=IDS)
async def test_a_program_without_the_column_that_starts_first_misses_nothing(
    database_url: str, by: str, options: dict[str, Any]
) -> None:
    first = Hearing(by, **options)
    second = Hearing(by, Nameless, **({"fields": ("note",)} if by == "outbox" else {}))
    await run_sql(database_url, MAKE)
    async with first.stage.open(database_url) as test:
        await run_sql(database_url, "insert into part values (1, 'a', 'a')")
        assert await first.rows(test) == [1]
    async with second.stage.open(database_url, clock=test.clock) as test:
        await second.rows(test)
        await run_sql(database_url, DROP, "insert into part (nr) values (2)")
        assert await second.rows(test, timedelta(minutes=2)) == [2]
        assert await states(test) == ["ok"]


@pytest.mark.parametrize(("by", "options"), WATCHING, ids=IDS)
async def test_a_type_is_changed_without_the_trigger_which_the_pruner_makes_anew(
    postgres_url: str, by: str, options: dict[str, Any]
) -> None:
    hearing = Hearing(by, **options)
    await run_sql(postgres_url, MAKE)
    async with hearing.stage.open(postgres_url) as test:
        await run_sql(postgres_url, "insert into part values (1, 'a', 'a')")
        assert await hearing.rows(test) == [1]
        await run_sql(postgres_url, "drop trigger _penstock_change_1_update on part", RETYPE)
        await run_sql(postgres_url, "update part set name = 'b'")
        assert await hearing.rows(test) == []
        assert await states(test) == ["missing"]
        missed = await hearing.rows(test, timedelta(minutes=2))
        assert await states(test) == ["ok"]
        if by == "task":
            assert missed == [1], "all rows are looked at"
        else:
            assert await lost(test)


async def test_on_sqlite_an_outbox_of_whole_rows_lets_a_column_go_with_its_trigger(sqlite_url: str) -> None:
    """Its trigger names all columns of the table, also those that nobody declares."""
    hearing = Hearing("outbox", Nameless)
    await run_sql(sqlite_url, MAKE)
    async with hearing.stage.open(sqlite_url) as test:
        await hearing.rows(test)
        with pytest.raises(sqlite3.OperationalError, match=r"_penstock_change_1_update after drop column: .*old\.name"):
            await run_sql(sqlite_url, DROP)
        await run_sql(sqlite_url, "drop trigger _penstock_change_1_update", DROP)
        await hearing.rows(test, timedelta(minutes=2))
        assert (await states(test), await lost(test)) == (["ok"], True)
