"""Live queries: who watches a query gets its answers, each of one snapshot, as long as somebody watches."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest
from stage.databases import run_sql, sql
from stage.stories import Stage
from stage.waits import SOON, events
from stage.watching import settle, watched

from penstock import ActionCtx, JobId, MutationCtx, QueryCtx, Table
from penstock.clock import SystemClock
from penstock.errors import ValueInvalid
from penstock.services.live.live import LiveQueries
from penstock.testing import TestApp

pytestmark = pytest.mark.both_stores

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


class Account(Table):
    owner: str
    amount: int = 0


class Quiet(Table, live=False):
    note: str


class Bank(Stage):
    """Accounts, and queries of them."""

    def __init__(self) -> None:
        super().__init__(Account, Quiet)
        app, self.fails = self.app, False
        self.pool = app.workpool("work")

        @app.query
        async def total(ctx: QueryCtx) -> int:
            found = sum([row.amount async for row in ctx.db.query(Account)])
            if self.fails:
                raise ValueError("no total today")
            return found

        @app.query
        def amounts(ctx: Any) -> dict[str, int]:
            return {row.owner: row.amount for row in ctx.db.query(Account).collect()}

        @app.mutation
        async def put(ctx: MutationCtx, owner: str) -> None:
            await ctx.db.insert(Account(owner=owner))

        @app.query
        async def notes(ctx: QueryCtx) -> list[str]:
            return [row.note for row in await ctx.db.query(Quiet).collect()]

        @app.query
        async def minute(ctx: QueryCtx) -> datetime:
            return ctx.now(every=MINUTE)

        @app.internal_action
        async def nothing(ctx: ActionCtx) -> None:
            pass

        @app.query
        async def state(ctx: QueryCtx, job: JobId) -> str | None:
            found = await self.pool.status(ctx, job)
            return None if found is None else type(found).__name__.lower()

        self.total, self.amounts, self.notes = total, amounts, notes
        self.minute, self.nothing, self.state, self.put = minute, nothing, state, put


async def elsewhere(test: TestApp, statement: str) -> None:
    """Write as another program, and have it noticed: a look may come before the commit, and time stands still here."""
    await sql(test, statement)
    test.live_queries.wake.set()


async def soon(watch: Any) -> Any:
    return await asyncio.wait_for(anext(watch), SOON)


async def in_time(test: TestApp, watch: Any) -> Any:
    """The next answer of a query that runs again as time passes."""
    answer = asyncio.ensure_future(anext(watch))
    while not answer.done():
        test.clock.advance(SECOND)
        await asyncio.wait([answer], timeout=0.02)
    return await answer


async def test_who_watches_a_query_gets_an_answer_at_once_and_each_other_one(database_url: str) -> None:
    stage = Bank()
    async with stage.open(database_url) as test, test.live(stage.total) as watch, test.live(stage.amounts) as other:
        (await soon(other))["x"] = 1  # an answer is its own
        assert await soon(watch) == 0
        async with test.live(stage.amounts) as same:
            assert await soon(same) == {}
            assert sorted(entry.watchers for entry in test.live_queries.report()) == [1, 2]
        await stage.insert(test, Account(owner="a", amount=3), Account(owner="b", amount=4))
        assert (await soon(watch), await soon(other)) == (7, {"a": 3, "b": 4})
        await elsewhere(test, "update account set owner = owner")  # an equal answer is not given again
        await elsewhere(test, "update account set amount = 5 where owner = 'a'")
        assert (await soon(watch), await soon(other)) == (9, {"a": 5, "b": 4})
        stage.fails = True
        await elsewhere(test, "delete from account where owner = 'b'")
        with pytest.raises(ValueError, match="no total today"):
            await soon(watch)
        assert await soon(other) == {"a": 5}
        stage.fails = False
        await elsewhere(test, "delete from account")
        assert (await soon(watch), await soon(other)) == (0, {})


async def test_a_watch_ends_with_its_block_or_with_the_backend(database_url: str) -> None:
    stage = Bank()
    async with stage.open(database_url) as test:
        async with test.live(stage.total) as watch:
            assert await soon(watch) == 0
        with pytest.raises(StopAsyncIteration):
            await anext(watch)
        other = test.live(stage.total)
        assert await soon(other) == 0
        waiting = asyncio.ensure_future(other.__anext__())
        await SystemClock().sleep(0)
    with pytest.raises(StopAsyncIteration):
        await waiting


async def test_a_query_runs_again_when_its_time_has_come(database_url: str) -> None:
    stage = Bank()
    async with stage.open(database_url) as test:
        async with test.live(stage.minute) as watch:
            first = await soon(watch)
            assert await in_time(test, watch) == first + MINUTE
        wrong: list[Any] = [timedelta(0), -MINUTE, 60]
        for every in wrong:

            async def step(ctx: MutationCtx, every: Any = every) -> None:
                ctx.now(every=every)

            with pytest.raises(ValueInvalid, match="every is no length of time"):
                await stage.do(test, step)


async def test_a_column_that_gets_another_type_has_its_queries_run_again(postgres_url: str) -> None:
    stage = Bank()
    async with stage.open(postgres_url) as test, test.live(stage.notes) as watch:
        assert await soon(watch) == []
        await elsewhere(test, "alter table quiet alter column note type varchar(90)")
        await stage.insert(test, Quiet(note="a"))
        assert await in_time(test, watch) == ["a"]


async def test_how_a_job_stands_is_live(database_url: str) -> None:
    stage = Bank()
    async with stage.open(database_url) as test:
        job = await stage.pool.enqueue(test, stage.nothing)
        async with test.live(stage.state, job=job) as watch:
            assert await soon(watch) == "pending"
            await test.run_until_idle()
            states = [await in_time(test, watch)]
            while states[-1] == "running":  # a look came between its start and its end
                states.append(await in_time(test, watch))
            assert states[-1] == "finished"


async def test_all_runs_of_a_query_have_the_same_random_numbers(database_url: str) -> None:
    stage = Bank()

    @stage.app.query
    async def chance(ctx: QueryCtx) -> tuple[int, int]:
        return await ctx.db.query(Account).count(), ctx.random.getrandbits(60)

    async with stage.open(database_url) as test, test.live(chance) as watch:
        count, number = await soon(watch)
        await stage.insert(test, Account(owner="a"))
        assert await soon(watch) == (count + 1, number)


async def test_a_view_is_polled_and_the_log_tells(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    class Rich(Table, source="rich", key="owner", managed=False, live=True):
        owner: str

    caplog.set_level("INFO", "penstock")
    stage = Stage(Rich)

    @stage.app.query
    async def owners(ctx: QueryCtx) -> list[str]:
        return [row.owner for row in await ctx.db.query(Rich).collect()]

    await run_sql(database_url, "create table base (owner text)", "create view rich as select owner from base")
    async with stage.open(database_url) as test, test.live(owners) as watch:
        assert [one["table"] for one in events(caplog, "live.polled")] == ["rich"]
        assert await soon(watch) == []
        await elsewhere(test, "insert into base values ('a')")
        assert await in_time(test, watch) == ["a"]


async def test_changes_are_kept_for_a_minute_for_who_watches(database_url: str) -> None:
    stage = Bank()
    async with stage.open(database_url) as test:
        live, changes = LiveQueries(test.runner, stage.app.definitions()), test.engine.store.changes
        entry = watched(live, stage.total)
        await settle(live)
        await stage.insert(test, Account(owner="a", amount=1))
        if not database_url.startswith("sqlite"):
            await sql(test, "update penstock.change_slot set since = now() - interval '2 hours'")
        rotations = [await changes.rotate(test.clock.now(), 1000) for _ in range(3)]
        assert [one.emptied for one in rotations] == [0, 0, 0]
        await settle(live)
        assert entry.answer is not None
        assert (entry.answer.result, entry.causes[-1][:7]) == (1, "account")


def test_programs_that_do_not_await_watch_too(database_url: str) -> None:
    stage = Bank()
    with stage.app.sync.open(database_url) as backend, backend.live(stage.amounts) as answers:
        assert next(answers) == {}
        backend.run_mutation(stage.put, owner="a")
        assert next(answers) == {"a": 0}
        answers.close()
        assert list(answers) == []
