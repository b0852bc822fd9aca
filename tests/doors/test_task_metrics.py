"""Metrics of reactive tasks: what a process has done for each task, and how the database says that they stand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from stage.stories import Stage, settle

from penstock import MutationTaskCtx, Retry, Table, TaskCtx, asgi_app
from penstock.testing import TestApp, raising

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
SOON = Retry.fixed(MINUTE, max_attempts=3, jitter=0)


class Parcel(Table, name="weighed_parcel"):
    number: int = 0


class Scraped:
    """A program with a task, two of its processes, and what each of them says of it."""

    def __init__(self, stage: Stage, one: TestApp, two: TestApp) -> None:
        self.stage = stage
        self.one = one
        self.two = two

    async def said(self, process: TestApp | None = None) -> dict[str, float]:
        """What a process says of the task ``react``, by the names of metrics and their outcomes."""
        web = asgi_app(self.stage.app, backend=process or self.one)
        async with httpx.AsyncClient(base_url="http://shop", transport=httpx.ASGITransport(web)) as http:
            text = (await http.get("/metrics")).text
        samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
        return {
            " ".join([one.name.removeprefix("penstock_task_"), *filter(None, [one.labels.get("outcome")])]): one.value
            for one in samples
            if one.labels.get("task") == "react" and one.labels.get("le") in {None, "2.5"}
        }


@asynccontextmanager
async def scraped(stage: Stage, url: str) -> AsyncIterator[Scraped]:
    async with stage.open(url, dev=True) as one, stage.open(url, dev=True, clock=one.clock) as two:
        yield Scraped(stage, one, two)


@pytest.mark.parametrize("mutates", [False, True], ids=["action", "mutation"])
async def test_mo1_mo5_mo10_a_process_tells_how_long_its_runs_took_and_how_they_ended(
    database_url: str, *, mutates: bool
) -> None:
    stage = Stage()

    async def handle(ctx: TaskCtx[Any] | MutationTaskCtx[Any]) -> None:
        if ctx.watched_values["number"] < 0:
            raise ValueError("no such number")

    handle.__annotations__["ctx"] = MutationTaskCtx[Any] if mutates else TaskCtx[Any]
    stage.app.reactive_task(Parcel, name="react", watch=("number",), retry=None)(handle)
    async with scraped(stage, database_url) as it:
        await stage.insert(it.one, *(Parcel(number=number) for number in (1, 2, -3)))
        await settle(it.one)
        said = await it.said()
        assert (said["runs_total success"], said["runs_total failed"]) == (2, 1)
        assert (said["run_seconds_count"], said["run_seconds_bucket"]) == (3, 3), "failed ones too"
        assert said.get("retries_total", 0) == 0
        other = await it.said(it.two)
        assert "run_seconds_count" not in other, "each tells its own"
        assert (other["failed"], other["ready"]) == (1, 0), "and what the database says"


async def test_mo1_mo2_mo7_mo14_depth_counts_what_is_pending_and_lag_how_late_the_oldest_is(database_url: str) -> None:
    stage = Stage()

    async def take_long(ctx: TaskCtx[Any]) -> None:
        it.one.clock.advance(3 * SECOND)

    stage.task(Parcel, handler=take_long)
    async with scraped(stage, database_url) as it:
        await stage.insert(it.one, Parcel())
        await it.one.plan()
        it.one.clock.advance(3 * SECOND)
        await stage.insert(it.one, Parcel())
        await it.one.plan()
        it.one.clock.advance(2 * SECOND)
        answers = await asyncio.gather(*(it.said((it.one, it.two)[number % 2]) for number in range(10)))
        for said in answers:
            assert (said["ready"], said["scheduled"], said["oldest_due_seconds"], said["lag_seconds"]) == (2, 0, 5, 5)
            assert (said["running"], said["failed"], said["paused"]) == (0, 0, 0)
        await settle(it.one)
        said = await it.said()
        assert (said["ready"], said["oldest_due_seconds"], said["lag_seconds"]) == (0, 0, 0)
        assert (said["run_seconds_count"], said["run_seconds_bucket"]) == (2, 0)
        assert 6 <= said["run_seconds_sum"] < 20, "a run takes as long as it takes"


async def test_mo9_it_is_told_when_all_rows_were_looked_at(database_url: str) -> None:
    before = Stage(Parcel)
    async with before.open(database_url) as test:
        await before.insert(test, Parcel())
    stage = Stage()
    stage.task(Parcel)
    async with scraped(stage, database_url) as it:
        assert "reconciled_timestamp_seconds" not in await it.said(), "they were not"
        it.one.clock.advance(MINUTE)
        looked = it.one.clock.now()
        await it.one.plan()
        it.one.clock.advance(MINUTE)
        for process in (it.one, it.two):
            assert (await it.said(process))["reconciled_timestamp_seconds"] == pytest.approx(looked.timestamp())
        await stage.app.tasks.reconcile(it.one, "react")
        await it.one.plan()
        again = (await it.said())["reconciled_timestamp_seconds"]
        assert again == pytest.approx((looked + MINUTE).timestamp())


async def test_mo16_two_failures_and_a_success_are_two_retries(database_url: str) -> None:
    stage = Stage()
    stage.task(Parcel, retry=SOON)
    async with scraped(stage, database_url) as it:
        with raising("task.begun", ConnectionError("away"), times=2):
            await stage.insert(it.one, Parcel())
            await settle(it.one)
        said = await it.said()
        assert (said["retries_total"], said["runs_total success"], said["run_seconds_count"]) == (2, 1, 3)
        with raising("task.begun", ConnectionError("away"), times=9):
            await stage.insert(it.one, Parcel())
            await settle(it.one)
        said = await it.said()
        assert (said["retries_total"], said["runs_total failed"]) == (4, 1), "the last one is not tried again"


async def test_mo20_lag_counts_from_when_a_run_was_due_at_first(database_url: str) -> None:
    """Though its handler puts it off, though it fails, and though its task is paused."""
    stage, steps = Stage(), ["put off", "fail", "end"]

    async def step(ctx: TaskCtx[Any]) -> None:
        match steps.pop(0):
            case "put off":
                ctx.defer_current(10 * MINUTE)
            case "fail":
                raise ConnectionError("away")

    stage.task(Parcel, debounce=MINUTE, handler=step, retry=SOON)
    async with scraped(stage, database_url) as it:

        async def lag() -> float:
            return (await it.said(it.two))["lag_seconds"]

        await stage.insert(it.one, Parcel())
        await it.one.plan()
        assert await lag() == 0, "it is not due yet"
        it.one.clock.advance(MINUTE + 2 * SECOND)
        assert await lag() == 2
        assert await it.one.run_until_idle(advance=False) == 1
        it.one.clock.advance(5 * MINUTE)
        assert await lag() == 302, "it was put off"
        it.one.clock.advance(5 * MINUTE)
        assert await it.one.run_until_idle(advance=False, raise_errors=False) == 1
        it.one.clock.advance(30 * SECOND)
        assert await lag() == 632, "it has failed, and waits"
        assert (await it.said(it.two))["paused"] == 0
        await stage.app.tasks.pause(it.one, "react")
        it.one.clock.advance(MINUTE)
        await it.one.run_until_idle(advance=False)
        assert steps == ["end"]
        assert await lag() == 692, "it is held"
        assert (await it.said(it.two))["paused"] == 1
        await stage.app.tasks.resume(it.one, "react")
        it.one.clock.advance(timedelta(seconds=10))
        await it.one.run_until_idle(advance=False)
        assert steps == []
        assert await lag() == 0
