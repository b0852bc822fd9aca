"""A hotel: right forms beside the wrong ones that `fifth` to `seventh` have taught the rules."""

import logging
import shutil
import sqlite3
from datetime import timedelta
from pathlib import Path

import httpx
import pendulum
import stripe
from penstock import (
    ActionCtx,
    App,
    ApplicationError,
    Id,
    Index,
    MutationCtx,
    QueryCtx,
    Retry,
    Table,
    public,
    signed_in,
)


app = App()
log = logging.getLogger(__name__)
WAITS = {"short": Retry.fixed(1), "long": Retry.fixed(timedelta(minutes=1))}
doors = app.workpool("doors", max_parallelism=1, default_retry=WAITS["short"])


class Guest(Table):
    email: str
    owner: str
    password: str = ""
    confirmed: bool = False
    vip: bool = False
    checked_in: str = ""

    by_email = Index("email", unique=True)


def open_query(**options):
    return app.query(**options)


@open_query()
async def has_no_guard(ctx: QueryCtx, guest: Id[Guest]) -> Guest | None:  # expect: PEN006
    return await ctx.db.get(Guest, guest)


@app.mutation(access=public)
async def log_in(ctx: MutationCtx, email: str, password: str) -> Id[Guest]:
    found = await ctx.db.query(Guest).with_index(Guest.by_email, email=email).unique()
    if found is None or not found.confirmed or found.password != password:
        raise ApplicationError("wrong email or password")
    return found.id


@app.mutation(access=signed_in)
async def clean(ctx: MutationCtx, guest: Id[Guest]) -> None:
    for room in ctx.db.query(Guest).take(5):  # expect: PEN001
        log.info("clean %s", room)
    rooms = [one.email for one in await ctx.db.query(Guest).take(5)]
    pendulum.now()  # expect: PEN014
    shutil.copy("rooms.csv", "cleaned.csv")  # expect: PEN015
    Path("rooms.csv").unlink()  # expect: PEN015
    sqlite3.connect("rooms.db")  # expect: PEN015
    if not rooms:
        raise ApplicationError(ctx.db.query(Guest).count())  # expect: PEN001
    raise ValueError(ctx.db.query(Guest).count())  # expect: PEN001


@app.internal_action
async def open_door(ctx: ActionCtx, guest: str) -> None:
    async with httpx.AsyncClient() as client:
        await client.request("GET", "https://doors.example.com")
        await client.request(method="POST", url="https://doors.example.com")  # expect: PEN017


async def _open(ctx: ActionCtx, guest: str) -> None:
    await doors.with_options(retry=True).enqueue(ctx, open_door, guest)


@app.internal_mutation
async def arrive(ctx: MutationCtx, guest: Id[Guest]) -> None:
    context = {"guest": guest}
    context["page"] = (await ctx.db.query(Guest).paginate(num_items=10)).continue_cursor
    await doors.with_options(on_complete=arrived, context=context).enqueue(ctx, open_door, guest)


@app.internal_mutation
async def arrived(ctx: MutationCtx, work_id: str, result: object, context: dict[str, str]) -> None:
    names = map(lambda one: one.upper(), context)
    log.info("arrived %s", list(names))


@app.internal_action
async def charge(ctx: ActionCtx, guest: Id[Guest]) -> None:
    await stripe.PaymentIntent.create_async(amount=5)  # expect: PEN017
    await stripe.PaymentIntent.retrieve_async("intent")


@app.internal_mutation
async def leave(ctx: MutationCtx, guest: Id[Guest]) -> None:
    await doors.with_options(retry=True).enqueue(ctx, charge, guest)
