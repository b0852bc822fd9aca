"""Lending, returning and looking up."""

from __future__ import annotations

import random
import time as clock
from datetime import UTC, date, datetime, timedelta
from typing import Any, Protocol
from uuid import uuid4

from library import Item, Loan, Reader, State, Title, app
from library.application import reader_mutation, reader_query
from library.holdings import Fine

from penstock import ApplicationError, Id, MutationCtx, Page, QueryCtx, public, signed_in

LONGEST = timedelta(days=28)
STARTED = datetime.now(UTC)


class Named(Protocol):
    name: str


async def current_reader(ctx: QueryCtx) -> Reader:
    identity = await ctx.auth.require()
    found = await ctx.db.query(Reader).with_index(Reader.by_email, email=identity.email).unique()
    if found is None:
        raise ApplicationError("You have no card yet.", status=403)
    return found


async def on_shelf(ctx: QueryCtx, title: Id[Title]) -> list[Item]:
    return await ctx.db.query(Item).with_index(Item.by_title, title=title, state=State.ON_SHELF).take(20)


def lookup(ctx: QueryCtx, title: Id[Title]):
    return ctx.db.get(Title, title)


def today(ctx: QueryCtx) -> date:
    return ctx.now().date()


@reader_query
async def title(ctx: QueryCtx, title: Id[Title]) -> Title | None:
    return await lookup(ctx, title)


@reader_query
async def free_items(ctx: QueryCtx, title: Id[Title]) -> int:
    return len(on_shelf(ctx, title))  # expect: PEN001


@reader_query
async def by_author(ctx: QueryCtx, author: str) -> list[Title]:
    return await ctx.db.query(Title).with_index(Title.by_author, author=author).collect()


@reader_query
async def items_of_branch(ctx: QueryCtx, branch: str, cursor: str | None = None) -> Page[Item]:
    return await ctx.db.query(Item).with_index(Item.by_branch, branch=branch).paginate(cursor=cursor, num_items=30)


@reader_query
async def lost_items(ctx: QueryCtx, branch: str) -> list[Item]:
    def lost(item: Item) -> bool:
        return item.branch == branch and item.state == State.LOST

    return await ctx.db.query(Item).filter(lost).take(50)  # expect: PEN002


@reader_query
async def search(ctx: QueryCtx, word: str) -> list[Title]:
    return await ctx.db.query(Title).filter(lambda one: word.lower() in one.name.lower()).take(20)


@reader_query
async def since(ctx: QueryCtx, year: int) -> list[Title]:
    return await ctx.db.query(Title).filter(lambda one: one.year >= year).take(100)  # expect: PEN002


@reader_query
async def lost_pages(ctx: QueryCtx, cursor: str | None = None) -> Page[Item]:
    return await ctx.db.query(Item).filter(lambda one: one.state == State.LOST).paginate(cursor=cursor, num_items=20)


@reader_query
async def overview(ctx: QueryCtx) -> list[str]:
    return sorted(one.name for one in await ctx.db.query(Title).collect())  # expect: PEN003


@reader_query
async def branches(ctx: QueryCtx) -> set[str]:
    return {one.branch async for one in ctx.db.query(Item)}  # expect: PEN003


@reader_query
async def newest(ctx: QueryCtx) -> list[str]:
    return [one.name for one in await ctx.db.query(Title).order("desc").take(20) if one.year == 2026]


@reader_query
async def my_loans(ctx: QueryCtx) -> list[Loan]:
    reader = await current_reader(ctx)
    loans = await ctx.db.query(Loan).with_index(Loan.by_reader, reader=reader.id).collect()
    return [one for one in loans if one.returned_at is None]


@reader_query
async def how_long(ctx: QueryCtx) -> float:
    return (ctx.now() - STARTED).total_seconds()


@reader_query
async def overdue(ctx: QueryCtx) -> int:
    late = [one for one in await ctx.db.query(Loan).take(5000) if one.due < today(ctx)]  # expect: PEN002
    return len(late)


