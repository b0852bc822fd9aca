"""`penstock migration`: files that rename, split, retype and require columns while old and new processes write."""

from __future__ import annotations

import asyncio
import re
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import click
import psycopg
import pytest
from doors.cli_fixtures import Console
from stage.databases import connected, run_sql

from penstock import App, Id, MutationCtx, QueryCtx, Table, TaskCtx
from penstock.cli import migration
from penstock.clock import SystemClock
from penstock.config import Config
from penstock.migrations import running
from penstock.migrations.files import load_files
from penstock.migrations.running import Migrator
from penstock.schema.stored import StoredTable
from penstock.store.nouns.migration_files import FileProgress
from penstock.store.open import make_store
from penstock.store.session import Statement
from penstock.testing import TestApp


class Release:
    """A release of a program: the field in which it keeps who travels, and its calls."""

    def __init__(self, table: type[Table], field: str) -> None:
        self.app = app = App(tables=[table])

        @app.mutation
        async def book(ctx: MutationCtx, name: str) -> str:
            return await ctx.db.insert(table(**{field: name}))

        @app.mutation
        async def rebook(ctx: MutationCtx, trip: str, name: str) -> None:
            await ctx.db.patch(table, Id(trip), **{field: name})

        @app.query
        async def names(ctx: QueryCtx) -> list[str]:
            return sorted(getattr(one, field) for one in await ctx.db.query(table).collect())

        @app.reactive_task(table, name="greet", cleanup="never")
        async def greet(ctx: TaskCtx[Any]) -> None: ...

        self.book, self.rebook, self.names = book, rebook, names


def release(field: str) -> Release:
    """The table is one and the same in the database."""
    columns = {"__annotations__": {field: str, "price": int}, "price": 0, "__module__": __name__}
    trip: Any = type("Trip", (Table,), columns, name="trip")
    return Release(trip, field)


class Pauses(SystemClock):
    """A clock that tells of pauses in the place of waiting."""

    def __init__(self, told: Callable[[float], object]) -> None:
        super().__init__()
        self.told = told

    async def sleep(self, seconds: float) -> None:
        self.told(seconds)


PROGRAM = """
from penstock import App, Table



class Trip(Table, name="trip"):
    {0}
    price: {1} = {1}(0)


app = App(tables=[Trip])
"""


@pytest.fixture
def trips(shell: Console) -> Console:
    shell.write("trips.py", PROGRAM.format("client: str", "int"))
    return shell


def test_a_rename_keeps_data_while_processes_of_both_releases_write(trips: Console, database_url: str) -> None:
    old, new = release("customer"), release("client")

    async def story() -> None:
        async with TestApp(old.app, database_url) as before:
            first = await before.run_mutation(old.book, "ann")
            asked = await asyncio.to_thread(trips, "migration", "new", "client")
            assert asked.code, asked
            assert "trip.customer is not declared any more, and client is new. Was it renamed?" in asked.err
            await asyncio.to_thread(trips.ok, "migration", "new", "client", "--rename", "trip.customer=client")
            plan = await asyncio.to_thread(trips.ok, "migration", "run", "--plan")
            lock = ", lock: ACCESS EXCLUSIVE" if database_url.startswith("postgres") else ""
            assert f"-- 0001_client, contract(){lock}\nALTER TABLE trip DROP COLUMN customer;" in plan.out
            assert "-- 0001_client, backfill in batches of 1000 rows" in plan.out
            ran = await asyncio.to_thread(trips.ok, "migration", "run")
            assert "0001_client: waits for run --contract" in ran.out
            async with TestApp(new.app, database_url) as after:
                await before.run_mutation(old.book, "bob")
                await after.run_mutation(new.book, "cid")
                await before.run_mutation(old.rebook, first, "anna")
                assert await before.run_query(old.names) == await after.run_query(new.names) == ["anna", "bob", "cid"]
        async with TestApp(new.app, database_url) as after:
            await asyncio.to_thread(trips.ok, "migration", "run", "--contract")
            await after.run_mutation(new.book, "dan")
            assert await after.run_query(new.names) == ["anna", "bob", "cid", "dan"]

    asyncio.run(story())
    assert trips.ok("migration", "status", "--json").json["files"][0]["step"] == "done"
    assert trips("migration", "new", "more").err.count("There is nothing that needs a migration file")
    assert "fits" in trips.ok("migrate").err


