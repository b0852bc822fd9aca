from __future__ import annotations

import logging
import operator
import os
import typing as t

import httpx as web
from penstock import *  # a forum in one file
from penstock import ActionCtx, App, Id, Index, MutationCtx, QueryCtx, Table, public, signed_in, sync

if t.TYPE_CHECKING:
    from collections.abc import AsyncIterator

app: App = App(name="forum") if os.environ.get("FORUM") else App()
Query, Write, Act = QueryCtx, MutationCtx, ActionCtx
POOL = app.workpool("posts", max_parallelism=3)
log = logging.getLogger(__name__)


class Topic(Table):
    title: str
    tag: str
    closed: bool = False
    votes: int = 0

    by_tag = Index("tag")
    by_closed_and_votes = Index("closed", "votes")


class Entry(Table):
    topic: Id[Topic]
    author: str
    text: str
    likes: int = 0

    by_topic = Index("topic", "author")
    by_author = Index("author")
    by_author_and_likes = Index("author", "likes")
    by_topic_only = Index("topic")  # expect: PEN004


class Like(Table):
    entry: Id[Entry]
    user: str

    by_entry = Index("entry", "user", unique=True)


@app.query(access=public)
async def topics(ctx: Query, tag: str) -> list[Topic]:
    return [one async for one in ctx.db.query(Topic).filter(lambda row: row.tag == tag)]  # expect: PEN002


@app.query(access=public)
async def open_topics(ctx: Query) -> list[Topic]:
    query = ctx.db.query(Topic).filter(lambda row: not row.closed)  # expect: PEN002
    return await query.take(30)


@app.query(access=public)
async def newest_of(ctx: Query, author: str) -> list[Entry]:
    return await ctx.db.query(Entry).with_index(Entry.by_author, author=author).order("desc").take(5)


async def entries_of(ctx: Query, topic: Id[Topic]) -> AsyncIterator[Entry]:
    async for entry in ctx.db.query(Entry).with_index(Entry.by_topic, topic=topic):
        yield entry


@app.query(access=public)
async def texts(ctx: Query, topic: Id[Topic]) -> list[str]:
    return [entry.text async for entry in entries_of(ctx, topic) if entry.likes > 1]


@app.query(access=public)
async def everything(ctx: Query) -> t.List[Entry]:
    if (entries := await ctx.db.query(Entry).collect()):  # expect: PEN003
        return sorted(entries, key=operator.attrgetter("likes"))
    return []


@app.query(access=public)
async def grouped(ctx: Query) -> t.Dict[str, t.Any]:  # expect: PEN005
    return {}


@app.query(access=public)
async def some(ctx: Query, *, topic: Id[Topic] | None = None, options: t.Mapping[str, t.Any]) -> int:  # expect: PEN005
    return len(options)


@app.mutation(access=signed_in)
async def post(ctx: Write, topic: Id[Topic], text: str) -> Id[Entry]:
    me = await ctx.auth.require()
    entry = await ctx.db.insert(Entry(topic=topic, author=me.subject, text=text))
    await POOL.enqueue(ctx, ping, entry)
    return entry


@app.mutation(access=signed_in)
async def like(ctx: Write, entry: Id[Entry]) -> None:
    me = await ctx.auth.require()
    try:
        await ctx.db.insert(Like(entry=entry, user=me.subject))
    except UniqueViolation:
        return
    row = await ctx.db.get(Entry, entry)
    if row is not None:
        ctx.db.patch(Entry, entry, likes=row.likes + 1)  # expect: PEN001


@app.mutation(access=signed_in)
async def like_all(ctx: Write, entries: list[Id[Entry]]) -> None:
    for entry in entries:
        like(ctx, entry)  # expect: PEN001


@app.mutation(access=signed_in)
async def close(ctx: Write, topic: Id[Topic]) -> Topic:
    return ctx.db.patch(Topic, topic, closed=True)  # expect: PEN001


@app.mutation(access=signed_in)
async def is_closed(ctx: Write, topic: Id[Topic]) -> bool:
    found = ctx.db.get(Topic, topic)  # expect: PEN001
    return found is not None


