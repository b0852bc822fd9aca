"""Who plans: one process at a time, under a lease; what it had begun goes on with the next."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from stage.reactive import Stage, settle

from penstock import DatabaseUnavailable, Table, TaskCtx
from penstock.api.tasks.tasks import READER
from penstock.services.service import Service
from penstock.testing import TestApp, gate, raising

SECOND = timedelta(seconds=1)


class Row(Table):
    number: int = 0


@asynccontextmanager
async def two_on(url: str, **settings: Any) -> AsyncIterator[tuple[Stage, TestApp, TestApp]]:
    """Two processes of one program."""
    stage = Stage()
    stage.task(Row)
    async with (
        stage.open(url, **settings) as one,
        stage.open(url, clock=one.clock, **settings) as two,
    ):
        yield stage, one, two


async def planner_of(test: TestApp) -> int | None:
    """The lease of whoever plans."""
    (reader,) = [row for row in await test.engine.store.changes.readers() if row.name == "tasks"]
    return reader.lease


async def test_le1_le3_who_comes_first_plans_and_nobody_else(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "penstock")
    async with two_on(database_url) as (stage, one, two):
        await one.plan()
        lease = await planner_of(one)
        assert lease is not None
        await stage.insert(one, Row())
        await two.plan()
        assert await planner_of(two) == lease
        assert not (await two.job_counts())["ready"]
        await one.plan()
        assert (await two.job_counts())["ready"] == 1
        assert await settle(two) == 1, "who runs need not plan"
        assert sum(record.getMessage().startswith("planner.started") for record in caplog.records) == 1


async def test_le2_le10_the_lease_is_renewed_while_it_plans(database_url: str) -> None:
    async with two_on(database_url, lease=8.0) as (_, one, two):
        await one.plan()
        lease = await planner_of(one)
        for _ in range(20):
            one.clock.advance(2 * SECOND)
            await one.plan()
            await two.worker.tick()  # who takes over what has run out
            await two.plan()
            assert await planner_of(one) == lease
        one.clock.advance(5 * SECOND)
        await two.worker.tick()
        await two.plan()
        assert await planner_of(one) == lease, "it has not run out yet"
        one.clock.advance(4 * SECOND)
        await two.worker.tick()
        await two.plan()
        assert await planner_of(one) not in {lease, None}, "and now it has"


async def test_rt8_le5_le9_who_stops_leaves_planning_to_the_next_at_once(database_url: str) -> None:
    async with two_on(database_url) as (stage, one, two):
        await one.plan()
        await stage.insert(one, Row())
        await two.plan()
        assert not (await two.job_counts())["ready"]
        await one.planner.finish()
        await settle(two)
        assert len(stage.taken()) == 1
        await stage.insert(one, Row())
        await settle(one)
        assert stage.taken() == []


async def test_le8_le12_f3_rz1_an_error_while_planning_loses_nothing(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with two_on(database_url) as (stage, one, _):
        rows = await stage.insert(one, Row())
        error = DatabaseUnavailable("away")
        for moment in ("planner.read", "planner.planned"):
            rows += await stage.insert(one, Row())
            with raising(moment, error, times=2):
                for _ in range(2):
                    assert await Service._safe_tick(one.planner) > 0
            assert not (await one.job_counts())["ready"]
            await one.plan()
            assert (await one.job_counts())["ready"] == len(rows)
            await settle(one)
            assert sorted(stage.ids()) == sorted(rows)
            rows = []
        assert sum(record.getMessage().startswith("planner.tick_failed") for record in caplog.records) == 4


async def test_le11_le13_stopping_ends_though_the_lease_cannot_be_given_back(
    database_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_on(database_url) as (stage, one, two):
        await one.plan()

        async def fail(*_: Any) -> None:
            raise DatabaseUnavailable("away")

        with monkeypatch.context() as patched:
            patched.setattr(one.engine.store.leases, "give_back", fail, raising=False)
            await one.planner.stop()
            await one.planner.finish()
            await one.planner.stop()
        assert sum(record.getMessage().startswith("planner.lease_kept") for record in caplog.records) == 1
        rows = await stage.insert(one, Row())
        one.clock.advance(timedelta(seconds=one.config.lease * 2))
        await two.worker.tick()
        await settle(two)
        assert stage.ids() == rows


async def test_rows_written_while_the_reader_was_dropped_are_run_as_well(database_url: str) -> None:
    async with two_on(database_url) as (stage, one, two):
        first = await stage.insert(one, Row())
        await settle(one)
        await one.planner.finish()
        assert await one.engine.store.changes.forget(READER)
        second = await stage.insert(one, Row())
        async with stage.open(database_url, clock=two.clock) as three:
            await settle(three)
        assert [(one.doc_id, one.change) for one in stage.taken()] == [(*first, "enter"), (*second, "reconcile")]


async def test_runs_that_wait_are_those_of_a_handler_that_has_another_name_now(database_url: str) -> None:
    before, after, ran = Stage(Row), Stage(Row), list[Any]()

    @before.app.reactive_task(Row, name="weigh")
    async def weigh(ctx: TaskCtx[Row]) -> None:
        ran.append("weigh")

    @after.app.reactive_task(Row, name="weigh")
    async def weigh_again(ctx: TaskCtx[Row]) -> None:
        ran.append(ctx.doc_id)

    async with before.open(database_url) as test:
        rows = await before.insert(test, Row())
        await test.plan()
    async with after.open(database_url, clock=test.clock) as test:
        await settle(test)
    assert ran == rows


async def test_le4_le6_a_planner_that_stands_by_takes_over_and_who_lost_the_lease_notices(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with two_on(database_url) as (stage, one, two):
        await one.plan()
        dead = await planner_of(one)
        await stage.insert(one, Row())
        one.clock.advance(timedelta(seconds=one.config.lease * 0.5))
        await two.plan()
        assert await planner_of(two) == dead, "it may still be there"
        with gate("planner.planned", most=1) as held:
            late = asyncio.create_task(one.planner.tick())
            await held.arrived()
            one.clock.advance(timedelta(seconds=one.config.lease * 2))
            await two.plan()
            assert await planner_of(two) not in {dead, None}, "though there is no worker"
            held.open()
            await late
        assert "planner.reader_lost" in caplog.text
        assert (await two.job_counts())["ready"] == 1
        await stage.insert(one, Row())
        await one.plan()
        assert (await two.job_counts())["ready"] == 1, "it plans nothing any more"
