"""Rows of one key of a task, and whoever looks after tasks, beside workers that die: in order, and nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any
from uuid import UUID

import pytest
from stage.stories import Stage
from stage.waits import SOON, events, until

from penstock import (
    App,
    Id,
    JobState,
    MutationCtx,
    MutationTaskCtx,
    Retry,
    Table,
    TaskCtx,
    TaskFilter,
)
from penstock.errors import Conflict, TryAgain
from penstock.jobs.job import job_uuid
from penstock.services.planner.planner import Planner
from penstock.testing import TestApp, gate

KEYS, ROWS = "abcde", 12
again = Retry(max_attempts=9, initial_backoff=0.01)


class Item(Table):
    number: int = 0
    owner: str = "a"
    at: datetime | None = None


class Keyed(Stage):
    """A task with the owners of its rows as their keys. Runs of some numbers fail at first."""

    def __init__(self, **options: Any) -> None:
        super().__init__(Item)
        self.begun: list[tuple[str, int]] = []
        self.under_way: Counter[str] = Counter()
        self.most = 0
        self.failing: Counter[tuple[str, int]] = Counter()
        pool = self.pool = self.app.workpool("keyed", max_parallelism=20, key_parallelism=1)

        async def handler(ctx: TaskCtx[Any]) -> None:
            item = await ctx.get_document()
            place = item.owner, item.number
            self.under_way[item.owner] += 1
            self.most = max(self.most, self.under_way[item.owner])
            try:
                self.begun.append(place)
                await ctx.get_document()  # others may come between
                if self.failing[place]:
                    self.failing[place] -= 1
                    raise ConnectionError("down")
            finally:
                self.under_way[item.owner] -= 1

        self.task(Item, handler=handler, watch=("number",), key="owner", pool=pool, retry=again, **options)

    def order(self, owner: str) -> list[int]:
        """The numbers of an owner's rows as they were begun, without repetitions."""
        return [number for number, _ in groupby(number for one, number in self.begun if one == owner)]


@asynccontextmanager
async def two_on(stage: Stage, url: str, **settings: Any) -> AsyncIterator[tuple[TestApp, TestApp]]:
    async with stage.open(url, **settings) as one, stage.open(url, clock=one.clock, **settings) as two:
        yield one, two


