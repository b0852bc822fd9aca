"""Text search: rows by their words, in one order, whoever wrote them and whatever the indexer has read."""

from __future__ import annotations

import asyncio
import random  # noqa: TID251 - seeded
import types
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from flow.livetables import other_program
from pydantic_core import from_json, to_json
from stage.databases import run_sql, sql
from stage.stories import tell_in
from stage.waits import events

from penstock import (
    App,
    Backend,
    Conflict,
    CursorInvalid,
    DataError,
    DeclarationError,
    LimitExceeded,
    MutationCtx,
    Page,
    PaginationOptions,
    PenstockError,
    QueryCtx,
    SearchIndex,
    SearchNotReady,
    Table,
    ValueInvalid,
    public,
)
from penstock.api import health, searches
from penstock.changes.position import BEGINNING
from penstock.cli.migrate import migrate
from penstock.schema.ids import format_id
from penstock.schema.rules import Rules
from penstock.search.encoding import encode
from penstock.search.query import Match, parse_query
from penstock.search.rank import scorer
from penstock.services.live import batch
from penstock.services.live.live import LiveQueries
from penstock.store.session import Statement, reading
from penstock.store.sql.values import decode_key
from penstock.store.sqlite.dialect import SQLITE
from penstock.testing import TestApp
from penstock.transaction import searching

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
BARE = {
    "__module__": __name__,
    "__annotations__": {"channel": str, "body": str | None, "stars": int | None},
    "stars": None,
}
SECOND = timedelta(seconds=1)
POSTS = "create table posts (blog varchar(20), number integer, text text, primary key (blog, number))"


@app.query
async def found(ctx: QueryCtx, text: str, channel: str | None = None) -> list[str | None]:
    given: dict[str, Any] = {} if channel is None else {"channel": channel}
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


WORDS = """a ab abc apple Äpfel straße STRASSE İstanbul й и ё 12 東京 東京都庁 京 ไทย 🎉 e-mail https://a.b/c 'x' " &
| * NOT"""


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
            await self.test.run_mutation(write, lambda ctx: self.own(ctx))  # noqa: PLW0108 - arguments are copied
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
        into, some = (
            "into note (id, creation_time, channel, body)",
            f"stars is null and channel = '{dice.choice('ab')}'",
        )
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
            said += [
                "vacuum note",
                f"copy:{row}\t2026-01-01\ta\t{body}",
                "truncate posts",
                MERGE.format(row=row, body=body),
            ]
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
    posts = [
        (points, (one.blog, one.number)) async for one in ctx.db.query(Post) if (points := score(encode(one.text)))
    ]
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


# ----- pages and limits


async def page_of(test: TestApp, text: str, **options: Any) -> Page[Note]:
    async def story(ctx: QueryCtx) -> Page[Note]:
        return await ctx.db.query(Note).with_search_index(Note.by_body, text).paginate(PaginationOptions(**options))

    page: Page[Note] = await test.run_query(read, story)
    return page


async def test_pages_follow_the_order_and_a_full_one_is_never_the_last(database_url: str) -> None:
    async with opened(database_url) as test:
        await insert(test, "b", "a", "a b", "A a", "ab")
        await test.indexer.tick()
        await insert(test, "b a b")
        seen, cursor = list[str | None](), None
        for number in range(4):
            page = await page_of(test, "b a", num_items=2, cursor=cursor)
            assert page.is_done is (number == 3)
            seen, cursor = [*seen, *(one.body for one in page.page)], page.continue_cursor
        assert seen == ["b a b", "a b", "A a", "a", "b", "ab"]
        whole = await page_of(
            test, "b a", num_items=1, end_cursor=(await page_of(test, "b a", num_items=3)).continue_cursor
        )
        assert [one.body for one in whole.page] == seen[:3]
        assert whole.split_cursor is not None
        assert (await page_of(test, "b a", cursor=cursor)).page == []
        with pytest.raises(CursorInvalid):
            await page_of(test, "b", cursor=cursor)


