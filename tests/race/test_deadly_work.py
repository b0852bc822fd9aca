"""Work that kills its process each time: it ends, and gives back what it held."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from stage import mortal

from penstock import Failed, Retry, Success, WorkId
from penstock.app import Backend

SOON = timedelta(seconds=30)


async def die(url: str, times: int) -> None:
    """Let so many processes run, one after another, until each has died."""
    for _ in range(times):
        process = mortal.run_once(url)
        try:
            assert await asyncio.to_thread(process.wait, 60) == -9
        finally:
            process.kill()
            await asyncio.to_thread(process.wait, 60)


async def survive(backend: Backend, url: str, *works: WorkId) -> list[object]:
    """How works end while a process runs that is not killed by any of them."""
    process = mortal.run_once(url)
    try:
        found: list[object] = [await mortal.deadly.result(backend, work, SOON) for work in works]
        assert process.poll() is None
    finally:
        process.kill()
        await asyncio.to_thread(process.wait, 60)
    return found


@pytest.mark.parametrize(("retry", "times"), [(mortal.THRICE, 3), (None, 1)])
async def test_work_that_kills_its_process_ends_failed_and_frees_its_slot(
    database_url: str, tmp_path: Path, retry: Retry | None, times: int
) -> None:
    async with mortal.app.open(database_url) as backend:
        pool = mortal.deadly.with_options(retry=retry, on_complete=mortal.tell, context="buried", priority=1)
        poison = await pool.enqueue(backend, mortal.dies_at_work, str(tmp_path))
        behind = await mortal.deadly.enqueue(backend, mortal.works)
        await die(database_url, times)
        lost, done = await survive(backend, database_url, poison, behind)
        assert isinstance(lost, Failed)
        assert lost.error.startswith("WorkerLost")
        assert done == Success("done"), "there is but one slot, and it came back"
        assert (tmp_path / "deaths").read_text() == "x" * times
        found = await backend.job(poison)
        assert found is not None
        assert (found.state.value, found.attempt) == ("failed", times)
        assert [one.what for one in found.attempts] == ["lost"] * (times - 1) + ["abandoned"]
        assert await backend.run_query(mortal.told) == [(poison, "failed", "buried")]
