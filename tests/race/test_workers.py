"""Workers that stall, are stopped or cut off: every job is accounted for, and none takes effect twice."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from programs import ledger
from stage.faults import held
from stage.postgres import Proxy
from stage.processes import Command
from stage.waits import until

from penstock.app import Backend
from penstock.clock import SystemClock
from penstock.errors import DatabaseUnavailable
from penstock.jobs.job import JobStatus
from penstock.services.worker.worker import Worker
from penstock.store.session import reading
from penstock.testing import TestClock, gate, raising

OPENED = ledger.app

SHORT_LEASE = 1.0
NOW = timedelta(0)
EXPIRED = timedelta(seconds=31)


async def ended(backend: Backend, count: int) -> list[JobStatus]:
    """The jobs, newest first, once so many have ended."""

    async def enough() -> bool:
        counts = await backend.job_counts()
        return sum(counts.get(state, 0) for state in ("success", "failed", "canceled")) >= count

    await until(enough)
    return await backend.jobs(limit=10_000)


async def status(backend: Backend, job: Any) -> JobStatus:
    found = await backend.job(job)
    assert found is not None
    return found


async def state(backend: Backend, job: Any) -> str:
    return (await status(backend, job)).state.value


async def is_state(backend: Backend, job: Any, expected: str) -> bool:
    return await state(backend, job) == expected


async def answer(true: bool) -> bool:
    return true


def worker_of(backend: Backend) -> Worker:
    (worker,) = backend.services.services
    assert isinstance(worker, Worker)
    return worker


def make_worker(backend: Backend) -> Worker:
    worker = backend.make_service("worker")
    assert isinstance(worker, Worker)
    return worker


@asynccontextmanager
async def two_on(url: str, **settings: Any) -> AsyncIterator[tuple[Backend, Backend, TestClock]]:
    """Two backends with one clock, whose workers' ticks the test makes."""
    clock = TestClock()
    async with (
        ledger.app.open(url, clock=clock, **settings) as first,
        ledger.app.open(url, clock=clock, **settings) as second,
    ):
        yield first, second, clock


@asynccontextmanager
async def stalled_and_rescuer(url: str, **settings: Any) -> AsyncIterator[tuple[Backend, Worker, Worker, TestClock]]:
    async with two_on(url, **settings) as (first, second, clock):
        workers = make_worker(first), make_worker(second)
        yield first, *workers, clock
        for worker in workers:
            await worker.finish()


async def start_action(backend: Backend, folder: Path, worker: Worker | None = None) -> Any:
    """An action that has begun, and ends when there is a file."""
    job = await backend.scheduler.run_after(NOW, ledger.act_shortly, folder=str(folder))
    if worker is not None:
        await worker.tick()
    await until((folder / "shortly").exists)
    return job


# ----- leases that are lost


async def test_a_worker_that_finds_its_lease_lost_stops_its_jobs_and_goes_on_under_a_new_one(
    database_url: str, tmp_path: Path
) -> None:
    async with stalled_and_rescuer(database_url) as (backend, stalled, rescuer, clock):
        await start_action(backend, tmp_path, stalled)
        (running,) = stalled.running.values()
        lost = stalled.lease
        clock.advance(EXPIRED)
        async with held("lease.renew", stalled.tick()):
            await rescuer.tick()
        assert running.task.cancelled()
        assert not stalled.running
        await stalled.tick()
        assert stalled.lease not in {None, lost}
        job = await backend.scheduler.run_after(NOW, ledger.enter, what="after")
        await stalled.tick()
        await until(lambda: is_state(backend, job, "success"))


async def test_a_worker_that_cannot_renew_stops_its_jobs_before_the_lease_ends(
    database_url: str, tmp_path: Path
) -> None:
    """Its renewal hangs, as on a network that swallows everything."""
    async with ledger.app.open(database_url, services=("worker",), lease=3.0) as backend:
        worker = worker_of(backend)
        await start_action(backend, tmp_path)
        (running,) = worker.running.values()
        with gate("lease.renew") as renewal:
            await renewal.arrived()
            lease = worker._lease
            assert lease.stop_at < lease.renewed_at + lease._ttl.total_seconds()
            await asyncio.gather(running.task, return_exceptions=True)
            assert SystemClock().monotonic() >= lease.stop_at
        assert running.task.cancelled()


async def test_an_action_that_cannot_be_stopped_does_not_stop_its_worker(database_url: str) -> None:
    async with stalled_and_rescuer(database_url, lease=15.0) as (backend, stalled, rescuer, clock):
        ledger.deaf_may_end = asyncio.Event()
        job = await backend.scheduler.run_after(NOW, ledger.act_and_be_deaf)
        await stalled.tick()
        (running,) = stalled.running.values()
        await until(lambda: running.begun)
        clock.advance(EXPIRED)
        await rescuer.tick()
        await stalled.tick()  # it learns that its lease is lost, and cannot stop its job
        assert not stalled.running
        after = await backend.scheduler.run_after(NOW, ledger.enter, what="after")
        await stalled.tick()
        await until(lambda: is_state(backend, after, "success"))
        ledger.deaf_may_end.set()
        await running.task
        await stalled.tick()
        assert await state(backend, job) == "failed", "what it returns at last is not heard"


# ----- answers that are lost


