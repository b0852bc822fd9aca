"""Tables of other programs whose key is a time: each statement finds their rows, in any column type and spelling."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from stage.databases import run_sql, sql

from penstock import App, MutationTaskCtx, QueryCtx, SearchIndex, Table, TaskBatchCtx, TaskCtx, TaskFilter
from penstock.testing import TestApp

TIMES = [datetime(2030, 1, 1, hour, 30, tzinfo=UTC) for hour in range(3)]
DAYS = [date(2030, 1, day) for day in range(1, 4)]


@pytest.mark.both_stores
@pytest.mark.parametrize(
    ("kind", "sql_type", "keys"),
    [(datetime, "timestamp", TIMES), (datetime, "timestamptz", TIMES), (date, "date", DAYS)],
    ids=["timestamp", "timestamptz", "date"],
)
async def test_searches_and_batch_tasks_find_rows_by_many_keys(
    database_url: str, kind: Any, sql_type: str, keys: list[Any]
) -> None:
    class Timed(Table, source="timed", key="at", managed=False):
        at: kind
        text: str = ""

        by_text = SearchIndex("text")

    app, done = App(tables=[Timed]), list[Any]()

    @app.reactive_task(Timed, batch=10)
    async def look(ctx: TaskBatchCtx[Timed]) -> None:
        done.extend(row.at for row in (await ctx.get_documents()).values())

    @app.internal_query
    async def found(ctx: QueryCtx) -> list[str]:
        return sorted(
            [str(row.at) for row in await ctx.db.query(Timed).with_search_index(Timed.by_text, "word").collect()]
        )

    postgres = database_url.startswith("postgres")
    await run_sql(database_url, f"create table timed (at {sql_type if postgres else 'text'} primary key, text text)")
    async with TestApp(app, database_url) as test:
        zone = "" if postgres and sql_type == "timestamp" else "Z"
        written = [key.isoformat().replace(":00+00:00", f":00.000000{zone}") for key in keys]
        await run_sql(database_url, *[f"insert into timed values ('{key}', 'word')" for key in written])
        assert await test.run_query(found) == [*map(str, keys)]
        await test.run_until_idle()
        assert sorted(done) == keys
        assert await test.run_query(found) == [*map(str, keys)]


@pytest.mark.parametrize(
    ("kind", "spelled"),
    [
        (datetime, "2030-01-01 00:30:00Z"),
        (datetime, "2030-01-01T00:30:00.5"),
        (datetime, "2030-01-01 02:30+02:00"),
        (UUID, "8AB3060E2CBA4F23B74CB52DB3BDFB46"),
        (Decimal, "1.50"),
    ],
)
async def test_tasks_find_a_row_whose_key_another_program_has_spelled(sqlite_url: str, kind: Any, spelled: str) -> None:
    class Timed(Table, source="timed", key="at", managed=False):
        at: kind
        text: str = ""

        by_text = SearchIndex("text")

    app, writer, done = App(tables=[Timed]), App(name="writer", tables=[Timed]), list[str]()

    @app.reactive_task(Timed)
    async def one(ctx: TaskCtx[Timed]) -> None:
        done.append((await ctx.get_document()).text)

    @app.reactive_task(Timed, batch=10)
    async def many(ctx: TaskBatchCtx[Timed]) -> None:
        done.extend(row.text for row in (await ctx.get_documents()).values())

    @writer.reactive_task(Timed)
    async def write(ctx: MutationTaskCtx[Timed]) -> None:
        done.append((await ctx.get_document()).text)
        await ctx.db.patch(Timed, ctx.doc_id, text="new")
        await ctx.db.delete(Timed, ctx.doc_id)

    await run_sql(sqlite_url, "create table timed (at text primary key, text text)")
    async with TestApp(app, sqlite_url) as test:
        await run_sql(sqlite_url, f"insert into timed values ('{spelled}', 'word')")
        await test.run_until_idle()
        assert done == ["word", "word"]
        for task in ("one", "many"):
            (listed,) = (await app.tasks.records(test, TaskFilter(task=task))).records
            assert listed.key == spelled
            assert await app.tasks.find(test, task, spelled) == listed
            assert (await app.tasks.explain(test, task, spelled)).exists
            assert await app.tasks.retry(test, TaskFilter(task=task, key=spelled)) == 1
        await test.run_until_idle()
        assert done == ["word"] * 4
        done[2:] = []
    async with TestApp(writer, sqlite_url) as test:
        await test.run_until_idle()
        assert done == ["word"] * 3
        assert await sql(test, "select * from timed") == []


@pytest.mark.parametrize("count", [1, 3])
async def test_searches_find_rows_by_fractions(postgres_url: str, count: int) -> None:
    class Priced(Table, source="priced", key="price", managed=False):
        price: float
        text: str = ""

        by_text = SearchIndex("text")

    app, prices = App(tables=[Priced]), [0.1, 2.5, 1e-9][:count]

    @app.internal_query
    async def found(ctx: QueryCtx) -> list[float]:
        return [row.price for row in await ctx.db.query(Priced).with_search_index(Priced.by_text, "word").collect()]

    await run_sql(postgres_url, "create table priced (price numeric primary key, text text)")
    async with TestApp(app, postgres_url) as test:
        await run_sql(postgres_url, *[f"insert into priced values ({price!r}, 'word')" for price in prices])
        for _ in range(2):
            assert await test.run_query(found) == sorted(prices, reverse=True)
            await test.indexer.tick()