@pytest.mark.parametrize("key", ["", "{}", '["a"]', '["a", null]', '["a", {}]', "[null, 1]", "[" * 9_000, None])
async def test_a_cursor_with_another_key_is_refused(database_url: str, key: str | None) -> None:
    async def story(ctx: QueryCtx, cursor: str | None = None) -> Page[Post]:
        return await ctx.db.query(Post).with_search_index(Post.by_text, "word").paginate(cursor=cursor, num_items=1)

    async with opened(database_url) as test:
        posts = [Post(blog="a", number=number, text="word") for number in range(2)]
        await test.run_mutation(write, lambda ctx: ctx.db.insert_many(posts))
        cursor = (await test.run_query(read, story)).continue_cursor
        mark, place = from_json(urlsafe_b64decode(cursor + "=="))
        forged = urlsafe_b64encode(to_json([mark, [*place[:-1], key]])).decode().rstrip("=")
        with pytest.raises(CursorInvalid):
            await test.run_query(read, lambda ctx: story(ctx, forged))


async def test_no_more_than_1024_rows_are_read(database_url: str) -> None:
    async with opened(database_url) as test:
        await insert(test, *["many words"] * 1024, channel="b")
        assert len(await test.run_query(found, "many")) == 1024
        await insert(test, "many more words")
        with pytest.raises(LimitExceeded, match=r"note.by_body has found more than 1024 rows"):
            await test.run_query(found, "many")
        for ticks in range(9):
            taken = lambda ctx: ctx.db.query(Note).with_search_index(Note.by_body, "many").take(1024)  # noqa: E731
            assert len(await test.run_query(read, taken)) == 1024
            assert (await page_of(test, "many more", num_items=1000)).page[0].body == "many more words"
            assert ticks < 8 or await test.run_query(found, "many", "a") == ["many more words"]
            await test.indexer.tick()
            test.clock.advance(SECOND)
        last = await page_of(test, "many", num_items=1000)
        with pytest.raises(LimitExceeded):
            await page_of(test, "many", num_items=1000, cursor=last.continue_cursor)


async def test_keys_of_several_types_in_one_column_have_an_order(sqlite_url: str) -> None:
    class Odd(Table, source="odd", key=("a", "b"), managed=False):
        a: str
        b: str
        text: str

        by_text = SearchIndex("text")

    keys = ["1, 'x'", "1.5, 'X'", "1e300, 'a'", "'1', 2", "'1', '2'", "'ü', 9007199254740993", "x'00ff', x'5c78'"]
    await run_sql(sqlite_url, "create table odd (a, b, text text, primary key (a, b))")
    odd = App(tables=[Odd])
    _, read, _ = tell_in(odd)
    async with TestApp(odd, sqlite_url) as test:
        await run_sql(sqlite_url, *(f"insert into odd values ({key}, 'word')" for key in keys))
        ordered = await sql(test, "select a, b from odd order by a desc, b desc")

        async def story(ctx: QueryCtx) -> list[Any]:
            search = ctx.db.query(Odd).with_search_index(Odd.by_text, "word")
            return [decode_key(SQLITE, search._statements.definition, one.key) for one in await search._find()]

        for _ in range(2):
            assert [tuple(key) for key in await test.run_query(read, story)] == [tuple(row) for row in ordered]
            test.clock.advance(SECOND)
            await test.indexer.tick()


async def test_a_row_whose_key_was_spelled_otherwise_before_is_found_once(sqlite_url: str) -> None:
    await run_sql(sqlite_url, "create table named (name text collate nocase primary key, text text)")

    class Named(Table, source="named", key="name", managed=False):
        name: str
        text: str

        by_text = SearchIndex("text")

    named = App(tables=[Named])
    _, read, _ = tell_in(named)
    searched = lambda ctx: ctx.db.query(Named).with_search_index(Named.by_text, "word").collect()  # noqa: E731
    async with TestApp(named, sqlite_url) as test:
        await run_sql(sqlite_url, "insert into named values ('ada', 'word'), ('Bob', 'word')")
        await test.indexer.tick()
        for write in (
            "update named set name = 'ADA' where name = 'ada'",
            "replace into named values ('Ada', 'word')",
            "replace into named values ('aDa', 'other'), ('bob', 'a word')",
        ):
            await run_sql(sqlite_url, write)
            known = await test.run_query(read, searched)
            test.clock.advance(SECOND)
            await test.indexer.tick()
            assert known == await test.run_query(read, searched)
            names = {"ADA", "Bob"} if "update" in write else {"Ada", "Bob"} if "Ada" in write else {"bob"}
            assert {row.name for row in known} == names
            assert len(known) == len(names)


