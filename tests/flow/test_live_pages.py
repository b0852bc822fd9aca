"""Live pages: joined at their cursors they are the query, at every moment, whatever is written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from itertools import combinations
from types import new_class
from typing import Any, Literal
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stage.composite import prepare
from stage.examples import examples
from stage.outboxes import run_sql, sql
from stage.stories import Tell, one_backend, tell_in
from stage.watching import PagedList, Subscription

from penstock import (
    App,
    CursorInvalid,
    Index,
    MutationCtx,
    Page,
    PaginationOptions,
    QueryCtx,
    Table,
    UserTable,
    gte,
    lt,
)
from penstock.live.entry import Answer, Entry
from penstock.live.view import View
from penstock.services.live import batch
from penstock.services.live.live import LiveQueries
from penstock.testing import TestApp


class Song(Table):
    album: str
    rank: int | None = None
    played: int = 0

    by_rank = Index("album", "rank")
    by_played = Index("played")
    by_id = Index("id", "rank")


class Seat(Table, source="seats", key=("hall", "code"), managed=False, live=True):
    hall: int
    code: str
    price: int = 0

    by_price = Index("price")


SEATS = (
    "create table seats (hall integer not null, code {text} not null, price integer not null, primary key (hall, code))"
)
app = App(tables=[Song, Seat])
write, read, _ = tell_in(app)


def asked(ctx: QueryCtx, which: str, direction: Any) -> Any:
    """One of the queries that are paged through."""
    songs, seats = ctx.db.query(Song), ctx.db.query(Seat)
    queries: dict[str, Any] = {
        "all songs": songs,
        "an album": songs.with_index(Song.by_rank, album="a"),
        "albums": songs.with_index(Song.by_rank, album=lt("c")),
        "some ranks": songs.with_index(Song.by_rank, album="a", rank=gte(1) & lt(3)),
        "by plays": songs.with_index(Song.by_played),
        "by id": songs.with_index(Song.by_id),
        "filtered": songs.with_index(Song.by_played).filter(lambda song: song.album != "b"),
        "seats": seats,
        "seats by price": seats.with_index(Seat.by_price),
    }
    return queries[which].order(direction)


@app.query
async def listed(
    ctx: QueryCtx, which: str, direction: str, pagination_opts: PaginationOptions, most: int | None = None
) -> Page[Any]:
    options = pagination_opts.model_copy(update={"maximum_rows_read": most})
    found: Page[Any] = await asked(ctx, which, direction).paginate(options)
    return found


@app.query
async def two_lists(ctx: QueryCtx, pagination_opts: PaginationOptions) -> list[Page[Song]]:
    query = ctx.db.query(Song).with_index(Song.by_rank, album="a")
    first, last = query.paginate(pagination_opts), query.order("desc").paginate(pagination_opts)
    return [await first, await query.paginate(num_items=2), await last]


@app.query
async def of_the_chosen(ctx: QueryCtx, pagination_opts: PaginationOptions) -> Page[Song]:
    """Songs of the album of the most played song: another query whenever that is another one."""
    chosen = await ctx.db.query(Song).with_index(Song.by_played).order("desc").first()
    album = chosen.album if chosen is not None else ""
    return await ctx.db.query(Song).with_index(Song.by_rank, album=album).paginate(pagination_opts)


def keys(rows: list[Any]) -> list[Any]:
    return [row.id for row in rows]


# ----- all pages together


@pytest.fixture(autouse=True)
def _no_run_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine an answer would come ticks later."""
    monkeypatch.setattr(batch, "QUICK", 10.0)


@pytest.fixture
def url(database_url: str) -> str:
    """A database that has the tables of another program."""
    asyncio.run(prepare(database_url, SEATS))
    return database_url


@pytest.fixture
def tell(url: str) -> Iterator[Tell]:
    """Tells stories on one backend."""
    with one_backend(app, url) as tell:
        yield tell


SONGS = ["all songs", "an album", "albums", "some ranks", "by plays", "by id", "filtered"]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["insert", "move"]), st.integers(0, 30), st.integers(0, 4)),
        st.tuples(st.just("delete"), st.integers(0, 30), st.just(0)),
        st.tuples(st.sampled_from(["insert many", "delete many"]), st.integers(0, 3), st.integers(0, 4)),
        st.tuples(st.just("load more"), st.integers(1, 4), st.just(0)),
        st.tuples(st.sampled_from(["reconnect", "mount"]), st.just(0), st.just(0)),
    ),
    max_size=14,
)