async def test_jobs_of_a_claim_whose_answer_was_lost_are_run(database_url: str, tmp_path: Path) -> None:
    """The claim is committed, but its worker never hears of it: nobody else would ever touch these jobs."""
    async with ledger.app.open(database_url) as backend:
        worker = make_worker(backend)
        (tmp_path / "go on").touch()
        for function, given in ((ledger.enter, {"what": "x"}), (ledger.act_shortly, {"folder": str(tmp_path)})):
            job: Any = await backend.scheduler.run_after(NOW, function, **given)
            with raising("worker.claimed", DatabaseUnavailable("cut off")), pytest.raises(DatabaseUnavailable):
                await worker.tick()
            assert await state(backend, job) == "running", function.name
            assert not worker.running
            while await state(backend, job) != "success":
                await worker.tick()
                await worker.wait_for_jobs()
            assert (await status(backend, job)).attempt == 1
        await worker.finish()


async def test_a_settlement_whose_answer_was_lost_is_sent_again(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ledger.app.open(postgres_url) as backend:
        worker = make_worker(backend)
        (tmp_path / "go on").touch()
        job = await start_action(backend, tmp_path, worker)
        await until(lambda: worker.open_outcomes == 1)
        settle = worker._store.jobs.settle

        async def cut_off(*args: Any) -> Any:
            await settle(*args)
            raise DatabaseUnavailable("cut off")

        with monkeypatch.context() as patch:
            patch.setattr(worker._store.jobs, "settle", cut_off)
            with pytest.raises(DatabaseUnavailable):
                await worker.tick()
        assert worker.open_outcomes == 1
        await worker.tick()
        assert worker.open_outcomes == 0
        assert await state(backend, job) == "success"
        await worker.finish()


# ----- workers that are stopped


async def test_a_stopping_worker_lets_its_jobs_end_and_keeps_its_lease_meanwhile(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finishes, finish = asyncio.Event(), Worker.finish

    async def noted(worker: Worker) -> None:
        finishes.set()
        await finish(worker)

    async def ends_at(watcher: Backend) -> Any:
        async with reading(watcher.engine.store.begin_read) as session:
            return max(one.expires_at for one in await watcher.engine.store.leases.list(session))

    monkeypatch.setattr(Worker, "finish", noted)
    async with ledger.app.open(database_url) as watcher:
        async with ledger.app.open(database_url, services=("worker",), lease=1.5, grace=20.0) as backend:
            job = await start_action(backend, tmp_path)
            stopping = asyncio.create_task(backend.services.stop())
            await finishes.wait()  # the tick that was under way may still have found work
            late = await watcher.scheduler.run_after(NOW, ledger.enter, what="late")
            end = await ends_at(watcher)

            async def is_renewed() -> bool:
                return bool(await ends_at(watcher) > end + timedelta(seconds=1.5))

            await until(is_renewed)
            (tmp_path / "go on").touch()
            await stopping
        assert await state(watcher, job) == "success"
        assert await state(watcher, late) == "pending", "it takes on nothing new"


async def test_a_mutation_that_a_stopped_worker_did_not_finish_is_taken_up_at_once(postgres_url: str) -> None:
    async with (
        ledger.app.open(postgres_url, services=("worker",), poll=3600.0, worker_jobs=1) as taker,
        ledger.app.open(postgres_url, grace=0.05) as stopping,
    ):
        worker = make_worker(stopping)
        with ledger.held_between(2) as between:
            await stopping.run_mutation(ledger.open_account, owner="ada")
            occupied = await taker.scheduler.run_after(NOW, ledger.add, owner="ada", amount=1)
            await between.arrived()
            job = await stopping.scheduler.run_after(NOW, ledger.add, owner="ada", amount=10)
            await worker.tick()
            await between.arrived(2)
            await worker.finish()
            assert await state(stopping, job) == "pending"
        await until(lambda: is_state(taker, job, "success"))
        assert (await status(taker, job)).attempt == 1, "handed back, it has used no attempt"
        assert await state(taker, occupied) == "success"
        assert await taker.run_query(ledger.balance, owner="ada") == 11


# ----- processes that are stopped while their database is gone

PATIENT = {"PENSTOCK_GRACE": "0.5", "PENSTOCK_DATABASE_WAIT": "600"}


@asynccontextmanager
async def worker(database: str, folder: Path) -> AsyncIterator[Command]:
    """A worker that runs a job and looks for others, for the time of a block."""
    async with ledger.app.open(database) as backend:
        await backend.scheduler.run_after(timedelta(0), ledger.act, folder=str(folder), number=1)
    process = Command("programs.ledger:app", database, "worker", **PATIENT)
    try:
        await until((folder / "act-1").exists)
        yield process
    finally:
        process.close()


async def test_a_worker_without_its_server_stops(postgres_url: str, tmp_path: Path) -> None:
    async with Proxy(postgres_url).running() as proxy, worker(proxy.url, tmp_path) as process:
        proxy.gone = "silent"
        process.tell(signal.SIGTERM)
        await until(lambda: process.exit_status is not None)
        assert process.exit_status == 0


async def test_a_worker_without_the_lock_of_its_file_stops(sqlite_url: str, tmp_path: Path) -> None:
    async with worker(sqlite_url, tmp_path) as process:
        with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)) as other:
            other.execute("begin immediate")
            process.tell(signal.SIGTERM)
            await until(lambda: process.exit_status is not None)
        assert process.exit_status == 0
