"""Connections of users, one of each kind that penstock takes, with the words in which their own code begins and ends.

A story is a coroutine for all of them; one on a sync connection never waits, so it needs no event loop, and runs where
Django lets it.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import aiosqlite
import asyncpg
import django
import psycopg
import psycopg2
from django.conf import settings
from django.db.utils import ConnectionHandler
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from penstock.clock import SystemClock
from penstock.config import Config
from penstock.store.guest.session import GuestSession, finish, guest_session
from penstock.store.open import make_store
from penstock.store.push import migrate
from penstock.store.session import Row, Statement
from penstock.store.store import Store
from stage.needs import LONG


@dataclass
class Visit:
    connection: Any
    begin: Callable[[], Any]
    commit: Callable[[], Any]
    rollback: Callable[[], Any]
    close: Callable[[], Any]
    run: Callable[[str], Any]


Opener = Callable[[str], AbstractAsyncContextManager[Visit]]


@dataclass(frozen=True)
class Kind:
    name: str
    dialect: str
    is_async: bool
    open: Opener


KINDS: list[Kind] = []
T = TypeVar("T")


def kind(name: str, dialect: str, *, is_async: bool) -> Callable[[Opener], Opener]:
    def note(opener: Opener) -> Opener:
        KINDS.append(Kind(name, dialect, is_async, opener))
        return opener

    return note


ONE = Statement("select 1")
INSERT = Statement("insert into entry values (1)")


def sync_session(connection: Any) -> SyncGuestSession:
    """A session of a guest on a connection that does not wait."""
    return SyncGuestSession(guest_session(connection))


def play(is_async: bool, story: Coroutine[Any, Any, None]) -> None:
    """Run a story, on an event loop only if it waits."""
    if is_async:
        asyncio.run(story)
        return
    try:
        story.send(None)
    except StopIteration:
        return
    story.close()
    raise AssertionError("a story on a sync connection waited")


def tell(kind: Kind, url: str, story: Callable[[Visit], Any]) -> None:
    """Run a story on a connection of a kind."""

    async def main() -> None:
        async with kind.open(url) as visit:
            await story(visit)

    play(kind.is_async, main())


def face(connection: Any) -> Any:
    """The face of a guest that fits its connection; `answer` gives what its words give."""
    session = guest_session(connection)
    return session if session.is_async else SyncGuestSession(session)


class SyncGuestSession:
    """The transaction of a sync connection, for tests that do not await."""

    def __init__(self, session: GuestSession) -> None:
        session.check_sync()
        self._session = session

    def fetch(self, statement: Statement, args: Sequence[Any] = ()) -> Sequence[Row]:
        return finish(self._session.fetch(statement, args))

    def execute(self, statement: Statement, args: Sequence[Any] = ()) -> int:
        return finish(self._session.execute(statement, args))

    def execute_many(self, statement: Statement, rows: Sequence[Sequence[Any]]) -> None:
        finish(self._session.execute_many(statement, rows))

    def run(self, verb: Callable[[GuestSession], Coroutine[Any, Any, T]]) -> T:
        return finish(verb(self._session))


@asynccontextmanager
async def penstock_store(url: str) -> AsyncIterator[Store]:
    store = make_store(Config(database=url), SystemClock())
    try:
        await migrate.push(store, [], apply=True)
        await store.open()
        yield store
    finally:
        await store.close()


def sqlite_file(url: str) -> str:
    return url.removeprefix("sqlite:///")


def library_url(url: str, driver: str) -> str:
    return make_url(url).set(drivername=driver).render_as_string(hide_password=False)


# ----- drivers

Words = Callable[[Any], Callable[..., Any]]


def run_plain(connection: Any) -> Callable[[str], Any]:
    return connection.execute  # type: ignore[no-any-return]


def run_text(connection: Any) -> Callable[[str], Any]:
    return lambda sql: connection.execute(text(sql))


def begin_by_itself(connection: Any) -> Callable[[], None]:
    return lambda: None


def visit(connection: Any, run: Words = run_plain, begin: Words = begin_by_itself) -> Visit:
    words = begin(connection), connection.commit, connection.rollback, connection.close, run(connection)
    return Visit(connection, *words)


def sync_kind(name: str, dialect: str, connect: Callable[[str], Any], **words: Words) -> None:
    """Connections that are not awaited."""

    @kind(name, dialect, is_async=False)
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Visit]:
        connection = connect(url)
        yield visit(connection, **words)
        connection.close()


def async_kind(name: str, dialect: str, connect: Callable[[str], Any], **words: Words) -> None:
    """Connections that are awaited."""

    @kind(name, dialect, is_async=True)
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Visit]:
        connection = await connect(url)
        yield visit(connection, **words)
        await connection.close()


def connect_in_autocommit(url: str) -> Any:
    connection = sqlite3.connect(sqlite_file(url), isolation_level=None)
    connection.row_factory = lambda cursor, row: {"row": row}
    connection.text_factory = lambda given: given.decode(errors="replace")
    return connection


async def connect_aiosqlite(url: str) -> Any:
    connection = await aiosqlite.connect(sqlite_file(url))
    connection.row_factory = sqlite3.Row
    return connection


own_rows = partial(psycopg.connect, row_factory=psycopg.rows.dict_row, cursor_factory=psycopg.ClientCursor)
sync_kind("psycopg", "postgres", psycopg.connect)
sync_kind("psycopg that gives rows of its own and writes values into the text", "postgres", own_rows)
sync_kind("psycopg2", "postgres", psycopg2.connect, run=lambda connection: connection.cursor().execute)
sync_kind("sqlite3", "sqlite", lambda url: sqlite3.connect(sqlite_file(url)))
sync_kind(
    "sqlite3 in autocommit that gives rows of its own",
    "sqlite",
    connect_in_autocommit,
    begin=lambda connection: lambda: connection.execute("begin immediate"),
)
async_kind("psycopg async", "postgres", psycopg.AsyncConnection.connect)
async_kind("aiosqlite", "sqlite", connect_aiosqlite)


def asyncpg_visit(connection: Any, close: Callable[[], Any]) -> Visit:
    transactions: list[Any] = []

    async def begin() -> None:
        transactions.append(connection.transaction())
        await transactions[-1].start()

    async def commit() -> None:
        await transactions[-1].commit()

    async def rollback() -> None:
        await transactions[-1].rollback()

    return Visit(connection, begin, commit, rollback, close, connection.execute)


@kind("asyncpg", "postgres", is_async=True)
@asynccontextmanager
async def asyncpg_plain(url: str) -> AsyncIterator[Visit]:
    connection = await asyncpg.connect(url)
    yield asyncpg_visit(connection, connection.close)
    await connection.close()


@kind("asyncpg from a pool", "postgres", is_async=True)
@asynccontextmanager
async def asyncpg_lent(url: str) -> AsyncIterator[Visit]:
    pool = await asyncpg.create_pool(url, min_size=1, max_size=1)
    connection = await pool.acquire()
    yield asyncpg_visit(connection, lambda: pool.release(connection))
    await pool.release(connection)
    await pool.close()


# ----- SQLAlchemy


def sqlalchemy_kinds(driver: str, dialect: str) -> None:
    def engine(url: str) -> Any:
        return create_engine(library_url(url, driver), poolclass=NullPool)

    def session(url: str) -> Any:
        return Session(engine(url), close_resets_only=False)

    sync_kind(f"SQLAlchemy Connection over {driver}", dialect, lambda url: engine(url).connect(), run=run_text)
    sync_kind(f"SQLAlchemy Session over {driver}", dialect, session, run=run_text)


def sqlalchemy_async_kinds(driver: str, dialect: str) -> None:
    def engine(url: str) -> Any:
        return create_async_engine(library_url(url, driver), poolclass=NullPool)

    async def session(url: str) -> Any:
        return AsyncSession(engine(url), close_resets_only=False)

    async_kind(f"SQLAlchemy AsyncConnection over {driver}", dialect, lambda url: engine(url).connect(), run=run_text)
    async_kind(f"SQLAlchemy AsyncSession over {driver}", dialect, session, run=run_text)


sqlalchemy_kinds("postgresql+psycopg", "postgres")
sqlalchemy_kinds("postgresql+psycopg2", "postgres")
sqlalchemy_kinds("sqlite+pysqlite", "sqlite")
sqlalchemy_async_kinds("postgresql+asyncpg", "postgres")
sqlalchemy_async_kinds("postgresql+psycopg", "postgres")
sqlalchemy_async_kinds("sqlite+aiosqlite", "sqlite")


# ----- Django


def django_connection(url: str, **options: Any) -> Any:
    """What ``django.db.connection`` is in a program whose settings name this database."""
    if not settings.configured:
        settings.configure(USE_TZ=False, TIME_ZONE="America/New_York")
        django.setup()
    parts = make_url(url)
    lite = parts.drivername == "sqlite"
    database = {
        "ENGINE": f"django.db.backends.{'sqlite3' if lite else 'postgresql'}",
        "NAME": parts.database,
        "USER": parts.username or "",
        "PASSWORD": parts.password or "",
        "HOST": parts.host or parts.query.get("host", ""),
        "PORT": parts.port or "",
        "OPTIONS": options,
    }
    return ConnectionHandler({"default": database})["default"]


def django_visit(connection: Any) -> Visit:
    def begin() -> None:
        connection.set_autocommit(False)

    def close() -> None:
        """Let the connection be lost in the middle of a transaction: any other time, Django connects again."""
        connection.in_atomic_block = True
        connection.close()

    def run(sql: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(sql)

    return Visit(connection, begin, connection.commit, connection.rollback, close, run)


@asynccontextmanager
async def django_plain(url: str, **options: Any) -> AsyncIterator[Visit]:
    connection = django_connection(url, **options)
    connection.force_debug_cursor = True
    yield django_visit(connection)
    connection.in_atomic_block = False
    connection.close()


kind("Django to PostgreSQL", "postgres", is_async=False)(django_plain)
kind("Django to PostgreSQL, which binds values", "postgres", is_async=False)(
    partial(django_plain, server_side_binding=True)
)
kind("Django to SQLite", "sqlite", is_async=False)(django_plain)


# One of each sort, for stories that say the same of all; `tests/store` goes through every kind.
_PLAIN = (
    "psycopg",
    "asyncpg",
    "sqlite3",
    "SQLAlchemy Session over postgresql+psycopg",
    "SQLAlchemy AsyncSession over sqlite+aiosqlite",
    "Django to PostgreSQL",
)
PLAIN_KINDS = [kind for kind in KINDS if LONG or kind.name in _PLAIN]
