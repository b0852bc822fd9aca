"""What the house's website calls."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, TypedDict

from penstock import ApplicationError, Id, JobId, MutationCtx, Page, QueryCtx, owner_of, public, signed_in
from pydantic import BaseModel

from auction.application import application, hammer, mailing, payments
from auction.handlers import nightly
from auction.models import Bid, Bidder, Invoice, Lot, Sale
from auction.repositories.base import BidReader, LotReader, LotWriter
from auction.services import BiddingService, Settlement
from auction.services.bidding import close as close_lot
from auction.services.bidding import current, debts, is_admin, notify
from auction.services.settling import settle, thank

Json = dict[str, Any]


class Offer(BaseModel):
    lot: Id[Lot]
    amount: int


class Summary(TypedDict):
    lots: int
    debts: int


@application.query(access=public)
async def lot(ctx: QueryCtx, lot: Id[Lot]) -> Lot | None:
    return await LotReader(ctx).one(lot)


@application.query(access=public)
async def lots(ctx: QueryCtx, sale: Id[Sale]) -> list[Lot]:
    return await LotReader(ctx).catalogue(sale)


@application.query(access=public)
async def lots_forgotten(ctx: QueryCtx, sale: Id[Sale]) -> list[Lot]:
    return LotReader(ctx).catalogue(sale)  # expect: PEN001


@application.query(access=signed_in)
async def summary(ctx: QueryCtx) -> Summary:
    me = await current(ctx)
    return {"lots": len(await BidReader(ctx).of(me.id)), "debts": await debts(ctx, me.id)}


@application.query(access=signed_in)
async def summary_of_anything(ctx: QueryCtx, what: Json) -> int:  # expect: PEN005
    return len(what)


@application.query(access=signed_in)
async def summary_of_names(ctx: QueryCtx, what: Mapping[str, int]) -> int:
    return len(what)


@application.query(access=signed_in)
async def loose(ctx: QueryCtx, sale: Id[Sale]) -> dict:  # expect: PEN005
    return {"sale": sale}


@application.query(access=signed_in)
async def untyped(ctx: QueryCtx, sale) -> int:  # expect: PEN005
    return await ctx.db.query(Lot).with_index(Lot.by_sale_and_number, sale=sale).count()


@application.query(access=signed_in)
async def sales(ctx: QueryCtx, cursor: str | None) -> Page[Sale]:
    return await ctx.db.query(Sale).with_index(Sale.by_starts_at).paginate(cursor=cursor, num_items=20)


@application.query(access=signed_in)
async def coming(ctx: QueryCtx, after: datetime) -> list[Sale]:
    rows = await ctx.db.query(Sale).filter(lambda sale: sale.starts_at > after).take(20)  # expect: PEN002
    return sorted(rows, key=lambda sale: sale.starts_at)


@application.query(access=public)
async def bid_count(ctx: QueryCtx) -> int:
    return len(await ctx.db.query(Bid).collect())  # expect: PEN003


@application.query(access=public)
async def bid_total(ctx: QueryCtx, lot: Id[Lot]) -> int:
    return sum(one.amount for one in await ctx.db.query(Bid).with_index(Bid.by_lot_and_amount, lot=lot).collect())


@application.query
async def invoices(ctx: QueryCtx) -> list[Invoice]:
    me = await current(ctx)
    return await ctx.db.query(Invoice).with_index(Invoice.by_bidder_paid_cents, bidder=me.id).take(50)


@application.query
async def all_invoices(ctx: QueryCtx) -> list[Invoice]:  # expect: PEN006
    return await ctx.db.query(Invoice).take(50)


@application.mutation
async def offer(ctx: MutationCtx, offer: Offer) -> Id[Bid]:
    me = await current(ctx)
    return await BiddingService(ctx).bid(offer.lot, me.id, offer.amount)


@application.mutation
async def offer_for(ctx: MutationCtx, bidder: Id[Bidder], offer: Offer) -> Id[Bid]:  # expect: PEN006
    return await BiddingService(ctx).bid(offer.lot, bidder, offer.amount)


@application.mutation(access=signed_in)
async def offer_row(ctx: MutationCtx, bid: Bid) -> Id[Bid]:  # expect: PEN005
    return await ctx.db.insert(bid)


@application.mutation
async def checked(ctx: MutationCtx, lot: Id[Lot]) -> None:
    await ctx.check_access(withdraw, lot)
    await close_lot(ctx, lot)


@application.mutation(access=is_admin)
async def withdraw(ctx: MutationCtx, lot: Id[Lot]) -> None:
    await BiddingService(ctx).withdraw(lot)


@application.mutation(access=owner_of(Sale, "sale"))
async def cancel(ctx: MutationCtx, sale: Id[Sale]) -> None:
    await ctx.db.delete(Sale, sale)


@application.mutation(access=owner_of(Sale, "sale"))
async def postpone(ctx: MutationCtx, sale: Id[Sale], days: int) -> None:
    found = await ctx.db.get(Sale, sale)
    if found is None or days < 1:
        raise ApplicationError("no")
    await ctx.db.patch(Sale, sale, start=found.starts_at + timedelta(days=days))  # expect: PEN021


@application.mutation(access=public)
async def withdraw_by_mail(ctx: MutationCtx, lot: Id[Lot], email: str) -> None:
    who = await ctx.db.query(Bidder).with_index(Bidder.by_email, email=email).first()
    if who is None or not who.is_admin:  # expect: PEN007
        raise ApplicationError("admins only")
    await LotWriter(ctx).remove(lot)


@application.mutation(access=signed_in)
async def withdraw_own(ctx: MutationCtx, sale: Id[Sale], user: str) -> None:
    found = await ctx.db.get(Sale, sale)
    assert found is not None and found.owner == user  # expect: PEN007
    await ctx.db.delete(Sale, sale)


@application.mutation(access=public)
async def sign_up(ctx: MutationCtx, email: str) -> Id[Bidder]:
    if "@" not in email:
        raise ApplicationError("no address")
    known = await ctx.db.query(Bidder).with_index(Bidder.by_email, email=email).first()
    if known is not None:
        raise ApplicationError("known already")
    return await ctx.db.insert(Bidder(token="", email=email))


@application.mutation(access=signed_in)
async def change_mail(ctx: MutationCtx, email: str, again: str) -> None:
    me = await current(ctx)
    if email != again:
        raise ApplicationError("type it twice")
    await ctx.db.patch(Bidder, me.id, email=email)


@application.mutation(access=signed_in)
async def thank_me(ctx: MutationCtx, invoice: Id[Invoice]) -> JobId:
    return await mailing.enqueue(ctx, thank, invoice)


@application.mutation(access=signed_in)
async def hammer_down(ctx: MutationCtx, lot: Id[Lot]) -> None:
    await hammer.enqueue(ctx, withdraw, lot)  # expect: PEN008


@application.mutation(access=signed_in)
async def hammer_many(ctx: MutationCtx, lots: list[Id[Lot]]) -> None:
    await hammer.enqueue_batch(ctx, withdraw, [{"lot": one} for one in lots])  # expect: PEN008


@application.mutation(access=signed_in)
async def hammer_well(ctx: MutationCtx, lot: Id[Lot]) -> None:
    await hammer.enqueue(ctx, nightly.close, lot)


@application.mutation(access=signed_in)
async def settle_mine(ctx: MutationCtx, invoice: Id[Invoice]) -> None:
    await payments.with_options(on_complete=nightly.settled, context={"invoice": invoice}).enqueue(ctx, settle, invoice)


@application.mutation(access=signed_in)
async def settle_ours(ctx: MutationCtx) -> None:
    me = await current(ctx)
    rows = await ctx.db.query(Invoice).with_index(Invoice.by_bidder_paid_cents, bidder=me.id).collect()
    options = {"on_complete": nightly.settled, "context": {"cents": {row.id: row.cents for row in rows}}}  # missed: PEN020
    await payments.with_options(**options).enqueue(ctx, settle, rows[0].id)


@application.mutation(access=signed_in)
async def settle_few(ctx: MutationCtx) -> None:
    me = await current(ctx)
    rows = await ctx.db.query(Invoice).with_index(Invoice.by_bidder_paid_cents, bidder=me.id).take(5)
    pool = payments.with_options(on_complete=nightly.settled, context={"rows": [row.id for row in rows]})
    await pool.enqueue(ctx, settle, rows[0].id)


@application.mutation(access=signed_in)
async def settle_lots(ctx: MutationCtx, lot: Id[Lot]) -> None:
    ids = [one.id async for one in ctx.db.query(Bid).with_index(Bid.by_lot_and_amount, lot=lot)]
    pool = payments.with_options(on_complete=nightly.settled, context={"bids": ids})  # expect: PEN020
    await pool.enqueue(ctx, settle, lot)


@application.mutation(access=is_admin)
async def mark_paid(ctx: MutationCtx, invoice: Id[Invoice]) -> None:
    await Settlement(ctx).mark_plainly(invoice)


@application.mutation(access=is_admin)
async def mark_paid_loosely(ctx: MutationCtx, invoice: Id[Invoice]) -> None:
    notify(ctx, thank, invoice)  # expect: PEN001
    await Settlement(ctx).mark_plainly(invoice)


@application.mutation(access=is_admin)
async def replace(ctx: MutationCtx, lot: Id[Lot], title: str) -> None:
    found = await ctx.db.get(Lot, lot)
    if found is not None:
        await ctx.db.replace(lot, found.model_copy(update={"title": title}))  # expect: PEN013
