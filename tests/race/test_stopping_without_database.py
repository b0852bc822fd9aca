"""A process that is told to stop while its database is gone: it does not wait for it."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path
from typing import Literal

import pytest
from stage import ledger
from stage.processes import Command
from stage.proxy import Proxy
from stage.waits import until

from penstock.calls.run.engine import Engine

PATIENT = {"PENSTOCK_GRACE": "0.5", "PENSTOCK_DATABASE_WAIT": "600"}

Leave = Callable[[], Awaitable[None]]


@asynccontextmanager
async def worker(database: str, folder: Path) -> AsyncIterator[Command]:
    """A worker that runs a job and looks for others, for the time of a block."""
    async with ledger.app.open(database) as backend:
        await backend.scheduler.run_after(timedelta(0), ledger.act, folder=str(folder), number=1)
    process = Command("stage.ledger:app", database, "worker", **PATIENT)
    try:
        await until(lambda: _has_begun(folder))
        yield process
    finally:
        process.close()


@pytest.mark.parametrize("gone", ["stopped", "silent"])
async def test_a_worker_without_its_server_stops(
    postgres_url: str, tmp_path: Path, gone: Literal["stopped", "silent"]
) -> None:
    async with Proxy(postgres_url).running() as proxy, worker(proxy.url, tmp_path) as process:
        proxy.gone = gone
        process.tell(signal.SIGTERM)
        await until(lambda: _has_ended(process))
        assert process.exit_status == 0


async def test_a_worker_without_the_lock_of_its_file_stops(sqlite_url: str, tmp_path: Path) -> None:
    async with worker(sqlite_url, tmp_path) as process:
        with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)) as other:
            other.execute("begin immediate")
            process.tell(signal.SIGTERM)
            await until(lambda: _has_ended(process))
        assert process.exit_status == 0


async def test_a_worker_that_waits_for_its_server_at_its_start_stops_at_once(postgres_url: str) -> None:
    async with Proxy(postgres_url).running() as proxy:
        proxy.gone = "silent"
        process = Command("stage.ledger:app", proxy.url, "worker", **PATIENT)
        try:
            await proxy.in_vain.wait()
            process.tell(signal.SIGTERM)
            await until(lambda: _has_ended(process))
            assert process.exit_status == 128 + signal.SIGTERM
        finally:
            process.close()


@pytest.mark.parametrize("grace", [4.0, 5.0, 10.0, 60.0])
async def test_calls_jobs_and_services_end_within_the_grace_time(sqlite_url: str, grace: float) -> None:
    async with ledger.app.open(sqlite_url, grace=grace) as backend:
        engine: Engine = backend.engine
        assert grace * 0.7 <= engine.grace_left() < engine.services_left() < grace
        engine.begin_stop()
        assert engine.services_left() <= grace - 0.75


async def test_services_have_time_to_stop_after_a_grace_time_of_none(sqlite_url: str) -> None:
    async with ledger.app.open(sqlite_url, grace=0.0) as backend:
        assert (backend.engine.grace_left(), backend.engine.services_left()) == (0.0, 3.0)


async def _has_begun(folder: Path) -> bool:
    return _trace(folder).exists()


def _trace(folder: Path) -> Path:
    return folder / "act-1"


async def _has_ended(process: Command) -> bool:
    return process.exit_status is not None
