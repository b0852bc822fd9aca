"""Databases of tests, made by the hundred: empty, or copies of one with tables; their administrator; SQL in them.

Also tables of another program whose keys have several columns, and how it makes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, TypeAlias
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

import asyncpg
import psycopg
import pytest

from penstock import App, Index, Table
from penstock.app import Backend
from penstock.clock import SystemClock
from penstock.config import Config
from penstock.schema.table import definition_of
from penstock.store.open import make_store
from penstock.store.push import migrate
from penstock.store.session import Row, Session, Statement
from penstock.store.sql.dialect import qualify
from penstock.store.store import Store
from penstock.testing import TestApp
from stage.feed import in_transaction as run_in_transaction
from stage.waits import until

_HAS_STRATEGIES = 150000  # and lets an OID be chosen
_FIRST_OID = 4_000_000_000

Opened: TypeAlias = App | Callable[[str], AbstractAsyncContextManager[Any]]  # an app, or how one is opened on a URL


class Databases:
    """Databases on one server, all made over one connection: opening one takes about as long as dropping a database.

    Args:
        server: URL of the server.
        connection: A connection to it.
    """

    def __init__(self, server: str, connection: psycopg.Connection) -> None:
        self._server = urlsplit(server)
        self._connection = connection
        self._numbers = itertools.count(1)
        # Its files are copied, not logged page by page: of a database as small as these, twice as fast.
        self._copied = " strategy file_copy" if connection.info.server_version >= _HAS_STRATEGIES else ""
        # The change feed knows its database by the OID. One copy at a time gets the OID that its template names.
        self._oid = _FIRST_OID + os.getpid() if self._copied else 0
        self._taken = self._oid == 0

    @contextmanager
    def one(self, template: str | None = None, *, lasts: bool = False) -> Iterator[str]:
        """URL of a new database, or of a copy of one with penstock's own tables; dropped at the end of the block.

        One that lasts leaves the OID that templates name to others.
        """
        name = f"test_{os.getpid()}_{next(self._numbers)}"
        known = template is not None and not self._taken and not lasts
        chosen = f" oid {self._oid}" if known else ""
        self._connection.execute(f"create database {name} template {template or 'template1'}{self._copied}{chosen}")
        self._taken |= known
        url = self._url(name)
        try:
            if template is not None and not known:
                settle(url)
            yield url
        finally:
            self._connection.execute(f"drop database {name} with (force)")
            self._taken ^= known

    @contextmanager
    def template(self, *tables: type[Table], base: str | None = None, app: Opened | None = None) -> Iterator[str]:
        """Name of a database with penstock's own tables, and others, of which copies are made.

        Args:
            tables: The others.
            base: Name of a template, of which this one begins as a copy.
            app: An app that is opened on it once, or how it is opened.
        """
        with self.one(base, lasts=True) as url:
            if base is None:
                make_tables(url, *tables)
            if app is not None:
                open_once(url, app)
            with psycopg.connect(url, autocommit=True) as connection:
                sql = "update penstock.change_slot set origin = regexp_replace(origin, '[0-9]+$', %s)"
                connection.execute(qualify(sql, Config().schema), [str(self._oid)])
            yield name_of(url)

    def _url(self, name: str) -> str:
        return urlunsplit(self._server._replace(path=f"/{name}"))


def settle(url: str) -> None:
    """Say that the change feed of a copy is of this database, as that of one whose tables were made here is.

    Otherwise the first to read it would take the copy for a restored one, and lock it to write it anew.
    """
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(qualify("update penstock.change_slot set origin = penstock.origin()", Config().schema))


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


def name_of(url: str) -> str:
    return urlsplit(url).path.removeprefix("/")


def make_tables(url: str, *tables: type[Table]) -> None:
    async def main() -> None:
        store = make_store(Config(database=url), SystemClock())
        await store.open()
        await push(store, *tables)
        await store.close()

    asyncio.run(main())


def open_once(url: str, app: Opened) -> None:
    async def main() -> None:
        async with TestApp(app, url) if isinstance(app, App) else app(url):
            pass

    asyncio.run(main())


def as_user(url: str, user: str) -> str:
    """The URL of a database for another user, whose password is "secret" if it is asked for."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{user}:secret@{parts.netloc.rpartition('@')[2]}"))


__all__ = ["postgres_url", "sqlite_url"]


@pytest.fixture
def postgres_url(migrated_postgres_url: str) -> str:
    return migrated_postgres_url


@pytest.fixture
def sqlite_url(migrated_sqlite_url: str) -> str:
    return migrated_sqlite_url


