"""Queries that read by one statement take no transaction; those that read more still have one snapshot."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import psycopg
import pytest

from penstock import App, Id, Index, MutationCtx, QueryCtx, Table
from penstock.app import Backend
from penstock.errors import Overloaded
from penstock.store.postgres.session import PostgresSession
from penstock.sync import QueryCtx as SyncQueryCtx
from penstock.testing import TestApp

app = App()


class Story:
    """What a query waits for, in one test."""

    reached: asyncio.Event
    may_go_on: asyncio.Event


class Pair(Table):
    name: str
    value: int

    by_name = Index("name")


@app.mutation
async def put(ctx: MutationCtx, value: int) -> list[Id[Pair]]:
    """Give both rows of the pair a value."""
    rows = await ctx.db.query(Pair).collect()
    for row in rows:
        await ctx.db.patch(Pair, row.id, value=value)
    return [row.id for row in rows] or await ctx.db.insert_many([Pair(name=name, value=value) for name in "ab"])


@app.query
async def one(ctx: QueryCtx, name: str) -> int:
    row = await ctx.db.query(Pair).with_index(Pair.by_name, name=name).unique()
    return row.value if row else 0


@app.query
async def both(ctx: QueryCtx) -> list[int]:
    first = await one(ctx, "a")
    Story.reached.set()
    await Story.may_go_on.wait()
    return [first, await one(ctx, "b")]


@app.query
async def both_at_once(ctx: QueryCtx) -> list[int]:
    return [*await asyncio.gather(one(ctx, "a"), one(ctx, "b"))]


@app.query
async def swallows(ctx: QueryCtx) -> list[int]:
    found = [await one(ctx, "a")]
    with suppress(Exception):
        found.append(await one(ctx, "b"))
    return found


@app.query
async def shy(ctx: QueryCtx) -> int:
    try:
        return await one(ctx, "a")
    except Exception:  # noqa: BLE001 - as users write it
        return -1


@app.query
def in_a_thread(ctx: SyncQueryCtx, rows: list[Id[Pair]]) -> list[int]:
    return [found.value for row in rows if (found := ctx.db.get(Pair, row))]


@app.query
async def by_sql(ctx: QueryCtx) -> int:
    return len(await ctx.sql("select value from pair"))


@pytest.fixture(autouse=True)
def story() -> None:
    Story.reached, Story.may_go_on = asyncio.Event(), asyncio.Event()


@pytest.mark.both_stores
async def test_all_statements_of_a_query_see_one_snapshot(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        rows = await backend.run_mutation(put, 1)
        reading = asyncio.create_task(backend.run_query(both))
        await Story.reached.wait()
        await backend.run_mutation(put, 2)
        Story.may_go_on.set()
        assert len(set(await reading)) == 1
        for _ in range(2):  # before it is known that it reads more, and then
            assert await backend.run_query(both) == [2, 2]
            assert await backend.run_query(both_at_once) == [2, 2]
            assert await backend.run_query(swallows) == [2, 2]
            assert await backend.run_query(in_a_thread, rows) == [2, 2]
            assert await backend.run_query(by_sql) == 2
            assert await backend.run_query(one, "b") == 2


def count_begins(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    begun: list[str] = []
    begin = PostgresSession.begin

    async def noting(session: PostgresSession, how: str) -> None:
        begun.append(how)
        await begin(session, how)

    monkeypatch.setattr(PostgresSession, "begin", noting)
    return begun


async def test_a_query_of_one_statement_begins_no_transaction(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with TestApp(app, postgres_url) as backend:
        await backend.run_mutation(put, 1)
        Story.may_go_on.set()
        begun = count_begins(monkeypatch)
        assert await backend.run_query(one, "a") == 1
        assert begun == []
        assert await backend.run_query(both) == [1, 1]
        assert len(begun) == 1
        assert await backend.run_query(one, "b") == 1
        assert await backend.run_query(both) == [1, 1]
        assert len(begun) == 2


async def test_a_query_that_gets_no_connection_answers_nothing(postgres_url: str) -> None:
    async with app.open(postgres_url, max_connections=1, database_wait=0.05, push_schema=True) as backend:
        await backend.run_mutation(put, 1)
        session = await backend.engine.store.begin_read()
        with pytest.raises(Overloaded):
            await backend.run_query(shy)
        await session.rollback()
        assert await backend.run_query(shy) == 1


async def test_a_query_of_one_statement_outlives_its_connection(postgres_url: str) -> None:
    async with TestApp(app, postgres_url) as backend:
        await backend.run_mutation(put, 1)

        async def cut_and_ask(test: Backend) -> int:
            with psycopg.connect(postgres_url, autocommit=True) as admin:
                admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() "
                              "and datname = current_database()")  # fmt: skip
            return await test.run_query(one, "a")

        assert await backend.run_query(one, "a") == 1
        assert [await cut_and_ask(backend) for _ in range(3)] == [1, 1, 1]
