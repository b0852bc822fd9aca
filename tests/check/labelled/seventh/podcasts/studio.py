"""Shows, episodes and who may touch them."""

import os
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from random import choice, shuffle
from typing import TypedDict

import penstock as ps
from penstock import App, Id

from .tables_of_shows import Episode, Listener, Seconds, Show, Subscription, Url

app = App()
mutation, query = app.mutation, app.query
internal = app.internal_mutation
LIMIT = int(os.environ.get("LIMIT", "50"))
Clock = Callable[[], datetime]


class Draft(TypedDict):
    title: str
    url: str


def read(table, ctx: ps.QueryCtx):
    """A query of a table."""
    return ctx.db.query(table)


async def must_own(ctx: ps.QueryCtx, show: Id[Show]) -> Show:
    row = await ctx.db.get(Show, show)
    if row is None or row.owner != (await ctx.auth.require()).token_identifier:
        raise ps.ApplicationError("Not yours.")
    return row


def check_email(row: Listener, email: str) -> None:
    if row.email != email:
        raise ps.ApplicationError("Wrong address.")


@query(access=ps.public)
async def show(ctx: ps.QueryCtx, slug: str) -> Show | None:
    return await ctx.db.query(Show).with_index(Show.by_slug, slug=slug).unique()


@query(access=ps.public)
async def published(ctx: ps.QueryCtx, show: Id[Show]) -> list[Episode]:
    rows = ctx.db.query(Episode).with_index(Episode.by_show_and_state, show=show, state="public")
    return await rows.order("desc").take(LIMIT)


@query(access=ps.public)
async def latest(ctx: ps.QueryCtx, show: Id[Show]) -> Episode | None:
    return await ctx.db.query(Episode).with_index(Episode.by_show, show=show).order("desc").first()


@query(access=ps.public)
async def popular(ctx: ps.QueryCtx) -> list[Episode]:
    everything = await ctx.db.query(Episode).collect()  # expect: PEN003
    return sorted(everything, key=lambda one: one.plays, reverse=True)[:10]


@query(access=ps.public)
async def charts(ctx: ps.QueryCtx) -> list[Episode]:
    return await ctx.db.query(Episode).with_index(Episode.by_state, state="public").order("desc").take(10)


@query(access=ps.public)
async def in_language(ctx: ps.QueryCtx, language: str) -> list[Show]:
    return await ctx.db.query(Show).filter(lambda s: s.language == language).take(20)  # expect: PEN002


@query(access=ps.public)
async def lucky(ctx: ps.QueryCtx, show: Id[Show]) -> Episode:
    rows = await published(ctx, show)
    shuffle(rows)  # expect: PEN014
    return rows[0]


@query(access=ps.public)
async def lucky_again(ctx: ps.QueryCtx, show: Id[Show]) -> Episode:
    return ctx.random.choice(await published(ctx, show))


@query(access=ps.public)
async def total_length(ctx: ps.QueryCtx, show: Id[Show]) -> Seconds:
    rows = await ctx.run_query(published, show)  # expect: PEN008, PEN009
    return sum(one.length for one in rows)


@query(access=ps.public)
async def find(ctx: ps.QueryCtx, url: Url) -> Episode | None:
    for one in await ctx.db.query(Episode).with_index(Episode.by_state, state="public").take(100):
        if one.url == url:
            return one
    return None


@query(access=ps.public)
async def find_slowly(ctx: ps.QueryCtx, url: Url) -> Episode | None:
    for one in await ctx.db.query(Episode).collect():  # expect: PEN002, PEN003
        if one.url == url:
            return one
    return None


@query()
async def subscribers(ctx: ps.QueryCtx, show: Id[Show]) -> int:  # expect: PEN006
    return await ctx.db.query(Subscription).with_index(Subscription.by_show, show=show).count()


@query()
async def drafts(ctx: ps.QueryCtx, show: Id[Show]) -> list[Episode]:
    await must_own(ctx, show)
    return await ctx.db.query(Episode).with_index(Episode.by_show_and_state, show=show, state="draft").collect()


