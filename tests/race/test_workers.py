"""Workers that die, stall, are frozen, stopped or cut off: every job is accounted for, and none takes effect twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from stage import ledger
from stage.processes import processes
from stage.waits import SOON, until

from penstock.app import Backend
from penstock.clock import SystemClock
from penstock.errors import DatabaseUnavailable
from penstock.jobs.job import JobId, JobStatus
from penstock.services.worker.worker import Worker
from penstock.testing import TestClock, gate, raising

OPENED = ledger.app

SHORT_LEASE = 1.0
NOW = timedelta(0)


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


def trace(folder: Path, name: str) -> str:
    file = folder / name
    return file.read_text() if file.exists() else ""


def worker_of(backend: Backend) -> Worker:
    (worker,) = backend.services.services
    assert isinstance(worker, Worker)
    return worker


# ----- processes that die


async def test_a_mutation_whose_process_is_killed_in_its_transaction_takes_effect_once(
    database_url: str, tmp_path: Path
) -> None:
    async with ledger.app.open(database_url) as backend:
        with processes(1, "work", database_url, lease=SHORT_LEASE) as (first,):
            job = await backend.scheduler.run_after(NOW, ledger.dies_in_its_transaction, folder=str(tmp_path))
            assert await asyncio.to_thread(first.wait) == -9
        assert await state(backend, job) == "running", "nobody knows yet"
        assert await backend.run_query(ledger.entries, what="died") == []
        with processes(1, "work", database_url, lease=SHORT_LEASE):
            (found,) = await ended(backend, 1)
        assert (found.state.value, found.attempt) == ("success", 2)
        assert await backend.run_query(ledger.entries, what="died") == [0]


async def test_an_action_whose_process_is_killed_is_not_run_again(database_url: str, tmp_path: Path) -> None:
    async with ledger.app.open(database_url) as backend:
        with processes(2, "work", database_url, lease=SHORT_LEASE) as workers:
            await backend.scheduler.run_after(NOW, ledger.dies, folder=str(tmp_path))
            (found,) = await ended(backend, 1)
            assert sorted(worker.exit_status is not None for worker in workers) == [False, True]
        assert (found.state.value, found.attempt) == ("failed", 1)
        assert (found.error or "").startswith("WorkerLost")
        assert trace(tmp_path, "dies") == "x"


async def test_the_jobs_of_a_killed_worker_are_taken_over_within_one_lease(database_url: str, tmp_path: Path) -> None:
    async with ledger.app.open(database_url) as backend:
        with processes(1, "work", database_url, lease=SHORT_LEASE) as (first,):
            job = await backend.scheduler.run_after(NOW, ledger.act_again, folder=str(tmp_path), number=1)
            await until(lambda: answer(trace(tmp_path, "act-1") == "x"))
            with processes(1, "work", database_url, lease=SHORT_LEASE):
                await asyncio.to_thread(first.kill)
                taken_over = await until(lambda: is_state(backend, job, "failed"))
        assert taken_over < SHORT_LEASE * 1.5


async def answer(true: bool) -> bool:
    return true


async def is_state(backend: Backend, job: Any, expected: str) -> bool:
    return await state(backend, job) == expected


async def test_a_frozen_worker_that_comes_back_changes_nothing(database_url: str, tmp_path: Path) -> None:
    """A process that is stopped past its lease (a suspended machine) finds that its work was taken over."""

    async with ledger.app.open(database_url) as backend:
        with processes(1, "work", database_url, lease=SHORT_LEASE) as (first,):
            action = await backend.scheduler.run_after(NOW, ledger.act_shortly, folder=str(tmp_path))
            await until(lambda: answer(trace(tmp_path, "shortly") == "x"))
            first.freeze()
            with processes(1, "work", database_url, lease=SHORT_LEASE):
                await until(lambda: is_state(backend, action, "failed"))
                (tmp_path / "go on").touch()
                first.thaw()
                job = await backend.scheduler.run_after(NOW, ledger.enter, what="after")
                await until(lambda: is_state(backend, job, "success"))
            assert await state(backend, action) == "failed"
            assert trace(tmp_path, "shortly") == "x", "it was stopped, and not run again"

            job = await backend.scheduler.run_after(NOW, ledger.enter, what="again")
            await until(lambda: is_state(backend, job, "success"))  # the thawed worker works again
        assert await backend.run_query(ledger.entries, what="after") == [0]


# ----- leases that are lost


@asynccontextmanager
async def two_on(url: str, **settings: Any) -> AsyncIterator[tuple[Backend, Backend, TestClock]]:
    """Two backends with one clock, whose workers' ticks the test makes."""
    clock = TestClock()
    async with (
        ledger.app.open(url, clock=clock, **settings) as first,
        ledger.app.open(url, clock=clock, **settings) as second,
    ):
        yield first, second, clock


