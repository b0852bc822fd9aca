"""What waiters and guests call."""

import logging
import secrets
from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any
from urllib import request

import penstock as p
from penstock import ApplicationError, Id, MutationCtx, QueryCtx, public, signed_in
from pydantic import BaseModel

from kitchen.back import cook, cooked, print_bill, restock, serve_all
from kitchen.domain import Cook, Dish, Item, Shift, Supplier, Table_, Ticket, cook_of_caller, note, open_tickets, total_of
from kitchen.domain import words
from kitchen.setup import app, bills, oven, stove

log = logging.getLogger(__name__)


class Line(BaseModel):
    dish: Id[Dish]
    count: int = 1


@app.query(access=public)
async def menu(ctx: QueryCtx) -> list[Dish]:
    return await ctx.db.query(Dish).with_index(Dish.by_course).take(100)


@app.query(access=public)
async def menu_of(ctx: QueryCtx, course: str) -> list[Dish]:
    return await words.dishes_of(ctx, course)


@app.query(access=public)
async def cheap(ctx: QueryCtx, below: int) -> list[Dish]:
    return await ctx.db.query(Dish).filter(lambda d: d.cents < below).take(10)  # expect: PEN002


@app.query(access=public)
async def today(ctx: QueryCtx, dishes: list[Id[Dish]]) -> Dish:
    rows = [d for d in [await ctx.db.get(Dish, one) for one in dishes] if d is not None]
    return words.surprise(rows, ctx.random)


@app.query(access=public)
async def tomorrow(ctx: QueryCtx) -> Dish:
    return words.bad_surprise(await ctx.db.query(Dish).take(30))


@app.mutation(access=public)
async def sit(ctx: MutationCtx, number: int) -> Id[Ticket]:
    place = await ctx.db.query(Table_).with_index(Table_.by_number, number=number).unique()
    if place is None:
        raise ApplicationError("no such table")
    return await ctx.db.insert(Ticket(place=place.id, opened=ctx.now(), guest=secrets.token_urlsafe(8)))  # expect: PEN014


@app.mutation(access=public)
async def order(ctx: MutationCtx, ticket: Id[Ticket], guest: str, lines: list[Line]) -> None:
    found = await ctx.db.get(Ticket, ticket)
    if found is None:
        raise ApplicationError("no such ticket")
    if found.guest != guest:  # expect: PEN007
        raise ApplicationError("not your table")
    for line in lines:
        item = await ctx.db.insert(Item(ticket=ticket, dish=line.dish, count=line.count))
        stove.enqueue(ctx, cook, item)  # expect: PEN001


@app.mutation(access=signed_in)
async def order_raw(ctx: MutationCtx, items: Sequence[Item]) -> None:  # expect: PEN005
    await cook_of_caller(ctx)
    await ctx.db.insert_many(items)


@app.mutation(access=signed_in)
async def order_any(ctx: MutationCtx, ticket: Id[Ticket], extras: dict[str, object]) -> None:  # expect: PEN005
    for name in extras:
        await note(ctx, ticket, name)


@app.mutation(access=public)
async def wish(ctx: MutationCtx, ticket: Id[Ticket], text: str) -> None:
    await note(ctx, ticket, text)


@app.mutation
async def wish_twice(ctx: MutationCtx, ticket: Id[Ticket], text: str) -> None:  # expect: PEN006
    await note(ctx, ticket, text)
    note(ctx, ticket, text)  # expect: PEN001


@app.mutation
async def enter_shift(ctx: MutationCtx, day: date) -> None:
    me = await cook_of_caller(ctx)
    await ctx.db.insert(Shift(cook=me.id, day=day))


@app.mutation(access=public)
async def enter_shift_of(ctx: MutationCtx, name: str, day: date) -> None:
    who = await words.must_be_cook(ctx, name)  # missed: PEN007
    await ctx.db.insert(Shift(cook=who.id, day=day))


@app.mutation(access=public)
async def enter_with_pin(ctx: MutationCtx, cook: Id[Cook], pin: str, day: date) -> None:
    found = await ctx.db.get(Cook, cook)
    if found is None or not secrets.compare_digest(found.pin, words.pin_hash(pin)):
        raise ApplicationError("wrong pin")
    await ctx.db.insert(Shift(cook=cook, day=day))


@app.mutation(access=signed_in)
async def set_pin(ctx: MutationCtx, pin: str) -> None:
    me = await cook_of_caller(ctx)
    await ctx.db.patch(Cook, me.id, pin=words.pin_hash(pin) + words.salt().hex())


@app.mutation(access=signed_in)
async def set_nick(ctx: MutationCtx, nick: str) -> None:
    me = await cook_of_caller(ctx)
    await ctx.db.patch(Cook, me.id, nick=nick)  # expect: PEN021


