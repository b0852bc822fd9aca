"""Goods and their sales. A script and a notebook use them."""

from penstock import ActionCtx, App, Id, MutationCtx, QueryCtx, Table, public

app = App()
reports = app.workpool("reports", max_parallelism=2)


class Item(Table):
    name: str
    sold: int = 0


@app.mutation(access=public)
async def add(ctx: MutationCtx, name: str, sold: int) -> Id[Item]:
    return await ctx.db.insert(Item(name=name, sold=sold))


@app.query(access=public)
async def items(ctx: QueryCtx) -> list[Item]:
    return await ctx.db.query(Item).take(1000)


@app.internal_action
async def report(ctx: ActionCtx) -> str:
    found = await ctx.run_query(items)
    return f"{sum(item.sold for item in found)} sold of {len(found)} items"
