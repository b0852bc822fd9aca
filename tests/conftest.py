"""Databases for tests: a SQLite file and a real PostgreSQL, each fresh for each test."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import re
import shutil
import signal
import tempfile
import time  # noqa: TID251 - sets the zone
import zlib
from collections import defaultdict
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from stage.databases import Databases, make_tables, open_once
from stage.needs import LONG, PART, PARTS, examples, lack, pytest_runtest_makereport, pytest_terminal_summary
from stage.servers import PgBouncer, pgbouncer

from penstock.config import Config

__all__ = ["pytest_runtest_makereport", "pytest_terminal_summary"]  # hooks, which pytest finds here

_MEMORY = Path("/dev/shm")
_TEMPORARY = _MEMORY / f"penstock-{os.getuid()}"  # some tools keep a lock beside their folders, which one user owns
_ROOM = 4 * 2**30
_LEFT_SECONDS = 5.0
_STORES = {"database_url", "empty_database_url"}
_WHOLE = {"rules", "store"}
_OWN = """
# Settings of this session's own server, whose data is gone afterwards anyway.
autovacuum = off  # nothing lives long enough
fsync = off
full_page_writes = off
min_wal_size = '32MB'
max_wal_size = '256MB'
file_copy_method = clone  # of the files of a database's template
io_method = sync  # files lie in memory: to ask another process for them takes longer
shared_buffers = '16MB'
update_process_title = off
wal_level = minimal
max_wal_senders = 0
shared_preload_libraries = plpgsql  # each connection that runs a trigger would load it
"""

# Databases are made by the hundred and thrown away: on a disk most of the time would go into making their files.
if "TMPDIR" not in os.environ and _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _ROOM:
    _TEMPORARY.mkdir(mode=0o755, exist_ok=True)  # the server's own user goes through it
    os.environ["TMPDIR"] = str(_TEMPORARY)  # processes inherit it
    tempfile.tempdir = None

# Tests take up no settings of the shell: of penstock, of drivers, of Django, of proxies and of colours.
for _name in list(os.environ):
    if re.match(
        r"PENSTOCK_(?!TEST_|WRITE_)|PG[A-Z]+$|DATABASE_URL$|DJANGO_|(HTTPS?|ALL|NO)_PROXY$|(FORCE|NO)_COLOR$|COLUMNS$|LINES$",
        _name,
        re.IGNORECASE,
    ):
        del os.environ[_name]

# A driver takes a time without a zone for local time: where that is UTC, nobody would notice.
os.environ["TZ"] = "Asia/Kathmandu"
time.tzset()

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell; processes inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

if schema := os.environ.get("PENSTOCK_TEST_SCHEMA"):  # in place of the default one, for the conformance suite
    given = dict(zip((one.name for one in fields(Config)), Config.__init__.__defaults__ or (), strict=True))
    Config.__init__.__defaults__ = tuple({**given, "schema": schema}.values())

settings.register_profile(
    "suite",
    deadline=None,
    database=None,
    derandomize=not LONG,
    max_examples=examples(100),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("suite")  # before any test is imported: it decides what they leave open


def pytest_configure(config: pytest.Config) -> None:
    """Tell of the marks of these tests, and look for no garbage while they are collected: a tenth of that time."""
    gc.disable()
    config.addinivalue_line(
        "markers",
        "both_stores: runs on both stores; other tests than those of the stores take turns, but in a long run",
    )
    config.addinivalue_line("markers", "long: only a long run tries it")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, Any]:
    """Let each process of a run begin elsewhere in each folder; `pytest_collection_modifyitems` puts tests into order.

    In a new clone the first process that imports a module compiles it for all. In step, each would compile all of them.
    """
    report = yield
    worker = getattr(collector.config, "workerinput", None)
    if worker is not None and isinstance(collector, pytest.Dir):
        first = int(worker["workerid"].removeprefix("gw")) * len(report.result) // worker["workercount"]
        report.result = report.result[first:] + report.result[:first]
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only a long run tries, and begin with what takes long: all else would wait for it at the end."""
    left_out = set(cases_left_out(items) if not LONG else outside_part(items) if PART else ())
    config.hook.pytest_deselected(items=[*left_out])
    items[:] = [item for item in items if item not in left_out]
    items.sort(key=lambda item: (item.path.parent.name != "types" and "any_order" not in item.name, item.path))


def pytest_collection_finish() -> None:
    """Look for garbage among what tests make only: to look through all tests each time took a tenth of all time."""
    gc.enable()
    gc.freeze()  # with the garbage of the collection, which would take longer to find than it is worth
    gc.set_threshold(10_000, 20, 20)


def cases_left_out(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """The cases that only a long run tries.

    Of each test with a database as many cases stay as it takes to meet each value of each parameter. They take turns
    on the stores; those of a test marked `both_stores` meet both. Rules, and the suite of the stores, run whole.
    """
    tests: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("long") is not None:
            yield item
        elif isinstance(item, pytest.Function) and hasattr(item, "callspec") and item.path.parent.name not in _WHOLE:
            tests[item.nodeid.partition("[")[0]].append(item)
    for name, cases in tests.items():
        turn, values = zlib.crc32(name.encode()), {case: _values(case) for case in cases}
        unmet = set().union(*values.values())
        while unmet:
            chosen = max(values, key=lambda case: (len(values[case] & unmet), ("[sqlite" in case.nodeid) == turn % 2))
            unmet -= values.pop(chosen)
            turn += 1
        yield from values


def _values(case: pytest.Function) -> set[tuple[str, int]]:
    """The values of parameters that a case meets; pytest's own numbers of them go on from case to case."""
    turns = case.get_closest_marker("both_stores") is None
    met = {(name, id(value)) for name, value in case.callspec.params.items() if not turns or name not in _STORES}
    return {("", 0), *met}


def outside_part(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """The cases that are not in the part of a long run which `TESTS_PART`, the id of a commit, chooses."""
    return (item for item in items if zlib.crc32(f"{PART} {item.nodeid}".encode()) % PARTS)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(_whole(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})))
    return True


