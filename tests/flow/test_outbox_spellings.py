"""Programs that spell one table in different ways: what is compared is the table, and not how it is spelled."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from stage.databases import run_sql
from stage.outboxes import OutboxStage, drain

from penstock import App, DeclarationError, Id, MutationCtx, Table
from penstock.testing import TestApp

UPDATES = [("update", "w", 1), ("update", "w", 2), ("update", "w", 3), ("update", "x", 1)]
OTHERS = [("insert", "n", 0), ("delete", "w", 3), ("delete", "x", 1)]


class Person(Table, name="person"):
    name: str
    calls: int = 0


writer = App(tables=[Person])


@writer.internal_mutation
async def add(ctx: MutationCtx, name: str) -> Id[Any]:
    return await ctx.db.insert(Person(name=name))


@writer.internal_mutation
async def call(ctx: MutationCtx, person: str) -> None:
    row = await ctx.db.get(Person, Id(person))
    assert row is not None
    await ctx.db.patch(Person, Id(person), calls=row.calls + 1)


@writer.internal_mutation
async def drop(ctx: MutationCtx, person: str) -> None:
    await ctx.db.delete(Person, Id(person))


async def run(test: TestApp, *calls: tuple[Any, str]) -> None:
    """Run jobs that are ready at once, and share transactions."""
    for function, argument in calls:
        await test.scheduler.run_after(timedelta(0), function, argument)
    await test.run_until_idle()


def theirs(source: str) -> type[Table]:
    """The table, as another program declares it."""

    class Theirs(Table, source=source, key="id", managed=False):
        id: str  # type: ignore[assignment]  # it is a column of theirs
        name: str
        calls: int

    return Theirs


def listening(source: str) -> OutboxStage:
    """Another program, with an outbox of the table."""
    table = theirs(source)
    stage = OutboxStage(table)
    stage.outbox(table, on=("insert", "update", "delete"), start="end")
    return stage


def told(stage: OutboxStage) -> list[tuple[str, str, int]]:
    """What was told of each row, in order; jobs of different rows may come in any order."""
    found = [(one.kind, one.row or one.previous) for one in stage.got]
    stage.got.clear()
    return sorted(((kind, row.name, row.calls) for kind, row in found if row is not None), key=lambda one: one[1])


async def each_is_told(url: str, source: str) -> None:
    async with TestApp(writer, url) as test:
        w, x = [await test.run_mutation(add, name) for name in "wx"]
        await test.run_until_idle()  # its worker looks for outboxes, before there is one
        stage = listening(source)
        async with stage.open(url, clock=test.clock) as other:
            await run(test, *((call, one) for one in (w, x, w, w)))
            await drain(other)
            assert told(stage) == UPDATES
            await run(test, (drop, w), (add, "n"), (drop, x))
            await drain(other)
            assert told(stage) == OTHERS


@pytest.mark.parametrize("source", ["Person", "PERSON"])
async def test_each_change_is_told_in_order_whatever_capitals_sqlite_is_told(sqlite_url: str, source: str) -> None:
    await each_is_told(sqlite_url, source)


@pytest.mark.parametrize("source", ["public.person", "shop.person"])
async def test_each_change_is_told_in_order_whatever_schema_is_searched(postgres_url: str, source: str) -> None:
    if source == "shop.person":
        path = "do $$ begin execute format('alter database %I set search_path = shop', current_database()); end $$"
        await run_sql(postgres_url, "create schema shop", "create table public.person (id text primary key)", path)
    await each_is_told(postgres_url, source)


async def test_a_table_of_this_name_in_another_schema_is_another_one(postgres_url: str) -> None:
    await run_sql(
        postgres_url,
        "create schema shop",
        "create table shop.person (id text primary key, name text not null, calls bigint not null)",
    )
    stage = listening("shop.person")
    async with stage.open(postgres_url) as other, TestApp(writer, postgres_url, clock=other.clock) as test:
        w = await test.run_mutation(add, "w")
        await run(test, (call, w), (call, w))
        assert test.engine.statements.ordered == frozenset()
        await drain(other)
        assert told(stage) == []


async def test_a_program_declares_a_table_once_however_it_spells_it(database_url: str) -> None:
    async with TestApp(writer, database_url):
        pass
    source = "public.person" if database_url.startswith("postgres") else "Person"
    twice = App(tables=[Person, theirs(source)])
    with pytest.raises(DeclarationError, match=rf"Person \(person\) and Theirs \({source}\) are one table"):
        async with TestApp(twice, database_url):
            pass
