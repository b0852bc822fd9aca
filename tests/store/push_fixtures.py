"""What tests of the schema push share: a store on an empty database, and plain SQL on the same."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from penstock.clock import SystemClock
from penstock.config import Config
from penstock.store.open import make_store, sqlite_path
from penstock.store.sqlite.functions import register_functions
from penstock.store.store import Store

Sql = Callable[[str], Awaitable[list[tuple[Any, ...]]]]


@pytest.fixture
def store(database_url: str) -> Store:
    """A store on an empty database; not opened, as a push needs no more than the catalog."""
    return make_store(Config(database=database_url, database_wait=5), SystemClock())


@pytest.fixture
def postgres_store(postgres_url: str) -> Store:
    """The same on PostgreSQL only."""
    return make_store(Config(database=postgres_url), SystemClock())


@pytest.fixture
def sqlite_store(sqlite_url: str) -> Store:
    """The same on SQLite only."""
    return make_store(Config(database=sqlite_url, database_wait=5), SystemClock())


@pytest.fixture
def sql(request: pytest.FixtureRequest) -> Sql:
    """Runs SQL as another program would, and gives its rows."""
    names = [name for name in ("database_url", "postgres_url", "sqlite_url") if name in request.fixturenames]
    url: str = request.getfixturevalue(names[0])

    async def on_postgres(text: str) -> list[tuple[Any, ...]]:
        connection = await asyncpg.connect(url)
        try:
            if text.lstrip().startswith(("select", "insert", "update", "delete")):
                return [tuple(row) for row in await connection.fetch(text)]
            await connection.execute(text)
            return []
        finally:
            await connection.close()

    async def on_sqlite(text: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(sqlite_path(url), isolation_level=None)) as connection:
            register_functions(connection)
            if text.lstrip().startswith("create") and ";" in text:
                connection.executescript(text)
                return []
            return connection.execute(text).fetchall()

    return on_sqlite if url.startswith("sqlite") else on_postgres