async def test_rows_with_padded_keys_are_found(database_url: str) -> None:
    await run_sql(database_url, "create table padded (name char(5) primary key, text text)")

    class Padded(Table, source="padded", key="name", managed=False):
        name: str
        text: str

        by_text = SearchIndex("text")

    padded = App(tables=[Padded])
    _, read, _ = tell_in(padded)
    async with TestApp(padded, database_url) as test:
        await run_sql(database_url, "insert into padded values ('a', 'one word'), ('b', 'a word')")
        for _ in range(2):
            searched = lambda ctx: ctx.db.query(Padded).with_search_index(Padded.by_text, "word").collect()  # noqa: E731
            assert {row.name.strip() for row in await test.run_query(read, searched)} == {"a", "b"}
            test.clock.advance(SECOND)
            await test.indexer.tick()


# ----- what is refused


class Shy(Table):
    text: str
    owner: str

    by_text = SearchIndex("text")
    rules = Rules(read=lambda row, who: row.owner == "me", anonymous=True)


async def test_wrong_searches_say_what_is_wrong(database_url: str) -> None:
    async with opened(database_url) as test:

        def refused(ask: Any, said: str) -> Any:
            async def story(ctx: QueryCtx) -> None:
                with pytest.raises(ValueInvalid, match=said):
                    ask(ctx.db.query(Note))

            return test.run_query(read, story)

        await refused(lambda notes: notes.with_search_index(Note.by_body, "a", body="b"), "has no filter body.*stars")
        await refused(
            lambda notes: notes.with_search_index(Note.by_body, "a", stars="1"), "note.stars: this str is not"
        )
        await refused(lambda notes: notes.with_search_index(Shy.by_text, "a"), "is not a search index of table Note")
        await refused(lambda notes: notes.with_search_index(Note.by_body, 5), "looks for a text, not for int")
        await refused(lambda notes: notes.with_search_index(Note.by_body, "a", match="some"), "any or all words")
        await refused(lambda notes: notes.order("desc").with_search_index(Note.by_body, "a"), "an order of its own")
    with pytest.raises(DeclarationError, match="a filter cannot be named match"):
        SearchIndex("body", filters=("match",))


async def test_a_search_keeps_the_rules_of_its_table(database_url: str) -> None:
    shy = App(tables=[Shy])
    add, _, _ = tell_in(shy)

    @shy.query(access=public)
    async def seen(ctx: QueryCtx) -> list[str]:
        search = ctx.db.query(Shy).with_search_index(Shy.by_text, "word")
        return [row.text async for row in search.filter(lambda row: row.text != "word 2")]

    await run_sql(database_url, POSTS)  # of this module, too
    async with TestApp(shy, database_url) as test:
        rows = [Shy(text=f"word {number}", owner=owner) for number, owner in enumerate(["me", "you", "me"])]
        await test.run_mutation(add, lambda ctx: ctx.db.insert_many(rows))
        assert await test.with_identity(None).run_query(seen) == ["word 0"]


# ----- live


async def test_a_watched_search_runs_again_if_a_row_comes_or_goes_that_fits_it(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "QUICK", 10.0)  # on a slow machine an answer would come ticks later
    async with opened(database_url) as test:
        live = LiveQueries(test.runner, app.definitions())
        view = live.view()
        view.add(0, found, {"text": "hello wor", "channel": "a"})
        await live.tick()
        first = (await insert(test, "good bye"))[0]

        async def runs() -> tuple[bool, list[str]]:
            """Whether it has run again, and its answer."""
            before = view.queries[0].answer
            await test.indexer.tick()
            await live.tick()
            answer = view.queries[0].answer
            assert answer is not None
            return answer is not before, answer.result

        await runs()  # from now on its table is captured
        await insert(test, "good morning")
        assert await runs() == (False, [])
        await insert(test, "hello", channel="b")
        assert await runs() == (False, [])
        await run_sql(database_url, f"update note set body = 'a world' where id = '{first}'")
        assert await runs() == (True, ["a world"])
        await insert(test, "nothing")
        assert await runs() == (False, ["a world"])
        await test.run_mutation(write, lambda ctx: ctx.db.patch(Note, first, channel="b"))
        assert await runs() == (True, [])
        view.close()
        await live.close()