@app.mutation(access=public)
async def erase(ctx: Write, entry: Id[Entry], author: str) -> None:
    row = await ctx.db.get(Entry, entry)
    if row is not None and row.author == author:  # missed: PEN007
        await ctx.db.delete(Entry, entry)


@app.internal_action
async def ping(ctx: Act, entry: Id[Entry]) -> None:
    web.post("https://forum.example.com", json={"entry": entry})  # expect: PEN022


def _send(entry: Entry) -> None:
    web.post("https://search.example.com", json={"text": entry.text})  # expect: PEN017


@app.outbox(Entry)
def to_search(ctx: sync.ActionCtx, entry: Entry) -> None:
    _send(entry)


class Search:
    """Sends entries to an index; one for each program."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def send(self, key: str, text: str) -> None:
        async with web.AsyncClient() as client:
            await client.put(self.url, content=text, headers={"Idempotency-Key": key})

    async def send_unkeyed(self, text: str) -> None:
        async with web.AsyncClient() as client:
            await client.post(self.url, content=text)  # expect: PEN017


search = Search("https://search.example.com")


@app.outbox(Entry, name="second search")
async def to_second_index(ctx: ActionCtx, entry: Entry) -> None:
    try:
        await search.send_unkeyed(entry.text)
    except ConnectionError:
        raise
    except Exception:  # expect: PEN019
        log.exception("lost")


@app.internal_query
async def entry_of(ctx: Query, entry: Id[Entry]) -> Entry | None:
    return await ctx.db.get(Entry, entry)


@app.internal_mutation
async def set_text(ctx: Write, entry: Id[Entry], text: str) -> None:
    await ctx.db.patch(Entry, entry, text=text)


CALLS = {"read": entry_of, "write": set_text}


@app.internal_action
async def rewrite(ctx: Act, entry: Id[Entry]) -> None:
    row = await ctx.run_query(CALLS["read"], entry)
    text = row.text.strip() if row else ""
    await ctx.run_mutation(CALLS["write"], entry, text)  # expect: PEN011


@app.internal_action
async def rewrite_all(ctx: Act, entries: list[Id[Entry]]) -> None:
    async def one(entry: Id[Entry]) -> None:
        await ctx.run_mutation(set_text, entry, "")

    for entry in entries:
        await one(entry)  # expect: PEN012


@app.internal_action
async def rewrite_by(ctx: Act, entry: Id[Entry]) -> None:
    await _rewrite(ctx, entry)
    await POOL.enqueue(ctx, ping, entry)  # expect: PEN016


async def _rewrite(ctx: Act, entry: Id[Entry]) -> None:
    await ctx.run_mutation(set_text, entry, "")


@app.internal_action
async def rewrite_asked(ctx: Act, entry: Id[Entry]) -> None:
    row = await ctx.run_query(entry_of, entry)
    answer = await _ask(row)
    await ctx.run_mutation(set_text, entry, answer)
    await _ask(row)
    await POOL.enqueue(ctx, ping, entry)


async def _ask(row: Entry | None) -> str:
    async with web.AsyncClient() as client:
        return (await client.get("https://llm.example.com")).text


@app.internal_mutation
async def after(ctx: Write, work_id: WorkId, result: WorkResult[None], context: t.Any) -> None:
    log.info("%s", context)


@app.internal_mutation
async def ping_all(ctx: Write, topic: Id[Topic]) -> None:
    entries = await ctx.db.query(Entry).with_index(Entry.by_topic, topic=topic).collect()
    by_author = {entry.author: entry.id for entry in entries}
    await POOL.with_options(on_complete=after, context=by_author).enqueue(ctx, ping, topic)  # expect: PEN020


@app.internal_mutation
async def ping_few(ctx: Write, topic: Id[Topic]) -> None:
    entries = await ctx.db.query(Entry).with_index(Entry.by_topic, topic=topic).collect()
    context = {"some": [entry.id for entry in entries[:5]], "first": entries[0].id, "many": len(entries) > 5}
    await POOL.with_options(on_complete=after, context=context).enqueue(ctx, ping, topic)


@app.action
async def who(ctx: Act) -> str:
    identity = await ctx.auth.get_user_identity()
    return identity.name or "" if identity else ""
