"""Writing: loans, fines and patrons."""

import contextlib
import datetime as dt
import secrets
import uuid
from datetime import timedelta
from random import randint
from urllib import request

import requests

from library.base import app, urgent
from library.model import Desk, current_patron
from library.model import loans as lending
from library.model.patrons import must_be
from library.schema import Book, Branch, Copy, Fine, Loan, Patron, Review
from penstock import (
    ActionCtx,
    ApplicationError,
    Id,
    MutationCtx,
    QueryCtx,
    UniqueViolation,
    public,
    signed_in,
)


async def manages(ctx: QueryCtx, branch: Id[Branch]) -> bool:
    identity = await ctx.auth.get_user_identity()
    found = await ctx.db.get(Branch, branch)
    return identity is not None and found is not None and found.manager == identity.subject


@app.mutation(access=signed_in)
async def bring(ctx: MutationCtx, loan: Id[Loan]) -> None:
    lending.give_back(ctx, loan)  # expect: PEN001


@app.mutation(access=signed_in)
async def bring_both(ctx: MutationCtx, first: Id[Loan], second: Id[Loan]) -> None:
    waiting = [lending.give_back_at(ctx, first, ctx.now())]
    waiting.append(lending.give_back_at(ctx, second, ctx.now()))
    for one in waiting:
        await one


@app.mutation(access=signed_in)
async def renew(ctx: MutationCtx, loan: Id[Loan]) -> Loan:
    changed = ctx.db.patch(Loan, loan, due=ctx.now().date() + timedelta(days=14))
    return await changed


@app.mutation(access=signed_in)
async def forget_loan(ctx: MutationCtx, loan: Id[Loan]) -> None:
    _ = ctx.db.delete(Loan, loan)  # expect: PEN001


@app.mutation(access=manages)
async def ban(ctx: MutationCtx, branch: Id[Branch], patron: Id[Patron]) -> None:
    desk = Desk(ctx)
    await desk.ban(patron)


@app.mutation(access=manages)
async def ban_two(ctx: MutationCtx, branch: Id[Branch], one: Id[Patron], two: Id[Patron]) -> None:
    desk = Desk(ctx)
    desk.ban(one)  # expect: PEN001
    await desk.ban(two)


@app.mutation(access=public)
async def change_email(ctx: MutationCtx, patron: Id[Patron], email: str, new: str) -> None:
    await must_be(ctx, patron, email)  # expect: PEN007
    await ctx.db.patch(Patron, patron, email=new)


@app.mutation
async def pay(ctx: MutationCtx, fine: Id[Fine]) -> None:  # expect: PEN006
    await ctx.db.patch(Fine, fine, paid=True)


@app.mutation
async def rate(ctx: MutationCtx, book: Id[Book], stars: int) -> None:
    async def me() -> Patron:
        return await current_patron(ctx)

    patron = await me()
    with contextlib.suppress(UniqueViolation):
        await ctx.db.insert(Review(book=book, patron=patron.id, stars=stars, text=""))


@app.mutation(access=signed_in)
async def add_book(ctx: MutationCtx, isbn: str, title: str) -> Id[Book]:
    year = dt.datetime.utcnow().year  # expect: PEN014
    return await ctx.db.insert(Book(isbn=isbn, title=title, author="", year=year))


@app.mutation(access=signed_in)
async def add_copy(ctx: MutationCtx, book: Id[Book], branch: Id[Branch]) -> Id[Copy]:
    barcode = str(uuid.uuid4())  # expect: PEN014
    return await ctx.db.insert(Copy(book=book, branch=branch, barcode=barcode))


@app.mutation(access=signed_in)
async def barcode(ctx: MutationCtx, copy: Id[Copy]) -> str:
    code = f"{randint(0, 999_999):06}"  # expect: PEN014
    await ctx.db.patch(Copy, copy, barcode=code)
    return code + secrets.token_hex(4)  # expect: PEN014


@app.mutation(access=signed_in)
async def fetch_cover(ctx: MutationCtx, book: Id[Book]) -> None:
    with request.urlopen("https://covers.example.com/1") as answer:  # expect: PEN015
        await ctx.db.patch(Book, book, shelf=answer.read().decode())


@app.mutation(access=signed_in)
async def write_note(ctx: MutationCtx, book: Id[Book]) -> None:
    with open("/tmp/note.txt", "w") as note:  # expect: PEN015
        note.write(book)


@app.mutation(access=signed_in)
async def announce_urgently(ctx: MutationCtx, email: str) -> None:
    urgent.enqueue(ctx, send_notice, email)  # expect: PEN001


@app.internal_action
async def send_notice(ctx: ActionCtx, email: str) -> None:
    requests.post(  # expect: PEN017, PEN022
        "https://mail.example.com",
        json={"to": email},
        timeout=5,
    )


@app.internal_action
async def send_once(ctx: ActionCtx, email: str) -> None:
    headers = {"Idempotency-Key": email}
    requests.post("https://mail.example.com", json={"to": email}, headers=headers, timeout=5)  # expect: PEN022


@app.mutation(access=signed_in)
async def renew_twice(ctx: MutationCtx, loan: Id[Loan]) -> None:
    await renew(ctx, loan)
    try:
        await ctx.run_mutation(renew_quietly, loan)
    except ApplicationError:
        await ctx.db.patch(Loan, loan, returned_at=None)


@app.mutation(access=signed_in)
async def renew_all(ctx: MutationCtx, loans: list[Id[Loan]]) -> None:
    for loan in loans:
        await ctx.run_mutation(renew_quietly, loan)  # expect: PEN009


@app.internal_mutation
async def renew_quietly(ctx: MutationCtx, loan: Id[Loan]) -> None:
    await ctx.db.patch(Loan, loan, due=ctx.now().date() + timedelta(days=7))


@app.mutation(access=signed_in)
async def replace_book(ctx: MutationCtx, book: Id[Book], title: str) -> None:
    new = Book(isbn="", title=title, author="", year=2000)
    await ctx.db.replace(book, new)  # expect: PEN013


HANDLERS = {"renew": renew_quietly, "extend": renew}


@app.mutation(access=signed_in)
async def dispatch(ctx: MutationCtx, loan: Id[Loan]) -> None:
    await ctx.scheduler.run_after(timedelta(0), HANDLERS["renew"], loan)
    await ctx.scheduler.run_after(timedelta(0), HANDLERS["extend"], loan)  # expect: PEN008
