"""A hotel: right forms beside the wrong ones that `fifth` to `seventh` have taught the rules."""

import asyncio
import logging
import shutil
import sqlite3
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import boto3
import httpx
import pendulum
import psycopg_pool
import stripe
from fastapi import Depends
from penstock import (
    ActionCtx,
    App,
    ApplicationError,
    CallerBackend,
    Id,
    Index,
    MutationCtx,
    QueryCtx,
    Retry,
    Table,
    owner_of,
    public,
    signed_in,
)

from penstock.testing import TestApp

app = App()
Desk = Annotated[CallerBackend, Depends(len)]
log = logging.getLogger(__name__)
bucket = boto3.resource("s3")
WAITS = {"short": Retry.fixed(1), "long": Retry.fixed(timedelta(minutes=1))}
doors = app.workpool("doors", max_parallelism=1, default_retry=WAITS["short"])
lifts = app.workpool("lifts", max_parallelism=1, default_retry=WAITS["long"])  # expect: PEN018


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


def traced(function):
    log.info("declared %s", function)
    return function


@open_query()
async def has_no_guard(ctx: QueryCtx, guest: Id[Guest]) -> Guest | None:  # expect: PEN006
    return await ctx.db.get(Guest, guest)


@traced
async def counted(ctx: QueryCtx) -> int:
    return await ctx.db.query(Guest).count()


@app.mutation(access=public)
async def log_in(ctx: MutationCtx, email: str, password: str) -> Id[Guest]:
    found = await ctx.db.query(Guest).with_index(Guest.by_email, email=email).unique()
    if found is None or not found.confirmed or found.password != password:
        raise ApplicationError("wrong email or password")
    return found.id


@app.mutation(access=public)
async def upgrade(ctx: MutationCtx, email: str) -> None:
    found = await ctx.db.query(Guest).with_index(Guest.by_email, email=email).unique()
    if found is None or not found.vip:  # expect: PEN007
        raise ApplicationError("for very important guests")
    await ctx.db.patch(Guest, found.id, confirmed=True)


@app.mutation(access=owner_of(Guest, "host"))
async def invite(ctx: MutationCtx, host: Id[Guest], email: str) -> None:
    found = await ctx.db.query(Guest).with_index(Guest.by_email, email=email).unique()
    if found is not None and found.vip:
        raise ApplicationError("this guest needs no invitation")
    await ctx.db.insert(Guest(email=email, owner=host))


@app.mutation(access=signed_in)
async def recommend(ctx: MutationCtx, guest: Id[Guest], owner: str) -> None:
    found = await ctx.db.get(Guest, guest)
    if found is None:
        raise ApplicationError("no such guest")
    if found.owner == owner:
        raise ApplicationError("recommended already")
    await ctx.db.insert(Guest(email=found.email, owner=owner))


@app.mutation(access=signed_in)
async def tell(ctx: MutationCtx, guest: Id[Guest]) -> str:
    row = ctx.db.get(Guest, guest)
    log.info("guest %s", await row)
    count = ctx.db.query(Guest).count()  # expect: PEN001
    log.info("guests %s", count)
    return f"{await counted(ctx)} and {counted(ctx)}"  # expect: PEN001


@app.mutation(access=signed_in)
async def check_out(ctx: MutationCtx, guest: Id[Guest]) -> None:
    await ctx.db.patch(Guest, guest, checked_in=time.strftime("%H:%M"))  # expect: PEN014
    bucket.Object("hotel", guest).delete()  # expect: PEN015


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


@app.internal_action
async def greet(ctx: ActionCtx, guest: Id[Guest]) -> None:
    await ctx.run_mutation(arrive, guest)
    await _open(ctx, guest)  # expect: PEN016


@app.internal_action
async def ask_and_greet(ctx: ActionCtx, guest: Id[Guest]) -> None:
    await ctx.run_mutation(arrive, guest)
    await _ask_and_open(ctx, guest)


async def _open(ctx: ActionCtx, guest: str) -> None:
    await doors.with_options(retry=True).enqueue(ctx, open_door, guest)


async def _ask_and_open(ctx: ActionCtx, guest: str) -> None:
    async with httpx.AsyncClient() as client:
        await client.get("https://police.example.com")
    await lifts.enqueue(ctx, open_door, guest)


@app.internal_mutation
async def arrive(ctx: MutationCtx, guest: Id[Guest]) -> None:
    context = {"guest": guest}
    context["page"] = (await ctx.db.query(Guest).paginate(num_items=10)).continue_cursor
    await doors.with_options(on_complete=arrived, context=context).enqueue(ctx, open_door, guest)


@app.internal_mutation
async def arrived(ctx: MutationCtx, work_id: str, result: object, context: dict[str, str]) -> None:
    names = map(lambda one: one.upper(), context)
    log.info("arrived %s", list(names))


async def arrivals(ctx: QueryCtx) -> AsyncIterator[Guest]:
    async for guest in ctx.db.query(Guest).order("desc"):
        yield guest


async def arrivals_today(ctx: QueryCtx) -> AsyncIterator[Guest]:
    return arrivals(ctx)


@app.internal_mutation
async def copy_rooms(ctx: MutationCtx) -> None:
    rows = arrivals(ctx)
    log.info("copying %s", rows)
    async with psycopg_pool.AsyncConnectionPool("dbname=rooms") as pool:  # expect: PEN015
        await pool.check()
    arrivals_today(ctx)  # expect: PEN001


@app.internal_action
async def charge(ctx: ActionCtx, guest: Id[Guest]) -> None:
    await stripe.PaymentIntent.create_async(amount=5)  # expect: PEN017
    await stripe.PaymentIntent.retrieve_async("intent")


@app.internal_mutation
async def leave(ctx: MutationCtx, guest: Id[Guest]) -> None:
    await doors.with_options(retry=True).enqueue(ctx, charge, guest)


async def tidy(desk: Desk, guest: Id[Guest]) -> None:
    await desk.run_mutation(clean, guest)


async def at_the_desk(desk: Desk, guest: Id[Guest]) -> str:
    desk.run_mutation(clean, guest)  # expect: PEN001
    tidy(desk, guest)  # expect: PEN001
    doors.enqueue(desk, open_door, guest)  # expect: PEN001
    await asyncio.gather(desk.run_mutation(clean, guest), tidy(desk, guest))
    await asyncio.gather(*[tidy(desk, one) for one in [guest]])
    [tidy(desk, one) for one in [guest]]  # expect: PEN001
    [await tidy(desk, one) for one in [guest]]
    cleaning = asyncio.create_task(desk.with_identity(None).run_mutation(clean, guest))
    later = desk.run_mutation(clean, guest)
    await cleaning
    await later
    print(desk.run_mutation(tell, guest))  # expect: PEN001
    return desk.run_mutation(tell, guest)  # expect: PEN001


async def main() -> None:
    async with app.open() as backend:
        backend.with_identity(None).run_mutation(check_out, "guest")  # expect: PEN001
        async for guests in backend.live(arrivals, limit=5):
            log.info("here %s", guests)


async def test_a_guest_leaves() -> None:
    async with TestApp(app) as backend:
        backend.run_until_idle()  # expect: PEN001
        backend.clock.advance(timedelta(days=1))
        with TestApp(app) as other:
            other.wake()