def rows(database_url: str, sql: str) -> list[Any]:
    if database_url.startswith("sqlite"):
        with closing(sqlite3.connect(database_url.removeprefix("sqlite:///"))) as connection:
            return connection.execute(sql).fetchall()

    async def read() -> list[Any]:
        async with connected(database_url) as connection:
            return [tuple(row) for row in await connection.fetch(sql)]

    return asyncio.run(read())


def fill(database_url: str, count: int) -> None:
    values = ", ".join(
        f"('trip_01jd{'0' * 19}{number:03}', '2030-01-01 00:00:00Z', 'c{number:03}', {number})"
        for number in range(count)
    )
    asyncio.run(run_sql(database_url, f"insert into trip (id, creation_time, customer, price) values {values}"))


BACKFILL = """
import os

from penstock.migrations import Backfill


def code(row):
    if row["customer"] == os.environ.get("DIE"):
        os.kill(os.getpid(), 9)
    return {"code": row["customer"].upper()}


backfills = [Backfill(table="trip", values=code, where="code is null", batch=10)]
"""


OLD_COLUMNS = "id, creation_time, customer, note, extra, price"
OLD_INSERT = f"insert into trip ({OLD_COLUMNS}) values ('trip_01jd{{}}', '2030-01-01 00:00:00Z', '{{}}', null, 'x', 1)"
EDITS = (
    ("'first': '\"customer\"'", "'first': 'upper(substr(customer, 1, 1))'"),
    ("'last': '\"customer\"'", "'last': 'substr(customer, 2)'"),
    ("'customer': '\"first\"'", "'customer': 'first || last'"),
    ("'level': 'NULL'", "'level': '7'"),
    ("'note': 'NULL'", "'note': \"'none'\""),
    (
        "def expand() -> None:",
        'def expand() -> None:\n    op.create_index("trip_by_note", "trip", ["note"], postgresql_concurrently=True)',
    ),
    (
        "def down() -> None:",
        'def down() -> None:\n    op.drop_index("trip_by_note", "trip", postgresql_concurrently=True)',
    ),
)


def test_columns_are_split_added_retyped_and_dropped_and_an_expand_of_each_kind_is_undone(
    trips: Console, database_url: str
) -> None:
    old = PROGRAM.format("customer: str; note: str | None = None; extra: str", "int")
    new = PROGRAM.format("first: str; last: str; note: str; level: int", "str")
    trips.write("trips.py", old)
    trips.ok("migrate")
    asyncio.run(run_sql(database_url, OLD_INSERT.format("0" * 22, "ann")))
    before = asyncio.run(stored_trip(database_url))
    trips.write("trips.py", new)
    trips.ok("migration", "new", "all", "--rename", "trip.customer=first,last", "--drop", "trip.extra")
    asked = trips("migration", "run")
    assert (asked.code, "Traceback" in asked.err, "0001_all" in asked.err) == (1, False, True), "it is to be edited"
    file = trips.folder / "migrations" / "0001_all.py"
    text = "\n".join(line for line in file.read_text().splitlines() if not line.startswith("raise "))
    for was, edited in EDITS:
        assert was in text
        text = text.replace(was, edited)
    file.write_text(text)

    trips.ok("migration", "run")
    asyncio.run(run_sql(database_url, OLD_INSERT.format("1" * 22, "bob")))  # the old release, in between
    for change in ("first = 'D'", "customer = 'e00'", "last = 'ABC'"):
        asyncio.run(run_sql(database_url, f"update trip set {change} where customer = 'bob' or first in ('D', 'E')"))
    both = "select customer, first, last, note, level from trip order by id"
    assert rows(database_url, both) == [("ann", "A", "nn", "none", 7), ("EABC", "E", "ABC", "none", 7)], (
        "old values are only written again where new ones changed"
    )
    expanded = asyncio.run(stored_trip(database_url))
    assert sorted(expanded.columns.keys() - before.columns.keys()) == ["first", "last", "level", "price~next"]
    trips.ok("migration", "down", "0001_all")
    trips.write("trips.py", old)
    trips.ok("migrate")
    assert asyncio.run(stored_trip(database_url)) == before

    trips.write("trips.py", new)
    trips.ok("migration", "run", "--contract")
    trips.ok("migrate")
    with pytest.raises(Exception, match=r"(?i)not.null"):
        asyncio.run(run_sql(database_url, "update trip set last = null"))
    kept = rows(database_url, "select first, last, note, price from trip order by id")
    assert kept == [("A", "nn", "none", "1"), ("E", "ABC", "none", "1")]
    assert "cannot be undone" in trips("migration", "down", "0001_all").err
    trips.write("migrations/0002_broken.py", "raise ValueError('edit me')")
    assert "0002_broken.py cannot be loaded: edit me" in trips("migration", "status").err


