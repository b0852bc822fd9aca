"""Forks and retries of runs that told others who they are, drew random numbers, published, or have limits of time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from stage.stories import status_of

from penstock import ActionCtx, App, JobId, MutationCtx
from penstock.calls.workflows.context import WorkflowCtx
from penstock.calls.workflows.manage import fork, retry_from
from penstock.operations.workflows import export
from penstock.testing import TestApp, replay

pytestmark = pytest.mark.both_stores

NOW, HOUR = timedelta(0), timedelta(hours=1)
app = App()
said = app.event("said", str)
pool = app.workpool("flows", max_parallelism=10)
broken: list[str] = []


@app.internal_action
async def act(ctx: ActionCtx, what: str) -> str:
    if what in broken:
        raise ConnectionError(what)
    return what


@app.workflow
async def identified(ctx: WorkflowCtx, way: str) -> list[Any]:
    """Give what tells a run from others to a step, and draw random numbers before and after the next one."""
    given: dict[str, Callable[[], str]] = {
        "id": lambda: ctx.id,
        "token": lambda: ctx.event_token(said, HOUR),
        "uuid": lambda: str(ctx.uuid()),
    }
    chance = ctx.random
    before = chance.random()
    told = await ctx.run_action(act, given[way]())
    after = chance.random()
    await ctx.run_action(act, "middle")
    return [told, before, after]


@pytest.mark.parametrize("way", ["id", "token", "uuid"])
async def test_a_fork_goes_on_with_what_the_other_told(database_url: str, way: str) -> None:
    """(WF140) It draws what the other drew as far as it has its history, and other numbers from then on."""
    async with TestApp(app, database_url) as backend:
        run = await backend.scheduler.run_after(NOW, identified, way)
        await backend.run_until_idle()
        first = await fork(backend.job_calls, run, 2)
        await backend.run_until_idle()
        again = await fork(backend.job_calls, first, 2)
        await backend.run_until_idle()
        found = [(await status_of(backend, one)).result for one in (run, first, again)]
        assert all(found), [(await status_of(backend, one)).error for one in (run, first, again)]
        assert found[0][:2] == found[1][:2] == found[2][:2]
        assert len({one[2] for one in found}) == 3
        for one in (run, first, again):
            replay(app, await export.run(backend, {"run": one}))


@app.workflow
async def ask_twice(ctx: WorkflowCtx, first: str) -> Any:
    token = ctx.event_token(said, HOUR)
    ctx.publish(token)
    await ctx.wait_for(said)
    return [first, token] if first else ctx.restart(token)


async def test_a_run_that_begins_again_gives_other_tokens(database_url: str) -> None:
    """Also within the second, in which both would name the same time."""
    async with TestApp(app, database_url) as backend:
        run = await backend.scheduler.run_after(NOW, ask_twice, "")
        for word in ("first", "second"):
            await backend.run_until_idle(advance=False)
            assert await said.redeem(backend, (await status_of(backend, run)).published, word)
        await backend.run_until_idle(advance=False)
        first, second = (await status_of(backend, run)).result
        assert first != second


@app.workflow
async def show(ctx: WorkflowCtx) -> None:
    ctx.publish("first")
    await ctx.run_action(act, "one")
    await ctx.run_action(act, "two")
    await ctx.wait_for(said)


async def test_a_fork_shows_what_was_published_by_then(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        run = await backend.scheduler.run_after(NOW, show)
        await backend.run_until_idle(advance=False)
        other = await fork(backend.job_calls, run, 2)
        await backend.run_until_idle(advance=False)
        assert (await status_of(backend, other)).published == "first"


@app.workflow
async def limited(ctx: WorkflowCtx) -> str:
    return await ctx.run_action(act, "pay")


@app.internal_mutation
async def begin_limited(ctx: MutationCtx) -> JobId:
    return await pool.with_options(deadline=HOUR, timeout=HOUR).enqueue(ctx, limited)


@pytest.mark.parametrize("how", ["retry", "fork"])
async def test_limits_of_time_count_from_a_retry(database_url: str, how: str) -> None:
    async with TestApp(app, database_url) as backend:
        broken[:] = ["pay"]
        run = await backend.run_mutation(begin_limited)
        await backend.run_until_idle(raise_errors=False)
        assert (await status_of(backend, run)).error == "ConnectionError: pay"
        broken.clear()
        backend.clock.advance(2 * HOUR)
        if how == "fork":
            run = await fork(backend.job_calls, run, 1)
        else:
            await retry_from(backend.job_calls, run)
        await backend.run_until_idle(raise_errors=False)
        assert (await status_of(backend, run)).result == "pay", await status_of(backend, run)


@app.workflow
async def hear_twice(ctx: WorkflowCtx) -> list[str]:
    await ctx.run_action(act, "begin")
    heard = [await ctx.wait_for(said), await ctx.wait_for(said)]
    await ctx.run_action(act, "end")
    return heard


async def test_a_retry_of_a_fork_receives_again_the_events_of_its_history(database_url: str) -> None:
    """Of a fork of a fork too, in their order. (WF139, WF140)"""
    async with TestApp(app, database_url) as backend:
        broken.clear()
        first = await backend.scheduler.run_after(NOW, hear_twice)
        for word in ("one", "two"):
            await said.send(backend, first, word, key=word)
        await backend.run_until_idle()
        broken[:] = ["end"]
        forks = [first]
        for _ in range(2):
            forks.append(await fork(backend.job_calls, forks[-1], 4))
            await backend.run_until_idle(raise_errors=False)
        broken.clear()
        for run, step in zip(forks[1:], (2, 3), strict=True):
            await retry_from(backend.job_calls, run, step)
        await backend.run_until_idle()
        for run in forks:
            assert (await status_of(backend, run)).result == ["one", "two"], await status_of(backend, run)
            replay(app, await export.run(backend, {"run": run}))
