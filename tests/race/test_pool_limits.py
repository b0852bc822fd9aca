"""A limit holds over processes: their own record of who ran when is checked, through kills and changes of the limit."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from stage import ledger
from stage.histories import History, some_have_begun, some_more_begin
from stage.processes import processes
from stage.waits import until

from penstock import Backend
from penstock.clock import SystemClock

MACHINE = SystemClock()
LIMIT = 4


async def enqueue(backend: Backend, history: History, count: int, seconds: float) -> None:
    file, parts = str(history.file), (0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3)  # no two end together
    arguments = [{"history": file, "seconds": seconds * parts[number % 7]} for number in range(count)]
    await ledger.crew.with_options(retry=True).enqueue_batch(backend, ledger.occupy, arguments)


async def ended(backend: Backend, count: int) -> None:
    async def all_have() -> bool:
        return (await backend.job_counts()).get("success", 0) == count

    await until(all_have)


@pytest.fixture
def history(tmp_path: Path) -> History:
    file = tmp_path / "history"
    file.touch()
    return History(file, [(0.0, LIMIT)])


def test_a_limit_holds_over_processes_that_are_killed(database_url: str, history: History) -> None:
    async def story() -> None:
        async with ledger.app.open(database_url) as backend:
            await enqueue(backend, history, 120, 0.03)
            with processes(3, "work", database_url, lease=1.5, poll=0.2) as workers:
                for number, worker in enumerate(workers[:2]):
                    await some_have_begun(history, 20 * (number + 1))
                    worker.kill()
                    history.deaths[worker.number] = MACHINE.monotonic()
                await ended(backend, 120)
                workers[2].stop()

    asyncio.run(story())
    assert history.most() == LIMIT


@pytest.mark.parametrize("count", [1, 3])
def test_nothing_starts_beyond_a_changed_limit_once_the_call_has_returned(
    database_url: str, history: History, count: int
) -> None:
    async def story() -> None:
        async with ledger.app.open(database_url) as backend:
            with processes(count, "work", database_url, lease=1.5, poll=0.2) as workers:
                await enqueue(backend, history, 1000, 0.03)
                await change(backend, history, 8)
                await some_more_begin(history, 10)
                await change(backend, history, 2)
                for worker in workers[1:2]:
                    worker.kill()
                    history.deaths[worker.number] = MACHINE.monotonic()
                await some_more_begin(history, 5)
                await change(backend, history, 8)
                await some_more_begin(history, 10)
                await change(backend, history, 0)
                await MACHINE.sleep(0.2)  # long enough for one too many to begin
                await change(backend, history, 8)
                await some_more_begin(history, 10)
                assert {worker.stop() for worker in workers if worker.exit_status is None} == {0}

    asyncio.run(story())
    assert 4 < history.most() <= 8


def test_one_slot_is_shared_by_workers_in_turns(database_url: str, history: History) -> None:
    async def story() -> None:
        async with ledger.app.open(database_url) as backend:
            await ledger.crew.set_max_parallelism(backend, 1)
            history.limits = [(0.0, 1)]
            with processes(2, "work", database_url) as workers:
                await enqueue(backend, history, 40, 0.03)
                await ended(backend, 40)
                for worker in workers:
                    assert worker.stop() == 0

    asyncio.run(story())
    assert history.most() == 1
    assert len({line.split()[1] for line in history.file.read_text().splitlines()}) == 2, "each had a turn"


async def change(backend: Backend, history: History, limit: int) -> None:
    """Change the limit; a higher one may hold while the call is under way, a lower one holds once it has returned."""
    begun, raised = MACHINE.monotonic(), limit > history.limits[-1][1]
    if limit:
        await ledger.crew.set_max_parallelism(backend, limit)
        await ledger.crew.resume(backend)
    else:
        await ledger.crew.pause(backend)
    history.limits.append((begun if raised else MACHINE.monotonic(), limit))