@app.query(access=signed_in)
async def hours(ctx: QueryCtx, day: date) -> int:
    n: int = await ctx.db.query(Shift).with_index(Shift.by_day, day=day).sum("hours")
    return n


@app.query(access=signed_in)
async def hours_of(ctx: QueryCtx, cook: Id[Cook], day: date) -> Shift | None:
    return await ctx.db.query(Shift).filter(lambda s: s.cook == cook).filter(lambda s: s.day == day).first()  # expect: PEN002


@app.query(access=signed_in)
async def hours_at(ctx: QueryCtx, cook: Id[Cook], date: date) -> Shift | None:
    return await ctx.db.query(Shift).with_index(Shift.by_cook, cook=cook, date=date).unique()  # expect: PEN021


@app.query(access=signed_in)
async def busy(ctx: QueryCtx) -> int:
    return len(await open_tickets(ctx))


@app.query(access=signed_in)
async def at_place(ctx: QueryCtx, place: Id[Table_]) -> int:
    return await ctx.db.query(Ticket).with_index(Ticket.by_place, place=place).count()


@app.query(access=signed_in)
async def open_at(ctx: QueryCtx, place: Id[Table_]) -> list[Ticket]:
    return await ctx.db.query(Ticket).with_index(Ticket.by_place_state, place=place, state="open").collect()


@app.query(access=signed_in)
async def waiters(ctx: QueryCtx) -> set[str]:
    return {place.waiter async for place in ctx.db.query(Table_)}  # expect: PEN003


@app.query(access=signed_in)
async def suppliers(ctx: QueryCtx):  # expect: PEN005
    return await ctx.db.query(Supplier).take(20)


@app.query(access=signed_in)
async def total(ctx: QueryCtx, ticket: Id[Ticket]) -> str:
    return str(await ctx.run_query(total_query, ticket))  # expect: PEN009


@app.internal_query
async def total_query(ctx: QueryCtx, ticket: Id[Ticket]) -> str:
    return str(await total_of(ctx, ticket))


@app.mutation(access=signed_in)
async def pay(ctx: MutationCtx, ticket: Id[Ticket]) -> p.JobId:
    total = await total_of(ctx, ticket)
    await ctx.db.patch(Ticket, ticket, state="paid", total=total)
    return await bills.enqueue(ctx, print_bill, ticket, str(total))


@app.mutation(access=signed_in)
async def pay_and_tell(ctx: MutationCtx, ticket: Id[Ticket]) -> None:
    await ctx.db.patch(Ticket, ticket, state="paid")
    request.urlopen(f"https://till.example.com/paid/{ticket}")  # expect: PEN015


@app.mutation(access=signed_in)
async def pay_later(ctx: MutationCtx, ticket: Id[Ticket]) -> None:
    pool = oven.with_options(run_after=timedelta(hours=1))
    await pool.enqueue(ctx, pay, ticket)  # expect: PEN008


@app.mutation(access=signed_in)
async def pay_without_table(ctx: MutationCtx, ticket: Id[Ticket], row: Id[Item]) -> None:
    await ctx.db.delete(row)  # expect: PEN013
    await ctx.db.patch(Ticket, ticket, state="paid")


@app.mutation(access=signed_in)
async def serve(ctx: MutationCtx, ticket: Id[Ticket]) -> None:
    items = await ctx.db.query(Item).with_index(Item.by_ticket_dish_cook, ticket=ticket).collect()
    ids = tuple(item.id for item in items)
    await oven.with_options(on_complete=cooked, context=ids).enqueue(ctx, serve_all, ticket)  # expect: PEN020


@app.mutation(access=signed_in)
async def serve_few(ctx: MutationCtx, ticket: Id[Ticket]) -> None:
    items = await ctx.db.query(Item).with_index(Item.by_ticket_dish_cook, ticket=ticket).collect()
    await oven.with_options(on_complete=cooked, context=[i.id for i in items[:20]]).enqueue(ctx, serve_all, ticket)


@app.mutation(access=signed_in)
async def try_serve(ctx: MutationCtx, ticket: Id[Ticket]) -> bool:
    try:
        await ctx.run_mutation(close_ticket, ticket)
    except ApplicationError as error:
        log.info("not served: %s", error)
        return False
    else:
        return True


@app.internal_mutation
async def close_ticket(ctx: MutationCtx, ticket: Id[Ticket]) -> None:
    await ctx.db.patch(Ticket, ticket, state="served")


@app.mutation(access=signed_in)
async def restock_now(ctx: MutationCtx) -> None:
    async for one in ctx.db.query(Supplier):
        await ctx.scheduler.run_after(timedelta(0), restock, one.url)
    open("/var/log/restock", "w").close()  # expect: PEN015



