"""A function written with def goes on in its thread when its time is over: its job keeps its slot and its place."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from stage.waits import until

from penstock import ActionCtx, App, Retry, sync
from penstock.testing import TestApp

app = App()
one = app.workpool("one", max_parallelism=1)

begun: list[str] = []
end = threading.Event()


@dataclass
class Call:
    what: str


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    end.set()
    begun.clear()


@pytest.fixture
def going() -> threading.Event:
    end.clear()
    return end


@app.internal_action
def wait(ctx: sync.ActionCtx, what: str) -> None:
    begun.append(what)
    assert end.wait(60)


@app.internal_action(batch=5, of=Call)
def wait_together(ctx: sync.ActionCtx, calls: list[Call]) -> list[None]:
    begun.extend(call.what for call in calls)
    assert end.wait(60)
    return [None] * len(calls)


@app.internal_action(batch=5, of=Call, linger=timedelta(minutes=1))
async def gather(ctx: ActionCtx, calls: list[Call]) -> list[None]:
    begun.extend(call.what for call in calls)
    return [None] * len(calls)


@app.internal_action
async def wait_nested(ctx: ActionCtx, what: str) -> None:
    await ctx.run_action(wait, what)


@app.internal_action
async def note(ctx: ActionCtx, what: str) -> None:
    begun.append(what)


async def look(backend: TestApp) -> None:
    backend.clock.advance(timedelta(seconds=1))
    await backend.worker.tick()


async def look_often(backend: TestApp) -> None:
    for _ in range(4):
        await look(backend)
        await asyncio.wait([asyncio.ensure_future(turn())])


async def turn() -> None:
    """Let others go on."""


async def enqueue(backend: TestApp, function: Any) -> None:
    """Work that is tried until it has begun before its time was over, and given up then."""
    again = Retry.fixed(0.01, max_attempts=None)
    await one.with_options(timeout=timedelta(seconds=0.05), retry=again).enqueue(backend, function, what="first")

    async def is_given_up() -> bool:
        await look(backend)
        return begun == ["first"] and not backend.worker.running and not backend.worker.open_outcomes

    await until(is_given_up)


async def has_begun(backend: TestApp, what: str) -> None:
    async def has_run() -> bool:
        await look(backend)
        return what in begun

    await until(has_run)


@pytest.mark.parametrize("function", [wait, wait_together, wait_nested])
async def test_what_goes_on_in_a_thread_keeps_its_slot_until_it_ends(
    database_url: str, function: Any, going: threading.Event
) -> None:
    async with TestApp(app, database_url) as backend:
        await enqueue(backend, function)
        await one.enqueue(backend, note, "second")
        await backend.scheduler.run_after(timedelta(0), note, "of no pool")
        await has_begun(backend, "of no pool")
        await look_often(backend)
        assert begun == ["first", "of no pool"], "neither the next attempt nor other work of the pool"
        going.set()
        await has_begun(backend, "second")


async def test_what_goes_on_in_a_thread_keeps_its_place_until_it_ends(
    database_url: str, going: threading.Event
) -> None:
    async with TestApp(app, database_url, worker_jobs=2) as backend:
        await enqueue(backend, wait)
        await backend.scheduler.run_after(timedelta(0), gather, "second")
        backend.clock.advance(timedelta(seconds=1))

        async def has_run() -> bool:
            await backend.worker.tick()  # no time passes in which the batch might wait for others
            return begun == ["first", "second"]

        await until(has_run)
        going.set()
    begun.clear()
    going.clear()
    async with TestApp(app, database_url, worker_jobs=1) as backend:
        await enqueue(backend, wait)
        await backend.scheduler.run_after(timedelta(0), note, "second")
        await look_often(backend)
        assert begun == ["first"]
        await backend.worker.finish()
        assert not going.is_set(), "a worker that stops does not wait for it"
        going.set()
        await has_begun(backend, "second")
        await backend.run_until_idle()
        assert backend.worker._executor.busy["one"] == 0, "what ended late was not counted twice"
