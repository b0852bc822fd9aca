"""A limit that is changed: no claim that began before it starts anything after it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import asyncpg
import pytest
from stage.waits import until

from penstock import ActionCtx, App, Backend
from penstock.services.worker import Worker
from penstock.testing import TestApp

# The claim that starts this job waits, in its midst, to learn whether there is such a row.
_IN_THE_WAY = """
begin;
insert into penstock.running_job
    (id, lease, pool, function, kind, args, priority, rank, run_at, attempt, enqueued_at, started_at)
select id, 0, pool, function, kind, args, priority, rank, run_at, 1, now(), now() from (
    select id, pool, function, kind, args, priority, rank, run_at from penstock.ready_job
    union all
    select id, pool, function, kind, args, priority, rank, run_at from penstock.scheduled_job
) job limit 1
"""

app = App()
pool = app.workpool("changed", max_parallelism=5, key_parallelism=5)


@app.internal_action
async def work(ctx: ActionCtx) -> None:
    """What the pool limits."""
    await ctx.wait_cancelled(30)


def lower(backend: Backend) -> Coroutine[Any, Any, None]:
    return pool.set_max_parallelism(backend, 1)


def pause(backend: Backend) -> Coroutine[Any, Any, None]:
    return pool.pause(backend)


def declare(backend: Backend) -> Coroutine[Any, Any, None]:
    fewer = App().workpool("changed", max_parallelism=1)
    return backend.engine.store.pools.declare([fewer.definition])


def declare_fewer_of_a_key(backend: Backend) -> Coroutine[Any, Any, None]:
    fewer = App().workpool("changed", max_parallelism=5, key_parallelism=1)
    return backend.engine.store.pools.declare([fewer.definition])


@pytest.mark.parametrize("key", [None, "a"])
@pytest.mark.parametrize("change", [lower, pause, declare, declare_fewer_of_a_key])
async def test_a_change_waits_for_claims_that_began_before_it(postgres_url: str, change: Any, key: str | None) -> None:
    """They claim what is ready, or what waits at the gate."""
    async with TestApp(app, postgres_url) as backend:
        await pool.with_options(concurrency_key=key).enqueue_batch(backend, work, [{}] * 5)
        blocker, watcher = await asyncpg.connect(postgres_url), await asyncpg.connect(postgres_url)
        worker = backend.make_service("worker")
        assert isinstance(worker, Worker)
        await worker._slots.balance(await _lease(worker), 5, worker._under_way.busy)
        try:
            await blocker.execute(_IN_THE_WAY)
            claiming = asyncio.create_task(worker.tick())
            await until(lambda: _waiting(watcher, 1))
            changing = asyncio.create_task(change(backend))
            await until(lambda: _waiting(watcher, 2))
            assert not changing.done(), "the claim holds the pool"
            await blocker.execute("rollback")
            await asyncio.gather(claiming, changing)
            assert (await backend.job_counts())["running"] == 5, "it came first"
            await worker.tick()
        finally:
            await blocker.close()
            await watcher.close()
            await worker.kill()


async def _lease(worker: Worker) -> int:
    await worker._keep_lease()
    assert worker.lease is not None
    return worker.lease


async def _waiting(watcher: asyncpg.Connection, count: int) -> bool:
    """Whether so many statements wait for a lock."""
    waiting: int = await watcher.fetchval(
        "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    )
    return waiting >= count
