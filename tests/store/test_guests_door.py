"""At the door of a transaction of the user's own: what is no connection, and what PostgreSQL's drivers tell."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from typing import Any

import asyncpg
import psycopg
import psycopg2
import pytest
import sqlalchemy
from django.core.cache import cache
from stage.guests import INSERT, ONE, django_connection, library_url, sqlite_file, sync_session

from penstock.clock import SystemClock
from penstock.errors import (
    ConfigError,
    Conflict,
    ContextError,
    DatabaseBusy,
    DatabaseUnavailable,
    UniqueViolation,
    ValueInvalid,
)
from penstock.store.guest.session import guest_session
from penstock.store.session import Statement


@pytest.fixture
def postgres(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    connection = psycopg.connect(postgres_url)
    yield connection
    connection.close()


@pytest.fixture
def sqlite(sqlite_url: str) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(sqlite_file(sqlite_url))
    yield connection
    connection.close()


# ----- what is no connection


def test_what_is_no_connection_is_refused_by_its_name(postgres_url: str, sqlite: sqlite3.Connection) -> None:
    engine = sqlalchemy.create_engine(library_url(postgres_url, "postgresql+psycopg"))
    django_connection(postgres_url)
    for thing, name in (
        (None, "NoneType"),
        (postgres_url, "str"),
        (sqlite.cursor(), r"sqlite3\.Cursor"),
        (engine, r"sqlalchemy\.engine\.base\.Engine"),
        (cache, r"django\.utils\.connection\.ConnectionProxy"),
        (sqlite3.Connection, "type"),
    ):
        with pytest.raises(ContextError, match=rf"^{name} is no connection .* Pass an open connection of psycopg,"):
            guest_session(thing)


# ----- psycopg


def test_a_connection_that_broke_is_told_from_one_that_was_closed(
    postgres: psycopg.Connection[Any], postgres_url: str
) -> None:
    session, old = sync_session(postgres), psycopg2.connect(postgres_url)
    old_session = sync_session(old)
    with psycopg.connect(postgres_url, autocommit=True) as other:
        other.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )
    for broken, connection in ((session, postgres), (old_session, old)):
        with pytest.raises(DatabaseUnavailable, match=r"connection to the database was lost.* Connect again"):
            broken.fetch(ONE)
        with pytest.raises(DatabaseUnavailable, match="connection to the database was lost"):
            guest_session(connection)
    old.close()


def test_transactions_that_cannot_write_are_told_why(postgres: psycopg.Connection[Any]) -> None:
    with postgres.pipeline(), pytest.raises(ContextError, match=r"is in a pipeline.* before or after"):
        guest_session(postgres)
    assert sync_session(postgres).fetch(ONE) == [(1,)]
    postgres.execute("create table entry (id integer primary key)")
    postgres.commit()
    postgres.read_only = True
    with pytest.raises(ContextError, match=r"only reads: cannot execute INSERT.* Use one that writes"):
        sync_session(postgres).execute(INSERT)
    postgres.rollback()
    postgres.read_only = False
    postgres.execute("set local role pg_monitor")
    with pytest.raises(ConfigError, match=r"may not do this: permission denied.* connect as a user who has it"):
        sync_session(postgres).execute(INSERT)
    postgres.rollback()
    postgres.execute("set statement_timeout = 20")
    with pytest.raises(DatabaseBusy, match=r"was stopped: .* of your connection") as caught:
        sync_session(postgres).fetch(Statement("select pg_sleep(30)"))
    assert caught.value.facts["slow"]


def test_transactions_that_come_second_are_told_of_the_first(
    postgres: psycopg.Connection[Any], postgres_url: str
) -> None:
    postgres.execute("create table entry (id integer primary key)")
    postgres.commit()
    postgres.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
    with psycopg.connect(postgres_url) as other:
        other.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        for one in (postgres, other):
            one.execute("select count(*) from entry")
        other.execute("insert into entry values (1)")
    with pytest.raises(Conflict, match=r"Another transaction was first: could not serialize.* run your transaction"):
        sync_session(postgres).execute(Statement("insert into entry values (2)"))
    postgres.rollback()

    async def as_told_by_asyncpg() -> UniqueViolation:
        connection = await asyncpg.connect(postgres_url)
        with pytest.raises(UniqueViolation) as caught:
            await guest_session(connection).execute(INSERT)
        await connection.close()
        return caught.value

    with pytest.raises(UniqueViolation) as caught:
        sync_session(postgres).execute(INSERT)
    assert caught.value.facts == {"table": "entry", "index": "entry_pkey", "columns": "id"}
    told = asyncio.run(as_told_by_asyncpg())
    assert (str(told), told.facts) == (str(caught.value), caught.value.facts)
    postgres.rollback()
    postgres.prepare_threshold = 0
    postgres.autocommit = True
    query = Statement("select * from entry")
    assert sync_session(postgres).fetch(query) == [(1,)]
    with psycopg.connect(postgres_url) as other:
        other.execute("alter table entry add column other integer")
    with pytest.raises(Conflict, match="A table was changed meanwhile"):
        sync_session(postgres).fetch(query)


# ----- asyncpg


async def test_asyncpg_is_told_of_what_it_does_of_values_and_of_its_end(postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    with pytest.raises(ValueInvalid, match=r"refused a value: .*invalid UUID"):
        await guest_session(connection).fetch(Statement("select $1::uuid"), ["x"])
    busy = asyncio.create_task(connection.execute("select pg_sleep(30)"))
    await SystemClock().sleep(0)
    with pytest.raises(ContextError, match=r"asyncpg runs nothing on this connection: .*another operation"):
        await guest_session(connection).fetch(ONE)
    busy.cancel()
    await asyncio.gather(busy, return_exceptions=True)
    connection.terminate()
    connection = await asyncpg.connect(postgres_url, command_timeout=0.02)
    with pytest.raises(DatabaseBusy, match=r"did not answer in time.* run your transaction again"):
        await guest_session(connection).fetch(Statement("select pg_sleep(30)"))
    connection.terminate()
    connection = await asyncpg.connect(postgres_url)
    with pytest.raises(DatabaseUnavailable, match=r"asyncpg connection to the database was lost"):
        await guest_session(connection).fetch(Statement("select pg_terminate_backend(pg_backend_pid())"))
    with pytest.raises(ContextError, match="The asyncpg connection is not open"):
        guest_session(connection)
