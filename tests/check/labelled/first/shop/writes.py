
import httpx
from penstock import (
    Id, MutationCtx,
)

from shop.program import app
from shop.tables import Order


@app.internal_mutation
async def remember(ctx: MutationCtx, order: Id[Order]) -> None:
    await ctx.db.delete(Order, order)


async def tidy(ctx: MutationCtx, order: Id[Order]) -> None:
    await ctx.db.patch(Order, order, status="tidy")


@app.internal_mutation
async def client(ctx: MutationCtx, order: Id[Order]) -> None:
    async with httpx.AsyncClient() as connection:  # expect: PEN015
        await connection.get("https://example.com")


@app.internal_mutation
async def runs_inside(ctx: MutationCtx, order: Id[Order]) -> None:
    await ctx.run_mutation(remember, order)  # expect: PEN009