async def test_a_row_whose_worker_dies_is_told_of_and_run_again_before_the_next_of_its_key(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Keyed()
    async with two_on(stage, database_url) as (one, two):
        first, *_ = await stage.insert(one, *(Item(number=number) for number in range(3)))
        await one.plan()
        with gate("task.begun", most=1) as held:
            await one.worker.tick()
            await held.arrived()
            await one.worker.kill()
            held.open()
            two.clock.advance(timedelta(minutes=5))
            await two.run_until_idle()
        assert stage.order("a") == [0, 1, 2]
        assert [ran.attempt for ran in stage.taken()] == [2, 1, 1]
        (told,) = events(caplog, "job.failed")
        assert (told["task"], told["key"], told["attempt"]) == ("react", f'["{first}"]', 1)
        assert told["error"] == "WorkerLost: the worker that ran this job died or lost its lease"


@pytest.mark.parametrize("kind", ["action", "mutation"])
async def test_a_row_whose_worker_stops_amid_it_is_run_again_before_the_next_of_its_key(
    database_url: str, kind: str
) -> None:
    stage, ran = Keyed() if kind == "action" else Stage(Item), list[tuple[int, int]]()
    if kind == "mutation":
        pool = stage.app.workpool("keyed", max_parallelism=20, key_parallelism=1)

        @stage.app.reactive_task(Item, watch=("number",), key="owner", pool=pool)
        async def note(ctx: MutationTaskCtx[Item]) -> None:
            ran.append(((await ctx.get_document()).number, ctx.attempt))

    async with two_on(stage, database_url, grace=0.05) as (one, two):
        await stage.insert(one, *(Item(number=number) for number in range(3)))
        await one.plan()
        with gate("task.begun", most=1) as held:
            await one.worker.tick()
            await held.arrived()
            await one.worker.finish()
            held.open()
            await two.run_until_idle()
    if kind == "mutation":
        assert ran == [(0, 1), (1, 1), (2, 1)], "a mutation that did not commit has done nothing"
    else:
        assert [(one.values["number"], one.attempt) for one in stage.taken()] == [(0, 2), (1, 1), (2, 1)]


async def test_the_order_holds_with_many_keys_failures_and_workers(database_url: str) -> None:
    stage = Keyed()
    for place, owner in enumerate(KEYS):
        stage.failing.update({(owner, number): (number + place) % 4 for number in range(ROWS)})
    attempts = len(KEYS) * ROWS + stage.failing.total()
    async with (
        stage.app.open(database_url, services=("worker", "planner")) as one,
        stage.app.open(database_url, services=("worker", "planner")) as two,
    ):
        for number in range(0, ROWS, 2):
            await stage.insert(
                (one, two)[number % 4 // 2], *(Item(number=number + n, owner=o) for n in range(2) for o in KEYS)
            )
        await until(lambda: len(stage.ran) == len(KEYS) * ROWS)
    assert stage.most == 1
    assert {owner: stage.order(owner) for owner in KEYS} == {owner: [*range(ROWS)] for owner in KEYS}
    assert len(stage.begun) == attempts


# ----- whoever looks after tasks


ROUNDS, CRATES = 12, 20

app = App()
carried: Counter[Id[Crate]] = Counter()


class Crate(Table, name="crate"):
    number: int
    weight: int = 0


@app.reactive_task(Crate, name="carry", retry=None)
async def carry(ctx: TaskCtx[Crate]) -> None:
    crate = await ctx.get_document()
    await asyncio.to_thread(int)  # lets others go on
    carried[crate.id] += 1
    if crate.weight % 3 == 2:
        raise ValueError("too heavy")


@app.internal_mutation
async def put(ctx: MutationCtx) -> list[Id[Crate]]:
    return [await ctx.db.insert(Crate(number=number)) for number in range(CRATES)]


@app.internal_mutation
async def weigh(ctx: MutationCtx, crate: Id[Crate], weight: int) -> None:
    await ctx.db.patch(Crate, crate, weight=weight)


async def work(one: TestApp) -> None:
    for _ in range(ROUNDS * 2):
        await one.run_until_idle(raise_errors=False, advance=False)
        await asyncio.to_thread(int)


async def plan(planner: Planner) -> None:
    for _ in range(ROUNDS * 4):
        with contextlib.suppress(TryAgain):  # which the loop of a service would do as well
            await planner.tick()


async def change(backend: TestApp, crates: list[Id[Crate]]) -> None:
    for weight in range(ROUNDS):
        for crate in crates[::3]:
            await backend.run_mutation(weigh, crate, weight)


async def look_after(one: TestApp, *verbs: Any) -> None:
    for _ in range(ROUNDS):
        for verb in verbs:
            await verb(one, TaskFilter(task=("carry",)))


async def retry_jobs(one: TestApp) -> None:
    for _ in range(ROUNDS):
        page = await app.tasks.records(one, limit=1000)
        await one.job_calls.retry([job_uuid(record.job) for record in page.records])


async def test_all_verbs_beside_workers_and_planners_lose_nothing(database_url: str) -> None:
    async with TestApp(app, database_url) as backend, TestApp(app, database_url, clock=backend.clock) as other:
        planner = backend.make_service("planner")
        assert isinstance(planner, Planner)
        crates = await backend.run_mutation(put)

        tasks = app.tasks
        async with asyncio.timeout(SOON):
            await asyncio.gather(
                work(backend),
                work(other),
                plan(planner),
                change(backend, crates),
                look_after(backend, tasks.retry, tasks.cancel, tasks.skip),
                look_after(other, tasks.delete, tasks.retry, tasks.count),
                retry_jobs(other),
            )
            for crate in crates:
                await backend.run_mutation(weigh, crate, 999)
            for _ in range(5):
                await planner.tick()
                await backend.run_until_idle(raise_errors=False)
                await other.run_until_idle(raise_errors=False)
        await self_consistent(backend)
        await tasks.retry(backend, TaskFilter(), everything=True)
        carried.clear()
        await backend.run_until_idle(raise_errors=False)
        assert carried == dict.fromkeys(crates, 1)
        await planner.finish()


async def self_consistent(backend: TestApp) -> None:
    """Each record has one job, which has ended; and there are no other jobs of tasks that have not."""
    records = (await app.tasks.records(backend, limit=1000)).records
    assert len(records) == CRATES
    assert {record.state for record in records} == {JobState.SUCCESS}
    pending = [*await backend.jobs("pending", 1000), *await backend.jobs("running", 1000)]
    assert not pending
    for record in records:
        found = await backend.engine.store.records.backlog(10)
        assert all((one.ready, one.scheduled, one.running) == (0, 0, 0) for one in found)
        assert await backend.job(record.job) is not None


@pytest.mark.parametrize(
    ("noun", "verb", "act"),
    [
        ("jobs", "retry", lambda one: one.job_calls.retry([UUID(int=one.engine.clock.uuid7())])),
        ("jobs", "recall", lambda one: one.job_calls.retry([UUID(int=one.engine.clock.uuid7())], on_complete=True)),
        ("tasks", "pause", lambda one: app.tasks.pause(one, "carry")),
        ("tasks", "release", lambda one: app.tasks.resume(one, "carry")),
        ("records", "rerun", lambda one: app.tasks.retry(one, TaskFilter(task=("carry",)))),
    ],
)
async def test_a_verb_that_meets_a_deadlock_is_tried_again(
    database_url: str, noun: str, verb: str, act: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with TestApp(app, database_url) as backend:
        await backend.run_mutation(put)
        await backend.run_until_idle(raise_errors=False)
        owner = type(getattr(backend.engine.store, noun))
        does, calls = getattr(owner, verb), list[int]()

        async def deadlocked(self: Any, *args: Any, **options: Any) -> Any:
            calls.append(1)
            if len(calls) == 1:
                raise Conflict("deadlock detected")
            return await does(self, *args, **options)

        monkeypatch.setattr(owner, verb, deadlocked)
        await act(backend)
        assert len(calls) == 2
