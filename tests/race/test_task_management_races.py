"""Whoever looks after tasks does so beside workers and planners: nothing is lost, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import Any

from stage.waits import SOON

from penstock import App, Id, JobState, MutationCtx, MutationTaskCtx, QueryCtx, Table, TaskCtx, TaskFilter
from penstock.errors import TryAgain
from penstock.jobs.job import job_uuid
from penstock.services.planner.planner import Planner
from penstock.testing import TestApp

ROUNDS, ROWS = 12, 20

app = App()
carried: Counter[Id[Crate]] = Counter()


class Crate(Table, name="crate"):
    number: int
    weight: int = 0


class Count(Table, name="counts"):
    """A committed run: a mutation's body runs again after a conflict, so only what it committed counts."""

    crate: Id[Crate]


@app.reactive_task(Crate, name="carry", retry=None)
async def carry(ctx: TaskCtx[Crate]) -> None:
    crate = await ctx.get_document()
    await asyncio.to_thread(int)  # lets others go on
    carried[crate.id] += 1
    if crate.weight % 3 == 2:
        raise ValueError("too heavy")


@app.reactive_task(Crate, name="count")
async def count(ctx: MutationTaskCtx[Crate]) -> None:
    await ctx.db.insert(Count(crate=(await ctx.get_document()).id))


@app.internal_mutation
async def put(ctx: MutationCtx) -> list[Id[Crate]]:
    return [await ctx.db.insert(Crate(number=number)) for number in range(ROWS)]


@app.internal_mutation
async def weigh(ctx: MutationCtx, crate: Id[Crate], weight: int) -> None:
    await ctx.db.patch(Crate, crate, weight=weight)


@app.internal_query
async def counted(ctx: QueryCtx) -> list[Id[Crate]]:
    return [count.crate for count in await ctx.db.query(Count).collect()]


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
            await verb(one, TaskFilter(task=("carry", "count")))


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
        before = Counter(await backend.run_query(counted))
        await backend.run_until_idle(raise_errors=False)
        each_once = dict.fromkeys(crates, 1)
        assert carried == each_once
        assert Counter(await backend.run_query(counted)) - before == each_once
        await planner.finish()


async def self_consistent(backend: TestApp) -> None:
    """Each record has one job, which has ended; and there are no other jobs of tasks that have not."""
    records = (await app.tasks.records(backend, limit=1000)).records
    assert len(records) == 2 * ROWS
    assert {record.state for record in records} == {JobState.SUCCESS}
    pending = [*await backend.jobs("pending", 1000), *await backend.jobs("running", 1000)]
    assert not pending
    for record in records:
        found = await backend.engine.store.records.backlog(10)
        assert all((one.ready, one.scheduled, one.running) == (0, 0, 0) for one in found)
        assert await backend.job(record.job) is not None
