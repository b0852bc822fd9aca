"""Three shops, each with a database of its own, one program and one worker. Run it with ``python shops.py``."""

import asyncio
import tempfile
from pathlib import Path

from tenants import Tenants, work

from penstock import App, Index, MutationCtx, QueryCtx, Table, public

SHOPS = ("bakery", "bikes", "books")
ORDERS = 5

app = App()
mails = app.workpool("mails", max_parallelism=2)


class Order(Table):
    number: int
    is_confirmed: bool = False

    by_number = Index("number", unique=True)


@app.mutation(access=public)
async def order(ctx: MutationCtx, number: int) -> None:
    await ctx.db.insert(Order(number=number))
    await mails.enqueue(ctx, confirm, number=number)


@app.internal_mutation
async def confirm(ctx: MutationCtx, number: int) -> None:
    row = await ctx.db.query(Order).with_index(Order.by_number, number=number).unique()
    if row is not None:
        await ctx.db.patch(Order, row.id, is_confirmed=True)


@app.query(access=public)
async def confirmed(ctx: QueryCtx) -> list[int]:
    orders = await ctx.db.query(Order).with_index(Order.by_number).take(100)
    return [one.number for one in orders if one.is_confirmed]


async def main() -> None:
    """Let each shop take orders, and have one worker confirm them all."""
    with tempfile.TemporaryDirectory() as folder:
        urls = {shop: f"sqlite:///{Path(folder)}/{shop}.db" for shop in SHOPS}
        async with Tenants(app, urls.__getitem__, most=2) as tenants:
            for number in range(ORDERS):
                for place, shop in enumerate(SHOPS):
                    async with tenants.backend(shop) as backend:
                        await backend.run_mutation(order, number=10 * place + number)
            stop = asyncio.Event()
            worker = asyncio.create_task(work(app, urls.values(), ("worker",), stop))
            for shop in SHOPS:
                async with tenants.backend(shop) as backend:
                    async for numbers in backend.live(confirmed):
                        if len(numbers) == ORDERS:
                            print(f"{shop}: {numbers}")
                            break
            stop.set()
            await worker


if __name__ == "__main__":
    asyncio.run(main())
