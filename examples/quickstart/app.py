"""Seats that are held for half a minute.

Start it in this folder with ``penstock dev``. Beside it: ``penstock run hold seat=12A name=Ada``, and now and then
``penstock run taken``. From any other program: ``POST /api/mutation`` with ``{"path": "app:hold", "args": {…}}``.
"""

from datetime import timedelta

from penstock import App, ApplicationError, Id, Index, MutationCtx, QueryCtx, Table, public

app = App()


class Hold(Table):
    seat: str
    name: str

    by_seat = Index("seat", unique=True)


@app.mutation(access=public)
async def hold(ctx: MutationCtx, seat: str, name: str) -> Id[Hold]:
    if await ctx.db.query(Hold).with_index(Hold.by_seat, seat=seat).unique():
        raise ApplicationError(f"Seat {seat} is taken.")
    hold_id = await ctx.db.insert(Hold(seat=seat, name=name))
    await ctx.scheduler.run_after(timedelta(seconds=30), let_go, hold_id)  # committed with the row; runs exactly once
    return hold_id


@app.internal_mutation
async def let_go(ctx: MutationCtx, hold_id: Id[Hold]) -> None:
    await ctx.db.delete(Hold, hold_id)


@app.query(access=public)
async def taken(ctx: QueryCtx) -> list[Hold]:
    return await ctx.db.query(Hold).with_index(Hold.by_seat).take(100)
