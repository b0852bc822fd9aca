"""A limit that is changed: nothing starts beyond it once the call has returned, whatever was claimed before."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from stage.waits import SOON, until

from penstock import ActionCtx, App, Backend, Finished, MutationCtx, Pending, QueryCtx
from penstock.services.worker.worker import Worker
from penstock.sync import ActionCtx as SyncActionCtx
from penstock.sync import MutationCtx as SyncMutationCtx
from penstock.testing import TestApp, gate

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

app = OPENED = App()
pool = app.workpool("changed", max_parallelism=5, key_parallelism=5)


@app.internal_action
async def work(ctx: ActionCtx) -> None:
    """What the pool limits."""
    await ctx.wait_cancelled(30)


wide = app.workpool("wide", max_parallelism=20)
app.workpool("single", max_parallelism=1)
started: list[str] = []
thread_is_free = threading.Event()
may_end: list[asyncio.Event] = []


@app.internal_action
async def wait_for_the_end(ctx: ActionCtx) -> None:
    may_end.append(asyncio.Event())
    await may_end[-1].wait()


@app.internal_action
def hold_a_thread(ctx: SyncActionCtx, what: str) -> None:
    started.append(what)
    thread_is_free.wait(SOON)


@app.internal_action
async def act(ctx: ActionCtx, what: str) -> None:
    started.append(what)


@app.internal_action
def act_in_a_thread(ctx: SyncActionCtx, what: str) -> None:
    started.append(what)


@app.internal_action(runtime="process")
def act_in_a_process(ctx: Any, what: str) -> None:
    Path(what).touch()


@app.internal_mutation
async def write(ctx: MutationCtx, what: str) -> None:
    started.append(what)


@app.internal_mutation
def write_in_a_thread(ctx: SyncMutationCtx, what: str) -> None:
    started.append(what)


@app.internal_query
async def read(ctx: QueryCtx, what: str) -> None:
    started.append(what)


@dataclass(frozen=True)
class Item:
    what: str


@app.internal_action(batch=10, of=Item)
async def act_on_many(ctx: ActionCtx, items: list[Item]) -> list[None]:
    started.extend(item.what for item in items)
    return [None] * len(items)


KINDS = (act, act_in_a_thread, act_in_a_process, write, write_in_a_thread, read, act_on_many)


@pytest.fixture(autouse=True)
def nothing_has_started() -> None:
    started.clear()
    may_end.clear()
    thread_is_free.clear()


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
        await worker._slots.balance(await _lease(worker), 5, worker._executor.busy)
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


async def test_slots_above_a_lowered_limit_give_no_room(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        await pool.enqueue_batch(backend, wait_for_the_end, [{}] * 9)
        await backend.worker.tick()
        await until(lambda: _have(may_end, 5))
        await pool.set_max_parallelism(backend, 2)
        backend.clock.advance(timedelta(seconds=1))
        await backend.worker.tick()  # it learns of the limit while all of its slots are taken
        for left in (4, 3, 2):
            await _end_one(backend.worker)
            assert len(backend.worker.running) == left
        backend.clock.advance(timedelta(seconds=1))
        await backend.worker.tick()  # it gives back the others
        await _end_one(backend.worker)
        assert len(backend.worker.running) == 2


async def test_what_was_claimed_before_a_pause_does_not_start_after_it(database_url: str, tmp_path: Path) -> None:
    """The answers of the claim come late. Work of all kinds waits, in shared transactions, batches and threads."""
    async with TestApp(app, database_url) as backend:
        what = str(tmp_path / "process")
        ids = [await wide.enqueue(backend, kind, what) for kind in KINDS for _ in range(2)]
        with gate("worker.claimed") as claimed:
            claiming = asyncio.create_task(backend.worker.tick())
            await claimed.arrived()
            await wide.pause(backend)
        await claiming
        await backend.worker.wait_for_jobs()
        await backend.worker.tick()
        assert started == []
        assert not is_there(what)
        assert {await wide.status(backend, one) for one in ids} == {Pending(0)}, "no attempt was used"


async def test_what_was_claimed_before_its_worker_was_suspended_does_not_start_after_it(database_url: str) -> None:
    """Its lease has run out meanwhile: another worker has its job, and its slot."""
    single = app.pools["single"]
    async with TestApp(app, database_url) as backend:
        job = await single.with_options(retry=True).enqueue(backend, wait_for_the_end)
        with gate("worker.claimed", most=1) as claimed:
            claiming = asyncio.create_task(backend.worker.tick())
            await claimed.arrived()
            backend.clock.advance(timedelta(minutes=1))
            other = backend.make_service("worker")
            assert isinstance(other, Worker)
            await other.tick()
            await other.tick()
            await until(lambda: _have(may_end, 1))
        await claiming
        await backend.worker.wait_for_jobs()
        assert len(may_end) == 1, "the limit is one"
        await _end_one(other)
        await other.tick()
        assert isinstance(await single.status(backend, job), Finished)
        await other.finish()


async def test_what_waits_for_a_thread_when_its_pool_is_paused_does_not_start(sqlite_url: str) -> None:
    async with TestApp(app, sqlite_url, threads=1) as backend:
        await wide.enqueue(backend, hold_a_thread, "first")
        second = await wide.enqueue(backend, hold_a_thread, "second")
        await backend.worker.tick()
        await until(lambda: _have(started, 1))
        await wide.pause(backend)
        thread_is_free.set()
        await backend.worker.wait_for_jobs()
        await backend.worker.tick()
        assert started == ["first"]
        assert await wide.status(backend, second) == Pending(0)
        await wide.resume(backend)
        await backend.run_until_idle()
        assert started == ["first", "second"]


def is_there(file: str) -> bool:
    return Path(file).exists()


async def _have(things: list[Any], count: int) -> bool:
    return len(things) >= count


async def _end_one(worker: Worker) -> None:
    """Let one of the jobs end, and have it settled before any other look at the pool is due."""
    may_end.pop(0).set()

    async def has_ended() -> bool:
        return bool(worker.open_outcomes)

    await until(has_ended)
    await worker.tick()


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