async def write_step(backend: TestApp, step: str, number: int, value: int, *, seats: bool) -> set[Any]:
    """Write some rows; the ids of what it wrote."""

    async def work(ctx: MutationCtx) -> set[Any]:
        table: Any = Seat if seats else Song
        rows = await ctx.db.query(table).collect()
        wanted = rows[number % len(rows) :][:1] if rows else []
        touched: set[Any] = set()
        if step.startswith("insert"):
            for one in range(1 if step == "insert" else 7):
                place = number + one
                song = Song(album="abc"[place % 3], rank=[None, 0, 1, 2, 3][(value + one) % 5], played=value)
                seat = Seat(hall=place % 3, code=f"{len(rows)}{place}{value}", price=value)
                if not seats or await ctx.db.get(Seat, (seat.hall, seat.code)) is None:
                    touched.add(await ctx.db.insert(seat if seats else song))
        elif step == "delete many":
            wanted = rows[number : number + 5]
        for row in wanted if step.startswith("delete") else ():
            await ctx.db.delete(table, row.id)
            touched.add(row.id)
        for row in wanted if step == "move" else ():
            changes = {"price": value} if seats else {"rank": value, "played": 4 - value, "album": "abc"[number % 3]}
            await ctx.db.patch(table, row.id, **changes)
            touched.add(row.id)
        return touched

    found: set[Any] = await backend.run_mutation(write, work)
    return found


class Screens:
    """Two clients that look at one list, and the list as it is."""

    def __init__(self, backend: TestApp, arguments: dict[str, Any], initial: int) -> None:
        self.backend, self.arguments, self.initial = backend, arguments, initial
        self.live = LiveQueries(backend.runner, app.definitions())
        self.lists = [self.mount(), self.mount()]

    def mount(self) -> PagedList:
        return PagedList(self.live, listed, self.arguments, self.initial)

    async def settle(self) -> None:
        """Let both load what they ask for; at each moment both show the list without gaps, as far as they have come."""
        for _ in range(40):
            await self.live.tick()
            complete = [await self.check(one) for one in self.lists]
            if all(complete) and not any(one.page is None for shown in self.lists for one in shown.subscriptions):
                await self.live.tick()  # the table is captured from now on
                return
        raise AssertionError("the lists do not come to rest")

    async def check(self, shown: PagedList) -> bool:
        render = shown.render()
        which, direction = self.arguments["which"], self.arguments["direction"]
        everything = keys(await self.backend.run_query(read, lambda ctx: asked(ctx, which, direction).collect()))
        rows = keys(render.rows)
        assert rows == everything[: len(rows)], "no gap, no row twice, and all in order"
        if render.end is not None:
            rest = await self.backend.run_query(
                read, lambda ctx: asked(ctx, which, direction).paginate(cursor=render.end, num_items=1000)
            )
            assert rows + keys(rest.page) == everything
            assert not render.done or not rest.page
        return render.end is not None and not shown.splitting

    async def check_runs(self, before: dict[Subscription, tuple[int, list[Any]]], touched: set[Any]) -> None:
        """Pages that run again are those with a row that was written."""
        await self.live.tick()
        ran = [(one, ids) for one, (runs, ids) in before.items() if one.runs > runs]
        for shown in self.lists:
            await self.check(shown)
        for one, ids in ran:
            assert one.page is not None
            assert touched & {*ids, *keys(one.page.page)}, "ran in vain"

    async def close(self) -> None:
        for one in self.lists:
            one.close()
        await self.live.close()


