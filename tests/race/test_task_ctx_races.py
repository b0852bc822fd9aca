"""Runs of reactive tasks whose workers die, stall or lose their lease while they complete, and user transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta

import pytest
from stage.guests import PLAIN_KINDS, Kind, Visit
from stage.stories import TaskApp, two_on
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
runs: list[int] = []


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
    runs.clear()


def kind_for(url: str) -> Kind:
    dialect = "sqlite" if url.startswith("sqlite") else "postgres"
    return next(kind for kind in PLAIN_KINDS if kind.dialect == dialect and kind.is_async)


async def write(visit: Visit, what: str) -> None:
    """The business write of a transaction."""
    columns, time = "id, creation_time, what", "2030-01-01 00:00:00.000000+00:00"
    await answer(visit.run(f"insert into entry ({columns}) values ('entry_{len(what):026}', '{time}', '{what}')"))


async def state(t: Backend) -> tuple[str, int]:
    (job,) = await t.jobs()
    return job.state.value, job.attempt


async def begin(t: TaskApp, *handlers: Step) -> None:
    """Have a worker begin a run of the first handler; of the next ones when it runs again."""
    steps.extend(handlers)
    await t.run_mutation(place)
    await t.plan()
    await t.worker.tick()


async def noted(ctx: TaskCtx[Order]) -> None:
    runs.append(ctx.attempt)


async def beat(first: TaskApp, second: TaskApp, times: int) -> None:
    """Let time pass, in which two workers renew their leases."""
    for _ in range(times):
        first.clock.advance(timedelta(seconds=10))
        await first.worker.tick()
        await second.worker.tick()


@pytest.mark.parametrize("completes", [True, False])
async def test_f5_lr1_a_run_that_outlives_its_lease_keeps_it_and_none_comes_back_once_completed(
    database_url: str, *, completes: bool
) -> None:
    async with two_on(app, database_url) as (first, second):
        go_on = asyncio.Event()

        async def lives_on(ctx: TaskCtx[Order]) -> None:
            if completes:
                await ctx.mark_completed()
            await noted(ctx)
            await go_on.wait()

        await begin(first, lives_on)
        await until(lambda: bool(runs))
        await beat(first, second, 8)
        assert await state(second) == ("running", 1)
        go_on.set()
        await first.settle_down()
        await second.settle_down()
        assert (runs, await state(first)) == ([1], ("success", 1))


@pytest.mark.parametrize("own", [True, False], ids=["at once", "in a transaction"])
async def test_f7_a_stalled_worker_cannot_complete_what_another_has_taken_over(database_url: str, *, own: bool) -> None:
    async with two_on(app, database_url) as (stalled, rescuer):
        go_on, told = asyncio.Event(), list[LeaseLost]()

        async def stalls(ctx: TaskCtx[Order]) -> None:
            await go_on.wait()
            if own:
                await complete(ctx.mark_completed())
            else:
                async with kind_for(database_url).open(database_url) as visit:
                    await answer(visit.begin())
                    await write(visit, "booked")
                    await complete(ctx.mark_completed(visit.connection))
                    await answer(visit.rollback() if told else visit.commit())
            if told:
                raise told[0]

        async def complete(call: Awaitable[None]) -> None:
            try:
                await call
            except LeaseLost as error:
                told.append(error)

        await begin(stalled, stalls, noted)
        await until(lambda: len(steps) == 1)
        stalled.clock.advance(EXPIRED)
        await rescuer.run_until_idle(plan=False)
        assert await state(rescuer) == ("success", 2)
        go_on.set()
        await stalled.worker.wait_for_jobs()
        assert len(told) == 1
        await stalled.run_until_idle(plan=False)
        assert await state(rescuer) == ("success", 2)
        assert await rescuer.run_query(entries) == []


@pytest.mark.parametrize("how", ["commits", "rolls back", "stops and commits"])
async def test_a_transaction_that_completes_a_run_decides_of_it_though_the_worker_stalls_or_stops(
    postgres_url: str, how: str
) -> None:
    """On PostgreSQL the lease may run out while it is open: the run is lost only if it is rolled back."""
    async with (
        two_on(app, postgres_url, grace=0.0) as (stalled, rescuer),
        kind_for(postgres_url).open(postgres_url) as visit,
    ):

        async def completes(ctx: TaskCtx[Order]) -> None:
            await answer(visit.begin())
            await write(visit, "booked")
            await ctx.mark_completed(visit.connection)
            await noted(ctx)
            await asyncio.Event().wait()

        await begin(stalled, completes, noted)
        await until(lambda: bool(runs))
        if how.startswith("stops"):
            await stalled.worker.finish()
        stalled.clock.advance(EXPIRED)
        await rescuer.run_until_idle(plan=False)
        assert await state(rescuer) == ("running", 1)
        await answer(visit.rollback() if how == "rolls back" else visit.commit())
        rescuer.clock.advance(EXPIRED)
        await rescuer.run_until_idle(plan=False)
        lost = how == "rolls back"
        assert await state(rescuer) == ("success", 2 if lost else 1)
        assert runs == ([1, 2] if lost else [1])
        assert await rescuer.run_query(entries) == ([] if lost else ["booked"])
        await stalled.worker.kill()
