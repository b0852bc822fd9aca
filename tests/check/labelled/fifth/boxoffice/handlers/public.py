"""What visitors call."""

from __future__ import annotations

import hmac
import os
from typing import Any, TypedDict
from uuid import uuid4

import requests
from penstock import ApplicationError, Id, MutationCtx, QueryCtx, public

from boxoffice import seats as places
from boxoffice.core import member_mutation, office, open_query, require_role
from boxoffice.jobs import charge, charged
from boxoffice.schema import Event, Order, Seat, SeatState
from boxoffice.seats import Seats, WritableSeats

secret = os.environ.get("DOOR_SECRET", "")


class Wish(TypedDict):
    row: str
    number: int


@office.query(access=public)
async def newest(ctx: QueryCtx, state: str) -> list[Event]:
    return await ctx.db.query(Event).with_index(Event.by_state, state=state).order("desc").take(10)


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


@office.mutation()
async def lottery(ctx: MutationCtx, event: Id[Event]) -> int:
    await require_role(ctx, "manager")
    return places.lucky_number()
