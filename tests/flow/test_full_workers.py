"""A worker whose places are all taken keeps no slots of pools from others, neither by holding nor by wanting them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from penstock import ActionCtx, App
from penstock.services.worker.worker import Worker
from penstock.testing import TestApp

app = App()
shared = app.workpool("shared", max_parallelism=4)

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


@asynccontextmanager
async def two_workers(database_url: str) -> AsyncIterator[tuple[TestApp, Worker, Worker]]:
    async with TestApp(app, database_url, worker_jobs=4) as backend:
        other = backend.make_service("worker")
        assert isinstance(other, Worker)
        yield backend, backend.worker, other
        await other.kill()


async def look(backend: TestApp, *workers: Worker) -> None:
    """These have their turns, until nothing changes any more."""
    for _ in range(10):
        backend.clock.advance(timedelta(seconds=0.1))
        for worker in workers:
            await worker.tick()
            for _ in range(5):
                await asyncio.wait([asyncio.ensure_future(turn())])


async def turn() -> None:
    """Let others go on."""


async def fill(backend: TestApp, worker: Worker) -> None:
    """Let long jobs that need no slot take all places of a worker."""
    for _ in range(4):
        await backend.scheduler.run_after(timedelta(0), occupy, "long")
    await look(backend, worker)


def end_all(what: str) -> None:
    for name, end in going:
        if name == what:
            end.set()


def run() -> Counter[str]:
    return Counter(what for what, _ in going)


async def test_who_is_full_wants_no_slots_any_more(database_url: str) -> None:
    async with two_workers(database_url) as (backend, first, second):
        await shared.enqueue_batch(backend, occupy, [{"what": "short"}] * 20)
        await look(backend, first)
        await look(backend, second)
        assert run() == {"short": 4}, "the second has got none"
        await fill(backend, second)
        end_all("short")
        await look(backend, first, second)
        assert run() == {"short": 4, "long": 4}


async def test_who_is_full_gives_back_the_slots_that_it_has_free(database_url: str) -> None:
    async with two_workers(database_url) as (backend, first, second):
        await shared.enqueue_batch(backend, occupy, [{"what": "early"}] * 2)
        await look(backend, second)
        end_all("early")
        await look(backend, second)
        await fill(backend, second)
        assert second._slots.numbers() == {"shared": 2}, "for a while"
        await shared.enqueue_batch(backend, occupy, [{"what": "short"}] * 20)
        await look(backend, first, second)
        assert run() == {"short": 4, "long": 4}


async def test_who_is_full_for_a_moment_keeps_its_slots(database_url: str) -> None:
    async with two_workers(database_url) as (backend, first, second):
        await shared.enqueue_batch(backend, occupy, [{"what": "early"}] * 2)
        await look(backend, second)
        end_all("early")
        await look(backend, second)
        for _ in range(4):
            await backend.scheduler.run_after(timedelta(0), occupy, "long")
        await second.tick()
        await shared.enqueue_batch(backend, occupy, [{"what": "short"}] * 20)
        for _ in range(2):
            backend.clock.advance(timedelta(seconds=0.1))
            await first.tick()
            await second.tick()
        assert second._slots.numbers() == {"shared": 2}


async def test_who_has_a_place_again_has_its_share_again(database_url: str) -> None:
    async with two_workers(database_url) as (backend, first, second):
        await shared.enqueue_batch(backend, occupy, [{"what": "short"}] * 40)
        await look(backend, first)
        await look(backend, second)
        await fill(backend, second)
        end_all("short")
        await look(backend, first, second)
        assert first._slots.numbers() == {"shared": 4}
        end_all("long")
        await look(backend, second, first)
        end_all("short")
        await look(backend, first, second)
        assert [worker._slots.numbers() for worker in (first, second)] == [{"shared": 2}] * 2
        assert run() == {"short": 4}
