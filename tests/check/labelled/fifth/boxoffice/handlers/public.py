"""What visitors call."""

from __future__ import annotations

import datetime as dt
import hmac
import os
import time
from typing import Any, Optional, TypedDict
from uuid import uuid4

import requests
from penstock import ActionCtx, ApplicationError, Id, MutationCtx, Page, QueryCtx, gte, public, signed_in

from boxoffice import seats as places
from boxoffice.core import has_email, is_buyer, mails, member_mutation, office, open_query, record, require_role
from boxoffice.jobs import charge, charged, print_ticket, send_mail
from boxoffice.schema import Event, Order, Refund, Seat, SeatState, Venue
from boxoffice.seats import Seats, WritableSeats

Json = dict[str, Any]
secret = os.environ.get("DOOR_SECRET", "")


class Wish(TypedDict):
    row: str
    number: int


@office.query(access=public)
async def towns(ctx: QueryCtx, town: str) -> int:
    return await ctx.db.query(Venue).with_index(Venue.by_town, town=town).count()


@office.query(access=public)
async def venues(ctx: QueryCtx) -> list[Venue]:
    every = ctx.db.query(Venue).with_index(Venue.by_town_and_name)
    return await every.collect()  # expect: PEN003


@office.query(access=public)
async def newest(ctx: QueryCtx, state: str) -> list[Event]:
    return await ctx.db.query(Event).with_index(Event.by_state, state=state).order("desc").take(10)


@office.query(access=public)
async def programme(ctx: QueryCtx, venue: Id[Venue]) -> list[Event]:
    return await ctx.db.query(Event).with_index(Event.by_venue, venue=venue, starts_at=gte(ctx.now())).take(50)


@office.query(access=public)
async def programme_today(ctx: QueryCtx, venue: Id[Venue]) -> list[Event]:
    today = dt.date.today()  # expect: PEN014
    rows = await ctx.db.query(Event).with_index(Event.by_venue, venue=venue).take(200)
    return [row for row in rows if row.starts_at.date() == today]


@office.query(access=public)
async def titled(ctx: QueryCtx, title: str) -> Event | None:
    async for event in ctx.db.query(Event):  # expect: PEN002
        if event.title == title:
            return event
    return None


@office.query(access=public)
async def shows(ctx: QueryCtx, part: str, cursor: Optional[str] = None) -> Page[Event]:
    return await ctx.db.query(Event).filter(lambda event: part in event.title.lower()).paginate(cursor=cursor, num_items=20)


@office.query(access=public)
async def planned(ctx: QueryCtx) -> list[str]:
    events = await ctx.db.query(Event).order("asc").collect()  # expect: PEN003
    return sorted({event.title for event in events if event.title.isascii()})


@open_query()
async def free(ctx: QueryCtx, event: Id[Event]) -> list[Seat]:  # expect: PEN006
    return await Seats(ctx, event).free()


@open_query(access=public)
async def sold(ctx: QueryCtx, event: Id[Event]) -> int:
    return len(await Seats(ctx, event).sold())


@office.query(access=public)
async def price(ctx: QueryCtx, event: Id[Event]) -> Json:  # expect: PEN005
    return {"cents": 1_500, "event": event}


@office.query(access=public)
async def prices(ctx: QueryCtx, events: list[Id[Event]]) -> dict[str, int]:
    return {event: 1_500 for event in events}


@member_mutation()
async def hold(ctx: MutationCtx, event: Id[Event], wish: Wish) -> Id[Seat]:
    me = await ctx.auth.require()
    seats = WritableSeats(ctx, event)
    seat = await seats.at(wish["row"], wish["number"])
    if seat is None or seat.state != SeatState.FREE:
        raise ApplicationError("This seat is taken.")
    await seats.hold(seat.id, me.token_identifier)
    return seat.id


@member_mutation()
async def hold_some(ctx: MutationCtx, event: Id[Event], wishes: list[Any]) -> int:  # expect: PEN005
    seats = WritableSeats(ctx, event)
    for seat in await seats.fair(len(wishes)):
        await seats.hold(seat.id, "me")
    return len(wishes)


@member_mutation()
async def let_go(ctx: MutationCtx, event: Id[Event], seat: Id[Seat]) -> None:
    WritableSeats(ctx, event).release(seat)  # expect: PEN001


