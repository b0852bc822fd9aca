"""Rate limits of pools: so much work starts in a time, of the pool and of each key, and the rest waits for its turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest

from penstock import ActionCtx, App, FixedWindow, Retry, TokenBucket, Workpool
from penstock.pools.pool import PoolDefinition
from penstock.testing import TestApp

SECOND = timedelta(seconds=1)
app = App()
slow = app.workpool("slow", rate_limit=TokenBucket(rate=10, period=10 * SECOND, capacity=2))
windows = app.workpool("windows", key_rate_limit=FixedWindow(rate=2, period=60 * SECOND))

slow_before = Workpool(PoolDefinition("slow"), app.guests)  # as an older release knows it

started: list[tuple[str, datetime]] = []
fail: list[Exception] = []


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    started.clear()
    fail.clear()


@app.internal_action
async def call(ctx: ActionCtx, who: str) -> None:
    started.append((who, ctx.now()))
    if fail:
        raise fail.pop()


def seconds() -> list[float]:
    """When each one started, since the first."""
    times = sorted(moment for _, moment in started)
    return [(moment - times[0]).total_seconds() for moment in times]


async def test_work_starts_no_faster_than_its_pool_may(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        await slow.enqueue_batch(backend, call, [{"who": "x"}] * 6)
        await backend.run_until_idle()
        assert seconds() == [0, 0, 1, 2, 3, 4]


async def test_further_attempts_count_too(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        fail.extend([OSError("down")] * 2)
        at_once = slow.with_options(retry=Retry(max_attempts=3, initial_backoff=0))
        await at_once.enqueue_batch(backend, call, [{"who": "x"}] * 2)
        await backend.run_until_idle()
        assert seconds() == [0, 0, 1, 2]


async def test_each_key_has_a_limit_of_its_own(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        for who, count in (("a", 5), ("b", 1)):
            work = windows.with_options(concurrency_key=who)
            await work.enqueue_batch(backend, call, [{"who": who}] * count)
        await windows.enqueue_batch(backend, call, [{"who": ""}] * 4)
        await backend.run_until_idle(advance=False)
        assert Counter(who for who, _ in started) == {"a": 2, "b": 1, "": 4}
        await backend.run_until_idle()
        assert Counter(who for who, _ in started) == {"a": 5, "b": 1, "": 4}
        assert started[-1][1] - started[0][1] >= 60 * SECOND


async def test_work_of_an_older_release_keeps_to_the_limit_too(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        await slow_before.enqueue_batch(backend, call, [{"who": "old"}] * 3)
        await slow.enqueue(backend, call, "new")
        await backend.run_until_idle(advance=False)
        await slow_before.enqueue_batch(backend, call, [{"who": "old"}] * 3)
        await backend.run_until_idle()
        assert seconds() == [0, 0, 1, 2, 3, 4, 5]