@asynccontextmanager
async def administrator(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url, server_settings={"application_name": "administrator"})
    try:
        yield connection
    finally:
        await connection.close()


async def end_all_connections(admin: Any) -> None:
    """End every connection of penstock's to this database, and wait until they are gone; it may have others by then."""
    mine = "where datname = current_database() and application_name = 'penstock'"
    ended = await admin.fetch(f"select pid, pg_terminate_backend(pid) from pg_stat_activity {mine}")

    async def gone() -> bool:
        pids = [row["pid"] for row in ended]
        return bool(await admin.fetchval("select count(*) = 0 from pg_stat_activity where pid = any($1)", pids))

    await until(gone)


@asynccontextmanager
async def closing(*stores: Store) -> AsyncIterator[None]:
    """Close the stores at the end, in the event loop that has used them."""
    try:
        yield
    finally:
        for store in stores:
            await store.close()


async def push(store: Store, *tables: type[Table], apply: bool = True) -> migrate.Plan:
    return await migrate.push(store, [definition_of(table) for table in tables], apply=apply)


ONE, TWO = UUID(int=1), UUID("ffffffff-0000-4000-8000-00000000000f")
HOSTILE = ["", "a", "O'Brien", 'say "hi"', "$1", "$$", "{row}", "Ωmega ☃", "a,b", "[7, 1]", "\\x00", "%_", "a\tb", "?"]


class Side(Enum):
    BUY = "buy"
    SELL = "sell"


class Order(Table, source="orders", key=("tenant", "number"), managed=False):
    tenant: int
    number: str
    amount: int = 0
    note: str | None = None

    by_amount = Index("amount")
    by_number = Index("number")


class Tenant(Table, source="tenants", key="tenant", managed=False):
    tenant: int
    name: str


class Turned(Table, source="turned", key=["number", "tenant"], managed=False):
    """Its key has another order than the primary key."""

    number: str
    tenant: int
    amount: int = 0


class Rate(Table, source="rates", key=("fund", "day", "side"), managed=False):
    fund: UUID
    day: date
    side: Side
    at: datetime | None = None
    rate: Decimal | None = None


class Moment(Table, source="moments", key=("at", "raw", "worth"), managed=False):
    at: datetime
    raw: bytes
    worth: Decimal
    id: int | None = None  # type: ignore[assignment]  # a column of its own, that is no key


ORDERS = (
    "create table orders (tenant integer not null, number {text} not null, amount integer not null default 0,"
    " note text, primary key (tenant, number))"
)
TURNED = ORDERS.replace("orders", "turned")
TENANTS = "create table tenants (tenant integer primary key, name text not null)"
RATES = (
    "create table rates (fund {uuid} not null, day {day} not null, side text not null, at {at}, rate numeric,"
    " unique (side, day, fund))"
)
MOMENTS = (
    "create table moments (at {at} not null, raw {bytes} not null, worth {money} not null, id integer,"
    " primary key (at, raw, worth))"
)
SQLITE = {"text": "text", "uuid": "text", "day": "text", "at": "text", "bytes": "blob", "money": "text"}
POSTGRES = {
    "text": "varchar(40)",
    "uuid": "uuid",
    "day": "date",
    "at": "timestamp",
    "bytes": "bytea",
    "money": "numeric(12, 2)",
}
EMPTY = App()


def an_id(*values: Any) -> Any:
    """An id; type checkers take those of all tables for texts."""
    return values


def spelled(url: str, *statements: str) -> list[str]:
    types = SQLITE if url.startswith("sqlite") else POSTGRES
    return [statement.format(**types) for statement in statements]


async def prepare(url: str, *statements: str) -> None:
    await run_sql(url, *spelled(url, *statements))


async def sql(test: Backend, *statements: str) -> list[Row]:
    async def work(session: Session) -> list[Row]:
        rows = list[Row]()
        for statement in statements:
            rows = list(await session.fetch(Statement(statement), ()))
        return rows

    found: list[Row] = await in_transaction(test, work)
    return found


async def in_transaction(test: Backend, work: Callable[[Session], Awaitable[Any]]) -> Any:
    return await run_in_transaction(test.engine.store, work)


def _run_on_file(url: str, statements: Sequence[str]) -> None:
    with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
        connection.execute("begin immediate")
        for statement in statements:
            connection.execute(statement)
        connection.execute("commit")


async def run_sql(url: str, *statements: str) -> None:
    if url.startswith("sqlite"):
        await asyncio.to_thread(_run_on_file, url, statements)  # a writer on this event loop may have the lock
        return
    async with connected(url) as other, other.transaction():
        for statement in statements:
            await other.execute(statement)
