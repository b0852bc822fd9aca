"""Orders that are packed in turn. ``penstock serve --services`` runs the program."""

from penstock import ActionCtx, App, MutationCtx, QueryCtx, Table, public

app = App()
packing = app.workpool("packing", max_parallelism=1)


class Order(Table):
    number: int


@app.mutation(access=public)
async def order(ctx: MutationCtx, number: int) -> None:
    await ctx.db.insert(Order(number=number))
    await packing.enqueue(ctx, pack, number)


@app.query(access=public)
async def orders(ctx: QueryCtx) -> int:
    return await ctx.db.query(Order).count()


@app.internal_action
async def pack(ctx: ActionCtx, number: int) -> None:
    print(f"packed {number}.")
