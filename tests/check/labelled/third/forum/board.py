from __future__ import annotations

import logging
import operator
import os
import typing as t

import httpx as web
from penstock import *  # a forum in one file
from penstock import ActionCtx, App, Id, Index, MutationCtx, QueryCtx, Table, public, signed_in, sync


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


@app.query(access=public)
async def open_topics(ctx: Query) -> list[Topic]:
    query = ctx.db.query(Topic).filter(lambda row: not row.closed)  # expect: PEN002
    return await query.take(30)


@app.query(access=public)
async def newest_of(ctx: Query, author: str) -> list[Entry]:
    return await ctx.db.query(Entry).with_index(Entry.by_author, author=author).order("desc").take(5)


@app.query(access=public)
async def about(ctx: Query, word: str) -> list[Entry]:
    return await ctx.db.query(Entry).filter(lambda row: word in row.text.lower()).take(20)  # expect: PEN002


@app.query(access=public)
async def those_by(ctx: Query, author: str, word: str) -> list[Entry]:
    entries = ctx.db.query(Entry).with_index(Entry.by_author, author=author)
    return await entries.filter(lambda row: word in row.text).take(20)


@app.query(access=public)
async def everything(ctx: Query) -> t.List[Entry]:
    if (entries := await ctx.db.query(Entry).collect()):  # expect: PEN003
        return sorted(entries, key=operator.attrgetter("likes"))
    return []


@app.mutation(access=signed_in)
async def post(ctx: Write, topic: Id[Topic], text: str) -> Id[Entry]:
    me = await ctx.auth.require()
    entry = await ctx.db.insert(Entry(topic=topic, author=me.subject, text=text))
    await POOL.enqueue(ctx, ping, entry)
    return entry


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


@app.internal_mutation
async def set_text(ctx: Write, entry: Id[Entry], text: str) -> None:
    await ctx.db.patch(Entry, entry, text=text)


@app.internal_action
async def rewrite_all(ctx: Act, entries: list[Id[Entry]]) -> None:
    async def one(entry: Id[Entry]) -> None:
        await ctx.run_mutation(set_text, entry, "")

    for entry in entries:
        await one(entry)  # expect: PEN012


@app.internal_action
async def rewrite_as_they_come(ctx: Act, entry: Id[Entry]) -> None:
    async for word in search.words():
        await ctx.run_mutation(set_text, entry, word)
