"""Runs as work of pools: how they are started, children in the pool of their parent, pauses, bodies that are wrong."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from datetime import timedelta

import psycopg
import pytest
from stage.faults import effects_in
from stage.guests import sqlite_file
from stage.stories import status_of

from penstock import App, JobId, MutationCtx
from penstock.calls.workflows.context import WorkflowCtx
from penstock.testing import TestApp

pytestmark = pytest.mark.both_stores

NOW, HOUR = timedelta(0), timedelta(hours=1)
app = OPENED = App()
do, effects = effects_in(app)
narrow = app.workpool("narrow", max_parallelism=1)


@app.workflow
async def nest(ctx: WorkflowCtx, depth: int) -> int:
    if depth == 0:
        return 0
    ctx = ctx.with_options(pool=narrow)
    both = await asyncio.gather(ctx.run_workflow(nest, depth - 1), ctx.run_workflow(nest, depth - 1))
    await ctx.run_mutation(do, str(depth))
    return sum(both) + 1


async def test_a_pool_of_one_runs_children_of_children_of_its_runs(database_url: str) -> None:
    """(WF26, WF92, WF98)"""
    async with TestApp(app, database_url) as backend:
        run = await narrow.enqueue(backend, nest, 3)
        await backend.run_until_idle()
        assert (await status_of(backend, run)).result == 7
        assert sorted(await backend.run_query(effects)) == ["1"] * 4 + ["2"] * 2 + ["3"]


@app.workflow
async def rest(ctx: WorkflowCtx, hours: int) -> str:
    await ctx.sleep(hours * HOUR)
    await ctx.run_mutation(do, "rested")
    return "rested"


@app.internal_mutation
async def detach(ctx: MutationCtx) -> JobId[str]:
    return await narrow.enqueue(ctx, rest, 5)


@app.workflow
async def let_go(ctx: WorkflowCtx) -> JobId[str]:
    return await ctx.run_mutation(detach)


@pytest.mark.parametrize("cancels", [True, False])
async def test_a_run_that_a_step_started_outlives_the_run_of_the_step(database_url: str, *, cancels: bool) -> None:
    """(WF96)"""
    async with TestApp(app, database_url) as backend:
        run = await backend.scheduler.run_after(NOW, let_go)
        await backend.run_until_idle(advance=False)
        assert (await status_of(backend, run)).state.value == "success"
        if cancels:
            await backend.scheduler.cancel(run)
        await backend.run_until_idle()
        assert await backend.run_query(effects) == ["rested"]


async def test_a_run_whose_pool_is_paused_goes_on_once_it_is_resumed(database_url: str) -> None:
    """(WF142)"""
    async with TestApp(app, database_url) as backend:
        run = await narrow.enqueue(backend, rest, 1)
        await backend.run_until_idle(advance=False)
        await narrow.pause(backend)
        backend.clock.advance(5 * HOUR)
        await backend.run_until_idle()
        assert ((await status_of(backend, run)).state.value, await backend.run_query(effects)) == ("pending", [])
        await narrow.resume(backend)
        await backend.run_until_idle()
        assert (await status_of(backend, run)).result == "rested"


@app.workflow
async def slip(ctx: WorkflowCtx) -> int:
    await ctx.run_mutation(do, "before")
    wrong: int = None  # type: ignore[assignment]
    return wrong + 1


async def test_a_body_that_is_wrong_fails_and_says_where(database_url: str) -> None:
    """(WF119, WF120)"""
    async with TestApp(app, database_url) as backend:
        run = await backend.scheduler.run_after(NOW, slip)
        await backend.run_until_idle(raise_errors=False)
        status = await status_of(backend, run)
        assert (status.state.value, (status.error or "").partition(":")[0]) == ("failed", "TypeError")
        assert "in slip" in (status.traceback or "")


# ----- how they are started


def start_in_sql(url: str, args: str) -> None:
    """Start a run as another program does."""
    values = ["narrow", rest.name, args]
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(sqlite_file(url))) as lite, lite:
            lite.execute("insert into penstock_enqueue (pool, function, args) values (?, ?, ?)", values)
        return
    with psycopg.connect(url) as connection:
        connection.execute("select penstock.enqueue(%s, %s, %s::jsonb)", values)


async def test_plain_sql_starts_runs(database_url: str) -> None:
    """(WF3, WF4)"""
    async with TestApp(app, database_url) as backend:
        start_in_sql(database_url, '{"hours": 1}')
        start_in_sql(database_url, '{"hours": "many"}')
        await backend.run_until_idle(raise_errors=False)
        found = {str(one.args): (one.state.value, one.result or one.error) for one in await backend.jobs()}
        assert found["{'hours': 1}"] == ("success", "rested")
        assert found["{'hours': 'many'}"][0] == "failed"
        assert "ArgumentsInvalid" in str(found["{'hours': 'many'}"][1])


async def test_a_cron_starts_a_run_unless_the_last_one_goes_on(database_url: str) -> None:
    """(WF6)"""
    async with TestApp(app, database_url) as backend:
        await app.crons.create(backend, "hourly", HOUR, rest, {"hours": 3})
        await backend.run_until(backend.clock.now() + 8.5 * HOUR)
        await app.crons.remove(backend, "hourly")
        states = sorted(one.state.value for one in await backend.jobs() if one.function == rest.name)
        assert states == ["success", "success"]  # those of hours 1 and 5


async def test_many_runs_are_started_at_once(database_url: str) -> None:
    """(WF5, WF7, WF143)"""
    later = narrow.with_options(run_after=HOUR, priority=3)
    async with TestApp(app, database_url) as backend:
        runs = await later.enqueue_batch(backend, rest, [{"hours": 1}] * 300)
        assert len(set(runs)) == 300
        status = await status_of(backend, runs[0])
        assert (status.pool, status.priority, status.run_at) == ("narrow", 3, backend.clock.now() + HOUR)
        backend.clock.advance(HOUR)
        await backend.run_until_idle(advance=False)
        assert await narrow.cancel_all(backend) == 300
        await backend.run_until_idle(advance=False)
        assert {one.state.value for one in await backend.jobs(limit=1_000)} == {"canceled"}
