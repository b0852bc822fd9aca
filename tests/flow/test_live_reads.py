"""Which queries run again: those that read a row by its key, and a page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Literal

from stage.outboxes import run_sql, sql
from stage.reactive import Stage
from stage.watching import settle, watched

from penstock import Id, Index, QueryCtx, Table, gt
from penstock.live.entry import Entry
from penstock.services.live.live import LiveQueries
from penstock.testing import TestApp
from penstock.transaction.database import DatabaseReader

_NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Note(Table):
    number: int
    at: datetime = _NOW

    by_number = Index("number")
    by_at = Index("at")


class Due(Table):
    owner: str = "a"
    at: int | None = None

    by_at = Index("at")
    by_owner = Index("owner", "at")


class Line(Table, source="line", key=("tenant", "number"), managed=False, live=True):
    tenant: int
    number: int
    amount: int = 0


class Loose(Table, source="loose", key="number", managed=False, live=True):
    """Another program writes values here that cannot be read, so that the database or the driver refuses to."""

    number: int
    day: date
    word: str
    amount: Decimal

    by_day = Index("day")


LOOSE = {
    "sqlite": "create table loose (number integer primary key, day text, word text, amount text)",
    "postgresql": "create table loose (number bigint primary key, day date, word text, amount numeric)",
}
UNREADABLE = {
    "sqlite": "update loose set word = cast(x'ff' as text), amount = 'x'",
    "postgresql": "update loose set day = '20000-01-01', amount = 9e131071",
}
LOOSELY: dict[str, Callable[[DatabaseReader], Awaitable[Any]]] = {
    "sum": lambda db: db.query(Loose).sum("amount"),
    "groups": lambda db: db.query(Loose).with_index(Loose.by_day).group_by("day").sum("amount"),
    "get": lambda db: db.get(Loose, Id[Any]("1")),
    "all": lambda db: db.query(Loose).with_index(Loose.by_day).collect(),
    "page": lambda db: db.query(Loose).paginate(),
}


class Lines(Stage):
    """Queries that read one row, and a page."""

    def __init__(self) -> None:
        super().__init__(Note, Line, Due, Loose)

        @self.app.query
        async def due(ctx: QueryCtx, direction: Literal["asc", "desc"], owner: str | None, count: int) -> int:
            index, where = (Due.by_at, {}) if owner is None else (Due.by_owner, {"owner": owner})
            return len(await ctx.db.query(Due).with_index(index, **where).order(direction).take(count))

        @self.app.query
        async def note(ctx: QueryCtx, note: Id[Note]) -> bool:
            return await ctx.db.get(Note, note) is not None

        @self.app.query
        async def line(ctx: QueryCtx, tenant: int, number: int) -> bool:
            return await ctx.db.get(Line, (tenant, number)) is not None

        @self.app.query
        async def three(ctx: QueryCtx, direction: Literal["asc", "desc"]) -> int:
            return len(await ctx.db.query(Note).with_index(Note.by_number).order(direction).take(3))

        @self.app.query
        async def late(ctx: QueryCtx) -> int:
            return len(await ctx.db.query(Note).with_index(Note.by_at, at=gt(_NOW)).collect())

        @self.app.query
        async def loose(ctx: QueryCtx, how: str) -> str:
            return repr(await LOOSELY[how](ctx.db))

        self.note, self.line, self.three, self.late, self.due, self.loose = note, line, three, late, due, loose


@asynccontextmanager
async def lines(url: str) -> AsyncIterator[tuple[Lines, TestApp, LiveQueries]]:
    stage = Lines()
    columns = "tenant bigint not null, number bigint not null, amount bigint not null, primary key (tenant, number)"
    await run_sql(url, LOOSE[url.partition(":")[0]])
    await run_sql(url, f"create table line ({columns})", "insert into line values (7, 1, 0), (7, 2, 0), (8, 1, 0)")
    async with stage.open(url) as test:
        yield stage, test, LiveQueries(test.runner, stage.app.definitions())


async def begin(live: LiveQueries) -> None:
    """Run the queries, and once more: their tables are captured from then on."""
    await settle(live)
    await settle(live)


async def ran(live: LiveQueries, entry: Entry) -> bool:
    """Whether a query runs again at the next tick."""
    runs = entry.runs
    await settle(live)
    return entry.runs > runs


async def test_a_row_that_is_read_by_its_key_concerns_its_reader_and_no_other_row_does(database_url: str) -> None:
    async with lines(database_url) as (stage, test, live):
        one, other = await stage.insert(test, Note(number=1), Note(number=2))
        note, line = watched(live, stage.note, note=one), watched(live, stage.line, tenant=7, number=1)
        none = watched(live, stage.line, tenant=9, number=9)
        await begin(live)
        for change, concerned in (
            (stage.patch(test, Note, one, number=5), [True, False, False]),
            (stage.patch(test, Note, other, number=5), [False, False, False]),
            (stage.delete(test, Note, one), [True, False, False]),
            (sql(test, "update line set amount = 1 where tenant = 7 and number = 1"), [False, True, False]),
            (sql(test, "update line set amount = 1 where number = 2 or tenant = 8"), [False, False, False]),
            (stage.insert(test, Line(tenant=9, number=9)), [False, False, True]),
        ):
            before = [entry.runs for entry in (note, line, none)]
            await change
            await settle(live)
            after = [entry.runs for entry in (note, line, none)]
            assert [now > then for now, then in zip(after, before, strict=True)] == concerned


async def test_a_page_has_read_up_to_its_last_row(database_url: str) -> None:
    async with lines(database_url) as (stage, test, live):
        await stage.insert(test, *(Note(number=number) for number in range(10)))
        for direction, near, far in (("asc", 2, 5), ("desc", 8, 5)):
            entry = watched(live, stage.three, direction=direction)
            await begin(live)
            await stage.insert(test, Note(number=far))
            assert not await ran(live, entry)
            await stage.insert(test, Note(number=near))
            assert await ran(live, entry)


async def test_rows_without_a_value_are_the_first_of_an_index(database_url: str) -> None:
    async with lines(database_url) as (stage, test, live):
        await stage.insert(test, *(Due(at=at) for at in (None, 1, 2, 3)))
        asked = [(way, owner, count) for way in ("asc", "desc") for owner in (None, "a") for count in (1, 2)]
        entries = [watched(live, stage.due, direction=way, owner=owner, count=count) for way, owner, count in asked]
        await begin(live)
        for at, concerned in ((None, {("asc", 1), ("asc", 2)}), (0, {("asc", 2)}), (9, {("desc", 1), ("desc", 2)})):
            before = [entry.runs for entry in entries]
            (row,) = await stage.insert(test, Due(at=at))
            await settle(live)
            ran = {one for one, entry, runs in zip(asked, entries, before, strict=True) if entry.runs > runs}
            assert ran == {(way, owner, count) for way, count in concerned for owner in (None, "a")}, at
            await stage.delete(test, Due, row)
            await settle(live)


async def test_a_query_that_could_not_read_runs_again_once_it_can(database_url: str) -> None:
    store = database_url.partition(":")[0]
    async with lines(database_url) as (stage, test, live):
        queries = {how: watched(live, stage.loose, how=how) for how in LOOSELY}
        rows = "insert into loose values (1, '2026-01-01', 'a', 1), (2, '2026-01-01', 'a', 1)"
        await begin(live)
        for statement, can in ((rows, True), (UNREADABLE[store], False), ("delete from loose", True)):
            await sql(test, statement)
            await settle(live)
            errors = {how: entry.answer and entry.answer.error for how, entry in queries.items()}
            assert {how for how, error in errors.items() if (error is None) is not can} == set(), (statement, errors)


async def test_a_time_without_end_lies_in_a_range_without_end(postgres_url: str) -> None:
    async with lines(postgres_url) as (stage, test, live):
        await stage.insert(test, Note(number=1))
        entry = watched(live, stage.late)
        await begin(live)
        await sql(test, "update note set at = 'infinity'")
        assert await ran(live, entry)
        assert entry.answer is not None
        assert entry.answer.result == 1
