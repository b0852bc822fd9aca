"""Tables that are held while their owner drops and retypes columns: with Alembic, with Django, and by hand."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from flow.test_watched_columns import RETYPE, Hearing, lost, states, told
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool
from stage.guests import django_connection, library_url
from stage.outboxes import run_sql

from penstock.api.holding import hold, release
from penstock.migrations import held

MAKE = "create table part (nr integer primary key, name text, note text, extra text)"
UNDO = "alter table part add column extra text"


def change(url: str) -> str:
    """What the database refuses while triggers watch the table."""
    return RETYPE if url.startswith("postgres") else "alter table part drop column extra"


def with_alembic(url: str) -> None:
    driver = "sqlite" if url.startswith("sqlite") else "postgresql+psycopg"
    with create_engine(library_url(url, driver), poolclass=NullPool).begin() as connection:
        operations = Operations(MigrationContext.configure(connection))
        with held(operations.get_bind(), "part"):
            operations.execute(change(url))


def with_django(url: str) -> None:
    """By the executor of ``manage.py migrate``: forwards, backwards, and forwards again, each in one transaction."""
    connection = django_connection(url)
    from django.db import connections  # noqa: PLC0415 - once Django is configured
    from django.db.migrations import Migration, RunSQL  # noqa: PLC0415
    from django.db.migrations.executor import MigrationExecutor  # noqa: PLC0415
    from django.db.migrations.state import ProjectState  # noqa: PLC0415

    from penstock.django.operations import HoldCapture, ReleaseCapture  # noqa: PLC0415

    migration = Migration("0002_extra", "shop")
    undo = "alter table part alter column name type text" if url.startswith("postgres") else UNDO
    migration.operations = [HoldCapture("part"), RunSQL(change(url), undo), ReleaseCapture("part")]
    connections["default"] = connection  # that of this thread
    with closing(connection):
        executor = MigrationExecutor(connection)
        executor.recorder.ensure_schema()
        executor.apply_migration(ProjectState(), migration)
        executor.unapply_migration(ProjectState(), migration)
        executor.apply_migration(ProjectState(), migration)
        assert ("shop", "0002_extra") in executor.recorder.applied_migrations()
    del connections["default"]


def with_a_driver(url: str) -> None:
    connect: Callable[[str], Any] = psycopg.connect if url.startswith("postgres") else sqlite3.connect
    with closing(connect(url.removeprefix("sqlite:///"))) as connection, connection:
        assert hold(connection, "part") == ["task:react"]
        connection.execute(change(url))
        assert release(connection, "part") == []


@pytest.mark.parametrize("migrate", [with_alembic, with_django, with_a_driver])
async def test_nothing_is_lost_in_one_transaction(database_url: str, migrate: Callable[[str], None]) -> None:
    hearing = Hearing("task")
    await run_sql(database_url, MAKE)
    async with hearing.stage.open(database_url) as test:
        await asyncio.to_thread(migrate, database_url)
        assert await states(test) == ["ok"]
        await run_sql(database_url, "insert into part (nr, name) values (1, 'a')")
        assert await hearing.rows(test) == [1]
        assert await told(test) == ["enter"]


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


async def test_writes_to_a_partition_of_a_held_table_are_told_as_lost(postgres_url: str) -> None:
    hearing = Hearing("task")
    await run_sql(
        postgres_url,
        "create table part (nr integer primary key, name text, note text, extra text) partition by range (nr)",
        "create table part_1 partition of part for values from (0) to (10)",
    )
    async with hearing.stage.open(postgres_url) as test:
        interests = test.engine.store.interests
        await interests.hold("part")
        await run_sql(postgres_url, RETYPE, "alter table part drop column extra")
        assert await told(test) == []
        await run_sql(postgres_url, "insert into part_1 (nr) values (1)")
        await run_sql(postgres_url, "truncate part_1")
        assert [one.split(",")[0] for one in await told(test)] == ["lost", "lost"]
        assert await interests.release("part") == []
        await run_sql(postgres_url, "insert into part (nr, name) values (2, 'a')")
        assert await states(test) == ["ok"]
        assert (await told(test))[2:] == ["enter"]


LIKE = "create table part_new (nr integer primary key, name text, note text, extra text)"
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


async def test_a_table_that_is_copied_under_a_hold_of_its_own_transaction_is_told_as_lost(sqlite_url: str) -> None:
    """The copy has no triggers, so nobody would hear of what is written to it until the release."""
    hearing = Hearing("task")
    await run_sql(sqlite_url, MAKE)
    async with hearing.stage.open(sqlite_url) as test:
        interests = test.engine.store.interests
        await interests.hold("part")
        await run_sql(sqlite_url, *COPY, "insert into part (nr) values (1)")
        assert await interests.release("part") == []
        assert await told(test) == ["lost"]
        assert await hearing.rows(test) == [1], "all rows are scanned"


async def test_partitions_that_come_and_go_while_a_table_is_held_are_told_as_lost(postgres_url: str) -> None:
    hearing = Hearing("task")
    range_of = "for values from ({}) to ({})"
    await run_sql(
        postgres_url,
        "create table part (nr integer primary key, name text, note text, extra text) partition by range (nr)",
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
