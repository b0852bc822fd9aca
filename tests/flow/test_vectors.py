"""Vector search: the nearest rows, with one score on both stores, whoever wrote them and whatever is indexed."""

from __future__ import annotations

import json
import random  # noqa: TID251 - seeded
import types
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from math import hypot
from typing import Any

import pytest
from stage.outboxes import run_sql, sql
from stage.stories import tell_in

from penstock import App, MutationCtx, QueryCtx, Table, VectorHit, VectorIndex
from penstock.schema.ids import format_id
from penstock.testing import TestApp

pytestmark = pytest.mark.both_stores

SIZE = 4
SECOND = timedelta(seconds=1)


class Note(Table):
    channel: str
    embedding: list[float] | None
    stars: int | None = None

    by_meaning = VectorIndex("embedding", dimensions=SIZE, filters=("channel", "stars"))


class Post(Table, source="posts", key=("blog", "number"), managed=False):
    blog: str
    number: int
    embedding: list[float] | None = None

    by_meaning = VectorIndex("embedding", dimensions=SIZE)


app = App(tables=[Note, Post])
write, read, act = tell_in(app)


def is_lite(url: str) -> bool:
    return url.startswith("sqlite")


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[TestApp]:
    kind = "text" if is_lite(url) else "double precision[]"
    await run_sql(
        url, f"create table posts (blog varchar(20), number integer, embedding {kind}, primary key (blog, number))"
    )
    async with TestApp(app, url) as test:
        yield test


def vector_of(dice: random.Random) -> list[float]:
    return [float(dice.randint(-2, 2)) for _ in range(SIZE - 1)] + [0.5]


def cosine(first: list[float], second: list[float]) -> float:
    return sum(a * b for a, b in zip(first, second, strict=True)) / hypot(*first) / hypot(*second)


class Writers:
    """Whoever may write notes and posts."""

    def __init__(self, dice: random.Random, test: TestApp) -> None:
        self.dice, self.test, self.count = dice, test, 0
        self.lite = is_lite(test.config.database)

    async def step(self) -> None:
        if self.dice.random() < 0.25:
            self.test.clock.advance(SECOND)
            await self.test.indexer.tick()
        elif self.dice.random() < 0.5:
            await self.test.run_mutation(write, lambda ctx: self.own(ctx))  # noqa: PLW0108 - arguments are copied
        else:
            await sql(self.test, self.plain())

    async def own(self, ctx: MutationCtx) -> None:
        """Write some rows in one mutation, which sees its own writes."""
        dice, known = self.dice, await ctx.sql("select id, embedding from note", reads=[Note])
        rows = [one["id"] for one in known if one["embedding"] is None or vector_in(one["embedding"])]
        for _ in range(dice.randint(1, 4)):
            vector = vector_of(dice) if dice.random() < 0.8 else None
            note = Note(channel=dice.choice("abc"), embedding=vector, stars=dice.choice([None, 1, 2]))
            choice, old = dice.random(), dice.choice(rows) if rows else None
            if old is None or choice < 0.5:
                await ctx.db.insert(note)
            elif choice < 0.7:
                await ctx.db.patch(Note, old, embedding=note.embedding)
            elif choice < 0.8:
                await ctx.db.patch(Note, old, channel=note.channel)
            else:
                await ctx.db.delete(Note, old)
                rows.remove(old)
        self.count += 1
        await ctx.db.insert(Post(blog=dice.choice("ab"), number=self.count, embedding=vector_of(dice)))
        await check(ctx, dice)

    def plain(self) -> str:
        """Write as other programs do: vectors of other lengths, and no vectors."""
        dice = self.dice
        given = dice.choice([vector_of(dice), vector_of(dice), [1.0], [0.0] * SIZE, ["a"], {"a": 1}, None])
        text = "null" if given is None else f"'{json.dumps(given)}'"
        row, self.count = format_id("note", dice.getrandbits(128)), self.count + 1
        array = text if self.lite else f"array{vector_of(dice)}::float8[]"
        said = [
            f"insert into note (id, creation_time, channel, embedding) values ('{row}', '2026-01-01T00:00:00.000000Z', 'a', {text})",
            f"update note set embedding = {text} where channel = '{dice.choice('abc')}'",
            f"delete from note where id = (select min(id) from note where channel = '{dice.choice('abc')}')",
            f"insert into posts values ('{dice.choice('ab')}', {self.count}, {array})",
            "update posts set number = number + 1000 where number = (select max(number) from posts)",
        ]
        return dice.choice(
            [*said, "delete from note" if self.lite else "truncate note"] if dice.random() < 0.3 else said
        )


async def check(ctx: QueryCtx, dice: random.Random) -> None:
    """Compare a search with what all rows say one by one."""
    vector, limit, filters = vector_of(dice), dice.choice([1, 3, 256]), dict[str, Any]()
    if dice.random() < 0.5:
        filters["channel"] = dice.choice(["a", ["a", "b"], ["a", "nobody"], []])
    if dice.random() < 0.3:
        filters["stars"] = dice.choice([None, 1, [None, 2]])

    def fits(note: dict[str, Any]) -> bool:
        asked = {name: one if isinstance(one, list) else [one] for name, one in filters.items()}
        return all(note[name] in values for name, values in asked.items())

    def best(rows: list[tuple[Any, Any]]) -> list[tuple[Any, float]]:
        scored = [(-round(cosine(vector, one), 6), json.dumps(key), key) for key, one in rows if one is not None]
        return [(key, -score) for score, _, key in sorted(scored)][:limit]

    rows = await ctx.sql("select id, channel, stars, embedding from note", reads=[Note])
    notes = [(one["id"], vector_in(one["embedding"])) for one in rows if fits(one)]
    rows = await ctx.sql("select blog, number, embedding from posts", reads=[Post])
    posts = [((one["blog"], one["number"]), vector_in(one["embedding"])) for one in rows]
    for found, wanted in (
        (await ctx.vector_search(Note.by_meaning, vector, limit=limit, **filters), best(notes)),
        (await ctx.vector_search(Post.by_meaning, vector, limit=limit), best(posts)),
    ):
        assert [one.id for one in found] == [key for key, _ in wanted]
        assert [one.score for one in found] == pytest.approx([score for _, score in wanted], abs=1e-5)


def vector_in(value: Any) -> list[float] | None:
    """A stored value, if it is a vector of the index."""
    found = json.loads(value) if isinstance(value, str) else value
    return found if isinstance(found, list) and len(found) == SIZE and any(found) else None


@pytest.mark.parametrize("seed", range(3))
async def test_a_search_finds_the_nearest_rows_whoever_wrote_them(vector_url: str, seed: int) -> None:
    dice = random.Random(seed)
    async with opened(vector_url) as test:
        writers = Writers(dice, test)
        for _ in range(60):
            await writers.step()
            await test.run_query(read, lambda ctx: check(ctx, dice))
