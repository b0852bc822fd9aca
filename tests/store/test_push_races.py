"""The schema push beside others: processes that push too, programs that write meanwhile, pushes that were killed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import asyncpg
import pytest
from stage.databases import closing, push

from penstock import Index, Table
from penstock.clock import SystemClock
from penstock.config import Config
from penstock.errors import DatabaseBusy, SchemaMismatch
from penstock.store.nouns.catalog import Change
from penstock.store.open import make_store
from penstock.store.postgres import catalog as postgres_catalog
from penstock.store.postgres.catalog import PostgresSchemaLock
from penstock.store.store import Store

pytest_plugins = ("store.push_fixtures",)

Sql = Callable[[str], Awaitable[list[tuple[Any, ...]]]]


class Booking(Table):
    customer: str
    phone: str | None = None
    status: Literal["pending", "paid", "gone"] = "pending"

    by_customer = Index("customer", "phone")


class Stricter(Table, name="booking"):
    """Each way in which rows can stand against a push, and each kind of change beside them."""

    customer: str
    phone: str
    status: Literal["pending", "paid"] = "pending"
    note: str = "none"

    by_customer = Index("phone", "customer")
    by_phone = Index("phone", unique=True)


async def insert(sql: Sql, number: int, phone: str | None, status: str = "paid") -> None:
    value = "null" if phone is None else f"'{phone}'"
    await sql(
        "insert into booking (id, creation_time, customer, phone, status) "
        f"values ('x{number}', '2026-01-01T00:00:00.000000Z', 'a', {value}, '{status}')"
    )


async def stored_names(store: Store) -> tuple[set[str], set[str]]:
    stored = (await store.catalog.read_tables(["booking"]))["booking"]
    assert all(index.valid for index in stored.indexes.values())
    assert all(check.valid for check in stored.checks.values())
    return set(stored.indexes), set(stored.checks)


# ----- many at once


async def test_ten_tasks_push_at_once(database_url: str) -> None:
    config = Config(database=database_url)
    stores = [make_store(config, SystemClock()) for _ in range(6)]
    async with closing(*stores):
        plans = await asyncio.gather(*(push(store, Booking) for store in stores))
        assert sum(not plan.empty for plan in plans) == 1
        plans = await asyncio.gather(*(push(store, Stricter) for store in stores))
        assert sum(not plan.empty for plan in plans) == 1


async def test_a_busy_database_is_said_to_be_so(
    store: Store, monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    monkeypatch.setattr(postgres_catalog, "LOCK_WAIT", 0.05)
    # On SQLite this is how long a lock is waited for; on PostgreSQL a connection, too, takes its time to open.
    waits: dict[str, Any] = {"database_wait": 0.05} if database_url.startswith("sqlite") else {}
    other = make_store(Config(database=database_url, **waits), SystemClock())
    async with closing(store, other):
        async with store.catalog.lock():
            with pytest.raises(DatabaseBusy, match="Another process"):
                await push(other, Booking)
        await push(other, Booking)


# ----- writers meanwhile


def race(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], Awaitable[None]]) -> None:
    """Let something happen once, after the rows were counted and before anything is changed."""
    apply = PostgresSchemaLock.apply
    waiting = [meanwhile]

    async def apply_after(self: PostgresSchemaLock, change: Change) -> None:
        if waiting:
            await waiting.pop()()
        await apply(self, change)

    monkeypatch.setattr(PostgresSchemaLock, "apply", apply_after)


async def test_rows_that_come_after_the_count_are_still_found_and_nothing_broken_is_left(
    postgres_store: Store, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, written = postgres_store, list[tuple[str | None, str]]()

    async def others_write() -> None:
        for number, (phone, status) in enumerate(written):
            await insert(sql, number, phone, status)

    async with closing(store):
        for rows, problem in (
            ([("1", "gone")], ("status", "", 1)),
            ([(None, "paid")], ("phone", "", 1)),
            ([("1", "paid"), ("1", "paid")], ("phone", "by_phone", 2)),
        ):
            written[:] = rows
            await sql("drop table if exists booking")
            await push(store, Booking)
            with monkeypatch.context() as patch:
                race(patch, others_write)
                with pytest.raises(SchemaMismatch) as caught:
                    await push(store, Stricter)
            (found,) = caught.value.facts["problems"]
            assert (found["column"], found["index"], found["rows"]) == problem
            indexes, checks = await stored_names(store)
            assert indexes <= {"booking_by_customer", "booking_by_phone"}, problem
            assert checks == {"booking_status_choices"}, problem
            await sql("delete from booking")
            await push(store, Stricter)
            assert (await push(store, Stricter)).empty
            assert await stored_names(store) == (
                {"booking_by_customer", "booking_by_phone"},
                {"booking_status_choices"},
            )


async def test_writers_go_on_while_a_big_table_is_changed(postgres_store: Store, sql: Sql, postgres_url: str) -> None:
    store = postgres_store
    done = asyncio.Event()

    async def write() -> int:
        connection = await asyncpg.connect(postgres_url)
        written = 0
        while not done.is_set():
            await connection.execute(
                "insert into booking (id, creation_time, customer, phone, status) values ($1, now(), 'a', $1, 'paid')",
                f"new{written}",
            )
            written += 1
        await connection.close()
        return written

    async with closing(store):
        await push(store, Booking)
        await sql(
            "insert into booking (id, creation_time, customer, phone, status) "
            "select n::text, now(), 'c' || n % 1000, n::text, 'pending' from generate_series(1, 30000) n"
        )
        writer = asyncio.create_task(write())
        await push(store, Stricter)
        done.set()
        written = await writer
        assert written > 0
        assert await sql("select count(*) from booking") == [(30000 + written,)]
        assert (await push(store, Stricter)).empty


async def test_a_table_that_stays_locked_is_given_up_and_left_as_it_was(
    postgres_store: Store, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = postgres_store
    monkeypatch.setattr(postgres_catalog, "TABLE_LOCK_WAIT", 0.02)
    monkeypatch.setattr(postgres_catalog, "TABLE_LOCK_ATTEMPTS", 2)
    async with closing(store):
        await push(store, Booking)
        connection = await asyncpg.connect(postgres_url)
        async with connection.transaction():
            await connection.execute("select * from booking")
            with pytest.raises(DatabaseBusy, match="table booking"):
                await push(store, Stricter)
        await connection.close()
        assert "note" not in (await store.catalog.read_tables(["booking"]))["booking"].columns
        await push(store, Stricter)


# ----- pushes that were killed


async def test_a_push_killed_after_any_of_its_changes_is_finished_by_the_next(
    postgres_store: Store, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = postgres_store
    apply = PostgresSchemaLock.apply

    class Killed(BaseException):
        pass

    async def kill_after(changes: int) -> bool:
        """Whether the push was killed before its end."""
        left = [changes]

        async def apply_some(self: PostgresSchemaLock, change: Change) -> None:
            if not left[0]:
                raise Killed
            left[0] -= 1
            await apply(self, change)

        with monkeypatch.context() as patch:
            patch.setattr(PostgresSchemaLock, "apply", apply_some)
            with contextlib.suppress(Killed):
                await push(store, Stricter)
                return False
        return True

    async with closing(store):
        for changes in range(30):
            await sql("drop table if exists booking")
            await push(store, Booking)
            await insert(sql, 1, "1")
            killed = await kill_after(changes)
            await push(store, Stricter)
            assert (await push(store, Stricter)).empty
            assert await stored_names(store) == (
                {"booking_by_customer", "booking_by_phone"},
                {"booking_status_choices"},
            )
            assert await sql("select phone, status, note from booking") == [("1", "paid", "none")]
            if not killed:
                break
        assert changes > 5


async def until(sql: Sql, question: str) -> None:
    while not (await sql(question))[0][0]:
        await SystemClock().sleep(0.01)


async def test_a_push_that_is_cancelled_while_it_builds_an_index(
    postgres_store: Store, postgres_url: str, sql: Sql
) -> None:
    store = postgres_store
    async with closing(store):
        await push(store, Booking)
        connection = await asyncpg.connect(postgres_url)
        async with connection.transaction(isolation="repeatable_read"):
            await connection.execute("select 1")
            task = asyncio.create_task(push(store, Stricter))
            await until(sql, "select count(*) from pg_stat_progress_create_index where current_locker_pid > 0")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await connection.close()
        await push(store, Stricter)
        assert (await push(store, Stricter)).empty
        assert (await stored_names(store))[0] == {"booking_by_customer", "booking_by_phone"}


# ----- SQLite writes a table anew


async def test_a_table_written_anew_keeps_all_that_others_have_added(sqlite_store: Store, sql: Sql) -> None:
    store = sqlite_store
    async with closing(store):
        await push(store, Booking)
        await sql("drop table booking")
        await sql("""
            create table "Booking" (
                "id" TEXT not null primary key, -- the key, of course
                creation_time TEXT /* datetime */ not null,
                "customer" TEXT not null check (customer <> ','),
                [phone] TEXT, /* one, or
                more */ `twice` text generated always as (customer || ',' || customer) virtual,
                "status" TEXT not null
                    constraint "booking_status_choices" check ("status" in ('pending', 'paid', 'gone')),
                parent text references booking (id),
                foreign key (parent) references "Booking" (id) on delete cascade,
                constraint "plain" check (customer <> ')' and status <> 'x') -- last
            ) strict;
            create index booking_by_customer on booking (customer, phone, id);
            create index own on booking (phone) where phone <> ';';
            create table log (text text, booking text references booking (id));
            create view paid as select customer, twice from booking where status = 'paid';
            create trigger logs after update on booking begin insert into log (text) values (old.phone || ';'); end;
        """)
        await insert(sql, 1, "1")
        await sql("update booking set rowid = 77, parent = id")
        await sql("insert into log values ('x', 'x1')")
        await push(store, Stricter)
        assert (await push(store, Stricter)).empty
        assert await sql("select rowid, id, phone, twice, status, note, parent from booking") == [
            (77, "x1", "1", "a,a", "paid", "none", "x1")
        ]
        assert await sql("select * from paid") == [("a", "a,a")]
        await sql("update booking set phone = '2'")
        assert await sql("select text from log") == [("1;",), ("x",), ("1;",)]
        assert await sql("pragma foreign_key_check") == []
        assert await sql("select \"table\" from pragma_foreign_key_list('log')") == [("booking",)]
        assert await sql("pragma integrity_check") == [("ok",)]
        names = await sql("select name from sqlite_schema where tbl_name = 'booking' collate nocase order by name")
        assert {name for (name,) in names} >= {"own", "logs", "booking_by_phone", "booking_by_customer"}
        stored = (await store.catalog.read_tables(["booking"]))["booking"]
        assert stored.constraints[0].startswith("foreign key")
        assert stored.constraints[1].startswith('constraint "plain"')
        assert stored.options == "strict"


async def test_a_push_that_fails_on_sqlite_leaves_all_as_it_was(
    sqlite_store: Store, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = sqlite_store
    async with closing(store):
        await push(store, Booking)
        await insert(sql, 1, None)
        before = await sql("select name, sql from sqlite_schema order by name")

        async def see_nothing(*_args: Any) -> int:
            return 0

        with monkeypatch.context() as patch:
            patch.setattr("penstock.store.sqlite.catalog.SqliteSchemaLock.count", see_nothing)
            with pytest.raises(Exception, match="NOT NULL"):
                await push(store, Stricter)
        assert await sql("select name, sql from sqlite_schema order by name") == before
        assert await sql("select id from booking") == [("x1",)]
