"""Awaiting, filters, collecting, tables, and what callers may send."""

from typing import Annotated, TypedDict

from pydantic import BaseModel, Field

from penstock import App, Id, Index, MutationCtx, Page, PaginationOptions, QueryCtx, Table, lte, public, signed_in

app = App()


class Movie(Table):
    title: str
    director: str
    votes: int = 0
    by_director = Index("director")


class Watched(Table):
    user: str
    movie: Id[Movie]
    by_user = Index("user")


class WatchedCount(Table):
    user: str
    movies: int
    by_user = Index("user", unique=True)


class Post(Table):
    released_at: int
    is_released: bool = False
    by_released_at = Index("released_at")
    by_is_released = Index("is_released")


class Message(Table):
    author: str
    body: str
    by_author = Index("author")


@app.query(access=signed_in)
async def toms_messages_bad(ctx: QueryCtx) -> list[Message]:
    return await ctx.db.query(Message).filter(lambda m: m.author == "Tom").collect()  # expect: PEN002, PEN003


@app.query(access=signed_in)
async def toms_messages(ctx: QueryCtx) -> list[Message]:
    return await ctx.db.query(Message).with_index(Message.by_author, author="Tom").collect()


@app.query(access=signed_in)
async def toms_messages_in_code(ctx: QueryCtx) -> list[Message]:
    all_messages = await ctx.db.query(Message).collect()  # expect: PEN003
    return [m for m in all_messages if m.author == "Tom"]  # expect: PEN002


@app.query(access=signed_in)
async def spielberg_bad(ctx: QueryCtx) -> list[Movie]:
    all_movies = await ctx.db.query(Movie).collect()  # expect: PEN003
    movies_by_director = [m for m in all_movies if m.director == "Steven Spielberg"]  # expect: PEN002
    return movies_by_director


@app.query(access=signed_in)
async def spielberg(ctx: QueryCtx) -> list[Movie]:
    query = ctx.db.query(Movie).with_index(Movie.by_director, director="Steven Spielberg")
    return await query.collect()


@app.query(access=signed_in)
async def watched(ctx: QueryCtx, pagination_opts: PaginationOptions) -> Page[Watched]:
    query = ctx.db.query(Watched).with_index(Watched.by_user, user="Tom").order("desc")
    return await query.paginate(pagination_opts)


@app.query(access=signed_in)
async def how_many_watched(ctx: QueryCtx) -> str:
    found = await ctx.db.query(Watched).with_index(Watched.by_user, user="Tom").take(100)
    return "99+" if len(found) == 100 else str(len(found))


@app.query(access=signed_in)
async def watched_count(ctx: QueryCtx) -> int:
    row = await ctx.db.query(WatchedCount).with_index(WatchedCount.by_user, user="Tom").unique()
    return 0 if row is None else row.movies


@app.query(access=public)
async def released_bad(ctx: QueryCtx) -> list[Post]:
    import time

    now = int(time.time())  # expect: PEN014
    return await ctx.db.query(Post).with_index(Post.by_released_at, released_at=lte(now)).take(100)


@app.query(access=public)
async def released(ctx: QueryCtx) -> list[Post]:
    return await ctx.db.query(Post).with_index(Post.by_is_released, is_released=True).take(100)


@app.query(access=public)
async def released_before(ctx: QueryCtx, minute: int) -> list[Post]:
    return await ctx.db.query(Post).with_index(Post.by_released_at, released_at=lte(minute)).take(100)


class MovieUpdate(BaseModel):
    title: Annotated[str, Field(max_length=200)]
    director: str


class MovieChange(TypedDict):
    title: str


@app.mutation(access=signed_in)
async def update_movie_bad(ctx: MutationCtx, id: Id[Movie], update) -> None:  # expect: PEN005
    await ctx.db.patch(Movie, id, **update)


@app.mutation(access=signed_in)
async def update_movie_row(ctx: MutationCtx, id: Id[Movie], update: "Movie") -> None:  # expect: PEN005
    await ctx.db.replace(Movie, id, update)


@app.mutation(access=signed_in)
async def update_movie(ctx: MutationCtx, id: Id[Movie], update: MovieUpdate) -> None:
    await ctx.db.patch(Movie, id, title=update.title, director=update.director)


@app.mutation(access=signed_in)
async def update_title(ctx: MutationCtx, id: Id[Movie], update: MovieChange) -> None:
    await ctx.db.patch(Movie, id, **update)


@app.mutation(access=signed_in)
async def no_result(ctx: MutationCtx, id: Id[Movie]):  # expect: PEN005
    await ctx.db.delete(Movie, id)


@app.mutation(access=signed_in)
async def tables_bad(ctx: MutationCtx, movie: Id[Movie]) -> None:
    await ctx.db.get(movie)  # expect: PEN013
    await ctx.db.patch(movie, title="Whiplash")  # expect: PEN013
    await ctx.db.replace(movie, Movie(title="Whiplash", director="Damien Chazelle"))  # expect: PEN013
    await ctx.db.delete(movie)  # expect: PEN013


@app.mutation(access=signed_in)
async def tables_right(ctx: MutationCtx, movie: Id[Movie]) -> None:
    await ctx.db.get(Movie, movie)
    await ctx.db.patch(Movie, movie, title="Whiplash")
    await ctx.db.replace(Movie, movie, Movie(title="Whiplash", director="Damien Chazelle"))
    await ctx.db.delete(Movie, movie)


@app.mutation(access=signed_in)
async def unawaited(ctx: MutationCtx, movie: Id[Movie]) -> None:
    ctx.scheduler.run_after(0, process, movie)  # expect: PEN001
    ctx.db.patch(Movie, movie, votes=1)  # expect: PEN001


@app.mutation(access=signed_in)
async def awaited(ctx: MutationCtx, movie: Id[Movie]) -> None:
    await ctx.scheduler.run_after(0, process, movie)
    await ctx.db.patch(Movie, movie, votes=1)


@app.internal_mutation
async def process(ctx: MutationCtx, movie: Id[Movie]) -> None:
    row = await ctx.db.get(Movie, movie)
    if row is not None and row.votes > 10:
        await ctx.db.patch(Movie, movie, votes=0)
