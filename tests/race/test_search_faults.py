"""Search indexes whose database is dumped, restored, copied or replicated, and that come and go while others write."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import subprocess
import types
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from stage.databases import connected, run_sql, sql
from stage.needs import program
from stage.postgres import Server, copy_database, replicated, server
from stage.waits import until
from stage.watching import settle

from penstock import App, QueryCtx, SearchIndex, Table
from penstock.api import searches
from penstock.changes.position import Position
from penstock.cli.migrate import migrate
from penstock.services.live.live import LiveQueries
from penstock.store.nouns.searches import Searches
from penstock.store.postgres.replica import PostgresReplica
from penstock.store.postgres.session import PostgresSession
from penstock.testing import TestApp


class Entry(Table, source="entry", key=("part", "number"), managed=False):
    part: str
    number: int
    text: str

    by_text = SearchIndex("text")


app = App(tables=[Entry])
TABLE = "create table entry (part text, number integer, text text, primary key (part, number))"
TEN_SECONDS = timedelta(seconds=10)
numbers = itertools.count(1_000)  # of rows that other programs write


def insert(*numbers: int, part: str = "a", text: str = "word") -> str:
    rows = ", ".join(f"('{part}', {number}, '{text} {number}')" for number in numbers)
    return f"insert into entry values {rows}"


@app.query
async def found(ctx: QueryCtx, text: str) -> list[int]:
    """The numbers of rows, the greatest keys first, as there are no creation times."""
    return [row.number for row in await ctx.db.query(Entry).with_search_index(Entry.by_text, text).collect()]


async def index_all(test: TestApp) -> None:
    for _ in range(6):
        await test.indexer.tick()
        test.clock.advance(TEN_SECONDS)  # the lease of a copy's indexer has to end


# ----- copies of a database


@pytest.fixture
def servers() -> Iterator[tuple[Server, Server]]:
    """One, and another."""
    with server() as source, server(own_identifier=True) as target:
        yield source, target


async def test_a_database_that_is_restored_on_another_server_is_searched_as_before(
    servers: tuple[Server, Server],
) -> None:
    source, target = servers
    await run_sql(source.url, TABLE)
    async with TestApp(app, source.url) as test:
        await run_sql(source.url, insert(1, 2))
        await index_all(test)
        await run_sql(source.url, insert(3), "update entry set text = 'other' where number = 1")
        await asyncio.to_thread(copy_database, source, target)
    await run_sql(target.url, insert(4), "delete from entry where number = 2")
    async with TestApp(app, target.url, clock=test.clock) as test:
        await index_all(test)
        assert await test.run_query(found, "word") == [4, 3]
        await run_sql(target.url, insert(5))
        assert await test.run_query(found, "word") == [5, 4, 3]
        await index_all(test)
        assert await test.run_query(found, "word") == [5, 4, 3]


def dump(source: Path, target: Path) -> None:
    shell = program("sqlite3")
    text = subprocess.run([shell, source, ".dump"], check=True, capture_output=True).stdout
    subprocess.run([shell, target], check=True, input=text)


def vacuum(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as connection:
        connection.execute("vacuum into ?", (str(target),))


@pytest.mark.parametrize("copy", [dump, vacuum])
async def test_the_copy_of_a_file_is_searched_as_the_file(sqlite_url: str, tmp_path: Path, copy: Any) -> None:
    await run_sql(sqlite_url, TABLE)
    async with TestApp(app, sqlite_url) as test:
        await run_sql(sqlite_url, insert(1, 2))
        await index_all(test)
        await run_sql(sqlite_url, insert(3), "update entry set text = 'other' where number = 1")
        copy(Path(sqlite_url.removeprefix("sqlite:///")), tmp_path / "copy.db")
    url = f"sqlite:///{tmp_path}/copy.db"
    await run_sql(url, insert(4), "delete from entry where number = 2")
    async with TestApp(app, url, clock=test.clock) as test:
        assert await test.run_query(found, "word") == [4, 3]
        await index_all(test)
        assert await test.run_query(found, "word") == [4, 3]
        assert [row[0] for row in await sql(test, "select tokens from penstock_search_1 order by key")] == [
            "other", "word 3", "word 4"
        ]  # fmt: skip


async def test_a_watched_search_is_read_on_a_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    with replicated() as (primary, standby):
        await run_sql(primary.url, TABLE, insert(1))
        async with TestApp(app, primary.url) as test, app.open(primary.url, read_url=standby.url) as backend:
            replica, read_at = backend.engine.store.replica, list[str]()
            assert isinstance(replica, PostgresReplica)
            begin = replica.begin

            async def begun(position: Position | None, since: int) -> PostgresSession:
                session = await begin(position, since)
                read_at.append("primary" if session.shown is None else "replica")
                return session

            monkeypatch.setattr(replica, "begin", begun)
            live = LiveQueries(backend.runner, app.definitions())
            view = live.view()
            view.add(0, found, {"text": "word"})

            async def shows(wanted: list[int]) -> None:

                async def is_shown() -> bool:
                    await settle(live)
                    answer = view.queries[0].answer
                    return answer is not None and answer.result == wanted and read_at[-1] == "replica"

                await until(is_shown)

            await shows([1])
            for statement, wanted in (
                (insert(2), [2, 1]),
                (insert(3, 4), [4, 3, 2, 1]),
                ("update entry set text = 'other' where number = 4", [3, 2, 1]),
                ("truncate entry", []),
            ):
                await run_sql(primary.url, statement)
                await shows(wanted)
                await index_all(test)
                await shows(wanted)
            view.close()
            await live.close()


# ----- indexes that come and go under load


@asynccontextmanager
async def writers(url: str, written: list[str]) -> AsyncIterator[None]:
    """Other programs that write rows one after another, for the time of a block."""

    async def write_on(part: str) -> None:
        for number in numbers:
            await run_sql(url, insert(number, part=part), f"update entry set text = 'word' where number = {number - 3}")
            written.append(part)

    tasks = [asyncio.create_task(write_on(part)) for part in "bcd"]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert not [task for task in tasks if not task.cancelled() and task.exception()]


@pytest.mark.both_stores
async def test_an_index_is_filled_and_dropped_while_others_write(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searches, "AT_ONCE", 20)
    written = list[str]()
    columns = {"__module__": __name__, "__annotations__": {"part": str, "number": int, "text": str}}
    options = {"source": "entry", "key": ("part", "number"), "managed": False}
    bare = App(tables=[types.new_class("Entry", (Table,), options, lambda space: space.update(columns))])
    await run_sql(database_url, TABLE, insert(*range(300)))

    async def migrated(program: App) -> list[tuple[str, str]]:
        _, news = await migrate(program, program.config(database=database_url), tmp_path)
        return [(one.what, one.name) for one in news or () if one.noun == "search"]

    fill = searches.fill

    async def filled(*given: Any) -> bool:
        """Take the next piece of a backfill once others have written."""
        before = len(written)
        await until(lambda: len(written) > before)
        return await fill(*given)

    monkeypatch.setattr(searches, "fill", filled)
    async with writers(database_url, written):
        assert await migrated(app) == [("new", "entry.by_text")]
    async with TestApp(app, database_url) as test:
        await index_all(test)
        ((rows,),) = await sql(test, "select count(*) from entry where text like 'word%'")
        table = "penstock_search_1" if database_url.startswith("sqlite") else "penstock.search_1"
        assert (await sql(test, f"select count(*) from {table} where tokens like 'word%'"))[0][0] == rows > 300
    reader = "penstock_change_reader" if database_url.startswith("sqlite") else "penstock.change_reader"
    await run_sql(database_url, f"update {reader} set moved_at = '2026-01-01T00:00:00.000000Z'")
    async with writers(database_url, written):
        before = len(written)
        assert await migrated(bare) == [("dropped", "entry.by_text")]
        await until(lambda: len(written) > before + 10)


@asynccontextmanager
async def nothing_locked(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[str]]:
    """Look for locks on the table inside of each transaction that writes to an index; the names of these."""
    looked = list[str]()

    def watch(name: str) -> None:
        does = getattr(Searches, name)

        async def watched(self: Searches, *given: Any, **values: Any) -> Any:
            result = await does(self, *given, **values)
            locks = await connection.fetch(
                "select mode from pg_locks where relation = 'entry'::regclass and mode <> 'AccessShareLock'"
            )
            assert not locks, name
            looked.append(name)
            return result

        monkeypatch.setattr(Searches, name, watched)

    async with connected(url) as connection:
        for name in ("_execute", "_fetch"):
            watch(name)
        yield looked


async def test_no_transaction_of_an_index_locks_its_table(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searches, "AT_ONCE", 20)
    await run_sql(postgres_url, TABLE, insert(*range(50)))
    async with nothing_locked(postgres_url, monkeypatch) as looked, TestApp(app, postgres_url) as test:
        await index_all(test)
        await run_sql(postgres_url, "truncate entry", insert(1))
        await index_all(test)
        store = test.engine.store
        (row,) = await store.searches.list()
        await store.searches.drop(row.id)
        assert {*looked} == {"_execute", "_fetch"}


# ----- partitions


async def test_rows_of_partitions_are_found_wherever_they_go(postgres_url: str) -> None:
    of = [f"create table entry_{name} partition of entry for values in ('{name}')" for name in "ab"]
    await run_sql(postgres_url, f"{TABLE} partition by list (part)", *of)
    async with TestApp(app, postgres_url) as test:
        for statements, wanted in (
            ([insert(1, 2), insert(3, part="b")], [3, 2, 1]),
            (["update entry set part = 'b', number = 4 where number = 1"], [4, 3, 2]),
            (
                ["insert into entry_a values ('a', 5, 'word')", "update entry_b set text = '' where number = 3"],
                [4, 5, 2],
            ),
            (["create table entry_c partition of entry for values in ('c')", insert(6, part="c")], [6, 4, 5, 2]),
            (["delete from entry_c", "truncate entry_a"], [4]),
        ):
            await run_sql(postgres_url, *statements)
            assert await test.run_query(found, "word") == wanted, statements
            await index_all(test)
            assert await test.run_query(found, "word") == wanted, statements