@member_mutation()
async def buy(ctx: MutationCtx, event: Id[Event], email: str) -> Id[Order]:
    me = await ctx.auth.require()
    order = await ctx.db.insert(Order(buyer=me.token_identifier, email=email, event=event, cents=1_500))
    await charge_later(ctx, order)
    record(ctx, me.token_identifier, "buy", order=order)  # expect: PEN001
    return order


@member_mutation()
async def buy_at_once(ctx: MutationCtx, event: Id[Event], email: str) -> Id[Order]:
    me = ctx.auth.require()  # expect: PEN001
    order = await ctx.db.insert(Order(buyer=me.token_identifier, email=email, event=event, cents=1_500))
    requests.post("https://pay.example.com/charge", json={"order": order}, timeout=3)  # expect: PEN015
    return order


async def charge_later(ctx: MutationCtx, order: Id[Order]) -> None:
    from boxoffice.core import payments

    await payments.with_options(on_complete=charged, context={"order": order}).enqueue(ctx, charge, order)


@member_mutation()
async def rename_buyer(ctx: MutationCtx, order: Id[Order], buyer: str, email: str) -> None:
    row = await ctx.db.get(Order, order)
    if row is None:
        raise ApplicationError("There is no such order.")
    if buyer != row.buyer:  # expect: PEN007
        raise ApplicationError("This is not your order.")
    await ctx.db.patch(Order, order, email=email)


@office.mutation(access=is_buyer)
async def change_email(ctx: MutationCtx, order: Id[Order], email: str) -> Order:
    return await ctx.db.patch(Order, order, email=email)


@office.mutation(access=is_buyer)
async def change_mail(ctx: MutationCtx, order: Id[Order], email: str) -> Order:
    return await ctx.db.patch(Order, order, mail=email)  # expect: PEN021


@office.mutation(access=has_email)  # expect: PEN007
async def give_back(ctx: MutationCtx, order: Id[Order], email: str) -> None:
    row = await ctx.db.get(Order, order)
    if row is not None and row.state == "paid":
        await ctx.db.insert(Refund(order=order, cents=row.cents, reason=email))


@office.mutation(access=is_buyer)
async def give_back_later(ctx: MutationCtx, order: Id[Order]) -> None:
    await ctx.scheduler.run_after(dt.timedelta(days=1), give_back, order=order, email="")  # expect: PEN008


@office.mutation(access=public)
async def scan(ctx: MutationCtx, seat: Id[Seat], token: str) -> None:
    if not hmac.compare_digest(token, secret):
        raise ApplicationError("This is not a door of ours.")
    await ctx.db.patch(Seat, seat, holder=None)


@office.mutation(access=public)
async def scan_with_nonce(ctx: MutationCtx, seat: Id[Seat], token: str) -> str:
    if not hmac.compare_digest(token, os.getenv("DOOR_SECRET", "")):  # expect: PEN014
        raise ApplicationError("This is not a door of ours.")
    nonce = str(uuid4())  # expect: PEN014
    await ctx.db.patch(Seat, seat, holder=nonce)
    return nonce


@office.mutation(access=is_buyer)
async def print_again(ctx: MutationCtx, order: Id[Order]) -> None:
    began = time.perf_counter()  # expect: PEN014
    await mails.enqueue(ctx, print_ticket, order)
    await record(ctx, "me", "print", seconds=time.perf_counter() - began)  # expect: PEN014


@office.mutation()
async def lottery(ctx: MutationCtx, event: Id[Event]) -> int:
    await require_role(ctx, "manager")
    return places.lucky_number()


@office.query(access=is_buyer)
async def my_order(ctx: QueryCtx, order: Id[Order]) -> Order | None:
    return ctx.db.get(Order, order)  # expect: PEN001


@office.query(access=signed_in)
async def my_orders(ctx: QueryCtx) -> list[Order]:
    me = await ctx.auth.require()
    return await ctx.db.query(Order).with_index(Order.by_buyer, buyer=me.token_identifier).take(100)


@office.query(access=signed_in)
async def my_refunds(ctx: QueryCtx) -> list[Refund | None]:
    orders = await ctx.run_query(my_orders)  # expect: PEN008, PEN009
    return [await ctx.db.query(Refund).with_index(Refund.by_order, order=order.id).unique() for order in orders]


@office.action
async def help_me(ctx: ActionCtx, question: str) -> None:  # expect: PEN006
    await send_mail(ctx, "help@example.com", question)
