"""Pools whose limits are together more than a worker has places for share these, and none waits for the others."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta

import pytest

from penstock import ActionCtx, App
from penstock.api.pools.workpool import Workpool
from penstock.app import Backend
from penstock.testing import TestApp

app = OPENED = App()
pools = [app.workpool(f"pool-{number}", max_parallelism=2) for number in range(6)]
wide = app.workpool("wide", max_parallelism=9)

running: list[tuple[str, asyncio.Event]] = []


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    running.clear()


@app.internal_action
async def occupy(ctx: ActionCtx, what: str) -> None:
    mine = (what, asyncio.Event())
    running.append(mine)
    await mine[1].wait()
    running.remove(mine)


@app.internal_action
async def nothing(ctx: ActionCtx) -> None:
    """It has a place for a moment."""


async def look(backend: TestApp, passing: float = 0.06) -> list[str]:
    """What runs once the worker has had its turns; so little time passes that it keeps the slots that it holds."""
    for _ in range(4):
        backend.clock.advance(timedelta(seconds=passing))
        await backend.worker.tick()
        for _ in range(5):
            await asyncio.wait([asyncio.ensure_future(turn())])
    return [what for what, _ in running]


async def turn() -> None:
    """Let others go on."""


async def end_oldest(backend: TestApp) -> list[str]:
    running[0][1].set()
    return await look(backend)


async def fill(backend: Backend, several: Sequence[Workpool], jobs: int) -> None:
    for pool in several:
        await pool.enqueue_batch(backend, occupy, [{"what": pool.name}] * jobs)


async def test_work_starts_though_more_pools_are_idle_than_there_are_places(database_url: str) -> None:
    async with TestApp(app, database_url, worker_jobs=1) as backend:
        for pool in pools:  # after which the worker holds a slot of each
            await pool.enqueue(backend, nothing)
            await backend.run_until_idle()
        for pool in (pools[-1], pools[0], pools[3]):
            await pool.enqueue(backend, occupy, pool.name)
            assert await look(backend) == [pool.name]
            assert await end_oldest(backend) == []


@pytest.mark.parametrize("late", [0, 5])
@pytest.mark.parametrize("places", [1, 4])
async def test_an_idle_pool_does_not_wait_for_the_backlogs_of_others(database_url: str, places: int, late: int) -> None:
    async with TestApp(app, database_url, worker_jobs=places) as backend:
        busy = [pool for pool in pools if pool is not pools[late]][:4]
        await fill(backend, busy, 20)
        assert len(await look(backend)) == places
        for _ in range(4):
            await end_oldest(backend)
        await fill(backend, [pools[late]], 1)
        turns = [await end_oldest(backend) for _ in range(len(busy) + 1)]
        assert any(pools[late].name in names for names in turns), "each of the others has had at most one turn"


async def test_a_place_is_for_an_idle_pool_though_the_worker_looked_while_it_had_none(database_url: str) -> None:
    async with TestApp(app, database_url, worker_jobs=4) as backend:
        await fill(backend, pools[:4], 20)
        assert len(await look(backend)) == 4
        await fill(backend, pools[4:5], 1)
        assert pools[4].name not in await look(backend)
        running[0][1].set()
        assert pools[4].name in await look(backend, passing=0.0)


async def enqueue(backend: Backend, pool: Workpool | None, jobs: int) -> None:
    """So many jobs of a pool, or, without one, of the scheduler."""
    for _ in range(jobs):
        if pool is None:
            await backend.scheduler.run_after(timedelta(0), occupy, "scheduled")
        else:
            await pool.enqueue(backend, occupy, pool.name)


@pytest.mark.parametrize(("busy", "idle"), [(None, wide), (wide, None), (wide, pools[0])])
async def test_a_place_goes_to_who_runs_less_though_that_has_had_the_last_turn(
    database_url: str, busy: Workpool | None, idle: Workpool | None
) -> None:
    async with TestApp(app, database_url, worker_jobs=3) as backend:
        await enqueue(backend, busy, 2)
        before = await look(backend)
        assert len(before) == 2
        await enqueue(backend, idle, 1)
        assert len(await look(backend)) == 3
        await enqueue(backend, busy, 5)
        await enqueue(backend, idle, 1)
        running[-1][1].set()
        after = await look(backend)
        assert (after[:2], len(set(after)), len(after)) == (before, 2, 3)


@pytest.mark.parametrize(("places", "several"), [(3, 4), (4, 3)])
async def test_pools_that_run_as_much_have_as_many_places_in_the_long_run(
    database_url: str, places: int, several: int
) -> None:
    async with TestApp(app, database_url, worker_jobs=places) as backend:
        await fill(backend, pools[:several], 20)
        had = Counter[str]()
        for _ in range(8):
            had.update(await look(backend))
            for _, end in running:
                end.set()
            for _ in range(5):
                await asyncio.wait([asyncio.ensure_future(turn())])
        assert had.total() == 8 * places
        assert max(had.values()) - min(had.values()) <= 1
