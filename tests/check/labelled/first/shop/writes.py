import asyncio
import os
import random
import secrets
import time
import uuid
from datetime import UTC, datetime, timedelta
from random import choice

import httpx
import requests as http
import shop
from penstock import (
    ActionCtx, ApplicationError, Id, MutationCtx, QueryCtx, public, signed_in,
)

from shop.program import app, careful, invoices, mails
from shop.tables import Order, Product

LIMIT = int(os.environ.get("LIMIT", "10"))
STARTED = datetime.now(UTC)


@app.internal_mutation
async def forget(ctx: MutationCtx, order: Id[Order]) -> None:
    ctx.db.delete(Order, order)  # expect: PEN001


@app.internal_mutation
async def remember(ctx: MutationCtx, order: Id[Order]) -> None:
    await ctx.db.delete(Order, order)


@app.internal_mutation
async def later(ctx: MutationCtx, order: Id[Order]) -> None:
    ctx.scheduler.run_after(timedelta(hours=1), forget, order)  # expect: PEN001


@app.internal_mutation
async def kept_but_never_awaited(ctx: MutationCtx, order: Id[Order]) -> None:
    deleting = ctx.db.delete(Order, order)  # expect: PEN001


@app.internal_mutation
async def kept_and_awaited(ctx: MutationCtx, order: Id[Order]) -> None:
    deleting = ctx.db.delete(Order, order)
    await deleting


@app.internal_mutation
async def together(ctx: MutationCtx, orders: list[Id[Order]]) -> None:
    await asyncio.gather(*[ctx.db.delete(Order, one) for one in orders])


@app.internal_mutation
async def helper_not_awaited(ctx: MutationCtx, order: Id[Order]) -> None:
    tidy(ctx, order)  # expect: PEN001


@app.internal_mutation
async def pool_not_awaited(ctx: MutationCtx, order: Id[Order]) -> None:
    mails.enqueue(ctx, send_mail, order)  # expect: PEN001


@app.internal_mutation
def synchronous(ctx: "penstock.SyncMutationCtx", order: Id[Order]) -> None:
    ctx.db.delete(Order, order)


async def tidy(ctx: MutationCtx, order: Id[Order]) -> None:
    await ctx.db.patch(Order, order, status="tidy")


@app.internal_mutation
async def clock(ctx: MutationCtx, order: Id[Order]) -> None:
    await ctx.db.patch(Order, order, made_at=datetime.now(UTC))  # expect: PEN014


@app.internal_mutation
async def own_clock(ctx: MutationCtx, order: Id[Order]) -> None:
    await ctx.db.patch(Order, order, made_at=ctx.now())


@app.internal_query
async def seconds(ctx: QueryCtx) -> float:
    return time.time()  # expect: PEN014


@app.internal_mutation
async def chance(ctx: MutationCtx, order: Id[Order]) -> None:
    await ctx.db.patch(Order, order, status=choice(["a", "b"]))  # expect: PEN014


@app.internal_mutation
async def own_chance(ctx: MutationCtx, order: Id[Order]) -> None:
    await ctx.db.patch(Order, order, status=ctx.random.choice(["a", "b"]))


@app.internal_mutation
async def dice(ctx: MutationCtx) -> int:
    return random.randint(1, 6)  # expect: PEN014


@app.internal_mutation
async def token(ctx: MutationCtx, order: Id[Order]) -> str:
    made = secrets.token_hex()  # expect: PEN014
    await ctx.db.patch(Order, order, status=made)
    return str(uuid.uuid4())  # expect: PEN014


@app.internal_query
async def environment(ctx: QueryCtx) -> str:
    return os.environ["REGION"]  # expect: PEN014


@app.internal_query
async def constant(ctx: QueryCtx) -> int:
    return LIMIT


def stamp() -> str:
    return datetime.now(UTC).isoformat()  # expect: PEN014


@app.internal_mutation
async def through_a_helper(ctx: MutationCtx, order: Id[Order]) -> None:
    await ctx.db.patch(Order, order, status=stamp())


def unused_stamp() -> str:
    return datetime.now(UTC).isoformat()


@app.internal_action
async def outside(ctx: ActionCtx) -> str:
    await asyncio.sleep(1)
    return f"{time.time()} {random.random()} {unused_stamp()}"


@app.internal_mutation
async def network(ctx: MutationCtx, order: Id[Order]) -> None:
    await ctx.db.patch(Order, order, status="sent")
    http.post("https://example.com")  # expect: PEN015


