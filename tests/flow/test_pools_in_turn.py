"""Pools share the places and slots of workers: none waits for the others, or keeps what it cannot use."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from penstock import ActionCtx, App
from penstock.api.pools.workpool import Workpool
from penstock.app import Backend
from penstock.services.worker.worker import Worker
from penstock.testing import TestApp

app = OPENED = App()
pools = [app.workpool(f"pool-{number}", max_parallelism=2) for number in range(6)]
shared = app.workpool("shared", max_parallelism=4)
mail = app.workpool("mail", max_parallelism=2, group="outside")
scrape = app.workpool("scrape", max_parallelism=3, group="outside")
tenants = app.workpool("tenants", max_parallelism=6, key_parallelism=2, group="keyed")
other = app.workpool("other", max_parallelism=1, group="keyed")

going: list[tuple[str, asyncio.Event]] = []


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    going.clear()


@app.internal_action
async def occupy(ctx: ActionCtx, what: str) -> None:
    mine = (what, asyncio.Event())
    going.append(mine)
    await mine[1].wait()
    going.remove(mine)


@app.internal_action
async def nothing(ctx: ActionCtx) -> None:
    """It has a place for a moment."""


async def turn() -> None:
    """Let others go on."""


async def look(backend: TestApp, *workers: Worker, passing: float = 0.3) -> list[str]:
    """What runs once these workers have had their turns, in which time passes."""
    for _ in range(10):
        backend.clock.advance(timedelta(seconds=passing))
        for worker in workers or (backend.worker,):
            await worker.tick()
            for _ in range(5):
                await asyncio.wait([asyncio.ensure_future(turn())])
    return [what for what, _ in going]


async def soon(backend: TestApp) -> list[str]:
    """What runs after so little time that the worker keeps the slots that it holds."""
    return await look(backend, passing=0.02)


async def end_oldest(backend: TestApp) -> list[str]:
    going[0][1].set()
    return await soon(backend)


async def fill(backend: Backend, several: Sequence[Workpool], jobs: int) -> None:
    for pool in several:
        await pool.enqueue_batch(backend, occupy, [{"what": pool.name}] * jobs)


def end_all(what: str) -> None:
    for name, end in going:
        if name == what:
            end.set()


async def test_work_starts_though_more_pools_are_idle_than_there_are_places(database_url: str) -> None:
    async with TestApp(app, database_url, worker_jobs=1) as backend:
        for pool in pools:  # after which the worker holds a slot of each
            await pool.enqueue(backend, nothing)
            await backend.run_until_idle()
        for pool in (pools[-1], pools[0], pools[3]):
            await pool.enqueue(backend, occupy, pool.name)
            assert await soon(backend) == [pool.name]
            assert await end_oldest(backend) == []


@pytest.mark.parametrize("late", [0, 5])
@pytest.mark.parametrize("places", [1, 4])
async def test_an_idle_pool_does_not_wait_for_the_backlogs_of_others(database_url: str, places: int, late: int) -> None:
    async with TestApp(app, database_url, worker_jobs=places) as backend:
        busy = [pool for pool in pools if pool is not pools[late]][:4]
        await fill(backend, busy, 20)
        assert len(await soon(backend)) == places
        for _ in range(4):
            await end_oldest(backend)
        await fill(backend, [pools[late]], 1)
        turns = [await end_oldest(backend) for _ in range(len(busy) + 1)]
        assert any(pools[late].name in names for names in turns), "each of the others has had at most one turn"


@asynccontextmanager
async def two_workers(database_url: str) -> AsyncIterator[tuple[TestApp, Worker, Worker]]:
    async with TestApp(app, database_url, worker_jobs=4) as backend:
        second = backend.make_service("worker")
        assert isinstance(second, Worker)
        yield backend, backend.worker, second
        await second.kill()


async def fill_places(backend: TestApp, worker: Worker) -> None:
    """Let long jobs that need no slot take all places of a worker."""
    for _ in range(4):
        await backend.scheduler.run_after(timedelta(0), occupy, "long")
    await look(backend, worker)


async def test_who_is_full_wants_no_slots_and_has_its_share_when_it_is_not(database_url: str) -> None:
    async with two_workers(database_url) as (backend, first, second):
        await shared.enqueue_batch(backend, occupy, [{"what": "short"}] * 40)
        await look(backend, first)
        assert await look(backend, second) == ["short"] * 4, "the second has got none"
        await fill_places(backend, second)
        end_all("short")
        assert Counter(await look(backend, first, second)) == {"short": 4, "long": 4}
        assert first._slots.numbers()["shared"] == 4
        end_all("long")
        await look(backend, second, first)
        end_all("short")
        assert await look(backend, first, second) == ["short"] * 4
        assert [worker._slots.numbers()["shared"] for worker in (first, second)] == [2, 2]


async def end_first(backend: TestApp) -> Counter[str]:
    going[0][1].set()
    return Counter(await look(backend))


async def test_a_pool_borrows_what_is_idle_and_gives_it_back(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        await mail.pause(backend)
        await fill(backend, [scrape], 20)
        await fill(backend, [mail], 20)
        assert Counter(await look(backend)) == {"scrape": 3}, "a paused pool neither lends nor borrows"
        await mail.cancel_all(backend)
        await mail.resume(backend)
        assert Counter(await look(backend)) == {"scrape": 5}
        await fill(backend, [mail], 20)
        assert Counter(await look(backend)) == {"scrape": 5}, "what runs is not stopped"
        assert await end_first(backend) == {"scrape": 4, "mail": 1}
        assert await end_first(backend) == {"scrape": 3, "mail": 2}
        assert (await end_first(backend)).total() == 5
        assert Counter(await look(backend)) == {"scrape": 3, "mail": 2}


async def test_a_pool_whose_keys_run_all_they_may_lends_the_rest(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        for key, others in (("a", 9), ("b", 0)):
            await tenants.with_options(concurrency_key=key).enqueue_batch(backend, occupy, [{"what": key}] * 9)
            expected = {"a": 2, "other": 5} if others == 0 else {"a": 2}
            assert Counter(await look(backend)) == expected
            await fill(backend, [other], others)
            assert Counter(await look(backend)) == {"a": 2, "other": 5}
        for left in (4, 3):
            going[2][1].set()
            assert Counter(await look(backend)) == {"a": 2, "b": 5 - left, "other": left}, "as far as its keys go"
