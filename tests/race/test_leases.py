"""The lease of a process: renewed in a third of its time, given back, and lost in time to stop what runs under it."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from programs import ledger
from race.test_workers import stalled_and_rescuer, start_action, state
from stage.waits import until

from penstock.app import Backend
from penstock.calls.lease import Lease
from penstock.errors import DatabaseBusy, DatabaseUnavailable
from penstock.services.worker.worker import Worker
from penstock.testing import TestClock

BOUND = 12.0  # the setting `lease`, of which a lease holds nine seconds
Lost = list[tuple[int, str]]


def keeper(engine: Any, *, fenced: bool = False) -> tuple[Lease, Lost]:
    lost: Lost = []

    async def note(number: int, reason: str) -> None:
        lost.append((number, reason))

    return Lease(engine, "test", note, fenced=fenced), lost


async def test_a_lease_is_renewed_in_a_third_of_its_time_and_given_back(database_url: str) -> None:
    clock = TestClock()
    async with ledger.app.open(database_url, clock=clock, lease=BOUND) as backend:
        lease, lost = keeper(backend.engine)
        assert await lease.keep()
        number = lease.number
        clock.advance(timedelta(seconds=2.9))
        assert not await lease.keep()
        assert lease.due == pytest.approx(0.1)
        clock.advance(timedelta(seconds=0.1))
        assert await lease.keep()
        clock.advance(timedelta(seconds=8.9))
        leases = backend.engine.store.leases
        assert (lease.number, await leases.find_expired(clock.now())) == (number, [])
        await lease.give_back()
        clock.advance(timedelta(seconds=9))
        assert (lease.number, await leases.find_expired(clock.now()), lost) == (None, [], [])


@pytest.mark.parametrize("fenced", [False, True])
async def test_a_lease_that_cannot_be_renewed_is_lost_before_it_ends_unless_each_write_is_fenced(
    database_url: str, monkeypatch: pytest.MonkeyPatch, *, fenced: bool
) -> None:
    async def fail(*_: object) -> bool:
        raise DatabaseUnavailable("It is away.")

    clock = TestClock()
    async with ledger.app.open(database_url, clock=clock, lease=BOUND) as backend:
        lease, lost = keeper(backend.engine, fenced=fenced)
        await lease.keep()
        number = lease.number
        monkeypatch.setattr(backend.engine.store.leases, "renew", fail)
        clock.advance(timedelta(seconds=7.1))
        with pytest.raises(DatabaseUnavailable):
            await lease.keep()
        assert (lease.number, lost) == (number, [])
        clock.advance(timedelta(seconds=0.2))
        with pytest.raises(DatabaseUnavailable):
            await lease.keep()
        known = (number, "it could not be renewed in time")
        assert (lease.number, lost) == ((number, []) if fenced else (None, [known]))


OPENED = ledger.app

A_THIRD = timedelta(seconds=10)
MORE_THAN_ALL = timedelta(seconds=31)


@asynccontextmanager
async def two_workers(url: str) -> AsyncIterator[tuple[Backend, Worker, Worker, TestClock]]:
    """Two workers of two backends with one clock; the test makes their ticks. Both have a lease of 30 seconds."""
    async with stalled_and_rescuer(url, database_wait=0.05) as (backend, owner, rescuer, clock):
        for worker in (owner, rescuer):
            await worker.tick()
        yield backend, owner, rescuer, clock


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


async def test_an_action_goes_on_however_long_the_write_lock_is_held(sqlite_url: str, tmp_path: Path) -> None:
    async with two_workers(sqlite_url) as (backend, owner, rescuer, clock):
        job = await start_action(backend, tmp_path, owner)
        with write_lock(sqlite_url):
            for _ in range(8):
                clock.advance(A_THIRD)
                await owner.tick()
                await rescuer.tick()
        await rescuer.tick()  # the first to have the lock: the lease has run out in the database
        assert await backend.engine.store.leases.rescue(owner.lease or 0, clock.now(), lambda _jobs: []) == 0
        assert await state(backend, job) == "running"
        (tmp_path / "go on").touch()
        await until(lambda: owner.open_outcomes == 1)
        clock.advance(A_THIRD)
        for worker in (owner, rescuer):
            await worker.tick()
        assert await state(backend, job) == "success"
        assert extensions(sqlite_url) == []


async def test_the_jobs_of_a_worker_that_dies_while_the_write_lock_is_held_are_taken_over_in_time(
    sqlite_url: str, tmp_path: Path
) -> None:
    async with two_workers(sqlite_url) as (backend, owner, rescuer, clock):
        job = await start_action(backend, tmp_path, owner)
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


@pytest.mark.parametrize("when", ["before its tick", "before its word"])
async def test_a_worker_that_comes_late_while_the_write_lock_is_held_stops_its_jobs(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Its lease has run out: whoever has the lock may be taking it over. Or it was suspended before its word."""
    async with two_workers(sqlite_url) as (backend, owner, _rescuer, clock):
        await start_action(backend, tmp_path, owner)
        (running,) = owner.running.values()
        beside: Any = backend.engine.store.leases
        write = beside._extensions.write

        def write_late(*args: Any) -> None:
            clock.advance(MORE_THAN_ALL)
            write(*args)

        if when == "before its word":
            monkeypatch.setattr(beside._extensions, "write", write_late)
        with write_lock(sqlite_url):
            clock.advance(MORE_THAN_ALL if when == "before its tick" else A_THIRD)
            with pytest.raises(DatabaseBusy):
                await owner.tick()
        assert running.task.cancelled()
        assert owner.lease is None
        assert extensions(sqlite_url) == []
