"""A limit that is changed: nothing starts beyond it once the call has returned, whatever was claimed before."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest
from race.test_workers import make_worker
from stage.databases import connected
from stage.faults import held
from stage.waits import until

from penstock import ActionCtx, App, Backend, Finished
from penstock.services.worker.worker import Worker
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
_WAITING = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"

app = OPENED = App()
pool = app.workpool("changed", max_parallelism=5, key_parallelism=5)


@app.internal_action
async def work(ctx: ActionCtx) -> None:
    """What the pool limits."""
    await ctx.wait_cancelled(30)


app.workpool("single", max_parallelism=1)
brief = app.workpool("brief", max_parallelism=100)
started: list[str] = []
thread_is_free = threading.Event()
may_end: list[asyncio.Event] = []


@app.internal_action
async def wait_for_the_end(ctx: ActionCtx) -> None:
    may_end.append(asyncio.Event())
    await may_end[-1].wait()


@app.internal_action
async def end_at_once(ctx: ActionCtx) -> None:
    """Make no tick of its worker find it running."""


@pytest.fixture(autouse=True)
def nothing_has_started() -> None:
    started.clear()
    may_end.clear()
    thread_is_free.clear()


def declare(**options: Any) -> Callable[[Backend], Coroutine[Any, Any, None]]:
    fewer = App().workpool("changed", **options)
    return lambda backend: backend.engine.store.pools.declare([fewer.definition])


CHANGES: dict[str, Callable[[Backend], Coroutine[Any, Any, None]]] = {
    "lower": lambda backend: pool.set_max_parallelism(backend, 1),
    "pause": pool.pause,
    "declare": declare(max_parallelism=1),
    "declare fewer of a key": declare(max_parallelism=5, key_parallelism=1),
}


@pytest.mark.parametrize("key", [None, "a"])
@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_waits_for_claims_that_began_before_it(postgres_url: str, change: str, key: str | None) -> None:
    """They claim what is ready, or what waits at the gate."""
    async with TestApp(app, postgres_url) as backend:
        await pool.with_options(concurrency_key=key).enqueue_batch(backend, work, [{}] * 5)
        worker = make_worker(backend)
        await worker._keep_lease()
        await worker._slots.balance(worker.lease or 0, 5, worker._executor.busy)
        async with connected(postgres_url) as blocker, connected(postgres_url) as watcher:

            async def are_waiting(count: int) -> bool:
                return bool(await watcher.fetchval(_WAITING) >= count)

            await blocker.execute(_IN_THE_WAY)
            claiming = asyncio.create_task(worker.tick())
            await until(lambda: are_waiting(1))
            changing = asyncio.create_task(CHANGES[change](backend))
            await until(lambda: are_waiting(2))
            assert not changing.done(), "the claim holds the pool"
            await blocker.execute("rollback")
            await asyncio.gather(claiming, changing)
            assert (await backend.job_counts())["running"] == 5, "it came first"
            await worker.tick()
        await worker.kill()


async def test_a_worker_that_drains_short_jobs_does_not_look_at_its_slots_before_each_claim(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is as busy as one whose jobs run on, and the look would be a third of its statements."""
    async with TestApp(app, database_url, worker_jobs=100) as backend:
        await brief.enqueue_batch(backend, end_at_once, [{}] * 600)
        worker, pools, looks = make_worker(backend), backend.engine.store.pools, list[float]()
        look = pools.look

        async def count_and_look(lease: int, names: list[str], most: int) -> Any:
            looks.append(backend.clock.monotonic())
            return await look(lease, names, most)

        monkeypatch.setattr(pools, "look", count_and_look)
        claims = 0
        while (await backend.job_counts()).get("success", 0) < 600:
            await worker.tick()
            await worker.wait_for_jobs()
            claims += 1
            assert claims < 40, "all jobs are done by now"
        assert claims >= 12, "it claims 50 jobs at once"
        assert len(looks) <= 2, "at first, and perhaps when it found no more"
        backend.clock.advance(timedelta(seconds=1))
        await worker.tick()
        assert looks[-1] == backend.clock.monotonic(), "time has passed"
        await worker.kill()


async def test_what_was_claimed_before_its_worker_was_suspended_does_not_start_after_it(database_url: str) -> None:
    """Its lease has run out meanwhile: another worker has its job, and its slot."""
    single = app.pools["single"]
    async with TestApp(app, database_url) as backend:
        job = await single.with_options(retry=True).enqueue(backend, wait_for_the_end)
        async with held("worker.claimed", backend.worker.tick()):
            backend.clock.advance(timedelta(minutes=1))
            other = make_worker(backend)
            await other.tick()
            await other.tick()
            await until(lambda: bool(may_end))
        await backend.worker.wait_for_jobs()
        assert len(may_end) == 1, "the limit is one"
        await _end_one(other)
        await other.tick()
        assert isinstance(await single.status(backend, job), Finished)
        await other.finish()


async def _end_one(worker: Worker) -> None:
    """Let one of the jobs end, and have it settled before any other look at the pool is due."""
    may_end.pop(0).set()
    await until(lambda: bool(worker.open_outcomes))
    await worker.tick()
