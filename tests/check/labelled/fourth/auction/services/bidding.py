"""Bids, and what they need."""

from __future__ import annotations

import json
import logging
import os
import secrets
import smtplib
import subprocess
import urllib.request
from datetime import datetime, timedelta, timezone
from pathlib import Path

from penstock import ApplicationError, Id, MutationCtx, QueryCtx, UniqueViolation

from auction.application import hammer, mailing, payments
from auction.models import Bid, Bidder, Invoice, Lot, LotState
from auction.repositories.base import BidReader, LotReader, LotWriter

logger = logging.getLogger(__name__)
LEAST_STEP = 10
REGION = os.environ.get("REGION", "eu")


class BiddingService:
    def __init__(self, ctx: MutationCtx) -> None:
        self._ctx = ctx
        self._lots = LotReader(ctx)
        self._bids = BidReader(ctx)
        self._writer = LotWriter(ctx)

    async def bid(self, lot: Id[Lot], bidder: Id[Bidder], amount: int) -> Id[Bid]:
        highest = await self._bids.highest(lot)
        if highest is not None and amount < highest.amount + LEAST_STEP:
            raise ApplicationError("too little")
        return await self._ctx.db.insert(Bid(lot=lot, bidder=bidder, amount=amount))

    async def bid_and_forget(self, lot: Id[Lot], bidder: Id[Bidder], amount: int) -> None:
        self.bid(lot, bidder, amount)  # expect: PEN001

    async def retitle(self, lot: Id[Lot], title: str) -> None:
        await self._writer.rename(lot, title)

    async def retitle_loosely(self, lot: Id[Lot], title: str) -> None:
        self._writer.rename(lot, title)  # expect: PEN001

    async def withdraw(self, lot: Id[Lot]) -> None:
        await self._writer.removing(lot)

    async def open(self, lot: Id[Lot]) -> None:
        await self._ctx.db.patch(Lot, lot, state=LotState.OPEN, changed_at=self._ctx.now())

    async def open_now(self, lot: Id[Lot]) -> None:
        opened = datetime.now(tz=timezone.utc)  # expect: PEN014
        await self._ctx.db.patch(Lot, lot, state=LotState.OPEN, changed_at=opened)

    async def draw(self, lot: Id[Lot]) -> Bid | None:
        bids = await self._bids.of("house")
        return self._ctx.random.choice(bids) if bids else None

    async def draw_fairly(self, lot: Id[Lot]) -> Bid | None:
        bids = await self._bids.of("house")
        return secrets.choice(bids) if bids else None  # expect: PEN014

    async def open_in_region(self, lot: Id[Lot]) -> None:
        if os.environ["REGION"] == "eu":  # expect: PEN014
            await self.open(lot)

    async def open_in_known_region(self, lot: Id[Lot]) -> None:
        if REGION == "eu":
            await self.open(lot)

    async def export(self, lot: Id[Lot]) -> None:
        found = await self._lots.one(lot)
        Path("lots.txt").write_text(str(found))  # expect: PEN015

    async def describe(self, lot: Id[Lot]) -> str:
        found = await self._lots.one(lot)
        logger.info("described %s", lot)
        return json.dumps({"title": found.title if found else "", "folder": str(Path("lots") / lot)})

    async def announce(self, lot: Id[Lot]) -> None:
        urllib.request.urlopen(f"https://tv.example.com/{lot}")  # expect: PEN015

    async def print_label(self, lot: Id[Lot]) -> None:
        subprocess.run(["lp", lot], check=True)  # expect: PEN015

    async def mail(self, bidder: Id[Bidder], text: str) -> None:
        with smtplib.SMTP("mail.example.com") as server:  # expect: PEN015
            server.sendmail("house@example.com", bidder, text)

    async def register(self, token: str, email: str) -> Id[Bidder]:
        try:
            return await self._ctx.db.insert(Bidder(token=token, email=email))
        except UniqueViolation:
            raise ApplicationError("known") from None


async def current(ctx: QueryCtx) -> Bidder:
    identity = await ctx.auth.require()
    found = await ctx.db.query(Bidder).with_index(Bidder.by_token, token=identity.token_identifier).unique()
    if found is None:
        raise ApplicationError("register first")
    return found


async def is_admin(ctx: QueryCtx) -> bool:
    return (await current(ctx)).is_admin


async def debts(ctx: QueryCtx, bidder: Id[Bidder]) -> int:
    query = ctx.db.query(Invoice).with_index(Invoice.by_bidder_and_paid, bidder=bidder, paid=False)
    return await query.sum("cents")


async def debts_by_hand(ctx: QueryCtx, bidder: Id[Bidder]) -> int:
    rows = ctx.db.query(Invoice).filter(lambda one: one.bidder == bidder and not one.paid)  # expect: PEN002
    return sum([one.cents async for one in rows])


async def unpaid(ctx: QueryCtx) -> list[Invoice]:
    rows = ctx.db.query(Invoice).with_index(Invoice.by_paid, paid=False)
    return [one async for one in rows if one.cents > 0]


async def notify(ctx: MutationCtx, function: object, bidder: Id[Bidder]) -> None:
    await mailing.with_options(run_after=timedelta(minutes=1)).enqueue(ctx, function, bidder)


async def close(ctx: MutationCtx, lot: Id[Lot]) -> None:
    highest = await BidReader(ctx).highest(lot)
    if highest is not None:
        await ctx.db.patch(Lot, lot, state=LotState.SOLD, winner=highest.bidder)
        await ctx.db.insert(Invoice(bidder=highest.bidder, lot=lot, cents=highest.amount * 100))
