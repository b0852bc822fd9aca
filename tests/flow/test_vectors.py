"""Vector search: the nearest rows, with one score on both stores, whoever wrote them and whatever is indexed."""

from __future__ import annotations

import json
import random  # noqa: TID251 - seeded
import sys
import types
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from math import hypot, inf, nan
from pathlib import Path
from typing import Any

import pytest
from stage.databases import connected, name_of, run_sql, sql
from stage.stories import tell_in

from penstock import (
    ActionCtx,
    App,
    ConfigError,
    MutationCtx,
    PenstockError,
    QueryCtx,
    SearchNotReady,
    Table,
    ValueInvalid,
    VectorHit,
    VectorIndex,
    public,
)
from penstock.api import searches
from penstock.changes.searches import searches_of
from penstock.cli.migrate import migrate
from penstock.schema.ids import format_id
from penstock.schema.rules import Rules
from penstock.services.live import batch
from penstock.services.live.live import LiveQueries
from penstock.store.postgres import searches as indexes
from penstock.testing import TestApp
from penstock.transaction import vectors

pytestmark = pytest.mark.both_stores

SIZE = 4
TIME = "2026-01-01T00:00:00.000000Z"
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


async def make_posts(url: str) -> None:
    """The table of another program; all apps of this module have it."""
    kind = "text" if is_lite(url) else "double precision[]"
    columns = f"blog varchar(20), number integer, embedding {kind}, primary key (blog, number)"
    await run_sql(url, f"create table posts ({columns})")


@asynccontextmanager
async def opened(url: str, made: App = app) -> AsyncIterator[TestApp]:
    await make_posts(url)
    async with TestApp(made, url) as test:
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
            f"insert into note (id, creation_time, channel, embedding) values ('{row}', '{TIME}', 'a', {text})",
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


async def insert(test: TestApp, *embeddings: Sequence[float] | None, channel: str = "a") -> list[Any]:
    notes = [Note(channel=channel, embedding=None if one is None else [*map(float, one)]) for one in embeddings]
    ids: list[Any] = await test.run_mutation(write, lambda ctx: ctx.db.insert_many(notes))
    return ids


async def search(test: TestApp, *vector: float, **given: Any) -> list[VectorHit[Note]]:
    found = lambda ctx: ctx.vector_search(Note.by_meaning, [*map(float, vector)], **given)  # noqa: E731
    hits: list[VectorHit[Note]] = await test.run_query(read, found)
    return hits


# ----- what is refused


async def test_a_vector_that_no_index_can_hold_is_refused_by_name(vector_url: str) -> None:
    async with opened(vector_url) as test:
        (note,) = await insert(test, [1, 0, 0, 0])
        for wrong, said in (
            ([1.0, 2.0], r"note.embedding: this vector has 2 dimensions, and its index 4\. Use the embedding model"),
            ([0.0] * SIZE, "note.embedding: this vector has only zeros.*Store None"),
            ([5e-324, 5e-324, -0.0, 0.0], "note.embedding: this vector has only zeros, or nearly so"),
            ([nan] * SIZE, "note.embedding: this vector has NaN"),
            ([-inf, 1.0, 1.0, 1.0], "note.embedding: this vector has NaN, an infinity"),
        ):
            for change in (
                lambda ctx, one: ctx.db.insert(Note(channel="a", embedding=one)),
                lambda ctx, one: ctx.db.patch(Note, note, embedding=one),
                lambda ctx, one: ctx.db.insert(Post(blog="a", number=1, embedding=one)),
            ):
                with pytest.raises(ValueInvalid, match=said.replace("note", "(note|posts)")):
                    await test.run_mutation(write, lambda ctx, do=change, one=wrong: do(ctx, one))
            with pytest.raises(ValueInvalid, match=said.partition(":")[2].partition(r"\.")[0].partition(".*")[0]):
                await search(test, *wrong)
        assert [hit.id for hit in await search(test, 1, 0, 0, 0)] == [note]