@app.query
async def found_soon(ctx: QueryCtx, text: str) -> list[str | None] | None:
    try:
        return [note.body for note in await ctx.db.query(Note).with_search_index(Note.by_body, text).collect()]
    except SearchNotReady:
        return None


async def test_a_watched_search_that_catches_that_its_index_is_behind_runs_again(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "MOST_UNREAD", 0)
    monkeypatch.setattr(batch, "QUICK", 10.0)  # on a slow machine an answer would come ticks later
    async with opened(database_url) as test:
        await insert(test, "word")
        live = LiveQueries(test.runner, app.definitions())
        view = live.view()
        view.add(0, found_soon, {"text": "word"})

        async def answered() -> Any:
            for _ in range(4):  # its table is captured after the first
                await live.tick()
                test.clock.advance(timedelta(minutes=1))
            answer = view.queries[0].answer
            assert answer is not None
            return answer.result

        assert await answered() is None
        await test.indexer.tick()
        assert await answered() == ["word"]
        view.close()
        await live.close()


# ----- indexes come and go


async def test_old_rows_are_indexed_in_pieces_and_searches_wait_for_that(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = types.new_class("Note", (Table,), {}, lambda space: space.update(BARE))
    async with TestApp(App(tables=[bare]), database_url) as test:
        write_bare, _, _ = tell_in(test.app)
        rows = [bare(channel="a", body=f"word {number}") for number in range(7)]
        await test.run_mutation(write_bare, lambda ctx: ctx.db.insert_many(rows))
    await run_sql(database_url, POSTS, "insert into posts values ('a', 1, 'word')")
    monkeypatch.setattr(searches, "AT_ONCE", 3)
    async with TestApp(app, database_url) as test:
        with pytest.raises(SearchNotReady, match=r"note.by_body is not filled yet. Run penstock migrate"):
            await test.run_query(found, "word")
        await sql(
            test, "update note set body = 'no more' where body = 'word 0'", "delete from note where body = 'word 6'"
        )
        for _ in range(4):
            await test.indexer.tick()
        assert await test.run_query(found, "word") == [f"word {number}" for number in (5, 4, 3, 2, 1)]
        assert (await sql(test, f"select count(*) from {stored(test)}"))[0][0] == 6


async def test_a_search_says_that_its_index_is_behind(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "MOST_UNREAD", 5)
    async with opened(database_url) as test:
        await insert(test, *["word"] * 6)
        with pytest.raises(SearchNotReady, match=r"note.by_body is behind: more than 5 rows"):
            await test.run_query(found, "word")
        await test.indexer.tick()
        assert len(await test.run_query(found, "word")) == 6


def stored(test: Backend) -> str:
    return "penstock_search_1" if test.config.database.startswith("sqlite") else "penstock.search_1"


async def test_migrate_fills_an_index_and_drops_it_when_nobody_declares_it(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = types.new_class("Note", (Table,), {}, lambda space: space.update(BARE))
    monkeypatch.setattr(searches, "AT_ONCE", 2)

    async def migrated(*tables: Any) -> list[tuple[str, str]]:
        made = App(tables=tables)
        _, news = await migrate(made, made.config(database=database_url), tmp_path)
        return [(one.what, one.name) for one in news or () if one.noun == "search"]

    assert await migrated(bare) == []
    insert = "insert into note (id, creation_time, channel, body) values ('{}', '2026-01-01', 'a', 'word')"
    await run_sql(database_url, *map(insert.format, range(5)), POSTS)
    assert await migrated(Note, Post) == [("new", "note.by_body"), ("new", "posts.by_text")]
    async with TestApp(App(tables=[Note, Post]), database_url) as test:
        assert (await sql(test, f"select count(*) from {stored(test)}"))[0][0] == 5
    assert await migrated(bare, Post) == [], "processes of the older release may still search"
    reader = "penstock_change_reader" if database_url.startswith("sqlite") else "penstock.change_reader"
    await run_sql(database_url, f"update {reader} set moved_at = '2026-01-01T00:00:00.000000Z'")
    assert await migrated(bare, Post) == [("dropped", "note.by_body")]
    async with TestApp(App(tables=[bare]), database_url) as test:
        with pytest.raises(PenstockError):
            await sql(test, f"select count(*) from {stored(test)}")
        store = test.engine.store
        assert [one.name for one in await store.changes.readers()] == ["search:2"]
        left = [one.interest for one in await store.interests.list() if one.interest.name.startswith("search ")]
        assert [one.table for one in left] == ["posts"]


# ----- faults


async def test_an_index_that_cannot_be_written_holds_up_no_other(
    database_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(database_url) as test:
        await test.indexer.tick()
        index = searches._index

        async def fails(store: Any, one: Any, rows: Any) -> Any:
            if one.name == "note.by_body":
                raise DataError("No such text.")
            return await index(store, one, rows)

        monkeypatch.setattr(searches, "_index", fails)
        await insert(test, "word")
        await run_sql(database_url, "insert into posts values ('a', 1, 'word')")
        for _ in range(3):
            test.clock.advance(SECOND)
            await test.indexer.tick()
        assert len(events(caplog, "search.failed")) == 1
        assert (await sql(test, f"select count(*) from {stored(test)[:-1]}2"))[0][0] == 1
        assert await test.run_query(found, "word") == ["word"]
        monkeypatch.undo()
        test.clock.advance(31 * SECOND)
        await test.indexer.tick()
        assert (await sql(test, f"select count(*) from {stored(test)}"))[0][0] == 1


async def test_rows_are_in_the_order_of_their_times_whoever_changes_these(database_url: str) -> None:
    async with opened(database_url) as test:
        first, _ = await insert(test, "word first", "word second")
        for _ in range(2):
            test.clock.advance(SECOND)
            await test.indexer.tick()
        assert await test.run_query(found, "word") == ["word second", "word first"]
        later = "2031-01-01T00:00:00.000000Z"
        await run_sql(database_url, f"update note set creation_time = '{later}' where id = '{first}'")
        for _ in range(2):
            assert await test.run_query(found, "word") == ["word first", "word second"]
            test.clock.advance(SECOND)
            await test.indexer.tick()


async def test_an_index_that_may_have_missed_changes_is_filled_again(database_url: str) -> None:
    async with opened(database_url) as test:
        await insert(test, "one word", "more words")
        await test.indexer.tick()
        interests = test.engine.store.interests
        (number,) = (one.id for one in await interests.list() if one.interest.name.startswith("search note.by_body"))
        await sql(test, interests._tell_lost([number]))
        with pytest.raises(SearchNotReady, match="is behind"):
            await test.run_query(found, "word")
        test.clock.advance(SECOND)
        await test.indexer.tick()
        with pytest.raises(SearchNotReady, match="is not filled yet"):
            await test.run_query(found, "word")
        for _ in range(3):
            test.clock.advance(SECOND)
            await test.indexer.tick()
        assert await test.run_query(found, "word") == ["one word", "more words"]


async def test_rows_of_other_partitions_are_found_after_one_was_truncated(postgres_url: str) -> None:
    of = [f"create table posts_{name} partition of posts for values in ('{name}')" for name in "ab"]
    await run_sql(postgres_url, f"{POSTS} partition by list (blog)", *of)
    async with TestApp(app, postgres_url) as test:
        posts = [Post(blog=blog, number=1, text="word") for blog in "ab"]
        await test.run_mutation(write, lambda ctx: ctx.db.insert_many(posts))
        await test.indexer.tick()
        await sql(test, "truncate posts_a")
        for _ in range(4):
            test.clock.advance(SECOND)
            await test.indexer.tick()
        searched = lambda ctx: ctx.db.query(Post).with_search_index(Post.by_text, "word").collect()  # noqa: E731
        assert [post.blog for post in await test.run_query(read, searched)] == ["b"]
        assert len(await sql(test, "select key from penstock.search_2")) == 1


async def test_two_indexers_take_turns(database_url: str) -> None:
    async with opened(database_url) as test:
        other = test.make_service("indexer")
        for number in range(6):
            await insert(test, f"word {number}")
            await (other if number % 2 else test.indexer).tick()
            test.clock.advance(SECOND)
        await test.indexer.kill()
        await insert(test, "last word")
        test.clock.advance(timedelta(minutes=2))
        for _ in range(4):
            await other.tick()
            test.clock.advance(SECOND)
        assert (await sql(test, f"select count(*) from {stored(test)}"))[0][0] == 7
        assert len(await test.run_query(found, "word")) == 7
        await other.finish()


async def test_a_snapshot_from_before_the_feed_was_emptied_runs_again(postgres_url: str) -> None:
    async with opened(postgres_url) as test:
        store = test.engine.store
        async with reading(store.begin_read) as old:
            await old.fetch(Statement("select 1"))
            await sql(test, "select setval('penstock.change_emptied', txid_current())")
            with pytest.raises(Conflict):
                await store.changes.list_unread(old, BEGINNING, 1, 5)
        async with reading(store.begin_read) as new:
            assert await store.changes.list_unread(new, BEGINNING, 1, 5) is not None


async def test_many_processes_that_start_at_once_make_one_index(database_url: str) -> None:
    bare = types.new_class("Note", (Table,), {}, lambda space: space.update(BARE))
    async with TestApp(App(tables=[bare]), database_url) as test:
        write_bare, _, _ = tell_in(test.app)
        rows = [bare(channel="a", body="word") for _ in range(5)]
        await test.run_mutation(write_bare, lambda ctx: ctx.db.insert_many(rows))
    await run_sql(database_url, POSTS)
    async with AsyncExitStack() as stack:
        opening = (stack.enter_async_context(app.open(database_url, services=("indexer",))) for _ in range(4))
        backends = await asyncio.gather(*opening)
        for backend in backends:
            while True:
                with suppress(SearchNotReady):
                    assert len(await backend.run_query(found, "word")) == 5
                    break
        assert (await sql(backends[0], f"select count(*) from {stored(backends[0])}"))[0][0] == 5


async def test_clients_hear_that_an_index_is_not_ready(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "MOST_UNREAD", 0)
    async with opened(database_url) as test:
        await insert(test, "word")
        call = {"path": "test_search:found", "args": {"text": "word"}, "format": "json"}
        answer = await test.http.post("/api/query", json=call)
        assert (answer.status_code, answer.json()["code"]) == (503, "SearchNotReady"), answer.json()


async def test_an_index_whose_reader_was_dropped_is_filled_again(database_url: str) -> None:
    async with opened(database_url) as test:
        await insert(test, "one word")
        await test.indexer.tick()
        assert await test.engine.store.changes.forget("search:1")
        await insert(test, "more words")
        for _ in range(4):
            test.clock.advance(3 * SECOND)
            await test.indexer.tick()
        assert await test.run_query(found, "word") == ["one word", "more words"]
        assert (await sql(test, f"select count(*) from {stored(test)}"))[0][0] == 2


async def test_keys_of_any_length_are_indexed(database_url: str) -> None:
    dice = random.Random(5)
    keys = ["".join(dice.choice('"\\aäπ京') for _ in range(8_000)) for _ in range(2)]
    await run_sql(database_url, "create table long (key text, text text)")

    class Long(Table, source="long", key="key", managed=False):
        key: str
        text: str

        by_text = SearchIndex("text")

    long = App(tables=[Long])
    write, read, _ = tell_in(long)
    async with TestApp(long, database_url) as test:
        rows = [Long(key=key, text="word") for key in (*keys, keys[0])]  # nothing keeps them unique
        await test.run_mutation(write, lambda ctx: ctx.db.insert_many(rows))
        await test.indexer.tick()
        await run_sql(database_url, f"update long set text = 'words more' where key = '{keys[0]}'")
        await run_sql(database_url, f"delete from long where key = '{keys[1]}'")
        for _ in range(2):
            test.clock.advance(SECOND)
            await test.indexer.tick()
        searched = lambda ctx: ctx.db.query(Long).with_search_index(Long.by_text, "word").collect()  # noqa: E731
        assert [row.key for row in await test.run_query(read, searched)] == keys[:1]
        ((text,),) = await sql(test, f"select tokens from {stored(test)}")
        assert text == "words more"


async def test_a_python_with_another_version_of_unicode_makes_a_new_index(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(database_url) as test:
        await insert(test, "one word")
        await test.indexer.tick()
    monkeypatch.setattr("penstock.changes.searches.VERSION", "of another Python")
    async with TestApp(app, database_url) as test:
        numbers = [row.id for row in await test.engine.store.searches.list() if row.name == "note.by_body"]
        assert len(numbers) == 2
        assert await test.run_query(found, "word") == ["one word"]
        ((text,),) = await sql(test, f"select tokens from {stored(test)[:-1]}{max(numbers)}")
        assert text.startswith("one word ")


async def test_the_doctor_tells_of_an_index_in_which_searches_fail(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def told(test: TestApp) -> list[tuple[str, str]]:
        return [(one.code, one.where) for one in await test.health() if one.code.startswith("search")]

    async with opened(database_url) as test:
        assert await told(test) == []
        monkeypatch.setattr(health, "MOST_UNREAD", 2)
        await insert(test, *["word"] * 3)
        assert await told(test) == [("search-behind", "search index note.by_body")]
        await test.engine.store.searches.restart(2)
        assert await told(test) == [
            ("search-behind", "search index note.by_body"),
            ("search-filling", "search index posts.by_text"),
        ]
        await test.indexer.tick()
        assert await told(test) == []


async def test_a_write_that_was_rolled_back_leaves_no_words(database_url: str) -> None:
    async def fail(ctx: MutationCtx) -> None:
        await ctx.db.insert(Note(channel="a", body="lost word"))
        assert len(await ctx.db.query(Note).with_search_index(Note.by_body, "lost").collect()) == 1
        raise DataError("Not this one.")

    async def catch(ctx: MutationCtx) -> None:
        await ctx.db.insert(Note(channel="a", body="kept word"))
        with suppress(DataError):
            await ctx.run_mutation(write, fail)
        assert len(await ctx.db.query(Note).with_search_index(Note.by_body, "word").collect()) == 1

    async with opened(database_url) as test:
        for _ in range(2):
            with pytest.raises(DataError):
                await test.run_mutation(write, fail)
        await test.run_mutation(write, catch)
        for _ in range(2):
            assert await test.run_query(found, "lost") == []
            assert await test.run_query(found, "word") == ["kept word"]
            test.clock.advance(SECOND)
            await test.indexer.tick()
        assert (await sql(test, f"select tokens from {stored(test)}"))[0][0].split(" ")[:2] == ["kept", "word"]


async def test_a_text_of_two_megabytes_is_refused_or_indexed_up_to_its_first_megabyte(database_url: str) -> None:
    long = " ".join(f"w{number}" for number in range(300_000))
    assert len(long) > 2_000_000
    async with opened(database_url) as test:
        with pytest.raises(LimitExceeded, match="max_row_bytes"):
            await insert(test, long)
    async with TestApp(app, database_url, max_row_bytes=4 * 1024 * 1024) as test:
        await insert(test, long)
        await run_sql(database_url, f"insert into posts values ('a', 1, '{long}')")
        for _ in range(2):
            for word, count in (("w7", 1), ("w100000", 1), ("w299999", 0)):
                assert len(await test.run_query(found, word)) == count
                posts = lambda ctx, word=word: ctx.db.query(Post).with_search_index(Post.by_text, word).collect()  # noqa: E731
                assert len(await test.run_query(read, posts)) == count
            test.clock.advance(SECOND)
            await test.indexer.tick()
