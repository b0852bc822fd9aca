"""Text search: rows by their words, in one order, whoever wrote them and whatever the indexer has read."""

from __future__ import annotations

import random  # noqa: TID251 - seeded
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from stage.livetables import other_program
from stage.outboxes import run_sql, sql
from stage.stories import tell_in

from penstock import (
    App,
    CursorInvalid,
    DeclarationError,
    LimitExceeded,
    MutationCtx,
    Page,
    PaginationOptions,
    QueryCtx,
    SearchIndex,
    SearchNotReady,
    Table,
    ValueInvalid,
)
from penstock.schema.ids import format_id
from penstock.schema.rules import Rules
from penstock.search.encoding import encode
from penstock.search.query import Match, parse_query
from penstock.search.rank import scorer
from penstock.services.live.live import LiveQueries
from penstock.testing import TestApp

pytestmark = pytest.mark.both_stores


class Note(Table):
    channel: str
    body: str | None
    stars: int | None = None

    by_body = SearchIndex("body", filters=("channel", "stars"))


class Post(Table, source="posts", key=("blog", "number"), managed=False):
    blog: str
    number: int
    text: str | None = None

    by_text = SearchIndex("text", filters=("blog",))


app = App(tables=[Note, Post])
write, read, _ = tell_in(app)
POSTS = "create table posts (blog varchar(20), number integer, text text, primary key (blog, number))"


@app.query
async def found(ctx: QueryCtx, text: str, channel: str | None = None) -> list[str | None]:
    given = {} if channel is None else {"channel": channel}
    return [note.body for note in await ctx.db.query(Note).with_search_index(Note.by_body, text, **given).collect()]


async def insert(test: TestApp, *bodies: str, channel: str = "a") -> list[Any]:
    notes = [Note(channel=channel, body=body) for body in bodies]
    ids: list[Any] = await test.run_mutation(write, lambda ctx: ctx.db.insert_many(notes))
    return ids


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[TestApp]:
    await run_sql(url, POSTS)
    async with TestApp(app, url) as test:
        yield test


@asynccontextmanager
async def outside_of(test: TestApp) -> AsyncIterator[Any]:
    """A connection of another program."""
    with other_program(test.config.database) as connection:
        yield connection


# ----- what is found


WORDS = "a ab abc apple Äpfel straße STRASSE İstanbul й и ё 12 東京 東京都庁 京 ไทย 🎉 e-mail https://a.b/c 'x' \" & | * NOT"


def text_of(dice: random.Random, most: int = 6) -> str:
    return " ".join(dice.choice(WORDS.split()) for _ in range(dice.randint(0, most)))


