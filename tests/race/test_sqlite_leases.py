"""Workers on SQLite while something keeps the write lock: nobody can renew a lease, and nobody can take one over."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from stage import ledger
from stage.waits import until

from penstock.app import Backend
from penstock.errors import DatabaseBusy, DatabaseUnavailable
from penstock.services.worker.worker import Worker
from penstock.testing import TestClock

OPENED = ledger.app

NOW = timedelta(0)
A_THIRD = timedelta(seconds=10)
MORE_THAN_ALL = timedelta(seconds=31)


@asynccontextmanager
async def two_workers(url: str) -> AsyncIterator[tuple[Backend, Worker, Worker, TestClock]]:
    """Two workers of two backends with one clock; the test makes their ticks. Both have a lease of 30 seconds."""
    clock = TestClock()
    async with (
        ledger.app.open(url, clock=clock, database_wait=0.05) as first,
        ledger.app.open(url, clock=clock, database_wait=0.05) as second,
    ):
        workers = []
        for backend in (first, second):
            worker = backend.make_service("worker")
            assert isinstance(worker, Worker)
            await worker.tick()
            workers.append(worker)
        yield first, workers[0], workers[1], clock
        for worker in workers:
            await worker.finish()


@contextmanager
def write_lock(url: str) -> Iterator[None]:
    """Another program holds the write lock."""
    other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, timeout=5)
    other.execute("begin immediate")
    try:
        yield
    finally:
        other.execute("rollback")
        other.close()


def extensions(url: str) -> list[Path]:
    """What lies beside the database for leases."""
    file = Path(url.removeprefix("sqlite:///"))
    return list(file.parent.glob(f"{file.name}-lease-*"))


async def start_action(backend: Backend, worker: Worker, folder: Path) -> Any:
    """An action that runs until there is a file."""
    job = await backend.scheduler.run_after(NOW, ledger.act_shortly, folder=str(folder))
    await worker.tick()

    async def begun() -> bool:
        return (folder / "shortly").exists()

    await until(begun)
    return job


async def state(backend: Backend, job: Any) -> str:
    found = await backend.job(job)
    assert found is not None
    return found.state.value


async def test_an_action_goes_on_however_long_the_write_lock_is_held(sqlite_url: str, tmp_path: Path) -> None:
    async with two_workers(sqlite_url) as (backend, owner, rescuer, clock):
        job = await start_action(backend, owner, tmp_path)
        with write_lock(sqlite_url):
            for _ in range(8):
                clock.advance(A_THIRD)
                await owner.tick()
                await rescuer.tick()
        await rescuer.tick()  # the first to have the lock: the lease has run out in the database
        assert await backend.engine.store.leases.rescue(owner.lease or 0, clock.now(), lambda _jobs: []) == 0
        assert await state(backend, job) == "running"
        (tmp_path / "go on").touch()

        async def has_ended() -> bool:
            return owner.open_outcomes == 1

        await until(has_ended)
        clock.advance(A_THIRD)
        for worker in (owner, rescuer):
            await worker.tick()
        assert await state(backend, job) == "success"
        assert extensions(sqlite_url) == []


async def test_the_jobs_of_a_worker_that_dies_while_the_write_lock_is_held_are_taken_over_in_time(
    sqlite_url: str, tmp_path: Path
) -> None:
    async with two_workers(sqlite_url) as (backend, owner, rescuer, clock):
        job = await start_action(backend, owner, tmp_path)
        with write_lock(sqlite_url):
            for _ in range(3):
                clock.advance(A_THIRD)
                await owner.tick()
                await rescuer.tick()
            assert len(extensions(sqlite_url)) == 2
            await owner.kill()
            for _ in range(2):
                clock.advance(A_THIRD)
                await rescuer.tick()
            clock.advance(A_THIRD)
            with pytest.raises(DatabaseBusy):
                await rescuer.tick()  # it wants to take over, and cannot yet
        clock.advance(A_THIRD)
        await rescuer.tick()
        assert await state(backend, job) == "failed"
        owner._lease.number = None
        assert extensions(sqlite_url) == []


async def test_a_worker_that_comes_late_while_the_write_lock_is_held_stops_its_jobs(
    sqlite_url: str, tmp_path: Path
) -> None:
    """Its lease has run out: whoever has the lock may be taking it over at this moment."""

    async with two_workers(sqlite_url) as (backend, owner, _rescuer, clock):
        await start_action(backend, owner, tmp_path)
        (running,) = owner.running.values()
        with write_lock(sqlite_url):
            clock.advance(MORE_THAN_ALL)
            with pytest.raises(DatabaseBusy):
                await owner.tick()
        assert running.task.cancelled()
        assert owner.lease is None
        assert extensions(sqlite_url) == []


async def test_an_extension_that_is_written_too_late_does_not_count(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is suspended between its look at the lease and its word beside the database."""

    async with two_workers(sqlite_url) as (backend, owner, _rescuer, clock):
        await start_action(backend, owner, tmp_path)
        leases: Any = backend.engine.store.leases
        write = leases._extensions.write

        def write_late(*args: Any) -> None:
            clock.advance(MORE_THAN_ALL)
            write(*args)

        monkeypatch.setattr(leases._extensions, "write", write_late)
        with write_lock(sqlite_url):
            clock.advance(A_THIRD)
            with pytest.raises(DatabaseBusy):
                await owner.tick()
        assert owner.lease is None
        assert extensions(sqlite_url) == []


async def test_a_lease_that_was_taken_away_is_not_extended(sqlite_url: str, tmp_path: Path) -> None:
    async with two_workers(sqlite_url) as (backend, owner, rescuer, clock):
        job = await start_action(backend, owner, tmp_path)
        clock.advance(MORE_THAN_ALL)
        await rescuer.tick()
        (running,) = owner.running.values()
        with write_lock(sqlite_url):
            clock.advance(A_THIRD)
            await owner._keep_lease()
        assert running.task.cancelled()
        assert owner.lease is None
        assert await state(backend, job) == "failed"


async def test_a_worker_whose_ticks_fail_is_back_in_time_to_renew_its_lease(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ledger.app.open(database_url, clock=TestClock(), lease=3.0) as backend:
        worker = backend.make_service("worker")
        assert isinstance(worker, Worker)
        await worker.tick()

        async def fail() -> float:
            raise DatabaseUnavailable("cut off")

        monkeypatch.setattr(worker, "_claim", fail)
        pauses = [await worker._safe_tick() for _ in range(12)]
        assert max(pauses) <= 3.0 * 0.25
        await worker.finish()
