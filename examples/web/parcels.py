"""Parcels and their labels, for the web frameworks beside this file."""

from datetime import datetime

from penstock import ActionCtx, App, ApplicationError, Id, Index, MutationCtx, QueryCtx, Table

app = App()
printer = app.workpool("printer", max_parallelism=2)


class Parcel(Table):
    sender: str
    address: str
    due: datetime
    delivered: bool = False

    by_sender = Index("sender", "due")


@app.internal_mutation
async def send(ctx: MutationCtx, parcel: Parcel) -> Id[Parcel]:
    if parcel.due < ctx.now():
        raise ApplicationError({"reason": "too late"}, status=409)
    parcel_id = await ctx.db.insert(parcel)
    await printer.enqueue(ctx, print_label, parcel_id)  # committed with the row
    return parcel_id


@app.internal_mutation
async def deliver(ctx: MutationCtx, parcel: Id[Parcel]) -> Parcel:
    return await ctx.db.patch(Parcel, parcel, delivered=True)


@app.query
async def mine(ctx: QueryCtx) -> list[Parcel]:
    user = await ctx.auth.require()
    return await ctx.db.query(Parcel).with_index(Parcel.by_sender, sender=user.subject).take(100)


@app.internal_action
async def print_label(ctx: ActionCtx, parcel: Id[Parcel]) -> str:
    return f"label of {parcel}"