class Writers:
    """Whoever may write notes and posts."""

    def __init__(self, dice: random.Random, test: TestApp, outside: Any) -> None:
        self.dice, self.test, self.outside = dice, test, outside
        self.lite = test.config.database.startswith("sqlite")
        self.count = 0

    async def step(self) -> None:
        dice = self.dice
        if dice.random() < 0.2:
            await self.test.indexer.tick()
        elif dice.random() < 0.5:
            await self.test.run_mutation(write, lambda ctx: self.own(ctx))
        else:
            await self.plain()

    async def own(self, ctx: MutationCtx) -> None:
        """Write some rows in one mutation, which sees its own writes."""
        dice, rows = self.dice, [note async for note in ctx.db.query(Note)]
        for _ in range(dice.randint(1, 4)):
            note = Note(channel=dice.choice("ab"), body=text_of(dice), stars=dice.choice([None, 1, 2]))
            choice, old = dice.random(), dice.choice(rows) if rows else None
            if old is None or choice < 0.4:
                await ctx.db.insert(note)
            elif choice < 0.6:
                await ctx.db.patch(Note, old.id, body=note.body)
            elif choice < 0.7:
                await ctx.db.patch(Note, old.id, channel=note.channel)
            elif choice < 0.8:
                await ctx.db.replace(Note, old.id, note)
            else:
                await ctx.db.delete(Note, old.id)
                rows.remove(old)
        if dice.random() < 0.5:
            post = Post(blog=dice.choice("ab"), number=self.number(), text=text_of(dice))
            await ctx.db.insert(post)
        assert await ranked(ctx, *self.asked()) == await expected(ctx, *self.last)

    def asked(self) -> tuple[str, Match, dict[str, Any]]:
        dice = self.dice
        filters: dict[str, Any] = {"channel": dice.choice("ab")} if dice.random() < 0.3 else {}
        filters |= {"stars": dice.choice([None, 1])} if dice.random() < 0.3 else {}
        self.last: tuple[str, Match, dict[str, Any]] = text_of(dice, 3), dice.choice(["any", "all"]), filters
        return self.last

    def number(self) -> int:
        self.count += 1
        return self.count

    async def plain(self) -> None:
        """Write as other programs do, which know nothing of words."""
        dice, body = self.dice, text_of(self.dice).replace("'", "''")
        row = format_id("note", dice.getrandbits(128))
        new = f"values ('{row}', '2026-01-01T00:00:00.000000Z', '{dice.choice('ab')}', '{body}')"
        into, some = "into note (id, creation_time, channel, body)", f"stars is null and channel = '{dice.choice('ab')}'"
        chosen = "(select id from note order by body, id limit 1)"
        known = f"insert {into} select id, creation_time, 'b', '{body}' from note where id = {chosen}"
        update = "do update set channel = excluded.channel, body = excluded.body"
        post = f"insert into posts values ('{dice.choice('ab')}', {self.number()}, '{body}')"
        said = [
            f"insert {into} {new}",
            f"update note set body = '{body}' where {some}",
            f"delete from note where id = {chosen}",
            f"{known} {'where true' if self.lite else ''} on conflict (id) {update}".replace(" where true", ""),
            post,
            "update posts set number = number + 1000 where number = (select max(number) from posts)",
            f"update posts set text = '{body}' where number < 1000",
        ]
        if self.lite:
            said += [known.replace("insert", "insert or replace", 1), "vacuum"]
        else:
            said += [f"copy:{row}\t2026-01-01\ta\t{body}", "truncate posts", MERGE.format(row=row, body=body)]
        statement = dice.choice(said)
        if statement.startswith("copy:"):
            with self.outside.cursor().copy("copy note (id, creation_time, channel, body) from stdin") as copy:
                copy.write(statement[5:].replace("''", "'") + "\n")
        elif statement.startswith("truncate"):  # by a connection of the pool, as others may hold a snapshot
            await sql(self.test, statement)
        else:
            self.outside.execute(statement)


MERGE = """merge into note n using (values ('{row}', '{body}')) as g (id, body) on n.body = g.body
when matched then update set channel = 'b', body = 'merged ' || n.body
when not matched then insert (id, creation_time, channel, body) values (g.id, now(), 'a', g.body)"""


async def ranked(ctx: QueryCtx, text: str, match: Match, filters: dict[str, Any]) -> list[Any]:
    rows = await ctx.db.query(Note).with_search_index(Note.by_body, text, match=match, **filters).collect()
    posts = await ctx.db.query(Post).with_search_index(Post.by_text, text, match=match).collect()
    return [*(note.id for note in rows), *((post.blog, post.number) for post in posts)]


async def expected(ctx: QueryCtx, text: str, match: Match, filters: dict[str, Any]) -> list[Any]:
    """What a search is to find, told from all rows one by one."""
    score = scorer(parse_query(text, match))
    notes = [
        (points, note.creation_time, note.id)
        async for note in ctx.db.query(Note)
        if all(getattr(note, name) == value for name, value in filters.items()) and (points := score(encode(note.body)))
    ]
    posts = [(points, (one.blog, one.number)) async for one in ctx.db.query(Post) if (points := score(encode(one.text)))]
    return [*(row for *_, row in sorted(notes, reverse=True)), *(row for _, row in sorted(posts, reverse=True))]


@pytest.mark.parametrize("seed", range(3))
async def test_a_search_finds_in_its_order_what_is_there_whoever_wrote_it(database_url: str, seed: int) -> None:
    dice = random.Random(seed)
    async with opened(database_url) as test, outside_of(test) as outside:
        writers = Writers(dice, test, outside)
        for _ in range(60):
            await writers.step()
            asked = writers.asked()
            assert await test.run_query(read, lambda ctx, a=asked: ranked(ctx, *a)) == await test.run_query(
                read, lambda ctx, a=asked: expected(ctx, *a)
            ), asked
