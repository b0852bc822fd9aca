"""A limit holds over processes: their own record of who ran when is checked, through kills and changes of the limit."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from stage import ledger
from stage.administrators import administrator
from stage.histories import History, some_have_begun, some_more_begin, some_run_at_once
from stage.processes import processes
from stage.waits import until

from penstock import Backend
from penstock.clock import SystemClock

MACHINE = SystemClock()
LIMIT = 4
_UNDER_WAY = (
    "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    " and backend_type = 'client backend' and xact_start < $1"
)


async def enqueue(backend: Backend, history: History, count: int, seconds: float) -> None:
    arguments = [{"history": str(history.file), "seconds": seconds}] * count
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


def test_a_changed_limit_holds_over_processes(database_url: str, history: History) -> None:
    async def story() -> None:
        async with ledger.app.open(database_url) as backend:
            with processes(2, "work", database_url) as workers:
                await enqueue(backend, history, 150, 0.05)
                await some_have_begun(history, 15)
                await change(backend, database_url, history, 1)
                await some_more_begin(history, 15)
                await change(backend, database_url, history, 6)
                await some_run_at_once(history, 6)
                await change(backend, database_url, history, 0)
                await change(backend, database_url, history, 3)
                await ended(backend, 150)
                for worker in workers:
                    assert worker.stop() == 0

    asyncio.run(story())
    assert history.most() == 6


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


async def change(backend: Backend, database_url: str, history: History, limit: int) -> None:
    """Change the limit; a lower one holds once no more are running, which then were claimed before the change."""
    if limit > history.limits[-1][1]:
        history.limits.append((MACHINE.monotonic(), limit))
        await ledger.crew.set_max_parallelism(backend, limit)
        await ledger.crew.resume(backend)
        return
    await (ledger.crew.set_max_parallelism(backend, limit) if limit else ledger.crew.pause(backend))

    await earlier_claims_have_ended(database_url)

    async def as_few_run() -> bool:
        return (await backend.job_counts()).get("running", 0) <= limit

    await until(as_few_run)
    history.limits.append((MACHINE.monotonic(), limit))
    for _ in range(0 if limit else 20):  # long enough for one too many to begin
        assert await as_few_run()
        await MACHINE.sleep(0.02)


async def earlier_claims_have_ended(database_url: str) -> None:
    """Wait until no statement is under way that began before now: a claim would show what it has claimed only then."""
    if not database_url.startswith("postgres"):
        return  # there is one writer, who has written the change
    async with administrator(database_url) as admin:
        now = await admin.fetchval("select clock_timestamp()")

        async def none_is_under_way() -> bool:
            return not await admin.fetchval(_UNDER_WAY, now)

        await until(none_is_under_way)
