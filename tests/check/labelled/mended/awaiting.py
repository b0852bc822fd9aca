"""A workshop: calls that nobody awaits, in the forms that hide them, beside those that something awaits."""

import asyncio
from collections.abc import Awaitable, Iterator
from datetime import datetime
from functools import partial

from penstock import App, Id, Index, MutationCtx, QueryCtx, Table, gt, gte, lt

app = App()


class Bike(Table):
    owner: str
    due: datetime
    cents: int = 0

    by_owner = Index("owner", "due")
    by_due = Index("due")


async def repair(ctx: MutationCtx, bike: Id[Bike]) -> Bike | None:
    return await ctx.db.get(Bike, bike)


def bike_of(ctx: MutationCtx, bike: Id[Bike]) -> Awaitable[Bike | None]:
    return ctx.db.get(Bike, bike)


def bikes_of(ctx: MutationCtx, bikes: list[Id[Bike]]) -> Iterator[Awaitable[Bike | None]]:
    for bike in bikes:
        yield ctx.db.get(Bike, bike)


@app.internal_mutation
async def remembers(ctx: MutationCtx, bike: Id[Bike], bikes: list[Id[Bike]]) -> list[Bike | None]:
    if bikes:
        found = ctx.db.get(Bike, bike)
    else:
        found = ctx.db.get(Bike, bikes[0])
    await found
    try:
        found = bike_of(ctx, bike)
    except LookupError:
        found = ctx.db.get(Bike, bike)
    await found
    print(await (row := ctx.db.get(Bike, bike)))
    first = second = ctx.db.get(Bike, bike)
    await second
    get = partial(ctx.db.get, Bike)
    await get(bike)
    await asyncio.gather(*map(get, bikes), *bikes_of(ctx, bikes), *[bike_of(ctx, bike), repair(ctx, bike)])
    for later in [ctx.db.get(Bike, one) for one in bikes]:
        await later
    bike_row = ctx.db.get(Bike, bike)
    print([bike_row for bike_row in bikes], (lambda bike_row: bike_row)(bike))
    await bike_row
    named = {one: ctx.db.get(Bike, one) for one in bikes}
    for later in named.values():
        await later
    rows = [await one for one in bikes_of(ctx, bikes)]
    task = asyncio.create_task(repair(ctx, bike))
    task.add_done_callback(print)
    await asyncio.wait_for(task, 1)
    async with asyncio.TaskGroup() as group:
        group.create_task(repair(ctx, bike))
    tasks = [asyncio.ensure_future(repair(ctx, one)) for one in bikes]
    rows += await asyncio.gather(*tasks)
    return rows


@app.internal_query
async def reads(ctx: QueryCtx, owner: str, since: datetime, until: datetime) -> int:
    await ctx.db.query(Bike).with_index(Bike.by_due, due=gte(since)).collect()  # expect: PEN003
    await ctx.db.query(Bike).with_index(Bike.by_due, due=gt(since)).order("desc").collect()  # expect: PEN003
    await ctx.db.query(Bike).with_index(Bike.by_due, due=gte(since) & lt(until)).collect()
    await ctx.db.query(Bike).with_index(Bike.by_due, due=lt(since)).collect()
    await ctx.db.query(Bike).with_index(Bike.by_owner, owner=owner, due=gte(since)).collect()
    mine = ctx.db.query(Bike).with_index(Bike.by_owner, owner=owner)
    rows = await mine.collect()  # expect: PEN003
    counted = len(rows)
    both = await mine.collect()
    print(both[0], len(both), len(list(await mine.collect())))  # expect: PEN003
    print(sum(1 for _ in await mine.collect()))  # expect: PEN003
    print(len([one.id for one in await mine.collect()]))  # expect: PEN003
    print(len([one for one in await mine.collect() if one.cents > 5]))
    print(sum(one.cents for one in await mine.collect()))
    return counted
