"""Workflows: steps that take effect once, waits without a slot, events, children, cancels; and what crashes leave."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from stage.flows import run_with_crashes

from penstock import ActionCtx, App, MutationCtx, QueryCtx, Table
from penstock.calls.workflows.context import WorkflowCtx
from penstock.testing import TestApp

pytestmark = pytest.mark.both_stores

NOW = timedelta(0)
app = OPENED = App()


class Effect(Table):
    what: str


@app.internal_mutation
async def do(ctx: MutationCtx, what: str) -> str:
    await ctx.db.insert(Effect(what=what))
    return what.upper()


@app.internal_action
async def act(ctx: ActionCtx, what: str) -> str:
    await ctx.run_mutation(do, what)
    return what.upper()


@app.internal_query
async def count(ctx: QueryCtx) -> int:
    return len(await ctx.db.query(Effect).collect())


@app.internal_query
async def effects(ctx: QueryCtx) -> list[str]:
    return [one.what for one in await ctx.db.query(Effect).collect()]


@app.workflow
async def three_steps(ctx: WorkflowCtx, name: str) -> list[Any]:
    first = await ctx.run_mutation(do, f"{name} 1")
    seen = await ctx.run_query(count)
    second = await ctx.run_action(act, f"{name} 2")
    third = await ctx.run_mutation(do, f"{name} 3")
    return [first, seen, second, third]


async def run(backend: TestApp, workflow: Any, *args: Any) -> Any:
    job = await backend.scheduler.run_after(NOW, workflow, *args)
    await backend.run_until_idle()
    status = await backend.job(job)
    assert status is not None
    return status


async def test_steps_take_effect_in_order(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        status = await run(backend, three_steps, "a")
        assert status.result == ["A 1", 1, "A 2", "A 3"], status
        assert await backend.run_query(effects) == ["a 1", "a 2", "a 3"]


async def test_a_crash_at_each_moment_changes_nothing(database_url: str) -> None:
    """Each moment of a step, one after another; the fourth argument is an action, which may run twice."""
    async with TestApp(app, database_url) as backend:
        seen = set()
        for at in range(1, 40):
            name = f"n{at}"
            job = await backend.scheduler.run_after(NOW, three_steps, name)
            moments = await run_with_crashes(backend, [at])
            status = await backend.job(job)
            assert status is not None
            assert status.state.value == "success", (at, moments, status)
            assert status.result[0::2][0] == f"{name} 1".upper(), (at, moments)
            assert status.result[2:] == [f"{name} 2".upper(), f"{name} 3".upper()], (at, moments)
            done = [one for one in await backend.run_query(effects) if one.startswith(f"{name} ")]
            assert done.count(f"{name} 1") == done.count(f"{name} 3") == 1, (at, moments, done)
            assert 1 <= done.count(f"{name} 2") <= 2, (at, moments, done)
            seen.update(moments)
            if not moments:
                break
        assert seen == {"commit.before", "commit.after", "workflow.step_ran", "workflow.recorded"}
        assert not moments, "there are more moments"