@app.internal_mutation
async def client(ctx: MutationCtx, order: Id[Order]) -> None:
    async with httpx.AsyncClient() as connection:  # expect: PEN015
        await connection.get("https://example.com")


@app.internal_mutation
async def sleeps(ctx: MutationCtx) -> None:
    await asyncio.sleep(0.1)  # expect: PEN015


@app.internal_query
async def reads_a_file(ctx: QueryCtx) -> str:
    with open("prices.csv") as file:  # expect: PEN015
        return file.read()


@app.internal_mutation
async def catches(ctx: MutationCtx, order: Id[Order]) -> None:
    try:
        await ctx.db.delete(Order, order)
    except httpx.HTTPError:
        raise ApplicationError("odd") from None


@app.internal_mutation
async def times(ctx: MutationCtx, order: Id[Order], until: datetime) -> None:
    await ctx.db.patch(Order, order, made_at=until + timedelta(days=1))


@app.internal_action
async def send_mail(ctx: ActionCtx, order: Id[Order]) -> None:
    http.post("https://mail.example.com", json={"order": order})  # expect: PEN017, PEN022


@app.internal_action
async def send_mail_once(ctx: ActionCtx, order: Id[Order]) -> None:
    http.post("https://mail.example.com", headers={"Idempotency-Key": order})  # expect: PEN022


@app.internal_action
async def not_retried(ctx: ActionCtx, order: Id[Order]) -> None:
    http.post("https://mail.example.com", json={"order": order})  # expect: PEN022


@app.internal_mutation
async def enqueues(ctx: MutationCtx, order: Id[Order]) -> None:
    await careful.enqueue(ctx, send_mail, order)
    await careful.enqueue(ctx, send_mail_once, order)
    await mails.with_options(retry=False).enqueue(ctx, not_retried, order)


@app.mutation(access=signed_in)
async def public_one(ctx: MutationCtx, order: Id[Order]) -> None:
    await ctx.db.patch(Order, order, status="public")


@app.internal_mutation
async def schedules_public(ctx: MutationCtx, order: Id[Order]) -> None:
    await ctx.scheduler.run_at(ctx.now(), public_one, order)  # expect: PEN008


@app.internal_mutation
async def calls_public(ctx: MutationCtx, order: Id[Order]) -> None:
    await public_one(ctx, order)


@app.internal_mutation
async def enqueues_public(ctx: MutationCtx, order: Id[Order]) -> None:
    await invoices.enqueue(ctx, public_one, order)  # expect: PEN008
    await invoices.enqueue(ctx, remember, order)


@app.internal_mutation
async def runs_inside(ctx: MutationCtx, order: Id[Order]) -> None:
    await ctx.run_mutation(remember, order)  # expect: PEN009


@app.internal_mutation
async def tries_inside(ctx: MutationCtx, order: Id[Order]) -> None:
    try:
        await ctx.run_mutation(remember, order)
    except ApplicationError:
        await ctx.db.patch(Order, order, status="failed")


@app.internal_query
async def asks_inside(ctx: QueryCtx) -> int:
    return await ctx.run_query(constant)  # expect: PEN009


@app.internal_mutation
async def no_table(ctx: MutationCtx, order: Id[Order]) -> None:
    await ctx.db.patch(order, status="x")  # expect: PEN013


@app.internal_mutation
async def context_of_rows(ctx: MutationCtx, order: Id[Order], customer: str) -> None:
    rows = await ctx.db.query(Order).with_index(Order.by_customer_and_day, customer=customer).collect()
    pool = mails.with_options(on_complete=done, context=[one.id for one in rows])  # expect: PEN020
    await pool.enqueue(ctx, not_retried, order)


@app.internal_mutation
async def context_of_ten(ctx: MutationCtx, order: Id[Order], customer: str) -> None:
    rows = await ctx.db.query(Order).with_index(Order.by_customer_and_day, customer=customer).take(10)
    pool = mails.with_options(on_complete=done, context=[one.id for one in rows])
    await pool.enqueue(ctx, not_retried, order)


@app.internal_mutation
async def done(ctx: MutationCtx, work_id: str, result: object, context: object) -> None:
    await ctx.db.query(Product).first()


@app.query(access=public)
async def welcome(ctx: QueryCtx) -> str:
    return shop.__name__