@settings(max_examples=examples(100))
@given(
    which=st.sampled_from([*SONGS, "seats", "seats by price"]),
    direction=st.sampled_from(["asc", "desc"]),
    most=st.sampled_from([None, None, 4]),
    initial=st.integers(1, 3),
    first=st.integers(0, 3),
    steps=STEPS,
)
def test_pages_are_the_list_at_every_moment(
    tell: Tell,
    which: str,
    direction: str,
    most: int | None,
    initial: int,
    first: int,
    steps: list[tuple[str, int, int]],
) -> None:
    seats = which.startswith("seats")

    async def story(backend: TestApp) -> None:
        await sql(backend, "delete from song", "delete from seats")
        for number in range(first):
            await write_step(backend, "insert many", number, number, seats=seats)
        screens = Screens(backend, {"which": which, "direction": direction, "most": most}, initial)
        await screens.settle()
        for step, number, value in steps:
            if step == "load more":
                for one in screens.lists:
                    one.load_more(number)
            elif step == "reconnect":
                screens.lists[0].reconnect()
            elif step == "mount":
                screens.lists[1].close()
                screens.lists[1] = screens.mount()
            else:
                before = {
                    one: (one.runs, keys(one.page.page))
                    for shown in screens.lists
                    for one in shown.subscriptions
                    if one.page is not None and one.page.page_status != "SplitRequired"
                }
                touched = await write_step(backend, step, number, value, seats=seats)
                if which in {"all songs", "by plays"}:  # neither NULL, nor text of another program, nor a filter
                    await screens.check_runs(before, touched)
            await screens.settle()
        assert all(one.resets == 0 for one in screens.lists)
        await screens.close()

    tell(story)


# ----- one page


class Client:
    """Queries that are watched one by one."""

    def __init__(self, backend: TestApp) -> None:
        self.live = LiveQueries(backend.runner, app.definitions())
        self.views: list[View] = []

    def watch(self, *asked: Any) -> Entry:
        """Watch a query with arguments and a journal; its entry."""
        self.views.append(self.live.view())
        self.views[-1].add(0, *asked)
        return self.views[-1].queries[0]

    async def tick(self) -> None:
        """Make a tick, after which clients have the answers."""
        await self.live.tick()
        for view in self.views:
            view.step()

    async def ask(self, *asked: Any) -> Answer:
        """The answer of a query that nobody watches before or after."""
        self.watch(*asked)
        await self.live.tick()
        answer = self.views[-1].queries[0].answer
        assert answer is not None
        self.views.pop().close()
        return answer


async def add(backend: TestApp, *ranks: int | None, album: str = "a", played: int = 0) -> None:
    songs = [Song(album=album, rank=rank, played=played) for rank in ranks]
    await backend.run_mutation(write, lambda ctx: ctx.db.insert_many(songs))


def album(**options: Any) -> dict[str, Any]:
    return {"which": "an album", "direction": "asc", "pagination_opts": PaginationOptions(**options)}


def ranks(page: Page[Song]) -> list[int | None]:
    return [song.rank for song in page.page]


async def test_each_page_of_one_query_that_a_client_asks_for_keeps_its_end(url: str) -> None:
    async with TestApp(app, url) as backend:
        await add(backend, 1, 2, 3, 4, 5)
        client = Client(backend)
        entry = client.watch(two_lists, {"pagination_opts": PaginationOptions(num_items=2)})

        def shown() -> list[list[int | None]]:
            assert entry.answer is not None
            return [ranks(page) for page in entry.answer.result]

        await client.tick()
        assert shown() == [[1, 2], [1, 2], [5, 4]]
        await add(backend, 0, 6)
        await client.tick()
        assert shown() == [[0, 1, 2], [0, 1], [6, 5, 4]]
        await sql(backend, "delete from song where rank in (2, 4)")
        await client.tick()
        assert shown() == [[0, 1], [0, 1], [6, 5]]
        await client.live.close()


async def test_a_new_watcher_gets_the_rows_that_it_asks_for(url: str) -> None:
    async with TestApp(app, url) as backend:
        await add(backend, 1, 2, 3)
        client = Client(backend)
        one, same = client.watch(listed, album(num_items=2)), client.watch(listed, album(num_items=2))
        await client.tick()
        journal = one.journal
        with_journal = client.watch(listed, album(num_items=2), journal)
        assert one is same is with_journal, "nothing has changed: they have the same page"
        await add(backend, 0)
        await client.tick()
        new, late = client.watch(listed, album(num_items=2)), client.watch(listed, album(num_items=2), journal)
        await client.tick()
        assert late is one
        pages = [entry.answer.result for entry in (one, new) if entry.answer is not None]
        assert [ranks(page) for page in pages] == [[0, 1, 2], [0, 1]]
        await client.live.close()