def renamed(trips: Console) -> None:
    """A program whose field is renamed by a file, and no database yet."""
    trips.write("trips.py", PROGRAM.format("customer: str", "int"))
    trips.ok("migrate", "--database", "sqlite:///elsewhere.db")
    trips.write("trips.py", PROGRAM.format("client: str", "int"))
    new = ("migration", "new", "client", "--rename", "trip.customer=client")
    trips.ok(*new, "--database", "sqlite:///elsewhere.db")


def test_new_tables_need_no_file_and_a_stamp_runs_nothing_even_of_one_that_was_begun(
    trips: Console, database_url: str
) -> None:
    renamed(trips)
    new = ("--database", "sqlite:///new.db")
    trips.ok("migrate", *new)
    assert "0001_client: done" in trips.ok("migration", "status", *new).out
    assert trips.ok("migration", "run", "--contract", *new).out == ""
    trips.ok("migrate", "--folder", "none")
    before = asyncio.run(stored_trip(database_url))
    refused = trips("migration", "run")
    assert (refused.code, "client" in refused.err, "migration run --stamp" in refused.err) == (1, True, True)
    assert "expand is not complete" in trips.ok("migration", "status").out
    trips.ok("migration", "run", "--stamp")
    assert "0001_client: done" in trips.ok("migration", "status").out
    assert asyncio.run(stored_trip(database_url)) == before


CONCURRENTLY = """
from alembic import op


def expand():
    op.create_index("trip_by_price", "trip", ["price"], postgresql_concurrently=True)


def contract():
    op.drop_column("trip", "price")
"""


def test_a_check_tells_ci_by_its_exit_status(trips: Console, database_url: str) -> None:
    trips.write("trips.py", PROGRAM.format("customer: str", "int"))
    pending = trips("migrate", "--check")
    assert (pending.code, "pending: create table" in pending.out.lower()) == (3, True)
    trips.ok("migrate")
    assert (trips("migrate", "--check").code, trips("migrate", "--check").out) == (0, "")
    trips.write("trips.py", PROGRAM.format("customer: str | None = None; code: str | None = None", "str"))
    drift = trips("migrate", "--check")
    assert (drift.code, "stored as" in drift.out, "penstock migration new" in drift.out) == (4, True, True)
    trips.write("trips.py", PROGRAM.format("customer: str", "int"))
    trips.write("migrations/0001_by_price.py", CONCURRENTLY)
    assert trips("migrate", "--check", "--json").json["pending"] == ["migration file 0001_by_price"]
    postgres = database_url.startswith("postgres")
    if postgres:
        asyncio.run(run_sql(database_url, "create index trip_by_price on trip (price)"))  # as a killed run leaves one
    trips.ok("migration", "run")
    assert trips("migrate", "--check").code == 0, "contract() waits for the old release"
    unsafe = CONCURRENTLY.replace(", postgresql_concurrently=True", "").replace("trip_by_price", "trip_price")
    trips.write("migrations/0002_price.py", unsafe)
    found = trips("migrate", "--check")
    assert found.code == (5 if postgres else 3)
    assert ("unsafe: 0002_price, expand(): CREATE INDEX" in found.out) == postgres


