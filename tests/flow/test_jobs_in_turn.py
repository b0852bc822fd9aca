"""Jobs that wait for nothing share a task of the worker, one after another. None of them notices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

from stage.waits import until

from penstock import ActionCtx, App, Backend, JobState

TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")
MANY = 40

app = OPENED = App()
pool = app.workpool("turns", max_parallelism=200)
seen: list[str] = []
tasks: list[asyncio.Task[None]] = []
gates: list[asyncio.Event] = []


def note(word: str) -> None:
    seen.append(word)
    task = asyncio.current_task()
    assert task is not None
    tasks.append(task)


@app.internal_action
async def quick(ctx: ActionCtx) -> None:
    note(TENANT.get())


@app.internal_action
async def of_a_tenant(ctx: ActionCtx) -> None:
    note(TENANT.get())
    TENANT.set("acme")


@app.internal_action
async def held(ctx: ActionCtx) -> None:
    note("held")
    await gates[-1].wait()


@app.internal_action
async def cancels_itself(ctx: ActionCtx) -> None:
    note("cancelled")
    tasks[-1].cancel()


@app.internal_action
async def is_cancelled(ctx: ActionCtx) -> None:
    note("raised")
    raise asyncio.CancelledError


@app.internal_action
async def too_slow(ctx: ActionCtx) -> None:
    note("slow")
    async with asyncio.timeout(0):
        await ctx.wait_cancelled()


@asynccontextmanager
async def working(url: str, *functions: Any, **settings: Any) -> AsyncIterator[Backend]:
    """A worker that finds a job of each of these at once."""
    seen.clear()
    tasks.clear()
    gates.append(asyncio.Event())
    async with app.open(url) as backend:
        for function in functions:
            await pool.enqueue(backend, function)
    async with app.open(url, services=("worker",), worker_jobs=200, **settings) as backend:
        yield backend


async def left(backend: Backend, number: int) -> None:
    """Wait until so many jobs have not ended."""

    async def are_left() -> bool:
        counts = await backend.job_counts()
        return counts["ready"] + counts["running"] == number

    await until(are_left)


async def begun(number: int) -> None:
    """Wait until so many jobs have begun."""

    async def have_begun() -> bool:
        return len(seen) == number

    await until(have_begun)


async def states(backend: Backend) -> list[JobState]:
    """How the jobs stand, in the order in which they were enqueued."""
    return [job.state for job in reversed(await backend.jobs(limit=1000))]


async def test_jobs_that_wait_for_nothing_share_a_task_and_do_not_notice(database_url: str) -> None:
    async with working(database_url, *[quick] * MANY) as backend:
        await left(backend, 0)
        assert len(set(tasks)) < MANY / 4
    async with working(database_url, *[of_a_tenant, quick] * MANY) as backend:
        await left(backend, 0)
        assert seen == ["nobody"] * 2 * MANY, "what one sets in its context is nothing to the next"
    async with working(database_url, quick, cancels_itself, is_cancelled, too_slow, *[quick] * MANY) as backend:
        await left(backend, 0)
        ended = (await states(backend))[3 * MANY :]
        assert ended[2:4] == [JobState.FAILED] * 2
        assert set(ended[:2] + ended[4:]) == {JobState.SUCCESS}, "one that cancels its task ends no other"
        assert len(seen) == MANY + 4


async def test_a_job_that_waits_keeps_its_task_and_nobody_else_waits(database_url: str) -> None:
    async with working(database_url, quick, held, *[quick] * MANY, held, quick) as backend:
        await left(backend, 2)
        await begun(MANY + 4)
        waiting = [task for word, task in zip(seen, tasks, strict=True) if word == "held"]
        assert len(set(waiting)) == 2
        assert all(not task.done() for task in waiting)
        gates[-1].set()
        await left(backend, 0)
        await pool.enqueue(backend, quick)
        await left(backend, 0)
        assert tasks[-1] not in waiting, "it has ended with its job"