async def test_a_page_of_what_is_another_query_now_begins_again(url: str) -> None:
    async with TestApp(app, url) as backend:
        await add(backend, 1, 2, 3, played=5)
        await add(backend, 7, 8, 9, album="b", played=1)
        client = Client(backend)
        shown = PagedList(client.live, of_the_chosen, {}, 2)
        await client.tick()
        shown.render()
        shown.load_more(2)
        await client.tick()
        assert [song.rank for song in shown.render().rows] == [1, 2, 3]
        await sql(backend, "update song set played = 9 where album = 'b'")
        await client.tick()
        assert not shown.render().rows
        assert shown.resets == 1
        await client.tick()
        assert [song.rank for song in shown.render().rows] == [7, 8]
        await client.live.close()


async def test_a_journal_of_another_query_is_refused_and_one_outlives_an_error(url: str) -> None:
    async with TestApp(app, url) as backend:
        await add(backend, 1, 2, 3)
        client = Client(backend)
        first = await client.ask(listed, album(num_items=2))
        failed = await client.ask(listed, {**album(num_items=2), "which": "none"}, first.journal)
        assert isinstance(failed.error, KeyError)
        assert failed.journal == first.journal
        plays = {"which": "by plays", "direction": "asc", "pagination_opts": PaginationOptions(num_items=2)}
        other = await client.ask(listed, plays)
        for journal in (other.journal, "x", "", "[1]", json.dumps(["x"])):
            found = await client.ask(listed, album(num_items=2), journal)
            assert isinstance(found.error, CursorInvalid)
            assert str(found.error).startswith("InvalidCursor: ")
            assert found.journal is None, "the next run begins again"


# ----- pages that read much


async def test_a_page_that_may_read_no_more_ends_early_or_asks_to_be_split(url: str) -> None:
    async with TestApp(app, url, max_rows_read=21) as backend:
        await add(backend, *range(20))

        async def page(**options: Any) -> Page[Any]:
            found: Page[Any] = await backend.run_query(
                listed, **album(num_items=options.pop("num_items", 5), **options)
            )
            return found

        few = await page()
        assert (ranks(few), few.page_status) == ([0, 1, 2, 3, 4], None)
        short = await backend.run_query(listed, **album(num_items=5), most=3)
        assert (ranks(short), short.is_done, short.page_status) == ([0, 1, 2], False, "SplitRecommended")
        whole = await page(end_cursor=(await page(num_items=20)).continue_cursor)
        assert (len(whole.page), whole.is_done, whole.page_status) == (20, True, "SplitRecommended")
        await add(backend, *range(20, 30))
        much = await page(end_cursor=whole.continue_cursor)
        assert (len(much.page), much.is_done, much.page_status) == (20, False, "SplitRequired")
        assert much.continue_cursor == whole.continue_cursor
        half = await page(end_cursor=much.split_cursor)
        rest = await page(cursor=much.split_cursor, end_cursor=much.continue_cursor)
        assert ranks(half) + ranks(rest) == list(range(30))
        assert (half.page_status, rest.page_status) == (None, "SplitRecommended")


async def test_a_page_may_read_so_many_bytes_and_rows_that_a_filter_drops_count(url: str) -> None:
    async with TestApp(app, url) as backend:
        await add(backend, *range(4))
        await backend.run_mutation(write, lambda ctx: ctx.db.insert(Song(album="b" * 1000)))

        async def page(most: int, **options: Any) -> Page[Any]:
            asked = PaginationOptions(maximum_bytes_read=most, **options)
            found: Page[Any] = await backend.run_query(read, lambda ctx: ctx.db.query(Song).paginate(asked))
            return found

        assert len((await page(1_000_000)).page) == 5
        short = await page(1000)
        assert (len(short.page), short.is_done) == (4, False)
        large = await page(10, cursor=short.continue_cursor)
        assert (len(large.page), large.is_done) == (1, True), "a row at least"
        cut = await page(1000, end_cursor=large.continue_cursor)
        assert (len(cut.page), cut.page_status) == (5, "SplitRecommended"), "it has an end"

        async def thirds(**options: Any) -> Page[Song]:
            asked = PaginationOptions(maximum_rows_read=3, **options)

            def look(ctx: QueryCtx) -> Any:
                return ctx.db.query(Song).filter(lambda song: song.album != "a").paginate(asked)

            found: Page[Song] = await backend.run_query(read, look)
            return found

        first = await thirds()
        assert (first.page, first.is_done) == ([], False)
        second = await thirds(cursor=first.continue_cursor)
        assert (len(second.page), second.is_done) == (1, True)
        assert (await thirds(end_cursor=second.continue_cursor)).page_status == "SplitRecommended"


