"""Runs in pools: children in the pool of their parent, detached ones, pauses, and bodies that are wrong."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from stage.effects import effects_in

from penstock import App, JobId, JobStatus, MutationCtx
from penstock.calls.workflows.context import WorkflowCtx
from penstock.testing import TestApp

pytestmark = pytest.mark.both_stores

NOW, HOUR = timedelta(0), timedelta(hours=1)
app = OPENED = App()
do, effects = effects_in(app)
narrow = app.workpool("narrow", max_parallelism=1)


async def status_of(backend: TestApp, run: JobId) -> JobStatus:
    found = await backend.job(run)
    assert found is not None
    return found


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