@reader_mutation()
async def lend(ctx: MutationCtx, title: Id[Title]) -> Id[Loan]:
    reader = await current_reader(ctx)
    if reader.blocked:
        raise ApplicationError("Your card is blocked.")
    item, *_ = await on_shelf(ctx, title) or [None]
    if item is None:
        raise ApplicationError("All items are lent.")
    await ctx.db.patch(Item, item.id, state=State.LENT)
    return await ctx.db.insert(Loan(item=item.id, reader=reader.id, due=date.today() + LONGEST))  # expect: PEN014


@reader_mutation()
async def give_back(ctx: MutationCtx, loan: Id[Loan]) -> None:
    row = await ctx.db.get(loan)  # expect: PEN013
    if row.reader != (await current_reader(ctx)).id:
        raise ApplicationError("This is not your loan.")
    ctx.db.patch(Loan, loan, returned_at=ctx.now())  # expect: PEN001
    await ctx.db.patch(Item, row.item, status=State.ON_SHELF)  # expect: PEN021


@reader_mutation()
async def extend(ctx: MutationCtx, loan: Id[Loan], **more: Any) -> None:  # expect: PEN005
    row = await ctx.db.get(Loan, loan)
    await ctx.db.patch(Loan, loan, due=row.due + timedelta(days=7))


@app.mutation(access=signed_in)
async def describe(ctx: MutationCtx, title: Id[Title], changes: dict[str, Any]) -> None:  # expect: PEN005
    await ctx.db.patch(Title, title, **changes)


@app.mutation(access=signed_in)
async def catalogue(ctx: MutationCtx, title: Title):  # expect: PEN005
    known = await ctx.db.query(Title).with_index(Title.by_isbn, isbn=title.isbn).first()
    if not known:
        await ctx.db.insert(title)


@app.mutation
async def lose(ctx: MutationCtx, item: Id[Item]) -> None:  # expect: PEN006
    await ctx.db.patch(Item, item, state=State.LOST)


@app.mutation
async def report_damage(ctx: MutationCtx, item: Id[Item]) -> None:
    reader = await current_reader(ctx)
    await ctx.db.patch(Item, item, state=State.LOST)
    await ctx.db.insert(Fine(reader=reader.id, cents=1500))


@app.mutation(access=public)
async def open_card(ctx: MutationCtx, email: str) -> Id[Reader]:
    card = f"{random.randint(0, 10**8):08}"  # expect: PEN014
    if await ctx.db.query(Reader).with_index(Reader.by_email, email=email).unique():
        raise ApplicationError("There is a card for this address.")
    return await ctx.db.insert(Reader(card=card, email=email))


@app.mutation(access=public)
async def close_card(ctx: MutationCtx, email: str, card: Id[Reader]) -> None:
    reader = await ctx.db.get(Reader, card)
    if reader is None:
        raise ApplicationError("No such card.")
    if reader.email.lower() != email.lower():  # expect: PEN007
        raise ApplicationError("This is not your card.")
    await ctx.db.delete(Reader, card)


@app.mutation(access=public)
async def replace_card(ctx: MutationCtx, email: str, token: str) -> str:
    reader = await ctx.db.query(Reader).with_index(Reader.by_email, email=email).unique()
    if reader is None or reader.card != token:
        raise ApplicationError("Wrong token.")
    renewed = ctx.random.randbytes(6).hex()
    await ctx.db.patch(Reader, reader.id, card=renewed)
    return renewed


@app.internal_mutation
async def stamp(ctx: MutationCtx, loans: list[Id[Loan]]) -> float:
    begun = clock.monotonic()  # expect: PEN014
    for loan in loans:
        await ctx.db.patch(Loan, loan, returned_at=ctx.now())
    return clock.monotonic() - begun  # expect: PEN014


@app.internal_mutation
async def relabel(ctx: MutationCtx, items: list[Id[Item]]) -> list[str]:
    labels = [str(uuid4()) for _ in items]  # expect: PEN014
    await asyncio_gather(*[ctx.db.patch(Item, one, branch="depot") for one in items])
    return labels


async def asyncio_gather(*calls) -> None:
    for call in calls:
        await call
