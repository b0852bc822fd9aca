"""Litestream copies the file of a running program; it is restored to a second, and goes on with its work."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO

import pytest
from chaos.program import SERVICES, app, job_numbers, put
from stage.databases import sql
from stage.waits import until

from penstock import Backend
from penstock.clock import SystemClock

MACHINE = SystemClock()
SECOND = timedelta(seconds=1)
JOBS = 16


@pytest.fixture
def litestream() -> str:
    found = os.environ.get("PENSTOCK_TEST_LITESTREAM") or shutil.which("litestream")
    if not found:
        pytest.skip("litestream is in no system's packages; see CONTRIBUTING.md")
    return found


def copying(litestream: str, file: Path, copies: str, log: BinaryIO) -> subprocess.Popen[bytes]:
    return subprocess.Popen([litestream, "replicate", str(file), copies], stdout=log, stderr=log)


async def has_begun(copies: Path) -> bool:
    return await asyncio.to_thread(lambda: any(path.is_file() for path in copies.rglob("*")))


async def write(backend: Backend, seconds: float) -> list[datetime]:
    """Write parcels with jobs for some time; when each was acknowledged."""
    acknowledged = list[datetime]()
    begun = MACHINE.monotonic()
    while MACHINE.monotonic() - begun < seconds:
        await backend.run_mutation(put, writer=0, number=len(acknowledged), jobs=JOBS)
        acknowledged.append(MACHINE.now())
        await MACHINE.sleep(0.1)
    return acknowledged


async def test_a_running_program_is_restored_to_a_second(
    litestream: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHAOS_FOLDER", str(tmp_path))
    file, copies, restored = tmp_path / "app.db", f"file://{tmp_path}/copies", tmp_path / "restored.db"
    with (tmp_path / "litestream.log").open("wb") as log:
        async with app.open(f"sqlite:///{file}", services=SERVICES) as backend:
            copier = copying(litestream, file, copies, log)
            try:
                await until(lambda: has_begun(tmp_path / "copies"))
                acknowledged = await write(backend, 8)
                await MACHINE.sleep(2)  # it copies each second, in the time of the machine
            finally:
                copier.kill()  # as with the machine
                copier.wait()
    wanted = acknowledged[0] + (acknowledged[-1] - acknowledged[0]) / 2
    timestamp = wanted.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    command = [litestream, "restore", "-timestamp", timestamp, "-o", str(restored), copies]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stderr, (tmp_path / "litestream.log").read_text())

    asked = datetime.fromisoformat(timestamp)
    sure = sum(moment < asked - 3 * SECOND for moment in acknowledged)
    possible = sum(moment < asked + SECOND for moment in acknowledged)
    async with app.open(f"sqlite:///{restored}", services=SERVICES) as backend:
        (count,), *_ = await sql(backend, "select count(*) from parcel")
        assert 0 < sure <= count <= possible < len(acknowledged)

        async def is_done() -> bool:
            counts = await backend.job_counts()
            (handled,), *_ = await sql(backend, "select count(*) from sorted")
            return handled == count and not any(counts.get(state, 0) for state in ("ready", "scheduled", "running"))

        await until(is_done)
        entered = await sql(backend, "select number from ran where what in ('pooled', 'chained') order by number")
        wanted_numbers = sorted(
            one for row in range(count) for one in job_numbers(0, row, JOBS) if one % JOBS in {3, 15}
        )
        assert [number for (number,) in entered] == wanted_numbers, "each has run, once"