async def test_wrong_searches_say_what_is_wrong(vector_url: str) -> None:
    async with opened(vector_url) as test:
        await insert(test, *([1, number, 0, 0] for number in range(257)))
        assert len(await search(test, 1, 0, 0, 0)) == 10
        assert len(await search(test, 1, 0, 0, 0, limit=256)) == 256
        for given, said in (
            ({"limit": 257}, "a limit from 1 to 256, not 257"),
            ({"limit": 0}, "a limit from 1 to 256"),
            ({"limit": True}, "a limit from 1 to 256"),
            ({"body": "a"}, "note.by_meaning has no filter body. Its filters are channel, stars"),
            ({"stars": "1"}, "note.stars: this str is not a value"),
            ({"channel": [f"{number}" for number in range(65)]}, "more than 64 values"),
        ):
            with pytest.raises(ValueInvalid, match=said):
                await search(test, 1, 0, 0, 0, **given)
        for index in (VectorIndex("embedding", dimensions=SIZE), "by_meaning", None):
            with pytest.raises(ValueInvalid, match="takes a vector index, not"):
                await test.run_query(read, lambda ctx, one=index: ctx.vector_search(one, [1.0] * SIZE))
        with pytest.raises(ValueInvalid, match="a vector is a list of floats"):
            await test.run_query(read, lambda ctx: ctx.vector_search(Note.by_meaning, "abcd"))


# ----- equal on both stores


class Long(Table):
    embedding: list[float]

    by_meaning = VectorIndex("embedding", dimensions=4096)


async def test_scores_are_the_same_numbers_on_both_stores(sqlite_url: str, postgres_url: str) -> None:
    dice = random.Random(7)
    rows = [[dice.gauss(0, 10.0 ** dice.randint(-3, 3)) for _ in range(4096)] for _ in range(8)]
    rows[3] = [-0.0, *rows[2][1:]]
    long = App(tables=[Long])
    write, read, _ = tell_in(long)
    found = list[list[float]]()
    for url in (sqlite_url, postgres_url):
        async with opened(url, long) as test:
            ids = await test.run_mutation(write, lambda ctx: ctx.db.insert_many(Long(embedding=one) for one in rows))
            await test.indexer.tick()
            hits = await test.run_query(read, lambda ctx: ctx.vector_search(Long.by_meaning, rows[3]))
            order = [ids.index(hit.id) for hit in hits]
            assert (order[:2], len(order)) == ([2, 3], 8), "scores that differ less than 32-bit floats are equal"
            assert [hit.score for hit in hits] == pytest.approx([cosine(rows[3], rows[one]) for one in order], abs=1e-6)
            found.append([hit.score for hit in hits])
    assert found[0] == found[1]


# ----- the index of PostgreSQL


