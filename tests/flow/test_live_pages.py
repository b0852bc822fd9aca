"""Pages of live queries: their journals, and what they may read; `flow.livefuzz` has more."""

from __future__ import annotations

import json
from typing import Any

import pytest
from stage.databases import sql
from stage.stories import tell_in
from stage.watching import PagedList

from penstock import App, CursorInvalid, Index, Page, PaginationOptions, QueryCtx, Table
from penstock.live.entry import Answer
from penstock.services.live import batch
from penstock.services.live.live import LiveQueries
from penstock.testing import TestApp


class Song(Table):
    album: str
    rank: int | None = None
    played: int = 0

    by_rank = Index("album", "rank")
    by_played = Index("played")


app = App(tables=[Song])
write, read, _ = tell_in(app)


@app.query
async def listed(ctx: QueryCtx, which: str, pagination_opts: PaginationOptions, most: int | None = None) -> Page[Song]:
    songs = ctx.db.query(Song)
    queries = {
        "an album": songs.with_index(Song.by_rank, album="a"),
        "by plays": songs.with_index(Song.by_played),
    }
    return await queries[which].paginate(pagination_opts.model_copy(update={"maximum_rows_read": most}))


@app.query
async def of_the_chosen(ctx: QueryCtx, pagination_opts: PaginationOptions) -> Page[Song]:
    """Songs of the album of the most played song: another query whenever that is another one."""
    chosen = await ctx.db.query(Song).with_index(Song.by_played).order("desc").first()
    album = chosen.album if chosen is not None else ""
    return await ctx.db.query(Song).with_index(Song.by_rank, album=album).paginate(pagination_opts)


@pytest.fixture(autouse=True)
def _no_run_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine an answer would come ticks later."""
    monkeypatch.setattr(batch, "QUICK", 10.0)


# ----- one page


async def ask(live: LiveQueries, *asked: Any) -> Answer:
    """The answer of a query with arguments and a journal, that nobody watches before or after."""
    view = live.view()
    view.add(0, *asked)
    await live.tick()
    answer = view.queries[0].answer
    assert answer is not None
    view.close()
    return answer


async def add(backend: TestApp, *ranks: int | None, album: str = "a", played: int = 0) -> None:
    songs = [Song(album=album, rank=rank, played=played) for rank in ranks]
    await backend.run_mutation(write, lambda ctx: ctx.db.insert_many(songs))


def album(**options: Any) -> dict[str, Any]:
    return {"which": "an album", "pagination_opts": PaginationOptions(**options)}


def ranks(page: Page[Song]) -> list[int | None]:
    return [song.rank for song in page.page]


async def test_a_page_of_what_is_another_query_now_begins_again(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        await add(backend, 1, 2, 3, played=5)
        await add(backend, 7, 8, 9, album="b", played=1)
        live = LiveQueries(backend.runner, app.definitions())
        shown = PagedList(live, of_the_chosen, {}, 2)
        await live.tick()
        shown.render()
        shown.load_more(2)
        await live.tick()
        assert [song.rank for song in shown.render().rows] == [1, 2, 3]
        await sql(backend, "update song set played = 9 where album = 'b'")
        await live.tick()
        assert not shown.render().rows
        assert shown.resets == 1
        await live.tick()
        assert [song.rank for song in shown.render().rows] == [7, 8]
        await live.close()


async def test_a_journal_of_another_query_is_refused_and_one_outlives_an_error(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        await add(backend, 1, 2, 3)
        live = LiveQueries(backend.runner, app.definitions())
        first = await ask(live, listed, album(num_items=2))
        failed = await ask(live, listed, {**album(num_items=2), "which": "none"}, first.journal)
        assert isinstance(failed.error, KeyError)
        assert failed.journal == first.journal
        plays = {"which": "by plays", "pagination_opts": PaginationOptions(num_items=2)}
        other = await ask(live, listed, plays)
        for journal in (other.journal, "x", "", "[1]", json.dumps(["x"])):
            found = await ask(live, listed, album(num_items=2), journal)
            assert isinstance(found.error, CursorInvalid)
            assert str(found.error).startswith("InvalidCursor: ")
            assert found.journal is None, "the next run begins again"


# ----- pages that read much


async def test_a_page_that_a_limit_has_ended_says_so_each_time(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        await add(backend, 1, 2, 3)
        live = LiveQueries(backend.runner, app.definitions())
        cut = {**album(num_items=3), "most": 2}
        first = await ask(live, listed, cut)
        again = await ask(live, listed, cut, first.journal)
        assert (first.result.page_status, ranks(first.result)) == ("SplitRequired", [1, 2])
        assert (again.digest, again.journal) == (first.digest, first.journal)
        await sql(backend, "delete from song")
        gone = await ask(live, listed, cut, first.journal)
        assert (gone.result.page_status, gone.result.page) == (None, [])


async def test_a_page_that_may_read_no_more_ends_early_or_asks_to_be_split(database_url: str) -> None:
    async with TestApp(app, database_url, max_rows_read=21) as backend:
        await add(backend, *range(20))

        async def page(**options: Any) -> Page[Any]:
            found: Page[Any] = await backend.run_query(
                listed, **album(num_items=options.pop("num_items", 5), **options)
            )
            return found

        few = await page()
        assert (ranks(few), few.page_status) == ([0, 1, 2, 3, 4], None)
        short = await backend.run_query(listed, **album(num_items=5), most=3)
        assert (ranks(short), short.is_done, short.page_status) == ([0, 1, 2], False, "SplitRequired")
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


async def test_a_page_may_read_so_many_bytes_and_rows_that_a_filter_drops_count(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
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