@query()
async def length_of(ctx: ps.QueryCtx, episode: Id[Episode]) -> Seconds:
    row = await ctx.db.get(Episode, episode)
    must_own(ctx, row.show)  # expect: PEN001
    return row.length


@mutation(access=ps.signed_in)
async def new_show(ctx: ps.MutationCtx, slug: str, title: str, owner: str = "") -> Id[Show]:
    me = await ctx.auth.require()
    return await ctx.db.insert(Show(slug=slug, title=title, owner=owner or me.token_identifier))


@mutation(access=ps.owner_of(Show, "show"))
async def add_episode(ctx: ps.MutationCtx, show: Id[Show], draft: Draft) -> Id[Episode]:
    return await ctx.db.insert(Episode(show=show, title=draft["title"], url=Url(draft["url"])))


@mutation(access=ps.owner_of(Show, "show"))
async def add_episodes(ctx: ps.MutationCtx, show: Id[Show], drafts: list[dict]) -> None:  # expect: PEN005
    rows = [Episode(show=show, **draft) for draft in drafts]
    ctx.db.insert_many(rows)  # expect: PEN001


@mutation(access=ps.owner_of(Show, "show"))
async def save_show(ctx: ps.MutationCtx, show: Id[Show], row: Show) -> None:  # expect: PEN005
    await ctx.db.replace(Show, show, row)


@mutation(access=ps.owner_of(Show, "show"))
async def overwrite(
    ctx: ps.MutationCtx,
    show: Id[Show],
    title,  # expect: PEN005
) -> None:
    await ctx.db.patch(Show, show, title=title, language=choice(["en", "cs"]))  # expect: PEN014


@mutation(access=ps.signed_in)
async def publish(ctx: ps.MutationCtx, episode: Id[Episode], at: datetime | None = None) -> None:
    row = await ctx.db.get(Episode, episode)
    await must_own(ctx, row.show)
    when = at or ctx.now()
    if when > datetime.now(tz=UTC):  # expect: PEN014
        await ctx.scheduler.run_at(when, publish, episode)  # expect: PEN008
    else:
        await ctx.db.patch(Episode, episode, published="public")  # expect: PEN021


@mutation(access=ps.signed_in)
async def retract(ctx: ps.MutationCtx, episode: Id[Episode]) -> None:
    row = await ctx.db.get(Episode, episode)
    await must_own(ctx, row.show)
    return ctx.db.patch(Episode, episode, state="draft")  # expect: PEN001


@mutation(access=ps.public)
async def subscribe(ctx: ps.MutationCtx, show: Id[Show], email: str) -> Id[Subscription]:
    known = await ctx.db.query(Listener).with_index(Listener.by_email, email=email).unique()
    listener = known.id if known else await ctx.db.insert(Listener(email=email))
    return await ctx.db.insert(Subscription(show=show, listener=listener))


@mutation(access=ps.public)
async def unsubscribe(ctx: ps.MutationCtx, subscription: Id[Subscription], email: str) -> None:
    row = await ctx.db.get(Subscription, subscription)
    listener = await ctx.db.get(Listener, row.listener)
    check_email(listener, email)  # expect: PEN007
    await ctx.db.delete(Subscription, subscription)


@mutation(access=ps.public)
async def played(ctx: ps.MutationCtx, episode: Id[Episode]) -> None:
    await count(ctx, episode)


@internal
async def count(ctx: ps.MutationCtx, episode: Id[Episode]) -> None:
    row = await ctx.db.get(Episode, episode)
    await ctx.db.patch(Episode, episode, plays=row.plays + 1)


@mutation(access=ps.public)
async def played_all(ctx: ps.MutationCtx, episodes: list[Id[Episode]]) -> None:
    for one in episodes:
        await ctx.run_mutation(count, one)  # expect: PEN009


@mutation(access=ps.public)
async def played_some(ctx: ps.MutationCtx, episodes: list[Id[Episode]]) -> list[str]:
    failed: list[str] = []
    for one in episodes:
        try:
            await ctx.run_mutation(count, one)
        except ps.RowNotFound:
            failed.append(one)
    return failed


async def each(items: list[Id[Episode]], call: Callable[[Id[Episode]], Awaitable[None]]) -> None:
    for one in items:
        await call(one)
