"""Messages, films and posts: reading through indexes, small results, named tables, the clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from penstock import App, Id, Index, MutationCtx, Page, PaginationOptions, QueryCtx, Table, lte, public, signed_in
from pydantic import BaseModel

app = App()


class ChatMessage(Table):
    author: str
    body: str
    by_author = Index("author")


class Film(Table):
    title: str
    director: str
    votes: int = 0
    by_director = Index("director")


class WatchedFilm(Table):
    user: str
    film: Id[Film]
    by_user = Index("user")


class WatchedCount(Table):
    user: str
    count: int
    by_user = Index("user", unique=True)


class Release(Table):
    title: str
    released_at: datetime
    is_released: bool = False
    by_released_at = Index("released_at")
    by_is_released = Index("is_released")


class FilmUpdate(BaseModel):
    title: str
    director: str


@app.query(access=public)
async def toms_messages(ctx: QueryCtx) -> list[ChatMessage]:
    return await ctx.db.query(ChatMessage).filter(lambda m: m.author == "Tom").collect()  # expect: PEN002, PEN003


@app.query(access=public)
async def toms_messages_by_index(ctx: QueryCtx) -> list[ChatMessage]:
    return await ctx.db.query(ChatMessage).with_index(ChatMessage.by_author, author="Tom").collect()


@app.query(access=public)
async def films_of_spielberg(ctx: QueryCtx) -> list[Film]:
    all_films = await ctx.db.query(Film).collect()  # expect: PEN003
    return [film for film in all_films if film.director == "Steven Spielberg"]  # expect: PEN002


@app.query(access=public)
async def films_of(ctx: QueryCtx, director: str) -> list[Film]:
    return await ctx.db.query(Film).with_index(Film.by_director, director=director).collect()


@app.query(access=public)
async def watched(ctx: QueryCtx, pagination_opts: PaginationOptions) -> Page[WatchedFilm]:
    found = ctx.db.query(WatchedFilm).with_index(WatchedFilm.by_user, user="Tom")
    return await found.order("desc").paginate(pagination_opts)


@app.query(access=public)
async def how_many_watched(ctx: QueryCtx) -> str:
    found = await ctx.db.query(WatchedFilm).with_index(WatchedFilm.by_user, user="Tom").take(100)
    return "99+" if len(found) == 100 else str(len(found))


@app.query(access=public)
async def how_many_counted(ctx: QueryCtx) -> int:
    row = await ctx.db.query(WatchedCount).with_index(WatchedCount.by_user, user="Tom").unique()
    return row.count if row else 0


@app.mutation(access=signed_in)
async def update_film_loosely(ctx: MutationCtx, id: Id[Film], update: dict[str, Any]) -> None:  # expect: PEN005
    await ctx.db.patch(Film, id, **update)


@app.mutation(access=signed_in)
async def update_film(ctx: MutationCtx, id: Id[Film], update: FilmUpdate) -> None:
    await ctx.db.patch(Film, id, title=update.title, director=update.director)


@app.internal_mutation
async def without_tables(ctx: MutationCtx, film: Id[Film]) -> None:
    await ctx.db.get(film)  # expect: PEN013
    await ctx.db.patch(film, title="Whiplash")  # expect: PEN013
    await ctx.db.replace(film, Film(title="Whiplash", director="Damien Chazelle"))  # expect: PEN013
    await ctx.db.delete(film)  # expect: PEN013


@app.internal_mutation
async def with_tables(ctx: MutationCtx, film: Id[Film]) -> None:
    await ctx.db.get(Film, film)
    await ctx.db.patch(Film, film, title="Whiplash")
    await ctx.db.replace(Film, film, Film(title="Whiplash", director="Damien Chazelle"))
    await ctx.db.delete(Film, film)


@app.query(access=public)
async def released_by_clock(ctx: QueryCtx) -> list[Release]:
    now = lte(datetime.now(UTC))  # expect: PEN014
    return await ctx.db.query(Release).with_index(Release.by_released_at, released_at=now).take(100)


@app.query(access=public)
async def released(ctx: QueryCtx) -> list[Release]:
    return await ctx.db.query(Release).with_index(Release.by_is_released, is_released=True).take(100)


@app.internal_mutation
async def release(ctx: MutationCtx, row: Id[Release]) -> None:
    await ctx.db.patch(Release, row, is_released=True)


@app.internal_mutation
async def plan(ctx: MutationCtx, title: str, at: datetime) -> None:
    row = await ctx.db.insert(Release(title=title, released_at=at))
    await ctx.scheduler.run_at(at, release, row)


@app.internal_mutation
async def process(ctx: MutationCtx, film: Id[Film]) -> None:
    ctx.scheduler.run_after(timedelta(0), count_votes, film)  # expect: PEN001
    ctx.db.patch(Film, film, title="processing")  # expect: PEN001


@app.internal_mutation
async def process_awaited(ctx: MutationCtx, film: Id[Film]) -> None:
    await ctx.scheduler.run_after(timedelta(0), count_votes, film)
    await ctx.db.patch(Film, film, title="processing")


@app.internal_mutation
async def count_votes(ctx: MutationCtx, film: Id[Film]) -> None:
    await ctx.db.patch(Film, film, votes=1)
