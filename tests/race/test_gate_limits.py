"""Limits of keys, rates and groups hold over processes: checked by what their jobs themselves have written down."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from stage import ledger
from stage.histories import History, some_have_begun
from stage.processes import processes
from stage.waits import until

from penstock import Backend
from penstock.clock import SystemClock

MACHINE = SystemClock()


def history_of(folder: Path, name: str, limit: int) -> History:
    file = folder / name
    file.touch()
    return History(file, [(0.0, limit)])


def arguments(history: History, seconds: float) -> dict[str, object]:
    return {"history": str(history.file), "seconds": seconds}


async def all_ended(backend: Backend, count: int) -> None:
    async def all_have() -> bool:
        return (await backend.job_counts()).get("success", 0) == count

    await until(all_have)


def test_the_limit_of_each_key_holds_over_processes_that_are_killed(database_url: str, tmp_path: Path) -> None:
    histories = {key: history_of(tmp_path, key, 2) for key in "abc"}

    async def story() -> None:
        async with ledger.app.open(database_url) as backend:
            for key, history in histories.items():
                pool = ledger.tenants.with_options(retry=True, concurrency_key=key)
                await pool.enqueue_batch(backend, ledger.occupy, [arguments(history, 0.03)] * 40)
            with processes(3, "work", database_url, lease=1.5, poll=0.2) as workers:
                for number, worker in enumerate(workers[:2]):
                    await some_have_begun(histories["a"], 8 * (number + 1))
                    worker.kill()
                    for history in histories.values():
                        history.deaths[worker.number] = MACHINE.monotonic()
                await all_ended(backend, 120)
                workers[2].stop()

    asyncio.run(story())
    assert [history.most() for history in histories.values()] == [2, 2, 2]


def test_a_rate_limit_holds_over_processes(database_url: str, tmp_path: Path) -> None:
    history = history_of(tmp_path, "paced", 100)

    async def story() -> None:
        async with ledger.app.open(database_url) as backend:
            with processes(2, "work", database_url) as workers:
                await ledger.paced.enqueue_batch(backend, ledger.occupy, [arguments(history, 0.0)] * 100)
                await all_ended(backend, 100)
                for worker in workers:
                    assert worker.stop() == 0

    asyncio.run(story())
    begun = sorted(moment for moment, step in history.moves() if step > 0)
    assert len(begun) == 100
    # What was let through together may begin a little later than it was let through, and so closer to what follows.
    late = 0.25
    for first, moment in enumerate(begun):
        for last in range(first, len(begun)):
            window = begun[last] - moment + late
            assert last - first + 1 <= 5 + 50 * window + 1, f"{last - first + 1} began within {window} s"
    assert begun[-1] - begun[0] >= (100 - 5) / 50 - late


@pytest.mark.long
def test_a_group_never_runs_more_than_its_pools_together(database_url: str, tmp_path: Path) -> None:
    history = history_of(tmp_path, "lending", 4)

    async def story() -> None:
        async with ledger.app.open(database_url) as backend:
            with processes(3, "work", database_url, lease=1.5, poll=0.2) as workers:
                lender, borrower = (pool.with_options(retry=True) for pool in (ledger.lender, ledger.borrower))
                await borrower.enqueue_batch(backend, ledger.occupy, [arguments(history, 0.03)] * 60)
                await some_have_begun(history, 15)
                await lender.enqueue_batch(backend, ledger.occupy, [arguments(history, 0.03)] * 30)
                await some_have_begun(history, 40)
                workers[0].kill()
                history.deaths[workers[0].number] = MACHINE.monotonic()
                await all_ended(backend, 90)
                for worker in workers[1:]:
                    worker.stop()

    asyncio.run(story())
    assert history.most() == 4
