"""Schedulers race for planned times, die before the commit, and have clocks that differ: each time runs once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
from stage.waits import SOON

from penstock import ActionCtx, App, MutationCtx
from penstock.app import Backend
from penstock.errors import DatabaseUnavailable
from penstock.services.scheduler import CronScheduler
from penstock.services.worker.worker import Worker
from penstock.store.nouns.crons import CronLook
from penstock.testing import TestClock, gate
from penstock.testing.gates import raising

START = datetime(2030, 1, 1, 8, 59, 30, tzinfo=UTC)
MINUTE = timedelta(minutes=1)

app = App()
planned: list[datetime] = []


@app.cron("0 9 * * *", timezone="UTC", name="at nine")
async def at_nine(ctx: ActionCtx) -> None: ...


@app.internal_action
async def note_planned(ctx: ActionCtx, planned_at: datetime) -> None:
    planned.append(planned_at)


@app.internal_mutation
async def create(ctx: MutationCtx, name: str, fail: bool = False) -> None:
    await app.crons.create(ctx, name, timedelta(hours=1), at_nine)


@asynccontextmanager
async def schedulers(url: str, *clocks: TestClock) -> AsyncIterator[list[tuple[Backend, CronScheduler]]]:
    """Backends of their own, each with a scheduler."""
    async with asyncio.timeout(SOON):
        backends: list[Backend] = []
        async with app.open(url, clock=clocks[0]) as first:
            backends.append(first)
            async with app.open(url, clock=clocks[1]) as second:
                backends.append(second)
                made = [backend.make_service("scheduler") for backend in backends]
                yield list(zip(backends, made, strict=True))  # type: ignore[arg-type]


async def run_at(backend: Backend) -> list[datetime]:
    return [job.run_at for job in await backend.jobs()]


NINE = START + MINUTE / 2


async def test_two_schedulers_race_for_a_planned_time(database_url: str) -> None:
    clock = TestClock(START)
    async with schedulers(database_url, clock, clock) as [(backend, one), (_, other)]:
        assert await one.tick() > 0
        assert one.next_at == NINE
        clock.advance(MINUTE)
        with gate("scheduler.decided", most=1) as held:
            deciding = asyncio.create_task(one.tick())
            await held.arrived()
            racing = asyncio.create_task(other.tick())
            await asyncio.wait([racing], timeout=0.1)
            assert await run_at(backend) == []
            held.open()
            await asyncio.gather(deciding, racing)
        await other.tick()
        assert await run_at(backend) == [NINE]


@pytest.mark.parametrize("count", [20])
async def test_many_ticks_at_once_give_one_run_each(database_url: str, count: int) -> None:
    clock = TestClock(START)
    async with schedulers(database_url, clock, clock) as [(backend, one), (_, other)]:
        for day in range(1, 4):
            clock.advance(timedelta(days=1))
            await asyncio.gather(*(scheduler.tick() for scheduler in [one, other] * count), return_exceptions=True)
            assert await one.tick() > 0
            assert len(await backend.jobs()) == 1, "the first one is still under way"
            assert (await app.crons.list(backend))[0].next_at == NINE + day * timedelta(days=1)


async def test_a_scheduler_that_dies_before_the_commit_leaves_the_time_to_another(database_url: str) -> None:
    clock = TestClock(START)
    async with schedulers(database_url, clock, clock) as [(backend, dying), (_, other)]:
        clock.advance(MINUTE)
        with gate("scheduler.decided", most=1) as held:
            dying.start()
            await held.arrived()
            await dying.kill()
        assert await run_at(backend) == []
        await other.tick()
        assert await run_at(backend) == [NINE]


async def test_an_error_before_the_commit_is_no_decision(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock")
    clock = TestClock(START)
    async with schedulers(database_url, clock, clock) as [(backend, one), _]:
        clock.advance(MINUTE)
        with raising("scheduler.decided", DatabaseUnavailable("gone")), pytest.raises(DatabaseUnavailable):
            await one.tick()
        assert await run_at(backend) == []
        assert "cron.enqueued" not in caplog.text
        await one.tick()
        assert await run_at(backend) == [NINE]
        assert "cron.enqueued" in caplog.text


async def test_clocks_that_differ_run_no_planned_time_twice(database_url: str) -> None:
    ahead, behind = TestClock(START), TestClock(START - MINUTE)
    planned.clear()
    async with schedulers(database_url, ahead, behind) as [(backend, early), (other, late)]:
        await app.crons.create(backend, "often", timedelta(seconds=10), note_planned)
        worker = other.make_service("worker")
        assert isinstance(worker, Worker)
        for _ in range(40):
            for scheduler in (early, late):
                while await scheduler.tick() == 0:
                    pass
            while True:
                await worker.tick()
                if not worker.running:
                    break
                await worker.wait_for_jobs()
            for clock in (ahead, behind):
                clock.advance(timedelta(seconds=5))
        await worker.kill()
        nine, _ = await app.crons.list(backend)
        assert (nine.planned_at, nine.next_at) == (NINE, NINE + timedelta(days=1))
        assert [job.function for job in await backend.jobs()].count(at_nine.name) == 1
        assert len(planned) > 2
        assert sorted(set(planned)) == planned, "none twice, none out of order"


async def test_a_deploy_by_a_clock_that_is_behind_runs_nothing_again(database_url: str) -> None:
    ahead, behind = TestClock(START), TestClock(START - MINUTE)
    async with schedulers(database_url, ahead, behind) as [(backend, early), _]:
        ahead.advance(MINUTE / 2)
        assert await early.tick() == 0
        assert await run_at(backend) == [NINE]
        release = App()
        release.registry.add(at_nine)
        release.crons.declare("at nine", "0 9,10 * * *", at_nine)
        async with release.open(database_url, clock=behind) as deployed:
            (found,) = await release.crons.list(deployed)
            assert found.next_at == NINE + timedelta(hours=1)


async def test_a_cron_is_created_while_schedulers_tick(database_url: str) -> None:
    """Transactions that create crons and schedulers that keep them do each other no harm."""
    clock = TestClock(START)
    async with schedulers(database_url, clock, clock) as [(backend, one), (_, other)]:
        clock.advance(MINUTE)
        with gate("commit.before", most=1) as held:
            creating = asyncio.create_task(backend.run_mutation(create, "x"))
            await held.arrived()
            ticking = asyncio.create_task(one.tick())
            await asyncio.wait([ticking], timeout=0.1)
            held.open()
            await asyncio.gather(creating, ticking)
        with gate("scheduler.decided", most=1) as held:
            clock.advance(timedelta(days=1))
            deciding = asyncio.create_task(other.tick())
            await held.arrived()
            creating = asyncio.create_task(backend.run_mutation(create, "y"))
            await asyncio.wait([creating], timeout=0.1)
            held.open()
            await asyncio.gather(creating, deciding)
        assert [cron.name for cron in await app.crons.list(backend)] == ["at nine", "x", "y"]


async def test_a_cron_that_nobody_can_read_stops_no_other(postgres_url: str, caplog: pytest.LogCaptureFixture) -> None:
    clock = TestClock(START)
    async with schedulers(postgres_url, clock, clock) as [(backend, one), _]:
        await app.crons.create(backend, "broken", timedelta(seconds=10), at_nine)
        connection = await asyncpg.connect(postgres_url)
        await connection.execute(
            """update penstock.cron set schedule = '{"expression": "0 9 * * *", "timezone": "Mars/Base"}' """
            "where name = 'broken'"
        )
        await connection.close()
        clock.advance(MINUTE)
        await one.tick()
        assert await run_at(backend) == [NINE]
        assert "cron.unreadable cron=broken" in caplog.text
        assert [(cron.name, cron.timezone) for cron in await app.crons.list(backend)] == [
            ("at nine", "UTC"), ("broken", ""),
        ]  # fmt: skip


async def test_signals_that_come_with_every_job_cost_few_looks(sqlite_url: str) -> None:
    """A scheduler sleeps until the next planned time; what wakes it all the time makes it look four times a second."""
    clock, looks = TestClock(START), 0
    async with schedulers(sqlite_url, clock, clock) as [(backend, scheduler), _]:
        look = backend.engine.store.crons.look

        async def counted(*args: Any) -> CronLook:
            nonlocal looks
            looks += 1
            return await look(*args)

        backend.engine.store.crons.look = counted  # type: ignore[method-assign, assignment]
        pauses = []
        for _ in range(100):
            pauses.append(await scheduler._safe_tick())
            clock.advance(timedelta(seconds=0.01))
        assert looks == 4
        assert max(pauses) <= 1
        clock.advance(NINE - clock.now() - timedelta(seconds=0.1))
        assert await scheduler._safe_tick() == pytest.approx(0.1)
        clock.advance(timedelta(seconds=0.1))
        assert await scheduler._safe_tick() == 0, "a planned time is not late for it"
        assert await run_at(backend) == [NINE]
