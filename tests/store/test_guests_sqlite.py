"""Penstock in a transaction of the user's own on SQLite: threads, autocommit, the one writer, plain connections."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import aiosqlite
import pytest
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool
from stage.guests import INSERT, ONE, library_url, sqlite_file, sync_session

from penstock.errors import (
    ContextError,
    DatabaseBusy,
)
from penstock.store.guest.session import guest_session
from penstock.store.session import Statement


@pytest.fixture
def sqlite(sqlite_url: str) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(sqlite_file(sqlite_url))
    yield connection
    connection.close()


# ----- sqlite3 and aiosqlite


def test_a_connection_of_another_thread_is_refused(sqlite: sqlite3.Connection, sqlite_url: str) -> None:
    free = sqlite3.connect(sqlite_file(sqlite_url), check_same_thread=False)
    with ThreadPoolExecutor(1) as thread:
        with pytest.raises(ContextError, match=r"belongs to another thread.* check_same_thread=False"):
            thread.submit(guest_session, sqlite).result()
        assert thread.submit(lambda: sync_session(free).fetch(ONE)).result() == [(1,)]
    free.close()


def test_texts_that_the_connection_gives_as_bytes_are_not_read(sqlite: sqlite3.Connection) -> None:
    sqlite.text_factory = bytes
    with pytest.raises(ContextError, match=r"text_factory of the sqlite3 connection"):
        sync_session(sqlite).fetch(ONE)
    sqlite.execute("create table entry (id integer)")
    assert sync_session(sqlite).execute(INSERT) == 1


def test_in_autocommit_each_statement_commits_by_itself(sqlite_url: str) -> None:
    own = sqlite3.connect(sqlite_file(sqlite_url), isolation_level=None)
    own.execute("create table entry (id integer)")
    sync_session(own).execute(INSERT)
    own.close()
    other = sqlite3.connect(sqlite_file(sqlite_url))
    assert sync_session(other).fetch(Statement("select id from entry")) == [(1,)]
    other.close()


def test_who_cannot_write_is_told_why(sqlite: sqlite3.Connection, sqlite_url: str) -> None:
    sqlite.execute("pragma journal_mode = wal")
    sqlite.execute("create table entry (id integer)")
    sqlite.commit()
    sqlite.execute("begin")
    sqlite.execute("select count(*) from entry").fetchall()
    other = sqlite3.connect(sqlite_file(sqlite_url), timeout=0)
    other.execute("insert into entry values (2)")
    other.commit()
    with pytest.raises(DatabaseBusy, match=r"Another connection wrote.* BEGIN IMMEDIATE"):
        sync_session(sqlite).execute(INSERT)
    sqlite.rollback()
    sqlite.execute("begin immediate")
    with pytest.raises(DatabaseBusy, match="Another process holds the write lock"):
        sync_session(other).execute(INSERT)
    sqlite.rollback()
    other.close()
    reader = sqlite3.connect(f"file:{sqlite_file(sqlite_url)}?mode=ro", uri=True)
    with pytest.raises(ContextError, match="is read-only"):
        sync_session(reader).execute(INSERT)
    reader.close()


async def test_a_connection_that_nobody_has_opened_is_refused(sqlite_url: str) -> None:
    unopened = aiosqlite.connect(sqlite_file(sqlite_url))
    with pytest.raises(ContextError, match="The aiosqlite connection is not open"):
        guest_session(unopened)
    engine = create_async_engine(library_url(sqlite_url, "sqlite+aiosqlite"), poolclass=NullPool)
    with pytest.raises(ContextError, match="The SQLAlchemy connection is not open"):
        guest_session(engine.connect())
