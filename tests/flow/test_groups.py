"""Pools of a group lend each other what they do not use, and get their own back when they want it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta

import pytest

from penstock import ActionCtx, App
from penstock.app import Backend
from penstock.testing import TestApp

app = App()
mail = app.workpool("mail", max_parallelism=2, group="outside")
scrape = app.workpool("scrape", max_parallelism=3, group="outside")
tenants = app.workpool("tenants", max_parallelism=6, key_parallelism=2, group="keyed")
other = app.workpool("other", max_parallelism=1, group="keyed")

running: Counter[str] = Counter()
going: list[asyncio.Event] = []


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    running.clear()
    going.clear()


@app.internal_action
async def occupy(ctx: ActionCtx, what: str) -> None:
    end = asyncio.Event()
    going.append(end)
    running[what] += 1
    try:
        await end.wait()
    finally:
        running[what] -= 1


async def look(backend: TestApp) -> dict[str, int]:
    """What runs once the worker has had time to take and give slots."""
    for _ in range(6):
        backend.clock.advance(timedelta(seconds=0.3))
        await backend.worker.tick()
        for _ in range(5):
            await asyncio.wait([asyncio.ensure_future(turn())])
    return {what: count for what, count in running.items() if count}


async def turn() -> None:
    """Let others go on."""


async def end_one(backend: TestApp) -> dict[str, int]:
    going.pop(0).set()
    return await look(backend)


async def all_of(backend: Backend | TestApp) -> None:
    await scrape.enqueue_batch(backend, occupy, [{"what": "scrape"}] * 20)


async def test_a_pool_borrows_what_is_idle_and_gives_it_back(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        await all_of(backend)
        assert await look(backend) == {"scrape": 5}
        await mail.enqueue_batch(backend, occupy, [{"what": "mail"}] * 20)
        assert await look(backend) == {"scrape": 5}, "what runs is not stopped"
        assert await end_one(backend) == {"scrape": 4, "mail": 1}
        assert await end_one(backend) == {"scrape": 3, "mail": 2}
        assert sum((await end_one(backend)).values()) == 5
        assert (await look(backend)) == {"scrape": 3, "mail": 2}


async def work_of(backend: TestApp, *keys: str) -> None:
    for key in keys:
        pool = tenants.with_options(concurrency_key=key)
        await pool.enqueue_batch(backend, occupy, [{"what": key}] * 9)


async def test_a_pool_whose_keys_run_all_they_may_lends_the_rest(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        await work_of(backend, "a")
        assert await look(backend) == {"a": 2}
        await other.enqueue_batch(backend, occupy, [{"what": "other"}] * 9)
        assert await look(backend) == {"a": 2, "other": 5}
        await work_of(backend, "b")
        assert await look(backend) == {"a": 2, "other": 5}
        going.pop(2).set()
        assert await look(backend) == {"a": 2, "b": 1, "other": 4}
        going.pop(2).set()
        assert await look(backend) == {"a": 2, "b": 2, "other": 3}, "it has its own back, as far as its keys go"


async def test_slots_that_are_of_no_use_any_more_are_lent_while_others_are_in_use(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        await tenants.with_options(concurrency_key="a").enqueue_batch(backend, occupy, [{"what": "a"}] * 2)
        await tenants.with_options(concurrency_key="b").enqueue_batch(backend, occupy, [{"what": "b"}] * 9)
        await tenants.with_options(concurrency_key="c").enqueue_batch(backend, occupy, [{"what": "c"}] * 2)
        assert await look(backend) == {"a": 2, "b": 2, "c": 2}
        await other.enqueue_batch(backend, occupy, [{"what": "other"}] * 9)
        assert await look(backend) == {"a": 2, "b": 2, "c": 2, "other": 1}
        going.pop(0).set()
        going.pop(0).set()
        left = await look(backend)
        assert (sum(left.values()), left["other"]) == (7, 3)


async def test_a_paused_pool_neither_lends_nor_borrows(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        await mail.pause(backend)
        await all_of(backend)
        await mail.enqueue_batch(backend, occupy, [{"what": "mail"}] * 20)
        assert await look(backend) == {"scrape": 3}
        await mail.resume(backend)
        assert await look(backend) == {"scrape": 3, "mail": 2}
