"""Live pages: joined at their cursors they are the query, at every moment, whatever is written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import combinations
from typing import Any, Literal
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stage.composite import prepare
from stage.examples import examples
from stage.outboxes import run_sql, sql
from stage.paging import PagedList, Subscription
from stage.stories import Tell, one_backend, tell_in
from stage.watching import settle, watched

from penstock import App, CursorInvalid, Index, MutationCtx, Page, PaginationOptions, QueryCtx, Table, gt, gte, lt
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


class Label(Table, source="labels", key=("name", "number"), managed=False):
    name: str
    number: int


SEATS = (
    "create table seats (hall integer not null, code {text} not null, price integer not null, primary key (hall, code))"
)
LABELS = "create table labels (name {text} not null, number integer not null, primary key (name, number))"
app = App(tables=[Song, Seat, Label])
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
async def first_two(ctx: QueryCtx) -> Page[Song]:
    return await ctx.db.query(Song).with_index(Song.by_rank, album="a").paginate(num_items=2)


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
    asyncio.run(prepare(database_url, SEATS, LABELS))
    return database_url


@pytest.fixture
def tell(url: str) -> Iterator[Tell]:
    """Tells stories on one backend."""
    with one_backend(app, url) as tell:
        yield tell


SONGS = ["all songs", "an album", "albums", "some ranks", "by plays", "filtered"]
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
    """Write some rows; the ids of those that it wrote."""

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


async def test_a_page_is_the_same_with_the_journal_that_its_run_gave(url: str) -> None:
    async with TestApp(app, url, max_rows_read=10) as backend:
        client = Client(backend)
        for number in range(9):
            for options in ({}, {"maximum_rows_read": 3}, {"num_items": 4}, {"maximum_bytes_read": 300}):
                first = await client.ask(listed, album(**options))
                assert first.journal is not None
                again = await client.ask(listed, album(**options), first.journal)
                assert (again.result, again.digest, again.journal) == (first.result, first.digest, first.journal)
            await add(backend, number % 3)


async def test_who_watches_anew_gets_the_rows_that_it_asks_for(url: str) -> None:
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
        anew, late = client.watch(listed, album(num_items=2)), client.watch(listed, album(num_items=2), journal)
        await client.tick()
        assert late is one
        pages = [entry.answer.result for entry in (one, anew) if entry.answer is not None]
        assert [ranks(page) for page in pages] == [[0, 1, 2], [0, 1]]
        await client.live.close()


async def test_who_watches_anew_hears_that_no_row_follows_any_more(url: str) -> None:
    async with TestApp(app, url) as backend:
        await add(backend, 1, 2, 3)
        client = Client(backend)
        watched(client.live, listed, **album(num_items=9))
        await settle(client.live)
        await settle(client.live)  # the table is captured from now on
        client.watch(listed, album(num_items=2))
        await client.tick()
        await sql(backend, "delete from song where rank = 3")
        await client.tick()
        client.watch(listed, album(num_items=2))
        await client.tick()
        shown = [view.queries[0].answer for view in client.views]
        assert [(ranks(one.result), one.result.is_done) for one in shown if one is not None] == [
            ([1, 2], False),
            ([1, 2], True),
        ]
        await client.live.close()


@pytest.mark.parametrize("leaves", [False, True])
async def test_who_comes_while_rows_go_gets_a_page_of_its_own_size(url: str, *, leaves: bool) -> None:
    async with TestApp(app, url) as backend:
        await add(backend, 1, 2, 3, 4, 5)
        client = Client(backend)
        watched(client.live, listed, **album(num_items=9))
        await settle(client.live)
        await settle(client.live)  # the table is captured from now on
        client.watch(listed, album(num_items=2))
        await client.tick()
        if leaves:
            client.views.pop().close()
        await sql(backend, "delete from song where rank in (1, 2)")
        client.watch(listed, album(num_items=2))  # before a tick has seen that
        await client.tick()
        await add(backend, 0)
        await client.tick()
        shown = [view.queries[0].answer for view in client.views]
        assert [ranks(one.result) for one in shown if one is not None] == [[0]] * (not leaves) + [[0, 3, 4]]
        await client.live.close()


async def test_two_entries_may_come_to_the_same_pages(url: str) -> None:
    async with TestApp(app, url) as backend:
        await add(backend, 1, 2, 3)
        client, entries = Client(backend), list[Entry]()
        for album_rank in (0, None):
            entries.append(client.watch(listed, album(num_items=2)))
            await client.tick()
            await add(backend, album_rank)
            await client.tick()
            await sql(backend, "delete from song where rank = 0 or rank is null")
            await client.tick()
        found = [entry.answer.result for entry in entries if entry.answer is not None]
        assert entries[0] is not entries[1]
        assert [ranks(page) for page in found] == [[1, 2], [1, 2]]
        for view in client.views:
            view.close()
        backend.clock.advance(timedelta(minutes=1))
        await client.tick()
        assert client.live.report() == []


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


async def test_an_error_between_two_answers_does_not_move_the_end_of_a_page(url: str) -> None:
    async with TestApp(app, url) as backend:
        await add(backend, 1, 2, 3)
        client = Client(backend)
        first = await client.ask(listed, album(num_items=2))
        failed = await client.ask(listed, {**album(num_items=2), "which": "none"}, first.journal)
        assert isinstance(failed.error, KeyError)
        assert failed.journal == first.journal


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


async def test_a_journal_of_another_query_and_none_are_refused(url: str) -> None:
    async with TestApp(app, url) as backend:
        await add(backend, 1, 2, 3)
        client = Client(backend)
        plays = {"which": "by plays", "direction": "asc", "pagination_opts": PaginationOptions(num_items=2)}
        other = await client.ask(listed, plays)
        for journal in (other.journal, "x", "", "[1]", json.dumps(["x"])):
            found = await client.ask(listed, album(num_items=2), journal)
            assert isinstance(found.error, CursorInvalid)
            assert str(found.error).startswith("InvalidCursor: ")
            assert found.journal is None, "the next run begins again"


async def test_a_page_without_options_of_a_client_has_so_many_rows_at_any_time(url: str) -> None:
    async with TestApp(app, url) as backend:
        await add(backend, 1, 2, 3)
        client = Client(backend)
        entry = client.watch(first_two, {})

        async def shown() -> tuple[list[int | None], bool]:
            await client.tick()
            assert entry.answer is not None
            assert entry.answer.journal is None
            return ranks(entry.answer.result), entry.answer.result.is_done

        assert await shown() == ([1, 2], False)
        await add(backend, 0)
        assert await shown() == ([0, 1], False)
        await sql(backend, "delete from song where rank = 0")
        assert await shown() == ([1, 2], False)
        await sql(backend, "delete from song where rank = 3")
        assert await shown() == ([1, 2], True), "it is seen that no row follows any more"
        runs = entry.runs
        await add(backend, 4, 5, album="b")
        await shown()
        assert entry.runs == runs
        await client.live.close()


async def test_a_page_that_ends_among_rows_without_a_value_may_grow(url: str) -> None:
    async with TestApp(app, url) as backend:
        await add(backend, None, None, 1)
        client, asked = Client(backend), {**album(num_items=2), "direction": "desc"}
        entry = client.watch(listed, asked)
        await client.tick()
        await add(backend, *range(2, 30))
        await client.tick()
        assert entry.answer is not None
        assert ranks(entry.answer.result) == [*reversed(range(1, 30)), None]
        await client.live.close()


async def test_a_page_ends_at_a_row_without_a_value_that_its_key_tells_apart(url: str) -> None:
    async with TestApp(app, url) as backend:
        await add(backend, 1, None, 2)

        async def look(ctx: QueryCtx) -> None:
            for direction in ("asc", "desc"):
                query = ctx.db.query(Song).with_index(Song.by_id).order(direction)
                first = await query.paginate(num_items=2)
                again = await query.paginate(PaginationOptions(end_cursor=first.continue_cursor))
                rest = await query.paginate(PaginationOptions(cursor=first.continue_cursor))
                assert (first.page, first.page + rest.page) == (again.page, await query.collect())

        await backend.run_query(read, look)


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


async def test_a_page_may_read_so_many_bytes(url: str) -> None:
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


async def test_rows_that_a_filter_drops_count_as_read(url: str) -> None:
    async with TestApp(app, url) as backend:
        await add(backend, *range(10))

        async def page(**options: Any) -> Page[Song]:
            asked = PaginationOptions(maximum_rows_read=4, **options)

            def nines(ctx: QueryCtx) -> Any:
                return ctx.db.query(Song).filter(lambda song: song.rank == 9).paginate(asked)

            found: Page[Song] = await backend.run_query(read, nines)
            return found

        first = await page()
        assert (first.page, first.is_done) == ([], False)
        second = await page(cursor=first.continue_cursor)
        third = await page(cursor=second.continue_cursor)
        assert (ranks(second), ranks(third), third.is_done) == ([], [9], True)
        assert (await page(end_cursor=third.continue_cursor)).page_status == "SplitRecommended"


# ----- tables of other programs


async def test_pages_of_texts_that_another_program_compares_in_its_own_way(sqlite_url: str) -> None:
    """Texts that differ in case only are equal there."""
    await prepare(sqlite_url, SEATS, LABELS.replace("{text}", "text collate nocase"))
    async with TestApp(app, sqlite_url) as backend:
        labels = ", ".join(f"('{name}', {number})" for number, name in enumerate(["a", "A", "b", "B", "b", "A", "a"]))
        await sql(backend, f"insert into labels values {labels}")

        async def look(ctx: QueryCtx) -> None:
            for direction in ("asc", "desc"):
                query = ctx.db.query(Label).order(direction)
                everything = await query.collect()
                cursors = [None, *[(await query.paginate(num_items=n)).continue_cursor for n in range(1, 8)]]
                for first, start in enumerate(cursors):
                    for last, end in enumerate(cursors[1:], 1):
                        page = await query.paginate(PaginationOptions(cursor=start, end_cursor=end))
                        assert page.page == everything[first:last]

        await backend.run_query(read, look)


@pytest.mark.parametrize(
    ("column", "sqlite_type", "values"),
    [
        ("at", "datetime", ["2026-01-01 12:00:00.000000", "2026-01-01T12:00:00Z", "2026-01-01T13:00:00.000000Z"]),
        ("day", "text", ["20260101", "2026-01-02", "2026-01-03"]),
        ("one", "char(32)", [UUID(int=1).hex, str(UUID(int=2)), UUID(int=3).hex]),
        ("price", "text", ["1.50", "1.5000000000000001", "2"]),
        ("price", "", ["1.50", "1.51", "2"]),
    ],
)
async def test_pages_of_values_that_another_program_spells_in_its_own_way(
    database_url: str, column: str, sqlite_type: str, values: list[str]
) -> None:
    class Spelled(Table, source="spelled", key="number", managed=False):
        number: int
        at: datetime | None = None
        day: date | None = None
        one: UUID | None = None
        price: Decimal | None = None

        by_at = Index("at")
        by_day = Index("day")
        by_one = Index("one")
        by_price = Index("price")

    sql_types = {"at": "timestamp", "day": "date", "one": "uuid", "price": "numeric"}
    if database_url.startswith("sqlite"):
        sql_types[column] = sqlite_type
    rows = ", ".join(f"({number}, '{value}')" for number, value in enumerate(value for value in values for _ in "ab"))
    await run_sql(
        database_url,
        f"create table spelled (number integer primary key, {', '.join(map(' '.join, sql_types.items()))})",
        f"insert into spelled (number, {column}) values {rows}",
    )
    spelled, index = App(tables=[Spelled]), getattr(Spelled, f"by_{column}")
    _, look, _ = tell_in(spelled)
    async with TestApp(spelled, database_url) as backend:

        async def compare(ctx: QueryCtx) -> None:
            directions: list[Literal["asc", "desc"]] = ["asc", "desc"]
            for direction in directions:
                query = ctx.db.query(Spelled).with_index(index).order(direction)
                everything, found, page = await query.collect(), list[Any](), await query.paginate(num_items=1)
                while len(found) <= len(everything):
                    found += page.page
                    ended = await query.paginate(PaginationOptions(end_cursor=page.continue_cursor))
                    assert ended.page == found
                    if page.is_done:
                        break
                    page = await query.paginate(cursor=page.continue_cursor, num_items=1)
                assert found == everything

        await backend.run_query(look, compare)


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


@pytest.mark.parametrize(
    ("column", "sql_type", "values"),
    [
        ("real", "", ["-Infinity", "0.1", "1e300", "Infinity", "NaN"]),
        ("price", "", ["-Infinity", "-1.5", "1e1200", "Infinity", "NaN"]),
        ("at", "", ["-infinity", "2026-01-01 12:00:00.000001", "infinity"]),
        ("day", "", ["-infinity", "2026-01-02", "infinity"]),
        ("real", "real", ["-Infinity", "1.5", "NaN"]),
        ("whole", "numeric", ["-5", "0", "7.0", "9223372036854775807"]),
        ("at", "timestamp", ["-infinity", "2026-01-01 12:00:00.000001", "infinity"]),
        ("name", "char(3)", ["", "a", "b"]),
    ],
)
async def test_pages_of_values_that_another_program_has_written_or_keeps_in_columns_of_other_types(
    postgres_url: str, column: str, sql_type: str, values: list[str]
) -> None:
    arguments: dict[str, Any] = {"source": "kept", "key": "number", "managed": False} if sql_type else {"name": "kept"}

    class Kept(Table, **arguments):
        number: int
        real: float | None = None
        whole: int | None = None
        price: Decimal | None = None
        at: datetime | None = None
        day: date | None = None
        name: str | None = None

        by_real = Index("real")
        by_whole = Index("whole")
        by_price = Index("price")
        by_at = Index("at")
        by_day = Index("day")
        by_name = Index("name")

    if sql_type:
        sql_types = {"real": "float", "whole": "bigint", "price": "numeric", "at": "timestamptz", "day": "date"}
        columns = ", ".join(map(" ".join, (sql_types | {"name": "text", column: sql_type}).items()))
        await run_sql(postgres_url, f"create table kept (number integer primary key, {columns})")
    kept, index = App(tables=[Kept]), getattr(Kept, f"by_{column}")
    _, look, _ = tell_in(kept)
    async with TestApp(kept, postgres_url) as backend:
        for number, value in enumerate(value for value in values for _ in "ab"):
            own = ("", "") if sql_type else ("id, creation_time, ", f"'kept_01{number:024}', now(), ")
            await sql(backend, f"insert into kept ({own[0]}number, {column}) values ({own[1]}{number}, '{value}')")

        async def compare(ctx: QueryCtx) -> None:
            directions: list[Literal["asc", "desc"]] = ["asc", "desc"]
            for direction in directions:
                query = ctx.db.query(Kept).with_index(index).order(direction)
                numbers = [row.number for row in await query.collect()]
                pages = [await query.paginate(num_items=count) for count in range(1, len(numbers) + 1)]
                cursors = [None, *[page.continue_cursor for page in pages]]
                for first, last in combinations(range(len(cursors)), 2):
                    options = PaginationOptions(cursor=cursors[first], end_cursor=cursors[last])
                    page = await query.paginate(options)
                    assert [row.number for row in page.page] == numbers[first:last]

        await backend.run_query(look, compare)


async def test_a_float_finds_the_decimal_that_another_program_keeps(postgres_url: str) -> None:
    class Priced(Table, source="priced", key="number", managed=False):
        number: int
        price: float

        by_price = Index("price")

    await run_sql(
        postgres_url,
        "create table priced (number integer primary key, price numeric)",
        "insert into priced values (1, 0.1), (2, 1e300)",
    )
    priced = App(tables=[Priced])
    write, look, _ = tell_in(priced)
    async with TestApp(priced, postgres_url) as backend:

        async def find(ctx: QueryCtx) -> list[list[int]]:
            wheres: list[Any] = [0.1, 1e300, gt(0.1), lt(1e300)]
            scans = [ctx.db.query(Priced).with_index(Priced.by_price, price=where) for where in wheres]
            return [[row.number for row in await scan.collect()] for scan in scans]

        assert await backend.run_query(look, find) == [[1], [2], [2], [1]]
        await backend.run_mutation(write, lambda ctx: ctx.db.insert(Priced(number=3, price=0.2)))
        assert await sql(backend, "select price::text from priced where number = 3") == [("0.2",)]