async def _whole(test: Coroutine[Any, Any, None]) -> None:
    """Run a test, and end what it has left behind before its event loop ends.

    What is cancelled with the loop may begin something new, as closing a connection, which nobody would wait for.
    """
    try:
        await test
    finally:
        ended: set[asyncio.Task[Any]] = {task for task in [asyncio.current_task()] if task is not None}
        while left := asyncio.all_tasks() - ended:
            for task in left:
                task.cancel()
            done, _ = await asyncio.wait(left, timeout=_LEFT_SECONDS)
            ended |= done or left


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """URL of a PostgreSQL server: the one given by PENSTOCK_TEST_POSTGRES_URL, or one of this session's own."""
    given = os.environ.get("PENSTOCK_TEST_POSTGRES_URL")
    if given:
        yield given
        return
    from stage.postgres import server  # noqa: PLC0415 - what it imports reads TMPDIR, which is set above

    with server(_OWN) as own:
        # The first connection to a database writes a cache, which empty databases now have from the beginning.
        psycopg.connect(own.url, dbname="template1").close()
        yield own.url


@pytest.fixture(scope="session")
def databases(postgres_server: str) -> Iterator[Databases]:
    """Makes and drops databases on the server."""
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        yield Databases(postgres_server, connection)


@pytest.fixture
def empty_postgres_url(databases: Databases) -> Iterator[str]:
    """URL of an empty PostgreSQL database."""
    with databases.one() as url:
        yield url


@pytest.fixture
def postgres_url(empty_postgres_url: str) -> str:
    """URL of an empty PostgreSQL database; in some folders, of one with penstock's own tables."""
    return empty_postgres_url


@pytest.fixture(scope="session")
def postgres_template(databases: Databases) -> Iterator[str]:
    """Name of a PostgreSQL database with penstock's own tables: a copy of it is made sooner than they are."""
    with databases.template() as name:
        yield name


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with penstock's own tables."""
    file = tmp_path_factory.mktemp("template") / "template.db"
    make_tables(f"sqlite:///{file}")
    return file


@pytest.fixture(scope="module")
def module_template(request: pytest.FixtureRequest, databases: Databases, postgres_template: str) -> Iterator[str]:
    """The same, on which the app was opened once that the test's module names as `OPENED`, if it names one."""
    app = getattr(request.module, "OPENED", None)
    with ExitStack() as stack:
        yield stack.enter_context(databases.template(base=postgres_template, app=app)) if app else postgres_template


@pytest.fixture(scope="module")
def module_file(
    request: pytest.FixtureRequest, sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The same, of a SQLite file."""
    app = getattr(request.module, "OPENED", None)
    if app is None:
        return sqlite_template
    file = Path(shutil.copy(sqlite_template, tmp_path_factory.mktemp("module") / "module.db"))
    open_once(f"sqlite:///{file}", app)
    return file


@pytest.fixture
def migrated_postgres_url(databases: Databases, module_template: str) -> Iterator[str]:
    """URL of a PostgreSQL database with penstock's own tables and nothing in them, but what `OPENED` declares."""
    with databases.one(module_template) as url:
        yield url


@pytest.fixture
def migrated_sqlite_url(module_file: Path, tmp_path: Path) -> str:
    """URL of a SQLite file with penstock's own tables and nothing in them, but what `OPENED` declares."""
    return f"sqlite:///{shutil.copy(module_file, tmp_path / 'test.db')}"


@pytest.fixture
def postgres_databases(databases: Databases) -> Iterator[Callable[[], str]]:
    """Makes empty PostgreSQL databases, each known by its URL."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(databases.one())


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
def empty_sqlite_url(tmp_path: Path) -> str:
    """URL of a SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'test.db'}"


@pytest.fixture
def sqlite_url(empty_sqlite_url: str) -> str:
    """URL of a SQLite file that does not exist yet; in some folders, of one with penstock's own tables."""
    return empty_sqlite_url


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """URL of a database, once on each store; empty, or where the folder says so with penstock's own tables."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def vector_url(database_url: str) -> str:
    """The same, for vectors: a test is skipped where the server has no pgvector."""
    if not database_url.startswith("sqlite"):
        with psycopg.connect(database_url) as connection:
            if not connection.execute("select from pg_available_extensions where name = 'vector'").fetchall():
                lack(f"postgresql-{connection.info.server_version // 10_000}-pgvector")
    return database_url


@pytest.fixture(params=["sqlite", "postgres"])
def empty_database_url(request: pytest.FixtureRequest) -> str:
    """URL of an empty database, once on each store."""
    url: str = request.getfixturevalue(f"empty_{request.param}_url")
    return url
