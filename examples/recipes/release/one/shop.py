"""Release one: a booking names its customer."""

from penstock import ActionCtx, App, Id, MutationCtx, QueryCtx, Table, public

app = App()
mail = app.workpool("mail", max_parallelism=2)


class Booking(Table):
    customer: str


@app.mutation(access=public)
async def book(ctx: MutationCtx, name: str) -> Id[Booking]:
    booking = await ctx.db.insert(Booking(customer=name))
    await mail.enqueue(ctx, confirm, booking)
    return booking


@app.query(access=public)
async def names(ctx: QueryCtx) -> list[str]:
    return [booking.customer for booking in await ctx.db.query(Booking).take(100)]


@app.internal_query
async def name_of(ctx: QueryCtx, booking: Id[Booking]) -> str:
    found = await ctx.db.get(Booking, booking)
    return found.customer if found else "nobody"


@app.internal_action
async def confirm(ctx: ActionCtx, booking: Id[Booking]) -> None:
    print(f"release one confirms {await ctx.run_query(name_of, booking)}.")
