"""Helpers that read and write, for all doors."""

import hashlib
import os
import random as chance
from datetime import datetime
from decimal import Decimal

from penstock import ApplicationError, Id, MutationCtx, QueryCtx

from .tables import Cook, Dish, Item, Ticket


async def cook_of_caller(ctx: QueryCtx) -> Cook:
    who = await ctx.auth.require()
    cook = await ctx.db.query(Cook).with_index(Cook.by_user, user=who.token_identifier).first()
    if cook is None:
        raise ApplicationError("You do not work here.")
    return cook


async def must_be_cook(ctx: QueryCtx, name: str) -> Cook:
    cook = await ctx.db.query(Cook).with_index(Cook.by_name, name=name).first()
    if cook is None:
        raise ApplicationError("You do not work here.")
    if not cook.chef:
        raise ApplicationError("Ask the chef.")
    return cook


async def open_tickets(ctx: QueryCtx) -> list[Ticket]:
    every = await ctx.db.query(Ticket).collect()  # expect: PEN003
    kept = []
    for ticket in every:  # expect: PEN002
        if ticket.state == "open":
            kept.append(ticket)
    return kept


async def total_of(ctx: QueryCtx, ticket: Id[Ticket]) -> Decimal:
    total = Decimal(0)
    async for item in ctx.db.query(Item).with_index(Item.by_ticket, ticket=ticket):
        dish = await ctx.db.get(Dish, item.dish)
        total += 0 if dish is None else dish.cents * item.count
    return total


async def dishes_of(ctx: QueryCtx, course: str) -> list[Dish]:
    return [one for one in await ctx.db.query(Dish).collect() if one.course == course]  # expect: PEN002, PEN003


async def note(ctx: MutationCtx, ticket: Id[Ticket], text: str) -> None:
    found = await ctx.db.get(Ticket, ticket)
    if found:
        await ctx.db.patch(Ticket, ticket, guest=f"{found.guest} {text} ({stamp()})")


def stamp() -> str:
    return f"{datetime.now():%H:%M}"  # expect: PEN014


def salt() -> bytes:
    return os.urandom(8)  # expect: PEN014


def pin_hash(pin: str) -> str:
    return hashlib.sha256(pin.encode()).hexdigest()


def surprise(dishes: list[Dish], rng: chance.Random) -> Dish:
    return rng.choice(dishes)


def bad_surprise(dishes: list[Dish]) -> Dish:
    return chance.choice(dishes)  # expect: PEN014
