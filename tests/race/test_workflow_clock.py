"""Workflows on a real clock: each wait ends by itself, though no worker looks again by its own."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from stage.faults import effects_in
from stage.waits import until

from penstock import App, Backend, Canceled, JobId, MutationCtx, Success
from penstock.calls.workflows.context import WorkflowCtx
from penstock.errors import EventTimeout

pytestmark = pytest.mark.both_stores

NOW, LONGER = timedelta(0), timedelta(seconds=1.1)  # more than a run waits in memory
NEVER = 3600.0
app = OPENED = App()
note, notes = effects_in(app)
pool = app.workpool("pool", max_parallelism=1)
asked = app.event("asked", str)
answered = app.event("answered", str)


@app.internal_mutation
async def answer(ctx: MutationCtx, run: JobId, what: str) -> None:
    await answered.send(ctx, run, what)


@app.workflow
async def child(ctx: WorkflowCtx, what: str) -> str:
    await ctx.sleep(LONGER)
    return await ctx.with_options(pool=pool).run_mutation(note, what)


@app.workflow
async def all_waits(ctx: WorkflowCtx) -> list[str]:
    """Each of them lets go of the worker."""
    await ctx.sleep(LONGER)
    found = [*await asyncio.gather(ctx.run_workflow(child, "a"), ctx.run_workflow(child, "b"))]
    try:
        await ctx.wait_for(asked, timeout=LONGER)
    except EventTimeout:
        found.append(await ctx.run_mutation(note, "asks"))
    found.append(await ctx.wait_for(answered))
    async with asyncio.TaskGroup() as group:
        group.create_task(ctx.sleep(LONGER))
        group.create_task(ctx.with_options(pool=pool).run_mutation(note, "beside"))
    return found


@app.workflow
async def wait_and_undo(ctx: WorkflowCtx) -> None:
    await ctx.run_mutation(note, "done")
    ctx.compensate(note, "undone")
    await ctx.wait_for(asked)


async def is_noted(backend: Backend, what: str) -> bool:
    return what in await backend.run_query(notes)


async def test_each_wait_ends_by_itself(database_url: str) -> None:
    """The worker would look for work again in an hour (WF49, WF102, WF160)."""
    config = app.config(database=database_url, poll=NEVER)
    async with app.open(config=config, services=("worker",)) as backend:
        run = await pool.enqueue(backend, all_waits)
        await until(lambda: is_noted(backend, "asks"))
        await backend.run_mutation(answer, run, "yes")
        await until(lambda: is_noted(backend, "beside"))
        await until(lambda: has_ended(backend, run))
        assert await pool.result(backend, run) == Success(["a", "b", "asks", "yes"])
        canceled = await pool.enqueue(backend, wait_and_undo)
        await until(lambda: is_noted(backend, "done"))
        await pool.cancel(backend, canceled)
        await until(lambda: has_ended(backend, canceled))
        assert await pool.result(backend, canceled) == Canceled()
        assert (await backend.run_query(notes))[-2:] == ["done", "undone"]


async def has_ended(backend: Backend, run: JobId) -> bool:
    status = await backend.job(run)
    return status is not None and status.finished_at is not None
