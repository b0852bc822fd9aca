"""Work that an outside system completes, through kills of the workers that began it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from stage import ledger
from stage.processes import Process, processes
from stage.waits import until

from penstock import Backend, Finished, Running, Success, TokenExpired
from penstock.clock import SystemClock
from penstock.store.nouns.leases import OUTSIDE

MACHINE = SystemClock()
LIMIT = 4


@pytest.fixture
def history(tmp_path: Path) -> Path:
    file = tmp_path / "history"
    file.touch()
    return file


def begun(history: Path) -> dict[str, float]:
    """The tokens of attempts that have begun, and when."""
    lines = [line.split() for line in history.read_text().splitlines()]
    return {token: float(moment) for moment, _process, token in lines}


async def held(backend: Backend) -> int:
    return len(await backend.engine.store.leases.jobs(OUTSIDE))


async def test_held_work_outlives_its_worker(database_url: str, history: Path) -> None:
    async with ledger.app.open(database_url) as backend:
        with processes(1, "work", database_url, lease=1.5, poll=0.2) as (worker,):
            works = [await ledger.crew.enqueue(backend, ledger.wait_outside, str(history)) for _ in range(LIMIT + 1)]

            async def all_are_held() -> bool:
                return await held(backend) == LIMIT

            await until(all_are_held)
            worker.kill()
        with processes(1, "work", database_url, lease=1.5, poll=0.2) as (other,):

            async def it_was_taken_over() -> bool:
                hour = timedelta(hours=1)
                return 1 not in await backend.engine.store.leases.find_expired(MACHINE.now() + hour)

            await until(it_was_taken_over)
            assert await held(backend) == LIMIT, "nothing is lost, and nothing begins beyond the limit"
            statuses = await ledger.crew.status_batch(backend, works)
            assert statuses.count(Running(0)) == LIMIT
            for token in begun(history):
                assert (await ledger.crew.complete(backend, token, "printed")).accepted

            async def the_last_is_held() -> bool:
                return await held(backend) == 1

            await until(the_last_is_held)
            (last,) = begun(history).keys() - set(list(begun(history))[:LIMIT])
            other.kill()
        assert (await ledger.crew.complete(backend, last, "printed")).accepted
        assert await ledger.crew.status_batch(backend, works) == [Finished(Success("printed"))] * len(works)


def test_a_limit_holds_for_held_work_while_workers_are_killed(database_url: str, history: Path) -> None:
    ends: dict[str, float] = {}
    deaths: list[float] = []

    async def bring(backend: Backend, token: str) -> None:
        """Bring a token: the slot is free from now on, or since the death of the worker whose attempt it was."""
        moment = MACHINE.monotonic()
        try:
            await ledger.crew.complete(backend, token)
            ends[token] = moment
        except TokenExpired:
            assert deaths, "no attempt ends by itself"
            ends[token] = next(death for death in deaths if death >= begun(history)[token])

    async def story() -> None:
        async with ledger.app.open(database_url) as backend:
            arguments = [{"history": str(history)}] * 40
            await ledger.crew.with_options(retry=True).enqueue_batch(backend, ledger.wait_outside, arguments)
            with processes(3, "work", database_url, lease=1.5, poll=0.2) as workers:

                def kill(worker: Process) -> None:
                    worker.kill()
                    deaths.append(MACHINE.monotonic())

                async def all_have_ended() -> bool:
                    for token in begun(history).keys() - ends.keys():
                        await bring(backend, token)
                    if len(deaths) < 2 and len(ends) > 10 * (len(deaths) + 1):
                        kill(workers[len(deaths)])
                    return (await backend.job_counts()).get("success", 0) == 40

                await until(all_have_ended)
                assert await held(backend) == 0
                assert workers[2].stop() == 0
            (outside,) = await backend.engine.store.pools.look(OUTSIDE, ["crew"], 1)
            assert outside.held == 0

    asyncio.run(story())
    moves = [(moment, 1) for moment in begun(history).values()] + [(moment, -1) for moment in ends.values()]
    count = most = 0
    for _, step in sorted(moves):
        count += step
        most = max(most, count)
    assert count == 0
    assert 1 < most <= LIMIT