@pytest.mark.parametrize("size", [16, 2_001])
async def test_the_index_finds_the_nearest_rows_however_many_its_filters_leave(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(indexes, "_MOST_COMPARED", 20 * size)  # rows, above which the index is asked

    class Point(Table):
        part: int
        far: bool
        embedding: list[float]

        by_meaning = VectorIndex("embedding", dimensions=size, filters=("part", "far"))

    space: dict[str, Any] = {
        "__module__": __name__,
        "__annotations__": {"part": int, "far": bool, "embedding": list[float]},
    }
    bare = types.new_class("Point", (Table,), {}, lambda made: made.update(space))
    dice, count = random.Random(1), 1_500 if size == 16 else 150
    rows = [[dice.gauss(0, 1) for _ in range(size)] for _ in range(count)]
    async with opened(postgres_url, App(tables=[bare])) as test:
        given = [bare(part=n % 5, far=row[0] < -1, embedding=row) for n, row in enumerate(rows)]
        write, _, _ = tell_in(test.app)
        ids = list[Any]()
        for begin in range(0, count, 150):
            ids += await test.run_mutation(write, lambda ctx, at=begin: ctx.db.insert_many(given[at : at + 150]))
    app = App(tables=[Point])
    _, read, _ = tell_in(app)
    await run_sql(postgres_url, f"alter database {name_of(postgres_url)} set enable_sort = off")  # so few are sorted
    async with TestApp(app, postgres_url) as test:
        await searches.fill_searches(test.engine.store, searches_of(app.definitions()))
        ((plan,),) = await sql(test, "select string_agg(indexdef, ' ') from pg_indexes where indexdef like '%hnsw%'")
        assert ("halfvec" in plan) is (size > 2_000)
        hits = nearest = 0
        for filters, keeps in (
            ({}, lambda _row: True),
            ({"part": [0, 1, 2]}, lambda row: row.part < 3),
            ({"part": 0}, lambda row: row.part == 0),
            ({"far": True}, lambda row: row.far),
        ):
            for _ in range(5):
                vector = [8.0, *(dice.gauss(0, 1) for _ in range(size - 1))]  # away from those that are far
                scored = sorted((-cosine(vector, one.embedding), n) for n, one in enumerate(given) if keeps(one))
                found = await test.run_query(
                    read, lambda ctx, v=vector, f=filters: ctx.vector_search(Point.by_meaning, v, limit=15, **f)
                )
                assert len(found) == min(15, len(scored)), "never fewer than there are"
                nearest += len(found)
                hits += len({hit.id for hit in found} & {ids[n] for _, n in scored[:15]})
        assert hits >= 0.95 * nearest
    async with connected(postgres_url) as connection:
        scans = await connection.fetchval("select idx_scan from pg_stat_user_indexes where indexrelname ~ 'vector'")
    assert scans >= 10, "the index was asked"


@pytest.mark.parametrize(("needed", "has_index"), [((0, 8), True), ((99,), False)], ids=["indexed", "older"])
async def test_rows_that_come_and_go_are_found_by_the_index_and_with_an_older_pgvector(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, needed: tuple[int, ...], has_index: bool
) -> None:
    monkeypatch.setattr(indexes, "_MOST_COMPARED", SIZE)  # one row, above which the index is asked
    monkeypatch.setattr(indexes, "_ITERATES", needed)
    dice, rows, hits = random.Random(1), dict[Any, list[float]](), 0
    async with opened(postgres_url) as test:
        for step in range(10):
            new = [[dice.gauss(0, 1) for _ in range(SIZE)] for _ in range(40)]
            rows |= zip(await insert(test, *new), new, strict=True)
            if step % 2:
                test.clock.advance(SECOND)
                await test.indexer.tick()
            vector = [dice.gauss(0, 1) for _ in range(SIZE)]
            best = sorted(rows, key=lambda one: -cosine(vector, rows[one]))
            for gone in best[:5]:
                await test.run_mutation(write, lambda ctx, note=gone: ctx.db.delete(Note, note))
                del rows[gone]
            found = [hit.id for hit in await search(test, *vector, limit=20)]
            assert (len(found), {*found} <= rows.keys()) == (20, True)
            hits += len({*found} & {*best[5:25]})
        assert hits >= (0.95 * 200 if has_index else 200)
    async with connected(postgres_url) as connection:
        scans = await connection.fetchval(
            "select sum(idx_scan) from pg_stat_user_indexes join pg_indexes on indexname = indexrelname "
            "where indexdef like '%hnsw%'"
        )
    assert bool(scans) is has_index, "the index was asked"


async def test_columns_of_other_programs_may_have_json_or_arrays(postgres_url: str) -> None:
    class Kept(Table, source="kept", key="number", managed=False):
        number: int
        embedding: list[float] | None = None

        by_meaning = VectorIndex("embedding", dimensions=3)

    kept = App(tables=[Kept])
    _, read, _ = tell_in(kept)
    for kind, value in (("jsonb", "[1,2,3]"), ("json", "[1,2,3]"), ("real[]", "{1,2,3}")):
        created = f"create table kept (number integer primary key, embedding {kind})"
        await run_sql(postgres_url, "drop table if exists kept, posts", created)
        await run_sql(postgres_url, f"insert into kept values (2, '{value}'), (1, null)")
        async with opened(postgres_url, kept) as test:
            nearest = lambda ctx: ctx.vector_search(Kept.by_meaning, [1.0, 2.0, 3.0])  # noqa: E731
            for _ in range(3):
                test.clock.advance(SECOND)
                await test.indexer.tick()
            assert await test.run_query(read, nearest) == [("2", 1.0)], kind
            await run_sql(postgres_url, f"insert into kept values (3, '{value}')")
            assert await test.run_query(read, nearest) == [("2", 1.0), ("3", 1.0)], kind


async def test_plain_writers_need_no_extension(postgres_url: str) -> None:
    async with opened(postgres_url) as test:
        await insert(test, [1, 0, 0, 0])
        await test.indexer.tick()
        statements = ["drop extension vector cascade", "insert into posts values ('a', 1, '{1,2,3,4}')"]
        await run_sql(postgres_url, *statements, "update note set embedding = '[0, 1, 0, 0]'")
        await insert(test, [1, 1, 0, 0])


async def test_a_program_does_not_start_without_what_vectors_need(
    vector_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_lite(vector_url):
        monkeypatch.setitem(sys.modules, "numpy", None)
        said = r"A VectorIndex on SQLite needs numpy, which is not installed. pip install 'penstock-backend\[vectors\]'"
    else:
        monkeypatch.setattr(indexes, "_CREATE", "create extension if not exists no_such_vector")
        said = "A VectorIndex on PostgreSQL needs the extension pgvector: .*have an administrator run create extension"
    with pytest.raises(ConfigError, match=said):
        async with opened(vector_url):
            pass


# ----- rules and actions


class Shy(Table):
    owner: str
    embedding: list[float]

    by_meaning = VectorIndex("embedding", dimensions=2, filters=("owner",))
    rules = Rules(read=lambda row, who: row.owner == "me", anonymous=True)


class Odd(Shy):
    rules = Rules(read=lambda row, who: sum(row.embedding) > 1 or bool(row.owner.islower() - 1), anonymous=True)


@pytest.mark.parametrize("table", [Shy, Odd])
async def test_a_caller_sees_no_row_that_rules_forbid_nor_its_score(
    vector_url: str, monkeypatch: pytest.MonkeyPatch, table: Any
) -> None:
    shy = App(tables=[table])
    add, _, _ = tell_in(shy)

    @shy.query(access=public)
    async def seen(ctx: QueryCtx) -> list[tuple[str, float]]:
        return [(hit.id, hit.score) for hit in await ctx.vector_search(table.by_meaning, [1.0, 0.0], limit=2)]

    @shy.action(access=public)
    async def seen_by_action(ctx: ActionCtx) -> list[tuple[str, float]]:
        return [(hit.id, hit.score) for hit in await ctx.vector_search(table.by_meaning, [1.0, 0.0], limit=2)]

    async with opened(vector_url, shy) as test:
        near = [table(owner="you", embedding=[0.9, 0.0]) for _ in range(30)]
        far = [table(owner="me", embedding=[1.0, 1.0]), table(owner="me", embedding=[1.0, 2.0])]
        ids = await test.run_mutation(add, lambda ctx: ctx.db.insert_many([*near, *far]))
        for ticks in range(2):
            wanted = [(ids[30], 0.707107), (ids[31], 0.447214)]
            assert await test.with_identity(None).run_query(seen) == wanted
            assert await test.with_identity(None).run_action(seen_by_action) == wanted
            assert [score for _, score in await test.run_query(seen)] == [1.0, 1.0], "the system sees all"
            if not ticks:
                await test.indexer.tick()
        monkeypatch.setattr(vectors, "MOST_LOOKED_AT", 8)
        assert await test.with_identity(None).run_query(seen) == []


async def test_actions_search_in_what_is_committed(vector_url: str) -> None:
    async with opened(vector_url) as test:
        seen: list[list[VectorHit[Note]]] = []

        async def undone(ctx: MutationCtx) -> None:
            await ctx.db.insert(Note(channel="a", embedding=[1.0, 0.0, 0.0, 0.0]))
            seen.append(await ctx.vector_search(Note.by_meaning, [1.0, 0.0, 0.0, 0.0]))
            raise ValueInvalid("Never mind.")

        with pytest.raises(ValueInvalid, match="Never mind"):
            await test.run_mutation(write, undone)
        assert [hit.score for hit in seen[0]] == [1.0]
        nearest = lambda ctx: ctx.vector_search(Note.by_meaning, [1.0, 0.0, 0.0, 0.0])  # noqa: E731
        assert await test.run_action(act, nearest) == []
        (note,) = await insert(test, [-1, 0, 0, 0])
        assert await test.run_action(act, nearest) == [(note, -1.0)]


# ----- live


@app.query
async def closest(ctx: QueryCtx, channel: list[str]) -> list[float]:
    return [hit.score for hit in await ctx.vector_search(Note.by_meaning, [1.0, 0.0, 0.0, 0.0], channel=channel)]


async def test_a_watched_search_runs_again_if_a_row_changes_that_fits_its_filters(
    vector_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "QUICK", 10.0)  # on a slow machine an answer would come ticks later
    async with opened(vector_url) as test:
        live = LiveQueries(test.runner, app.definitions())
        view = live.view()
        view.add(0, closest, {"channel": ["a", "b"]})
        await live.tick()

        async def runs() -> tuple[bool, list[float]]:
            """Whether it has run again, and its answer."""
            before = view.queries[0].answer
            await test.indexer.tick()
            await live.tick()
            answer = view.queries[0].answer
            assert answer is not None
            return answer is not before, answer.result

        await runs()  # from now on its table is captured
        (first,) = await insert(test, [1, 0, 0, 0], channel="c")
        assert await runs() == (False, [])
        await test.run_mutation(write, lambda ctx: ctx.db.patch(Note, first, channel="b"))
        assert await runs() == (True, [1.0])
        await run_sql(vector_url, "update note set embedding = '[-2, 0, 0, 0]'")
        assert await runs() == (True, [-1.0])
        await run_sql(vector_url, "update note set channel = 'c'")
        assert await runs() == (True, [])
        await run_sql(vector_url, "update note set embedding = '[2, 0, 0, 0]'")
        assert await runs() == (False, [])
        view.close()
        await live.close()


# ----- indexes come and go


async def test_migrate_fills_an_index_and_drops_it_when_nobody_declares_it(
    vector_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = {"__module__": __name__, "__annotations__": {"channel": str, "embedding": list[float] | None}}
    bare = types.new_class("Note", (Table,), {}, lambda made: made.update(space))
    stored = "penstock_search_1" if is_lite(vector_url) else "penstock.search_1"
    monkeypatch.setattr(searches, "AT_ONCE", 2)

    def declared(size: int) -> Any:
        with_index = {**space, "by_meaning": VectorIndex("embedding", dimensions=size, filters=("channel",))}
        return types.new_class("Note", (Table,), {}, lambda made: made.update(with_index))

    async def migrated(table: Any) -> list[tuple[str, str]]:
        made = App(tables=[table])
        _, news = await migrate(made, made.config(database=vector_url), tmp_path)
        return [(one.what, one.name) for one in news or () if one.noun == "search"]

    assert await migrated(bare) == []
    into = "insert into note (id, creation_time, channel, embedding) values ('{0}', '2026-01-01', 'a', '[{0}, 1]')"
    await run_sql(vector_url, *(into.format(number) for number in range(5)))
    assert await migrated(declared(2)) == [("new", "note.by_meaning")]
    noted = declared(2)
    two = App(tables=[noted])
    _, read, _ = tell_in(two)
    async with TestApp(two, vector_url) as test:
        assert (await sql(test, f"select count(*) from {stored}"))[0][0] == 5
        found = lambda ctx: ctx.vector_search(noted.by_meaning, [1.0, 0.0], limit=1)  # noqa: E731
        await run_sql(
            vector_url,
            "insert into note (id, creation_time, channel, embedding) values ('5', '2026-01-01', 'b', '[9, 0]')",
        )
        assert [hit.score for hit in await test.run_query(read, found)] == [1.0]
    reader = "penstock_change_reader" if is_lite(vector_url) else "penstock.change_reader"
    await run_sql(vector_url, f"update {reader} set moved_at = '2026-01-01T00:00:00.000000Z'")
    assert await migrated(declared(3)) == [("new", "note.by_meaning"), ("dropped", "note.by_meaning")]
    await run_sql(vector_url, f"update {reader} set moved_at = '2026-01-01T00:00:00.000000Z'")
    assert await migrated(bare) == [("dropped", "note.by_meaning")]
    async with TestApp(App(tables=[bare]), vector_url) as test:
        for number in (1, 2):
            with pytest.raises(PenstockError):
                await sql(test, f"select count(*) from {stored[:-1]}{number}")


async def test_a_search_waits_for_its_index(vector_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(vector_url) as test:
        await insert(test, [1, 0, 0, 0], [0, 1, 0, 0])
        await test.engine.store.searches.restart(1)
        with pytest.raises(SearchNotReady, match=r"note.by_meaning is not filled yet"):
            await search(test, 1, 0, 0, 0)
        assert [one.where for one in await test.health() if one.code == "search-filling"] == [
            "search index note.by_meaning"
        ]
        for _ in range(3):
            test.clock.advance(SECOND)
            await test.indexer.tick()
        assert len(await search(test, 1, 0, 0, 0)) == 2