def test_a_step_waits_shortly_for_its_lock_and_tries_again(
    console: Console, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table lock is PostgreSQL's: on SQLite a step waits like any other writer."""
    console.write("trips.py", PROGRAM.format("customer: str", "int"))
    monkeypatch.setenv("DATABASE_URL", postgres_url)
    console.ok("migrate")
    console.write("migrations/0001_drop.py", DROP)
    monkeypatch.setattr(running, "_SHORT_LOCKS", [Statement("set local lock_timeout = '20ms'")])
    with psycopg.connect(postgres_url) as reader:
        reader.execute("select * from trip")

        clock = Pauses(lambda _seconds: reader.rollback())
        monkeypatch.setattr(migration, "runner_of", lambda store: Migrator(store, clock, click.echo))
        ran = console.ok("migration", "run", "--contract")
    assert ran.out.count("-- waiting for others: A lock was held for too long") == 1
    assert "0001_drop: done" in ran.out
    assert rows(postgres_url, "select note from trip") == []


DROP = """
from alembic import op
from penstock.migrations import Stored
from sqlalchemy import Column


def expand():
    op.add_column("trip", Column("note", Stored("text")))
    op.execute("update trip set note = 'a:b' || '50%' where price::text = 'x'")
"""


def test_two_processes_run_one_file_whole_and_one_that_was_killed_goes_on(trips: Console, database_url: str) -> None:
    """Killed within a backfill, and in a contract after each statement that commits by itself, before its note."""
    trips.write("trips.py", DEADLY)
    trips.ok("migrate")
    fill(database_url, 25)
    trips.write("migrations/0001_code.py", BACKFILL + STEPS)
    with trips.start("migration", "run", DIE="c015") as process:
        assert process.end() == -signal.SIGKILL
    filled = "select count(*) from trip where code is not null and noted is null"
    assert rows(database_url, filled) == [(10,)], "the second batch is taken back as a whole"
    told = trips.ok("migration", "status").out
    assert re.search(r"0001_code: backfill: 10 of 25 rows, \d+ a second, 0:00:\d\d left; last batch 20", told), told
    (file,) = load_files(trips.folder / "migrations")
    pauses = list[float]()

    async def one(contract: bool) -> FileProgress:
        store = make_store(Config(database=database_url), SystemClock())
        await store.open()
        try:
            return await Migrator(store, Pauses(pauses.append), click.echo).run(file, contract=contract)
        finally:
            await store.close()

    async def both(*, contract: bool) -> list[tuple[str, int]]:
        return [(now.step, now.rows) for now in await asyncio.gather(one(contract), one(contract))]

    assert asyncio.run(both(contract=False)) == [("contract", 25)] * 2
    assert pauses, "between two batches"
    assert min(pauses) > 0
    assert rows(database_url, filled) == [(25,)]
    assert rows(database_url, "select code from trip where code <> upper(customer)") == []
    for step in ("1", "2"):
        with trips.start("migration", "run", "--contract", DIE_AT=step) as process:
            assert process.end() == -signal.SIGKILL
    assert asyncio.run(both(contract=True)) == [("done", 25)] * 2
    stored = asyncio.run(stored_trip(database_url))
    assert (sorted(stored.columns), stored.columns["code"].nullable) == (["code", "creation_time", "id", "noted"], True)
    assert list(stored.indexes) == ["trip_by_code"]


async def stored_trip(database_url: str) -> StoredTable:
    store = make_store(Config(database=database_url), SystemClock())
    try:
        return (await store.catalog.read_tables(["trip"]))["trip"]
    finally:
        await store.close()


DEADLY = """
import os

from penstock import App, Index, Table
from penstock.store.nouns.migration_files import MigrationFiles


class Trip(Table, name="trip"):
    customer: str
    code: str | None = None
    price: int = 0

    by_price = Index("price")


app = App(tables=[Trip])
noted = []
advance = MigrationFiles.advance


async def die(self, *given):
    noted.append(given)
    if len(noted) == int(os.environ["DIE_AT"]):
        os.kill(os.getpid(), 9)
    return await advance(self, *given)


if "DIE_AT" in os.environ:
    MigrationFiles.advance = die
"""

STEPS = """

from alembic import op
from penstock.migrations import relax
from sqlalchemy import Column, Text


def expand():
    op.add_column("trip", Column("noted", Text()))
    op.create_index("trip_by_code", "trip", ["code"], postgresql_concurrently=True)


def contract():
    op.drop_index("trip_by_price", "trip", postgresql_concurrently=True)
    op.drop_column("trip", "price")
    relax("trip", "customer")
    op.drop_column("trip", "customer")
"""
