"""Pools under bad input and in bad moments: much at once, cancels at every state, releases that do not agree."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from stage.waits import until

from penstock import ActionCtx, App, Canceled, Finished, MutationCtx, Success, WorkId, WorkResult
from penstock.clock import SystemClock
from penstock.testing import TestApp

MANY = 20_000
app = App()
plenty = app.workpool("plenty", max_parallelism=0)
few = app.workpool("few", max_parallelism=5)
one_by_one = app.workpool("one_by_one", key_parallelism=1)

told: list[str] = []
begun, may_end = asyncio.Event(), asyncio.Event()


@pytest.fixture(autouse=True)
def _clean() -> None:
    global begun, may_end
    begun, may_end = asyncio.Event(), asyncio.Event()
    told.clear()


@app.internal_action
async def do(ctx: ActionCtx, number: int = 0) -> int:
    return number


@app.internal_action
async def wait(ctx: ActionCtx) -> None:
    begun.set()
    await may_end.wait()
    if ctx.cancelled:
        raise InterruptedError("somebody asked for it to stop")


@app.internal_action
async def leave_to_others(ctx: ActionCtx) -> None:
    await ctx.work.complete_later()


@app.internal_mutation
async def tell(ctx: MutationCtx, work_id: WorkId, result: WorkResult[Any], context: Any) -> None:
    told.append(result.kind)
    if len(told) < 3:
        raise RuntimeError("not yet")


async def test_twenty_thousand_are_enqueued_while_workers_run(database_url: str) -> None:
    async with app.open(database_url, services=["worker"]) as backend:
        enqueuing = asyncio.ensure_future(
            plenty.enqueue_batch(backend, do, [{"number": number} for number in range(MANY)])
        )
        works = [await few.enqueue(backend, do, number) for number in range(20)]
        for number, work in enumerate(works):
            assert await few.result(backend, work, timedelta(seconds=60)) == Success(number)
        ids = await enqueuing
        assert len(set(ids)) == MANY
        assert ids == sorted(ids), "in the order in which they were given"
        assert (await backend.job_counts())["ready"] == MANY
        found = await plenty.status_batch(backend, [ids[0], ids[-1]])
        assert None not in found


async def test_work_is_canceled_in_every_state(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        works = {
            "ready": await plenty.enqueue(backend, do),
            "scheduled": await few.with_options(run_after=timedelta(hours=1)).enqueue(backend, do),
            "at a gate": await plenty.with_options(concurrency_key="a").enqueue(backend, do),
        }
        for work in works.values():
            await few.cancel(backend, work)
        await backend.run_until_idle()
        for state, work in works.items():
            assert await few.status(backend, work) == Finished(Canceled()), state

        running = await few.with_options(retry=True).enqueue(backend, wait)
        await backend.worker.tick()
        await begun.wait()
        await few.cancel(backend, running)
        await backend.worker.tick()
        may_end.set()
        await backend.run_until_idle()
        assert await few.status(backend, running) == Finished(Canceled())

        outside = await few.enqueue(backend, leave_to_others)
        await backend.run_until_idle()
        await few.cancel(backend, outside)
        await backend.run_until_idle()
        assert await few.status(backend, outside) == Finished(Canceled())

        completing = await few.with_options(on_complete=tell).enqueue(backend, do, 7)
        await backend.run_until_idle(advance=False)
        await few.cancel(backend, completing)
        await backend.run_until_idle()
        assert told == ["success"] * 3
        assert await few.status(backend, completing) == Finished(Success(7)), "it had ended before"
        await few.cancel(backend, completing)
        await backend.run_until_idle()
        assert await few.status(backend, completing) == Finished(Success(7))


def release(limit: int) -> tuple[App, Any, list[int]]:
    """A release of a program; how many of its pool's work it has run at most at once."""
    program, most, running = App(), [0], 0
    pool = program.workpool("shared", max_parallelism=limit)

    async def work(ctx: ActionCtx) -> None:
        nonlocal running
        running += 1
        most[0] = max(most[0], running)
        for _ in range(20):
            await SystemClock().sleep(0)
        running -= 1

    return program, (pool, program.internal_action(work)), most


async def test_of_two_releases_the_one_that_started_last_says_the_limit(database_url: str) -> None:
    old, (old_pool, old_work), _ = release(2)
    new, (new_pool, new_work), _ = release(7)
    assert old_work.name == new_work.name

    async def limit(backend: Any) -> int:
        (pool,) = await backend.pools()
        return int(pool.max_parallelism)

    async with old.open(database_url, services=["worker"]) as first:
        assert await limit(first) == 2
        async with new.open(database_url, services=["worker"]) as second:
            assert await limit(first) == 7, "all of them keep it"
            for _ in range(30):
                await old_pool.enqueue(first, old_work)
                await new_pool.enqueue(second, new_work)

            async def all_ended() -> bool:
                return (await second.job_counts()).get("success", 0) == 60

            await until(all_ended)
        async with old.open(database_url):
            assert await limit(first) == 2, "the old one was started again"
        async with old.open(database_url):
            assert await limit(first) == 2