def make_worker(backend: Backend) -> Worker:
    worker = backend.make_service("worker")
    assert isinstance(worker, Worker)
    return worker


async def test_a_mutation_of_a_stalled_worker_cannot_commit(database_url: str) -> None:
    async with two_on(database_url) as (first, second, clock):
        stalled, rescuer = make_worker(first), make_worker(second)
        job = await first.scheduler.run_after(NOW, ledger.enter, what="once")
        with gate("mutation.ran", most=1) as ran:
            await stalled.tick()
            await ran.arrived()
            clock.advance(timedelta(seconds=31))
            if database_url.startswith("sqlite"):
                # There is one writer: the rescue is next in line, and finds what the mutation has done.
                rescue = asyncio.create_task(rescuer.tick())
                await asyncio.wait([rescue], timeout=0.05)
                ran.open()
                await rescue
            else:
                await rescuer.tick()
                ran.open()
        await until(lambda: answer(not stalled.running))
        await until(lambda: answer(not rescuer.running))
        assert await first.run_query(ledger.entries, what="once") == [0]
        assert await state(first, job) == "success"
        for worker in (stalled, rescuer):
            await worker.finish()


async def test_what_a_stalled_worker_says_of_an_action_is_not_heard(database_url: str, tmp_path: Path) -> None:
    async with two_on(database_url) as (first, second, clock):
        stalled, rescuer = make_worker(first), make_worker(second)
        job = await first.scheduler.run_after(NOW, ledger.act_shortly, folder=str(tmp_path))
        await stalled.tick()
        clock.advance(timedelta(seconds=31))
        await rescuer.tick()
        assert await state(second, job) == "failed"
        (tmp_path / "go on").touch()
        await until(lambda: answer(stalled.open_outcomes == 1))
        await stalled._settle_outcomes()
        found = await status(second, job)
        assert (found.state.value, (found.error or "")[:10]) == ("failed", "WorkerLost")
        await stalled.tick()
        for worker in (stalled, rescuer):
            await worker.finish()


async def test_a_worker_that_finds_its_lease_lost_stops_its_jobs_and_goes_on_under_a_new_one(
    database_url: str, tmp_path: Path
) -> None:
    async with two_on(database_url) as (first, second, clock):
        stalled, rescuer = make_worker(first), make_worker(second)
        await first.scheduler.run_after(NOW, ledger.act, folder=str(tmp_path), number=1)
        await stalled.tick()
        await until(lambda: answer(trace(tmp_path, "act-1") == "x"))
        (running,) = stalled.running.values()
        lost = stalled.lease
        with gate("lease.renew", most=1) as renewal:
            clock.advance(timedelta(seconds=31))
            tick = asyncio.create_task(stalled.tick())
            await renewal.arrived()
            await rescuer.tick()
            renewal.open()
            await tick
        assert running.task.cancelled()
        assert not stalled.running
        await stalled.tick()
        assert stalled.lease not in {None, lost}
        job = await first.scheduler.run_after(NOW, ledger.enter, what="after")
        await stalled.tick()
        await until(lambda: is_state(first, job, "success"))
        for worker in (stalled, rescuer):
            await worker.finish()


async def test_a_worker_that_cannot_renew_stops_its_jobs_before_the_lease_ends(
    database_url: str, tmp_path: Path
) -> None:
    """Its renewal hangs, as on a network that swallows everything."""

    async with ledger.app.open(database_url, services=("worker",), lease=3.0) as backend:
        worker = worker_of(backend)
        await backend.scheduler.run_after(NOW, ledger.act, folder=str(tmp_path), number=1)
        await until(lambda: answer(trace(tmp_path, "act-1") == "x"))
        (running,) = worker.running.values()
        with gate("lease.renew") as renewal:
            await renewal.arrived()
            lease = worker._lease
            assert lease.stop_at < lease.renewed_at + lease._ttl.total_seconds()
            await asyncio.gather(running.task, return_exceptions=True)
            assert SystemClock().monotonic() >= lease.stop_at
        assert running.task.cancelled()


async def test_an_action_that_cannot_be_stopped_does_not_stop_its_worker(database_url: str, tmp_path: Path) -> None:
    async with two_on(database_url, lease=15.0) as (first, second, clock):
        stalled, rescuer = make_worker(first), make_worker(second)
        ledger.deaf_may_end = asyncio.Event()
        job = await first.scheduler.run_after(NOW, ledger.act_and_be_deaf)
        await stalled.tick()
        (running,) = stalled.running.values()
        await until(lambda: answer(running.begun))
        clock.advance(timedelta(seconds=31))
        await rescuer.tick()
        await stalled.tick()  # it learns that its lease is lost, and cannot stop its job
        assert not stalled.running
        after = await first.scheduler.run_after(NOW, ledger.enter, what="after")
        await stalled.tick()
        await until(lambda: is_state(first, after, "success"))
        ledger.deaf_may_end.set()
        await running.task
        await stalled.tick()
        assert await state(first, job) == "failed", "what it returns at last is not heard"
        for worker in (stalled, rescuer):
            await worker.finish()