# ----- tables of other programs

SPELLED: dict[str, list[tuple[Any, str, list[str]]]] = {  # by stores: an annotation, a type, and values in order
    "sqlite": [
        (str, "text collate nocase", ["a", "A", "b", "B"]),
        (datetime, "datetime", ["2026-01-01 12:00:00.000000", "2026-01-01T12:00:00Z", "2026-01-01T13:00:00.000000Z"]),
        (date, "text", ["20260101", "2026-01-02", "2026-01-03"]),
        (UUID, "char(32)", [UUID(int=1).hex, str(UUID(int=2)), UUID(int=3).hex]),
        (Decimal, "text", ["1.50", "1.5000000000000001", "2"]),
        (Decimal, "", ["1.50", "1.51", "2"]),
    ],
    "postgresql": [
        (float, "float", ["-Infinity", "0.1", "1e300", "Infinity", "NaN"]),
        (float, "real", ["-Infinity", "1.5", "NaN"]),
        (Decimal, "numeric", ["-1.5", "0.1", "1.50", "1e1200"]),
        (int, "numeric", ["-5", "0", "7.0", "9223372036854775807"]),
        (datetime, "timestamptz", ["-infinity", "2026-01-01 12:00:00.000001", "infinity"]),
        (datetime, "timestamp", ["-infinity", "2026-01-01 12:00:00.000001", "infinity"]),
        (date, "date", ["-infinity", "2026-01-02", "infinity"]),
        (str, "char(3)", ["", "a", "b"]),
    ],
}


@pytest.mark.both_stores
async def test_pages_of_values_that_another_program_spells_in_its_own_way(database_url: str) -> None:
    cases = SPELLED[database_url.partition(":")[0]]
    tables = list[Any]()
    for place, (annotation, kind, values) in enumerate(cases):
        fields = {"__annotations__": {"number": int, "v": annotation}, "__module__": __name__, "by_v": Index("v")}
        words = {"source": f"spelled{place}", "key": "number", "managed": False}
        tables.append(new_class(f"Spelled{place}", (UserTable,), words, partial(update, fields)))
        rows = ", ".join(f"({number}, '{value}')" for number, value in enumerate(one for one in values for _ in "ab"))
        await run_sql(
            database_url,
            f"create table spelled{place} (number integer primary key, v {kind})",
            f"insert into spelled{place} values {rows}",
        )
    spelled = App(tables=tables)
    _, look, _ = tell_in(spelled)

    async def compare(ctx: QueryCtx) -> None:
        for table, case in zip(tables, cases, strict=True):
            for query in (ctx.db.query(table).with_index(table.by_v).order(way) for way in ways):
                numbers = [row.number for row in await query.collect()]
                pages = [await query.paginate(num_items=count) for count in range(1, len(numbers) + 1)]
                cursors = [None, *[page.continue_cursor for page in pages]]
                for first, last in combinations(range(len(cursors)), 2):
                    options = PaginationOptions(cursor=cursors[first], end_cursor=cursors[last])
                    page = await query.paginate(options)
                    assert [row.number for row in page.page] == numbers[first:last], case

    ways: list[Literal["asc", "desc"]] = ["asc", "desc"]
    async with TestApp(spelled, database_url) as backend:
        await backend.run_query(look, compare)


def update(fields: dict[str, Any], space: dict[str, Any]) -> None:
    space |= fields


async def test_rows_by_a_time_without_zone_are_read_once_wherever_the_process_is(postgres_url: str) -> None:
    minutes = "select at from generate_series('2026-01-01'::timestamp, '2026-01-01 03:19', '1 minute') at"
    await run_sql(postgres_url, "create table timed (at timestamp primary key)", f"insert into timed {minutes}")

    class Timed(Table, source="timed", key="at", managed=False):
        at: datetime

    timed = App(tables=[Timed])
    _, look, _ = tell_in(timed)
    async with TestApp(timed, postgres_url) as backend:

        async def read(ctx: QueryCtx) -> list[datetime]:
            return [row.at async for row in ctx.db.query(Timed)]

        first = datetime(2026, 1, 1, tzinfo=UTC)
        assert await backend.run_query(look, read) == [first + timedelta(minutes=minute) for minute in range(200)]
