"""Reading: books, copies and reviews."""

import os
import random
import time


from library import schema
from library.base import ROWS, app
from library.model import current_patron, open_loans
from library.model.patrons import is_patron
from library.schema import Book, Branch, Copy, Loan, Review, Weekday
from penstock import Id, Page, PaginationOptions, QueryCtx, public, signed_in


@app.query(access=public)
async def by_author(ctx: QueryCtx, author: str) -> list[Book]:
    query = ctx.db.query(Book)
    query = query.filter(lambda book: book.author == author)  # expect: PEN002
    return await query.take(ROWS)


@app.query(access=public)
async def by_title(ctx: QueryCtx, title: str) -> list[Book]:
    return await ctx.db.query(Book).filter(lambda book: book.title == title).take(10)  # expect: PEN002


@app.query(access=public)
async def since(ctx: QueryCtx, year: int) -> list[Book]:
    def recent(book: Book) -> bool:
        return book.year >= year

    return await ctx.db.query(Book).filter(recent).take(100)  # expect: PEN002


@app.query(access=public)
async def author_page(ctx: QueryCtx, author: str, options: PaginationOptions) -> Page[Book]:
    return await ctx.db.query(Book).filter(lambda book: book.author == author).paginate(options)


@app.query(access=public)
async def shelf(ctx: QueryCtx, name: str) -> list[str]:
    books = ctx.db.query(Book).with_index(Book.by_shelf, shelf=name)
    return [book.title async for book in books]


@app.query(access=public)
async def in_town(ctx: QueryCtx, town: str) -> list[str]:
    return [one.name async for one in ctx.db.query(Branch) if one.town == town]  # expect: PEN002


@app.query(access=public)
async def lost_copies(ctx: QueryCtx, branch: Id[Branch]) -> list[Copy]:
    copies = await ctx.db.query(Copy).with_index(Copy.by_branch, branch=branch).take(100)
    return [one for one in copies if one.state == "lost"]


@app.query(access=public)
async def week_again(ctx: QueryCtx) -> list[Weekday]:
    return await ctx.db.query(Weekday).collect()  # penstock: ignore[PEN002] no filter # expect: PEN003, PEN000


@app.query(access=public)
async def first_day(ctx: QueryCtx) -> Weekday | None:
    return await ctx.db.query(Weekday).first()  # penstock: ignore[PEN003] seven days # expect: PEN000


@app.query  # a reader asks for nothing
async def count(ctx: QueryCtx) -> int:  # expect: PEN006
    return await ctx.db.query(Book).count()


@app.query
async def mine(ctx: QueryCtx) -> list[Loan]:
    patron = await current_patron(ctx)
    return await open_loans(ctx, patron.id)


@app.query(access=is_patron)
async def reviews(ctx: QueryCtx, book: Id[Book]) -> list[Review]:
    return await ctx.db.query(Review).with_index(Review.by_book, book=book).take(50)


@app.query(access=signed_in)
async def stars(ctx: QueryCtx, book: Id[Book]) -> dict[str, int]:
    found = await ctx.db.query(Review).with_index(Review.by_book, book=book).take(100)
    return {one.patron: one.stars for one in found}


@app.query(access=signed_in)
async def untyped(ctx: QueryCtx, book) -> int:  # expect: PEN005
    return await ctx.db.query(Review).with_index(Review.by_book, book=book).count()


@app.query(access=signed_in)
async def same_as(ctx: QueryCtx, book: schema.Book) -> bool:  # expect: PEN005
    return await ctx.db.get(Book, book.id) == book


@app.query(access=signed_in)
async def search(ctx: QueryCtx, words: list, limit: int = 10) -> list[str]:  # expect: PEN005
    return [str(word) for word in words[:limit]]


@app.query(access=signed_in)
async def lucky(ctx: QueryCtx) -> Book | None:
    books = await ctx.db.query(Book).take(50)
    return random.choice(books) if books else None  # expect: PEN014


@app.query(access=signed_in)
async def how_slow(ctx: QueryCtx) -> float:
    begun = time.perf_counter()  # expect: PEN014
    await ctx.db.query(Book).count()
    return time.perf_counter() - begun  # expect: PEN014


@app.query(access=signed_in)
async def limited(ctx: QueryCtx) -> list[Book]:
    return await ctx.db.query(Book).take(int(os.environ["LIBRARY_LIMIT"]))  # expect: PEN014
