"""A watched query runs again if a row that it read has changed, and not if another one has."""

from __future__ import annotations

import pytest
from stage.databases import run_sql, sql
from stage.stories import Stage
from stage.watching import settle, watched

from penstock import Id, Index, QueryCtx, Table, gt, lt
from penstock.services.live.live import LiveQueries


class Thing(Table):
    name: str
    rank: int | None = None
    note: str = ""

    by_name = Index("name", "rank")


@pytest.mark.both_stores
async def test_a_row_that_is_read_by_its_key_concerns_its_reader_and_no_other_row_does(database_url: str) -> None:
    class Line(Table, source="line", key=("tenant", "number"), managed=False, live=True):
        tenant: int
        number: int
        amount: int = 0

    stage = Stage(Thing, Line)

    @stage.app.query
    async def thing(ctx: QueryCtx, thing: Id[Thing]) -> bool:
        return await ctx.db.get(Thing, thing) is not None

    @stage.app.query
    async def line(ctx: QueryCtx, tenant: int, number: int) -> bool:
        return await ctx.db.get(Line, (tenant, number)) is not None

    columns = "tenant bigint not null, number bigint not null, amount bigint not null, primary key (tenant, number)"
    rows = "insert into line values (7, 1, 0), (7, 2, 0), (8, 1, 0)"
    await run_sql(database_url, f"create table line ({columns})", rows)
    async with stage.open(database_url) as test:
        live = LiveQueries(test.runner, stage.app.definitions())
        one, other = await stage.insert(test, Thing(name="a"), Thing(name="b"))
        entries = [watched(live, thing, thing=one)]
        entries += [watched(live, line, tenant=tenant, number=number) for tenant, number in ((7, 1), (9, 9))]
        await settle(live)
        await settle(live)  # the tables are captured from now on
        for change, concerned in (
            (stage.patch(test, Thing, one, rank=5), [True, False, False]),
            (stage.patch(test, Thing, other, rank=5), [False, False, False]),
            (stage.delete(test, Thing, one), [True, False, False]),
            (sql(test, "update line set amount = 1 where tenant = 7 and number = 1"), [False, True, False]),
            (sql(test, "update line set amount = 1 where number = 2 or tenant = 8"), [False, False, False]),
            (stage.insert(test, Line(tenant=9, number=9)), [False, False, True]),
        ):
            before = [entry.runs for entry in entries]
            await change
            await settle(live)
            assert [entry.runs > runs for entry, runs in zip(entries, before, strict=True)] == concerned


@pytest.mark.both_stores
async def test_rows_of_a_range_concern_its_reader_up_to_the_last_one_that_was_read(database_url: str) -> None:
    stage = Stage(Thing)

    @stage.app.query
    async def of_name(ctx: QueryCtx, name: str) -> int:
        return len(await ctx.db.query(Thing).with_index(Thing.by_name, name=name).collect())

    @stage.app.query
    async def between(ctx: QueryCtx) -> int:
        return len(await ctx.db.query(Thing).with_index(Thing.by_name, name="a", rank=gt(2) & lt(8)).collect())

    @stage.app.query
    async def first_two(ctx: QueryCtx) -> int:
        return len(await ctx.db.query(Thing).with_index(Thing.by_name, name="a").take(2))

    @stage.app.query
    async def last(ctx: QueryCtx) -> bool:
        return await ctx.db.query(Thing).with_index(Thing.by_name).order("desc").first() is not None

    async with stage.open(database_url) as test:
        live = LiveQueries(test.runner, stage.app.definitions())
        ids = await stage.insert(test, *(Thing(name="a", rank=rank) for rank in (1, 3, 5, 9)), Thing(name="b"))
        entries = [watched(live, of_name, name=name) for name in "ab"]
        entries += [watched(live, query) for query in (between, first_two, last)]
        await settle(live)
        await settle(live)  # the table is captured from now on
        none = [False] * 5
        for change, concerned in (
            (stage.insert(test, Thing(name="a", rank=2)), [True, False, False, True, False]),
            (stage.insert(test, Thing(name="a", rank=4)), [True, False, True, False, False]),
            (stage.patch(test, Thing, ids[3], rank=10), [True, False, False, False, False]),
            (stage.patch(test, Thing, ids[2], note="in no index"), [True, False, True, False, False]),
            (stage.patch(test, Thing, ids[2], rank=None), [True, False, True, True, False]),
            (stage.patch(test, Thing, ids[3], name="b"), [True, True, False, False, True]),
            (
                sql(test, "update thing set note = 'z' where name = 'b' and rank is null"),
                [False, True, False, False, True],
            ),
            (sql(test, "update thing set name = 'A' where rank = 2"), [True, False, False, False, False]),
            (stage.insert(test, Thing(name="aa"), Thing(name="")), none),
        ):
            before = [entry.runs for entry in entries]
            await change
            await settle(live)
            assert [entry.runs > runs for entry, runs in zip(entries, before, strict=True)] == concerned
