"""Which tables are captured for live queries, and what becomes of it when a program declares them otherwise."""

from __future__ import annotations

import pytest
from stage.databases import connected, run_sql, sql
from stage.stories import Stage
from stage.waits import events
from stage.watching import settle, watched

from penstock import App, Index, QueryCtx, Table
from penstock.changes.demand import Demands
from penstock.services.feed_watch import FeedWatch
from penstock.services.live.live import LiveQueries
from penstock.store.postgres import catalog
from penstock.testing import TestApp


def berth(column: str = "deck", *, live: bool = True) -> type[Table]:
    """A table as one release declares it."""

    class Berth(Table, name="berth", live=live):
        deck: int
        cabin: int = 0

        by_column = Index(column)

    return Berth


class Ship(Stage):
    def __init__(self, table: type[Table]) -> None:
        super().__init__(table)

        @self.app.query
        async def count(ctx: QueryCtx) -> int:
            return await ctx.db.query(table).count()

        self.count = count


async def captured(test: TestApp) -> list[tuple[str, tuple[str, ...]]]:
    """The tables that are captured, each with the columns."""
    rows = await test.engine.store.interests.list()
    return [(row.interest.table, tuple(row.interest.after)) for row in rows if row.state == "ok"]


DECK, CABIN = ("berth", ("id", "deck")), ("berth", ("id", "cabin"))


async def test_penstocks_own_tables_are_captured_and_those_of_others_if_you_say_so(database_url: str) -> None:
    class Theirs(Table, source="theirs", key="nr", managed=False):
        nr: int

    class Watched(Table, source="watched", key="nr", managed=False, live=True):
        nr: int

    await run_sql(database_url, *(f"create table {name} (nr integer primary key)" for name in ("theirs", "watched")))
    async with TestApp(App(tables=[berth(), Theirs, Watched]), database_url) as test:
        assert sorted(await captured(test)) == [DECK, ("watched", ("nr",))]


async def test_the_next_release_captures_its_own_columns_and_drops_others_once_nobody_needs_them(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Demands, "room", 40)
    old = Ship(berth())
    async with old.open(database_url) as test:
        live = LiveQueries(test.runner, old.app.definitions())
        entry = watched(live, old.count)
        await settle(live)
        await settle(live)
        async with Ship(berth("cabin")).open(database_url) as other:
            assert await captured(other) == [DECK, CABIN]
            await sql(
                other, "insert into berth (id, creation_time, deck, cabin) values ('berth_1', '2030-01-01', 1, 1)"
            )
        await settle(live)
        assert entry.answer is not None
        assert (entry.answer.result, entry.causes[-1][:12]) == (1, "berth: enter")
        for _ in range(50):  # the old release ends
            await sql(test, "update berth set deck = deck + 1")
        async with Ship(berth("cabin")).open(database_url) as other:
            assert await captured(other) == [CABIN]
        await settle(live)  # it did not end after all: it is polled
        await settle(live)
        await settle(live)
        assert entry.next_run_at < float("inf")


async def test_a_table_that_is_declared_not_to_be_live_is_captured_no_more(database_url: str) -> None:
    for live in (True, False, True):
        async with Ship(berth(live=live)).open(database_url) as test:
            assert await captured(test) == [DECK] * live


async def test_a_table_that_is_dropped_is_no_trouble(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with Ship(berth()).open(database_url) as test:
        await sql(test, "drop table berth")
        watch = FeedWatch(test.engine.store, test.clock)
        await watch.look()
        assert events(caplog, "changes.interest_broken") == []
        assert await test.engine.store.interests.list() == []


async def test_a_program_starts_though_its_table_is_in_use_and_captures_it_at_its_next_start(
    database_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    if database_url.startswith("sqlite"):
        pytest.skip("on SQLite a writer keeps all others waiting")
    caplog.set_level("INFO", "penstock")
    monkeypatch.setattr(catalog, "TABLE_LOCK_ATTEMPTS", 1)
    monkeypatch.setattr(catalog, "TABLE_LOCK_WAIT", 0.1)
    async with Ship(berth(live=False)).open(database_url):
        pass
    async with connected(database_url) as writer:
        await writer.execute("begin")
        await writer.execute("delete from berth")
        async with Ship(berth()).open(database_url) as test:
            assert [one["table"] for one in events(caplog, "live.polled")] == ["berth"]
            assert await captured(test) == []
    async with Ship(berth()).open(database_url) as test:
        assert await captured(test) == [DECK]
