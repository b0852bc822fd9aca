"""Crons, outboxes and completions."""

from __future__ import annotations

import contextlib
import logging
import random
import uuid
from datetime import datetime, timedelta

import aiohttp
import httpx
from penstock import ActionCtx, Id, Message, MutationCtx, QueryCtx, WorkId, WorkResult, daily, lt

from auction.application import application, mailing
from auction.handlers import public as doors
from auction.models import Bid, Bidder, Invoice, Lot, Sale
from auction.services.bidding import close as close_lot

logger = logging.getLogger(__name__)


class AlreadyIndexed(Exception):
    pass


@application.internal_mutation
async def close(ctx: MutationCtx, lot: Id[Lot]) -> None:
    await close_lot(ctx, lot)


@application.internal_mutation
async def settled(ctx: MutationCtx, work: WorkId, result: WorkResult[None], context: dict) -> None:
    logger.info("%s settled", work)


@application.cron("0 3 * * *", name="purge")
async def purge(ctx: MutationCtx) -> None:
    old = ctx.now() - timedelta(days=365)
    for sale in await ctx.db.query(Sale).with_index(Sale.by_starts_at, starts_at=lt(old)).take(500):
        await ctx.db.delete(Sale, sale.id)


@application.cron("0 4 * * *", name="purge bids")
async def purge_bids(ctx: MutationCtx) -> None:
    old = datetime.utcnow() - timedelta(days=365)  # expect: PEN014
    for bid in await ctx.db.query(Bid).take(500):  # expect: PEN002
        if bid.changed_at is not None and bid.changed_at < old:
            await ctx.db.delete(Bid, bid.id)


@application.cron("0 5 * * *", name="greet")
async def greet(ctx: ActionCtx) -> None:
    logger.info("it is %s, lucky number %s", datetime.now(), random.randint(1, 9))


@application.internal_query
async def count(ctx: QueryCtx) -> int:
    return await ctx.db.query(Lot).count()


application.crons.declare("close", daily("close", hour=3), close, {"lot": "1"})
application.crons.declare("withdraw", daily("withdraw", hour=4), doors.withdraw, {"lot": "1"})  # expect: PEN008


@application.internal_action
async def count_publicly(ctx: ActionCtx) -> int:
    return await ctx.run_query(doors.bid_count)  # expect: PEN008


@application.internal_action
async def count_privately(ctx: ActionCtx) -> int:
    return await ctx.run_query(count)


@application.outbox(Lot, on=("insert", "update"), name="search")
async def to_search(ctx: ActionCtx, message: Message[Lot]) -> None:
    async with aiohttp.ClientSession() as session:
        try:
            await session.post("https://search.example.com", json={"id": message.id, "key": message.key})
        except Exception as error:  # expect: PEN019
            logger.error("search: %s", error)


@application.outbox(Lot, name="search strictly")
async def to_search_strictly(ctx: ActionCtx, message: Message[Lot]) -> None:
    async with aiohttp.ClientSession() as session:
        try:
            await session.post("https://search.example.com", headers={"Idempotency-Key": message.id})
        except Exception:
            logger.exception("search")
            raise


@application.outbox(Lot, name="search once")
async def to_search_once(ctx: ActionCtx, message: Message[Lot]) -> None:
    with contextlib.suppress(AlreadyIndexed):
        async with httpx.AsyncClient() as client:
            await client.post("https://search.example.com", headers={"Idempotency-Key": message.id})


@application.outbox(Invoice, name="ledger")
async def to_ledger(ctx: ActionCtx, invoice: Invoice) -> None:
    async with httpx.AsyncClient() as client:
        await client.post("https://ledger.example.com", json={"cents": invoice.cents})  # expect: PEN017


@application.outbox(Invoice, name="random ledger")
async def to_random_ledger(ctx: ActionCtx, invoice: Invoice) -> None:
    headers = {"Idempotency-Key": str(uuid.uuid4())}
    async with httpx.AsyncClient() as client:
        await client.post("https://ledger.example.com", headers=headers)  # expect: PEN017


@application.outbox(Invoice, name="keyed ledger")
async def to_keyed_ledger(ctx: ActionCtx, invoice: Invoice) -> None:
    headers = {"X-Idempotency-Key": invoice.id, "Accept": "*/*"}
    async with httpx.AsyncClient() as client:
        await client.post("https://ledger.example.com", headers=headers)


@application.outbox(Bidder, name="crm")
async def to_crm(ctx: ActionCtx, bidder: Bidder) -> None:
    for _ in range(3):
        try:
            await push(bidder)
        except BaseException:  # expect: PEN019
            continue
        return


@application.outbox(Bidder, name="crm with limits")
async def to_crm_with_limits(ctx: ActionCtx, bidder: Bidder) -> None:
    try:
        await push(bidder)
    except TimeoutError:
        logger.info("once more")
        await push(bidder)


async def push(bidder: Bidder) -> None:
    async with httpx.AsyncClient() as client:
        await client.get("https://crm.example.com", params={"email": bidder.email})


@application.internal_mutation
async def welcome(ctx: MutationCtx, bidder: Id[Bidder]) -> None:
    await ctx.outbox.send("welcomes", {"bidder": bidder}, key=bidder)


@application.internal_mutation
async def welcome_loosely(ctx: MutationCtx, bidder: Id[Bidder]) -> None:
    ctx.outbox.send("welcomes", {"bidder": bidder}, key=bidder)  # expect: PEN001


@application.internal_action
async def welcome_after(ctx: ActionCtx, bidder: str) -> None:
    await ctx.run_mutation(welcome, bidder)
    await ctx.outbox.send("welcomes", {"bidder": bidder})  # expect: PEN016