# ----- claims whose answer is lost


@pytest.mark.parametrize("kind", ["mutation", "action"])
async def test_jobs_of_a_claim_whose_answer_was_lost_are_run(database_url: str, tmp_path: Path, kind: str) -> None:
    """The claim is committed, but its worker never hears of it: nobody else would ever touch these jobs."""

    async with ledger.app.open(database_url) as backend:
        worker = make_worker(backend)
        if kind == "mutation":
            job: JobId = await backend.scheduler.run_after(NOW, ledger.enter, what="x")
        else:
            (tmp_path / "go on").touch()
            job = await backend.scheduler.run_after(NOW, ledger.act_shortly, folder=str(tmp_path))
        with raising("worker.claimed", DatabaseUnavailable("cut off")), pytest.raises(DatabaseUnavailable):
            await worker.tick()
        assert await state(backend, job) == "running"
        assert not worker.running

        async def done() -> bool:
            await worker.tick()
            return await state(backend, job) == "success"

        await until(done)
        assert (await status(backend, job)).attempt == 1
        await worker.finish()


async def test_a_settlement_whose_answer_was_lost_is_sent_again(postgres_url: str, tmp_path: Path) -> None:
    async with ledger.app.open(postgres_url) as backend:
        worker = make_worker(backend)
        (tmp_path / "go on").touch()
        job = await backend.scheduler.run_after(NOW, ledger.act_shortly, folder=str(tmp_path))
        await worker.tick()
        await until(lambda: answer(worker.open_outcomes == 1))
        jobs: Any = worker._store.jobs
        settle = jobs.settle

        async def cut_off(*args: Any) -> Any:
            await settle(*args)
            raise DatabaseUnavailable("cut off")

        jobs.settle = cut_off
        with pytest.raises(DatabaseUnavailable):
            await worker.tick()
        jobs.settle = settle
        assert worker.open_outcomes == 1
        await worker.tick()
        assert worker.open_outcomes == 0
        assert await state(backend, job) == "success"
        await worker.finish()


# ----- workers that are stopped


