"""A program that is released twice: `PROGRAM=2` adds a column and a function, and raises a limit, to `PROGRAM=1`.

It uses only what earlier releases of penstock have, too. Each effect of a parcel is a row, or a line in `OUTSIDE`.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from penstock import ActionCtx, App, Index, MutationCtx, MutationTaskCtx, Retry, Table, WorkId, WorkResult
from penstock.sync import ActionCtx as SyncActionCtx

SECOND = os.environ.get("PROGRAM") == "2"
patience = Retry(max_attempts=50, initial_backoff=0.05, base=1)
app = App()
packing = app.workpool("packing", max_parallelism=4, default_retry=patience)
shipping = app.workpool("shipping", max_parallelism=8 if SECOND else 4, default_retry=patience)


class Parcel(Table):
    writer: int
    number: int
    if SECOND:
        weight: int = 0

    by_number = Index("writer", "number", unique=True)


class Effect(Table):
    """One row for each time that something was done about a parcel."""

    what: str
    parcel: str

    by_what = Index("what", "parcel")


@app.mutation
async def place(ctx: MutationCtx, writer: int, number: int) -> None:
    """Store a parcel, with all that follows from it."""
    await ctx.db.insert(Parcel(writer=writer, number=number))
    name = f"{writer}.{number}"
    await packing.with_options(on_complete=packed, context=name).enqueue(ctx, pack, parcel=name)
    await shipping.with_options(retry=True, on_complete=shipped, context=name).enqueue(ctx, ship, parcel=name)
    later = weigh if SECOND else enter
    await ctx.scheduler.run_after(timedelta(milliseconds=200), later, what="later", parcel=name)


@app.internal_mutation
async def enter(ctx: MutationCtx, what: str, parcel: str) -> None:
    await ctx.db.insert(Effect(what=what, parcel=parcel))


if SECOND:

    @app.internal_mutation
    async def weigh(ctx: MutationCtx, what: str, parcel: str) -> None:
        """Only processes of the second program have this."""
        await enter(ctx, what=what, parcel=parcel)


@app.internal_mutation
async def pack(ctx: MutationCtx, parcel: str) -> None:
    await enter(ctx, what="pack", parcel=parcel)


@app.internal_action
async def ship(ctx: ActionCtx, parcel: str) -> str:
    """It is idempotent, and so it may be retried."""
    return parcel


@app.internal_mutation
async def packed(ctx: MutationCtx, work_id: WorkId, result: WorkResult[None], context: str) -> None:
    await enter(ctx, what=f"packed {result.kind}", parcel=context)


@app.internal_mutation
async def shipped(ctx: MutationCtx, work_id: WorkId, result: WorkResult[str], context: str) -> None:
    await enter(ctx, what=f"shipped {result.kind}", parcel=context)


@app.reactive_task(Parcel, filter=lambda p: p.number >= 0, watch=("number",), retry=patience)
async def label(ctx: MutationTaskCtx[Parcel]) -> None:
    parcel = await ctx.get_document()
    await enter(ctx, what="label", parcel=f"{parcel.writer}.{parcel.number}")


@app.outbox(Parcel, start="beginning")
async def book(ctx: MutationCtx, parcel: Parcel) -> None:
    await enter(ctx, what="book", parcel=f"{parcel.writer}.{parcel.number}")


@app.outbox(Parcel, start="beginning")
def tell(ctx: SyncActionCtx, parcel: Parcel) -> None:
    with Path(os.environ["OUTSIDE"]).open("a") as outside:
        outside.write(f"{parcel.writer}.{parcel.number}\n")
