"""Who plans the runs of reactive tasks, and what becomes of it when that is taken away."""

from __future__ import annotations

import asyncio

from stage.waits import SOON

from penstock import App, Id, MutationCtx, Table, TaskCtx
from penstock.api.tasks.tasks import READER
from penstock.clock import SystemClock

app = App()


class Parcel(Table):
    """What is sent."""

    weight: int


sent: list[tuple[str, Id[Parcel]]] = []


@app.reactive_task(Parcel)
async def send(ctx: TaskCtx[Parcel]) -> None:
    """Send a parcel."""
    sent.append((ctx.change, ctx.doc_id))


@app.internal_mutation
async def pack(ctx: MutationCtx, weight: int) -> Id[Parcel]:
    """Pack a parcel."""
    return await ctx.db.insert(Parcel(weight=weight))


async def until(count: int) -> None:
    """Wait until so many have been sent."""
    async with asyncio.timeout(SOON):
        while len(sent) < count:
            await SystemClock().sleep(0)


async def test_rows_written_while_the_reader_was_dropped_are_run_as_well(database_url: str) -> None:
    sent.clear()
    async with app.open(database_url, services=("worker", "planner")) as backend:
        first = await backend.run_mutation(pack, 1)
        await until(1)
    async with app.open(database_url, push_schema=False) as backend:
        assert await backend.engine.store.changes.forget(READER)
        second = await backend.run_mutation(pack, 2)
    async with app.open(database_url, push_schema=False, services=("worker", "planner")):
        await until(2)
    assert [row for _, row in sent] == [first, second]
    assert sent[1][0] == "reconcile"


async def test_runs_that_wait_are_those_of_a_handler_that_has_another_name_now(database_url: str) -> None:
    before, after = App(tables=[Parcel]), App(tables=[Parcel])
    seen: list[str] = []

    @before.reactive_task(Parcel, name="weigh")
    async def weigh(ctx: TaskCtx[Parcel]) -> None:
        """Under its first name."""
        seen.append("weigh")

    @after.reactive_task(Parcel, name="weigh")
    async def weigh_again(ctx: TaskCtx[Parcel]) -> None:
        """Under its second name."""
        seen.append(ctx.doc_id)

    async with before.open(database_url, services=("planner",)) as backend:
        async with app.open(database_url, push_schema=False) as writer:
            parcel = await writer.run_mutation(pack, 3)
        async with asyncio.timeout(SOON):
            while not await backend.jobs("pending"):
                await SystemClock().sleep(0)
    async with after.open(database_url, services=("worker",)):
        async with asyncio.timeout(SOON):
            while not seen:
                await SystemClock().sleep(0)
    assert seen == [parcel]
