"""Goods and their sales. A script and a notebook use them."""

from penstock import ActionCtx, App, Id, JobId, MutationCtx, QueryCtx, Table, public

app = App()
reports = app.workpool("reports", max_parallelism=2)


class Item(Table):
    name: str
    sold: int = 0


@app.mutation(access=public)
async def add(ctx: MutationCtx, name: str, sold: int) -> Id[Item]:
    return await ctx.db.insert(Item(name=name, sold=sold))


@app.mutation(access=public)
async def close_day(ctx: MutationCtx, name: str, sold: int) -> JobId[str]:
    await ctx.db.insert(Item(name=name, sold=sold))
    return await reports.enqueue(ctx, report)  # committed with the row


@app.query(access=public)
async def items(ctx: QueryCtx) -> list[Item]:
    return await ctx.db.query(Item).take(1000)


@app.internal_action
async def report(ctx: ActionCtx) -> str:
    sold, count = await ctx.run_query(totals)
    return f"{sold} sold of {count} items"


@app.internal_query
async def totals(ctx: QueryCtx) -> list[int]:
    found = await ctx.db.query(Item).take(1000)
    return [sum(item.sold for item in found), len(found)]
