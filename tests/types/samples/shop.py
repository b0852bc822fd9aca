"""A small shop, whose functions the other samples call."""

from datetime import datetime, timedelta

from penstock import ActionCtx, App, Id, Index, JobId, MutationCtx, QueryCtx, SearchIndex, Table, VectorIndex, sync

app = App()


class Customer(Table):
    name: str


class Booking(Table):
    customer: Id[Customer]
    starts_at: datetime
    seats: int = 1
    reminder: JobId | None = None
    note: str = ""
    look: list[float] | None = None

    by_look = VectorIndex("look", dimensions=512, filters=("customer",))
    by_note = SearchIndex("note", filters=("customer",))
    by_customer = Index("customer", "starts_at")


@app.query
async def upcoming(ctx: QueryCtx, customer: Id[Customer], limit: int = 10) -> list[Booking]:
    return await ctx.db.query(Booking).with_index(Booking.by_customer, customer=customer).take(limit)


@app.mutation
async def book(ctx: MutationCtx, customer: Id[Customer], starts_at: datetime, *, seats: int = 1) -> Id[Booking]:
    booking = await ctx.db.insert(Booking(customer=customer, starts_at=starts_at, seats=seats))
    await ctx.scheduler.run_after(timedelta(0), confirm, booking)
    return booking


@app.internal_action
async def confirm(ctx: ActionCtx, booking: Id[Booking], attempts: int = 1) -> str:
    return f"{booking} {attempts} {ctx.now()}"


@app.query
def seats_of(ctx: sync.QueryCtx, customer: Id[Customer]) -> int:
    return sum(booking.seats for booking in ctx.db.query(Booking).with_index(Booking.by_customer, customer=customer))


@app.mutation
def rename(ctx: sync.MutationCtx, customer: Id[Customer], name: str) -> Customer:
    return ctx.db.patch(Customer, customer, name=name)


@app.action(runtime="process")
def fold(ctx: sync.ActionCtx, text: str) -> str:
    return text.casefold()


async def no_function_of_the_app(ctx: MutationCtx, booking: Id[Booking]) -> None:
    """A helper: it runs in the transaction of whoever awaits it."""
