"""Runs of reactive tasks whose workers die, stall or lose their lease while they complete, and user transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from stage import mortal
from stage.forks import Fork
from stage.guests import PLAIN_KINDS, Kind, Visit
from stage.taskruns import TaskApp, two_on
from stage.waits import until

from penstock import App, Id, LeaseLost, MutationCtx, QueryCtx, Retry, Table, TaskCtx
from penstock.app import Backend
from penstock.store.guest.drivers import answer

app = OPENED = App()
EXPIRED = timedelta(seconds=31)


class Order(Table):
    status: str = "paid"


class Entry(Table):
    what: str


Step = Callable[[TaskCtx[Order]], Awaitable[None]]
steps: list[Step] = []


@app.reactive_task(Order, retry=Retry(max_attempts=3, initial_backoff=0.001, base=1))
async def book(ctx: TaskCtx[Order]) -> None:
    await (steps.pop(0) if len(steps) > 1 else steps[0])(ctx)


@app.mutation
async def place(ctx: MutationCtx) -> Id[Order]:
    return await ctx.db.insert(Order())


@app.query
async def entries(ctx: QueryCtx) -> list[str]:
    return sorted(entry.what for entry in await ctx.db.query(Entry).collect())


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    steps.clear()


def kind_for(url: str) -> Kind:
    dialect = "sqlite" if url.startswith("sqlite") else "postgres"
    return next(kind for kind in PLAIN_KINDS if kind.dialect == dialect and kind.is_async)


async def write(visit: Visit, what: str) -> None:
    """The business write of a transaction."""
    columns, time = "id, creation_time, what", "2030-01-01 00:00:00.000000+00:00"
    await answer(visit.run(f"insert into entry ({columns}) values ('entry_{len(what):026}', '{time}', '{what}')"))


async def nothing(ctx: TaskCtx[Order]) -> None:
    return


async def state(t: Backend) -> tuple[str, int]:
    (job,) = await t.jobs()
    return job.state.value, job.attempt


# ----- F5, F6, F7


async def test_f5_no_renewal_brings_a_completed_run_back(database_url: str) -> None:
    async with two_on(app, database_url) as (first, second):
        runs, go_on = [], asyncio.Event()

        async def lives_on(ctx: TaskCtx[Order]) -> None:
            runs.append(ctx.attempt)
            await ctx.mark_completed()
            await go_on.wait()

        steps.append(lives_on)
        await first.run_mutation(place)
        await first.plan()
        await first.worker.tick()
        await until(lambda: answer(bool(runs)))
        for _ in range(6):
            first.clock.advance(timedelta(seconds=10))
            await first.worker.tick()
            await second.worker.tick()
        go_on.set()
        await first.settle_down()
        await second.settle_down()
        assert runs == [1]
        assert await state(first) == ("success", 1)


@pytest.mark.parametrize(
    "kind", [kind for kind in PLAIN_KINDS if not kind.name.startswith("Django")], ids=lambda k: k.name
)
def test_f6_a_transaction_that_is_tried_again_completes_the_run(kind: Kind, request: pytest.FixtureRequest) -> None:
    url: str = request.getfixturevalue(f"{kind.dialect}_url")

    async def story() -> None:
        async with TaskApp(app, url) as t:

            async def again(ctx: TaskCtx[Order]) -> None:
                async with kind.open(url) as visit:
                    for attempt in range(3):
                        await answer(visit.begin())
                        await write(visit, "booked")
                        await ctx.mark_completed(visit.connection)
                        await answer(visit.commit() if attempt == 2 else visit.rollback())
                raise ConnectionError("after the commit")

            steps.append(again)
            await t.run_mutation(place)
            assert await t.settle_down() == 1
            assert await state(t) == ("success", 1)
            assert await t.run_query(entries) == ["booked"]

    asyncio.run(story())


@pytest.mark.parametrize("own", [True, False], ids=["at once", "in a transaction"])
async def test_f7_a_stalled_worker_cannot_complete_what_another_has_taken_over(database_url: str, *, own: bool) -> None:
    async with two_on(app, database_url) as (stalled, rescuer):
        go_on, told = asyncio.Event(), list[LeaseLost]()

        async def stalls(ctx: TaskCtx[Order]) -> None:
            await go_on.wait()
            if own:
                await noted(ctx.mark_completed())
            else:
                async with kind_for(database_url).open(database_url) as visit:
                    await answer(visit.begin())
                    await write(visit, "booked")
                    await noted(ctx.mark_completed(visit.connection))
                    await answer(visit.rollback() if told else visit.commit())
            if told:
                raise told[0]

        async def noted(call: Awaitable[None]) -> None:
            try:
                await call
            except LeaseLost as error:
                told.append(error)

        steps.extend((stalls, nothing))
        await stalled.run_mutation(place)
        await stalled.plan()
        await stalled.worker.tick()
        await until(lambda: answer(len(steps) == 1))
        stalled.clock.advance(EXPIRED)
        await rescuer.run_until_idle(plan=False)
        assert await state(rescuer) == ("success", 2)
        go_on.set()
        await stalled.worker.wait_for_jobs()
        assert len(told) == 1
        await stalled.run_until_idle(plan=False)
        assert await state(rescuer) == ("success", 2)
        assert await rescuer.run_query(entries) == []


@pytest.mark.parametrize("commits", [True, False])
async def test_who_takes_over_waits_for_a_transaction_that_completes(postgres_url: str, *, commits: bool) -> None:
    """On PostgreSQL the lease may run out while it is open: the run is lost only if it is rolled back."""

    async with two_on(app, postgres_url) as (stalled, rescuer), kind_for(postgres_url).open(postgres_url) as visit:
        runs: list[int] = []

        async def completes(ctx: TaskCtx[Order]) -> None:
            await answer(visit.begin())
            await write(visit, "booked")
            await ctx.mark_completed(visit.connection)
            runs.append(ctx.attempt)
            await asyncio.Event().wait()

        async def second(ctx: TaskCtx[Order]) -> None:
            runs.append(ctx.attempt)

        steps.extend((completes, second))
        await stalled.run_mutation(place)
        await stalled.plan()
        await stalled.worker.tick()
        await until(lambda: answer(bool(runs)))
        stalled.clock.advance(EXPIRED)
        await rescuer.run_until_idle(plan=False)
        assert await state(rescuer) == ("running", 1)
        await answer(visit.commit() if commits else visit.rollback())
        rescuer.clock.advance(EXPIRED)
        await rescuer.run_until_idle(plan=False)
        assert await state(rescuer) == ("success", 1 if commits else 2)
        assert runs == ([1] if commits else [1, 2])
        assert await rescuer.run_query(entries) == (["booked"] if commits else [])
        await stalled.worker.kill()


@pytest.mark.parametrize("ends", ["kill", "finish"])
async def test_a_worker_that_ends_after_the_commit_leaves_a_completed_run(database_url: str, ends: str) -> None:
    async with two_on(app, database_url, grace=0.0) as (first, second):
        runs: list[int] = []

        async def completes(ctx: TaskCtx[Order]) -> None:
            async with kind_for(database_url).open(database_url) as visit:
                await answer(visit.begin())
                await write(visit, "booked")
                await ctx.mark_completed(visit.connection)
                await answer(visit.commit())
            runs.append(ctx.attempt)
            await asyncio.Event().wait()

        steps.append(completes)
        await first.run_mutation(place)
        await first.plan()
        await first.worker.tick()
        await until(lambda: answer(bool(runs)))
        await (first.worker.kill() if ends == "kill" else first.worker.finish())
        second.clock.advance(EXPIRED)
        await second.run_until_idle(plan=False)
        assert await state(second) == ("success", 1)
        assert runs == [1]


async def test_a_worker_that_stops_while_the_transaction_is_open_leaves_it_to_its_end(postgres_url: str) -> None:
    async with (
        two_on(app, postgres_url, grace=0.0) as (first, second),
        kind_for(postgres_url).open(postgres_url) as visit,
    ):
        runs: list[int] = []

        async def completes(ctx: TaskCtx[Order]) -> None:
            await answer(visit.begin())
            await ctx.mark_completed(visit.connection)
            runs.append(ctx.attempt)
            await asyncio.Event().wait()

        steps.append(completes)
        await first.run_mutation(place)
        await first.plan()
        await first.worker.tick()
        await until(lambda: answer(bool(runs)))
        await first.worker.finish()
        assert await state(second) == ("running", 1)
        await answer(visit.commit())
        second.clock.advance(EXPIRED)
        await second.run_until_idle(plan=False)
        assert await state(second) == ("success", 1)
        assert runs == [1]


async def test_lr1_a_run_that_outlives_its_lease_keeps_it(database_url: str) -> None:
    async with two_on(app, database_url) as (first, second):
        go_on, runs = asyncio.Event(), []

        async def takes_long(ctx: TaskCtx[Order]) -> None:
            runs.append(ctx.attempt)
            await go_on.wait()

        steps.append(takes_long)
        await first.run_mutation(place)
        await first.plan()
        await first.worker.tick()
        for _ in range(10):
            first.clock.advance(timedelta(seconds=10))
            await first.worker.tick()
            await second.worker.tick()
        assert await state(second) == ("running", 1)
        go_on.set()
        await first.settle_down()
        assert runs == [1]
        assert await state(second) == ("success", 1)


# ----- F14


def deaths(folder: Path) -> int:
    file = folder / "deaths"
    return len(file.read_text()) if file.exists() else 0


@pytest.mark.parametrize(("task", "times"), [("action", 3), ("mutation", 3), ("completed", 1)])
async def test_f14_a_handler_that_kills_its_process_uses_up_its_attempts(
    database_url: str, tmp_path: Path, task: str, times: int
) -> None:
    async with mortal.app.open(database_url) as backend:
        await backend.run_mutation(mortal.add, task, str(tmp_path))
        for _ in range(times):
            process = mortal.run_once(database_url)
            assert await asyncio.to_thread(process.wait, 60) == -9
        process = mortal.run_once(database_url)
        try:
            await until(lambda: has_ended(backend))
        finally:
            await asyncio.to_thread(stop, process)
        (job,) = await backend.jobs()
        assert deaths(tmp_path) == times
        if task == "completed":
            assert (job.state.value, job.attempt) == ("success", 1)
        else:
            assert (job.state.value, job.attempt) == ("failed", 3)
            assert [one.what for one in job.attempts] == ["lost", "lost", "abandoned"]
            assert (job.error or "").startswith("WorkerLost")


async def has_ended(backend: Backend) -> bool:
    return any(job.state.value in {"success", "failed"} for job in await backend.jobs())


def stop(process: Fork) -> None:
    process.kill()
    process.wait(60)
