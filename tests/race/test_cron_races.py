"""Schedulers race for planned times, die before the commit, and have clocks that differ: each time runs once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
from stage.databases import connected
from stage.faults import held
from stage.waits import SOON

from penstock import ActionCtx, App, MutationCtx
from penstock.app import Backend
from penstock.errors import DatabaseUnavailable
from penstock.services.scheduler import CronScheduler
from penstock.services.worker.worker import Worker
from penstock.testing import TestClock
from penstock.testing.gates import raising

START = datetime(2030, 1, 1, 8, 59, 30, tzinfo=UTC)
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
NINE = START + MINUTE / 2

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
async def schedulers(
    url: str, clock: TestClock, another: TestClock | None = None
) -> AsyncIterator[list[tuple[Backend, CronScheduler]]]:
    """Backends of their own, each with a scheduler."""
    async with (
        asyncio.timeout(SOON),
        app.open(url, clock=clock) as first,
        app.open(url, clock=another or clock) as second,
    ):
        yield [(backend, backend.make_service("scheduler")) for backend in (first, second)]  # type: ignore[misc]


async def run_at(backend: Backend) -> list[datetime]:
    return sorted(job.run_at for job in await backend.jobs())


async def test_each_planned_time_is_decided_once_by_schedulers_that_race_die_and_fail(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock")
    clock = TestClock(START)
    async with schedulers(database_url, clock) as [(backend, one), (_, other)]:
        assert await one.tick() > 0
        assert one.next_at == NINE
        clock.advance(MINUTE)
        with raising("scheduler.decided", DatabaseUnavailable("gone")), pytest.raises(DatabaseUnavailable):
            await one.tick()
        assert await run_at(backend) == []
        assert "cron.enqueued" not in caplog.text
        async with held("scheduler.decided", one.tick()):
            racing = asyncio.create_task(other.tick())
            await asyncio.wait([racing], timeout=0.1)
            assert await run_at(backend) == []
        await racing
        await other.tick()
        assert await run_at(backend) == [NINE]
        assert "cron.enqueued" in caplog.text
        for day in range(1, 4):
            clock.advance(DAY)
            await asyncio.gather(*(scheduler.tick() for scheduler in [one, other] * 20), return_exceptions=True)
            assert await one.tick() > 0
            assert len(await backend.jobs()) == 1, "the first one is still under way"
            assert (await app.crons.list(backend))[0].next_at == NINE + (day + 1) * DAY


async def test_clocks_that_differ_run_no_planned_time_twice_nor_does_a_deploy(database_url: str) -> None:
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
            while not await worker.tick() or worker.running:
                await worker.wait_for_jobs()
            for clock in (ahead, behind):
                clock.advance(timedelta(seconds=5))
        await worker.kill()
        nine, _ = await app.crons.list(backend)
        assert (nine.planned_at, nine.next_at) == (NINE, NINE + DAY)
        assert [job.function for job in await backend.jobs()].count(at_nine.name) == 1
        assert len(planned) > 2
        assert sorted(set(planned)) == planned, "none twice, none out of order"
        release = App()
        release.registry.add(at_nine)
        release.registry.add(note_planned)
        release.crons.declare("at nine", "0 9,10 * * *", at_nine)
        async with release.open(database_url, clock=TestClock(START - MINUTE)) as deployed:
            found = next(cron for cron in await release.crons.list(deployed) if cron.name == "at nine")
            assert found.next_at == NINE + timedelta(hours=1), "by a clock that is behind, nothing runs again"


async def test_a_cron_that_nobody_can_read_stops_no_other(postgres_url: str, caplog: pytest.LogCaptureFixture) -> None:
    clock = TestClock(START)
    schedule = '{"expression": "0 9 * * *", "timezone": "Mars/Base"}'
    async with schedulers(postgres_url, clock) as [(backend, one), _]:
        await app.crons.create(backend, "broken", timedelta(seconds=10), at_nine)
        async with connected(postgres_url) as connection:
            await connection.execute(f"update penstock.cron set schedule = '{schedule}' where name = 'broken'")
        clock.advance(MINUTE)
        await one.tick()
        assert await run_at(backend) == [NINE]
        assert "cron.unreadable cron=broken" in caplog.text
        found = [(cron.name, cron.timezone) for cron in await app.crons.list(backend)]
        assert found == [("at nine", "UTC"), ("broken", "")]