async def test_a_stopping_worker_lets_its_jobs_end(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finishes = asyncio.Event()
    real = Worker.finish

    async def finish(worker: Worker) -> None:
        finishes.set()
        await real(worker)

    monkeypatch.setattr(Worker, "finish", finish)
    async with ledger.app.open(database_url) as watcher:
        async with ledger.app.open(database_url, services=("worker",)) as backend:
            job = await backend.scheduler.run_after(NOW, ledger.act_shortly, folder=str(tmp_path))
            await until(lambda: answer(trace(tmp_path, "shortly") == "x"))
            stopping = asyncio.create_task(backend.services.stop())
            await finishes.wait()  # the tick that was under way may still have found work
            late = await watcher.scheduler.run_after(NOW, ledger.enter, what="late")
            await asyncio.wait([stopping], timeout=0.1)
            (tmp_path / "go on").touch()
            await stopping
        assert await state(watcher, job) == "success"
        assert await state(watcher, late) == "pending", "it takes on nothing new"


async def test_a_stopping_worker_keeps_its_lease_for_as_long_as_its_jobs_take(
    database_url: str, tmp_path: Path
) -> None:
    """The grace time is longer than the lease, and another worker looks for lost leases meanwhile."""

    async with ledger.app.open(database_url) as backend:
        async with ledger.app.open(database_url, services=("worker",), lease=1.5, grace=20.0) as stopping:
            job = await stopping.scheduler.run_after(NOW, ledger.act_shortly, folder=str(tmp_path))
            await until(lambda: answer(trace(tmp_path, "shortly") == "x"))
            async with ledger.app.open(database_url, services=("worker",), lease=1.5):
                stop = asyncio.create_task(stopping.services.stop())
                await asyncio.wait([stop], timeout=3.5)
                (tmp_path / "go on").touch()
                await stop
        assert await state(backend, job) == "success"


async def test_a_mutation_that_a_stopped_worker_did_not_finish_is_taken_up_at_once(postgres_url: str) -> None:
    async with (
        ledger.app.open(postgres_url, services=("worker",), poll=3600.0, worker_jobs=1) as taker,
        ledger.app.open(postgres_url, grace=0.05) as stopping,
    ):
        worker = make_worker(stopping)
        with ledger.held_between(2) as held:
            await stopping.run_mutation(ledger.open_account, owner="ada")
            occupied = await taker.scheduler.run_after(NOW, ledger.add, owner="ada", amount=1)
            await held.arrived()
            job = await stopping.scheduler.run_after(NOW, ledger.add, owner="ada", amount=10)
            await worker.tick()
            await held.arrived(2)
            await worker.finish()
            assert await state(stopping, job) == "pending"
        await until(lambda: is_state(taker, job, "success"))
        assert (await status(taker, job)).attempt == 1, "handed back, it has used no attempt"
        assert await state(taker, occupied) == "success"
        assert await taker.run_query(ledger.balance, owner="ada") == 11


async def test_an_action_that_a_stopped_worker_did_not_finish_is_told_lost(database_url: str, tmp_path: Path) -> None:
    async with ledger.app.open(database_url) as watcher:
        async with ledger.app.open(database_url, services=("worker",), grace=0.05) as stopping:
            job = await stopping.scheduler.run_after(NOW, ledger.act, folder=str(tmp_path), number=1)
            await until(lambda: answer(trace(tmp_path, "act-1") == "x"))
        found = await status(watcher, job)
        assert (found.state.value, (found.error or "")[:10]) == ("failed", "WorkerLost")


async def test_a_stopping_worker_hands_back_what_has_not_begun(database_url: str, tmp_path: Path) -> None:
    async with ledger.app.open(database_url, grace=0.0) as backend:
        worker = make_worker(backend)
        job = await backend.scheduler.run_after(NOW, ledger.act, folder=str(tmp_path), number=1)
        await worker.tick()
        await worker.finish()
        assert await state(backend, job) == "pending"
        assert trace(tmp_path, "act-1") == ""
        assert (await status(backend, job)).attempt == 0


async def test_a_worker_stops_although_its_actions_do_not(database_url: str) -> None:
    ledger.deaf_may_end = asyncio.Event()
    async with ledger.app.open(database_url) as watcher:
        async with ledger.app.open(database_url, services=("worker",), grace=0.05, lease=1.0) as backend:
            job = await backend.scheduler.run_after(NOW, ledger.act_and_be_deaf)
            await until(lambda: answer(len(worker_of(backend).running) == 1))
            async with asyncio.timeout(SOON):
                await backend.services.stop()
        found = await status(watcher, job)
        assert (found.state.value, (found.error or "")[:10]) == ("failed", "WorkerLost")
        ledger.deaf_may_end.set()


async def test_a_process_told_to_stop_ends_cleanly(database_url: str) -> None:
    async with ledger.app.open(database_url) as backend:
        with processes(1, "work", database_url) as (worker,):
            await backend.run_mutation(ledger.schedule_entries, what="x", first=0, count=50)
            await until(lambda: some_ended(backend))
            assert await asyncio.to_thread(worker.stop) == 0
        counts = await backend.job_counts()
        assert counts.get("running", 0) == 0
        assert counts.get("success", 0) + counts.get("ready", 0) + counts.get("scheduled", 0) == 50
        assert len(await backend.run_query(ledger.entries, what="x")) == counts.get("success", 0)


async def some_ended(backend: Backend) -> bool:
    return (await backend.job_counts()).get("success", 0) > 0


# ----- many


@pytest.mark.long
async def test_many_workers_that_come_and_go_do_each_of_many_jobs_once(database_url: str) -> None:
    jobs = 2000

    async with ledger.app.open(database_url) as backend:
        for first in range(0, jobs, 500):
            await backend.run_mutation(ledger.schedule_entries, what="x", first=first, count=500)
        # A slow machine must not take a lease away from those that live.
        with (
            processes(1, "work", database_url, lease=1.0) as (killed,),
            processes(1, "work", database_url) as (one,),
        ):
            await until(lambda: some_ended(backend))
            await asyncio.to_thread(killed.kill)
            await asyncio.to_thread(one.stop)
        with processes(2, "work", database_url):
            await ended(backend, jobs)
        counts = await backend.job_counts()
        assert {state: count for state, count in counts.items() if count} == {"success": jobs}
        assert await backend.run_query(ledger.entries, what="x") == list(range(jobs))


async def test_workers_in_one_process_share_the_work(database_url: str) -> None:
    async with (
        ledger.app.open(database_url, services=("worker",), worker_jobs=5) as first,
        ledger.app.open(database_url, services=("worker",), worker_jobs=5) as second,
    ):
        for number in range(0, 300, 100):
            await first.run_mutation(ledger.schedule_entries, what="x", first=number, count=100)
        await ended(second, 300)
        assert await second.run_query(ledger.entries, what="x") == list(range(300))
