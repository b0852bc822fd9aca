"""What may go wrong with a file: locks of other programs, a full disk, a broken file, a commit that fails."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from programs import families, ledger
from stage.faults import held
from stage.waits import SOON, until

from penstock.app import Backend
from penstock.clock import SystemClock
from penstock.config import Config
from penstock.errors import (
    ConfigError,
    ConstraintViolation,
    DatabaseBusy,
    DatabaseFull,
    DatabaseUnavailable,
    PenstockError,
)
from penstock.store.sqlite import writer as writer_module


def file_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


@contextmanager
def other_program(url: str) -> Iterator[sqlite3.Connection]:
    """Another program's connection to the file."""
    connection = sqlite3.connect(file_of(url), isolation_level=None, timeout=5, check_same_thread=False)
    try:
        yield connection
    finally:
        connection.close()


async def opened(url: str, **settings: Any) -> None:
    """Open the file, and write something."""
    async with ledger.app.open(url, **settings) as backend:
        await backend.run_mutation(ledger.enter, what="x")


def write_connection(backend: Backend) -> sqlite3.Connection:
    """The one connection on which the backend writes."""
    store: Any = backend.engine.store
    connection: sqlite3.Connection = store._writer.connection
    return connection


# ----- locks


async def test_another_programs_write_lock_is_waited_for_and_told_if_it_is_held_for_too_long(sqlite_url: str) -> None:
    async with ledger.app.open(sqlite_url, database_wait=0.3) as backend:
        with other_program(sqlite_url) as other:
            other.execute("begin immediate")
            before = SystemClock().monotonic()
            outcomes = await asyncio.gather(
                *(backend.run_mutation(ledger.enter, what="late") for _ in range(3)), return_exceptions=True
            )
            assert all(isinstance(outcome, DatabaseBusy) for outcome in outcomes)
            assert SystemClock().monotonic() - before < Config().database_wait
            store: Any = backend.engine.store
            store._writer._wait = SOON
            calls = [asyncio.create_task(backend.run_mutation(ledger.enter, what="x")) for _ in range(5)]
            done, _ = await asyncio.wait(calls, timeout=0.1)
            assert not done
            assert await backend.run_query(ledger.entries, what="late") == [], "who only reads does not wait"
            other.execute("commit")
            await asyncio.gather(*calls)
        assert len(await backend.run_query(ledger.entries, what="x")) == 5


async def test_a_job_waits_for_a_write_lock_for_as_long_as_it_takes(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ledger.app.open(sqlite_url, services=("worker",), database_wait=0.1) as backend:
        store: Any = backend.engine.store
        begin_write, refusals = store.begin_write, list[DatabaseBusy]()

        async def begin(*given: Any) -> Any:
            try:
                return await begin_write(*given)
            except DatabaseBusy as error:
                refusals.append(error)
                raise

        async with held("worker.claimed", backend.scheduler.run_after(timedelta(0), ledger.enter, what="x")):
            other = sqlite3.connect(file_of(sqlite_url), isolation_level=None, timeout=5)
            other.execute("begin immediate")
            monkeypatch.setattr(store, "begin_write", begin)
        await until(lambda: len(refusals) >= 3)
        assert (await backend.job_counts())["running"] == 1
        other.execute("commit")
        other.close()
        await until(lambda: has_entered(backend, "x", 1))


async def has_entered(backend: Backend, what: str, count: int) -> bool:
    return len(await backend.run_query(ledger.entries, what=what)) >= count


# ----- a full disk


@contextmanager
def full_disk(backend: Backend, pages_left: int = 2) -> Iterator[None]:
    """Let the file grow by a few pages and no more."""
    connection = write_connection(backend)
    (pages,) = connection.execute("pragma page_count").fetchone()
    connection.execute(f"pragma max_page_count = {pages + pages_left}")
    try:
        yield
    finally:
        connection.execute("pragma max_page_count = 1000000000")


async def test_a_full_disk_is_told_and_nothing_is_half_done(sqlite_url: str) -> None:
    async with ledger.app.open(sqlite_url) as backend:
        await backend.run_mutation(ledger.enter, what="before")
        with full_disk(backend):
            with pytest.raises(DatabaseFull):
                await backend.run_mutation(ledger.enter_many, what="bulk", count=200)
            with pytest.raises(PenstockError):
                await backend.run_mutation(ledger.enter_whatever_happens, what="bulk", count=200)
            assert await backend.run_query(ledger.entries, what="bulk") == []
            assert await backend.run_query(ledger.entries, what="before") == [0]
            await backend.run_mutation(ledger.enter, what="little")
        await backend.run_mutation(ledger.enter_many, what="bulk", count=200)
        assert len(await backend.run_query(ledger.entries, what="bulk")) == 200


@pytest.mark.parametrize("where", ["on the loop", "in a thread"])
async def test_on_a_full_disk_each_of_those_who_commit_together_is_told_the_truth(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(writer_module, "_ALONE", SOON)  # on a slow machine commits would be shared again meanwhile

    async with ledger.app.open(sqlite_url) as backend:
        commit_slowly(backend, where)
        with full_disk(backend, pages_left=8):
            outcomes = await asyncio.gather(
                *(
                    backend.run_mutation(ledger.enter_many, what=f"{number}", count=200 if number % 4 == 3 else 1)
                    for number in range(24)
                ),
                return_exceptions=True,
            )
            for number, outcome in enumerate(outcomes):
                found = len(await backend.run_query(ledger.entries, what=f"{number}"))
                if number % 4 == 3:
                    assert isinstance(outcome, DatabaseFull), outcome
                    assert found == 0
                else:
                    assert (outcome, found) == (None, 1)


def commit_slowly(backend: Backend, where: str) -> None:
    """Have commits made where they are made when the disk is quick, or when it is slow."""
    store: Any = backend.engine.store
    store._writer._commit_seconds = 100.0 if where == "in a thread" else 0.0


# ----- a commit that fails


@pytest.mark.parametrize("where", ["on the loop", "in a thread"])
async def test_who_spoils_a_shared_commit_spoils_it_for_nobody_else(sqlite_url: str, where: str) -> None:
    """A constraint that is checked at the commit fails the commit of all, who then run again one by one."""
    with other_program(sqlite_url) as other:
        other.execute("pragma journal_mode = wal")
        for table in families.TABLES:
            other.execute(table)

    async with families.app.open(sqlite_url) as backend:
        commit_slowly(backend, where)
        outcomes = await asyncio.gather(
            *(
                backend.run_mutation(families.insert_child, number=number, parent=1 if number % 5 else 77)
                for number in range(40)
            ),
            return_exceptions=True,
        )
        for number, outcome in enumerate(outcomes):
            assert isinstance(outcome, ConstraintViolation) is (number % 5 == 0), (number, outcome)
        assert await backend.run_query(families.children) == 32


# ----- files


@contextmanager
def as_nobody() -> Iterator[None]:
    """Without the rights of root, who may write everywhere."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that everybody may enter."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-files-"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def test_a_file_or_a_folder_that_may_not_be_written_is_told(shared_folder: Path) -> None:
    file = shared_folder / "readonly.db"
    asyncio.run(opened(f"sqlite:///{file}"))
    before = set(shared_folder.iterdir())
    file.chmod(0o444)
    shared_folder.chmod(0o555)
    for name in ("readonly.db", "new.db"):
        with as_nobody(), pytest.raises((ConfigError, DatabaseUnavailable)) as caught:
            asyncio.run(opened(f"sqlite:///{shared_folder / name}"))
        assert caught.value.fix
    assert set(shared_folder.iterdir()) == before
    shared_folder.chmod(0o755)
    file.chmod(0o644)
    asyncio.run(opened(f"sqlite:///{file}"))


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_file_that_is_deleted_or_replaced_takes_no_writes_that_would_be_lost(
    sqlite_url: str, tmp_path: Path, replaced: bool
) -> None:
    async with ledger.app.open(sqlite_url, database_wait=0.2) as backend:
        await backend.run_mutation(ledger.enter, what="x")
        if replaced:
            shutil.copy(file_of(sqlite_url), tmp_path / "copy.db")
            (tmp_path / "copy.db").rename(file_of(sqlite_url))
        else:
            file_of(sqlite_url).unlink()
        with pytest.raises(DatabaseUnavailable, match="deleted, or another one took its place"):
            await backend.run_mutation(ledger.enter, what="x")


def test_a_file_that_is_no_database_or_broken_or_in_no_folder_is_told(tmp_path: Path, sqlite_url: str) -> None:
    letter = tmp_path / "letter.db"
    letter.write_bytes(b"Dear Sir or Madam, " * 1000)
    with pytest.raises(ConfigError, match="not a sound SQLite database"):
        asyncio.run(opened(f"sqlite:///{letter}"))
    assert letter.read_bytes().startswith(b"Dear Sir"), "it is left alone"
    with pytest.raises(DatabaseUnavailable, match="folder"):
        asyncio.run(opened(f"sqlite:///{tmp_path / 'missing' / 'app.db'}"))

    async def use(count: int) -> None:
        async with ledger.app.open(sqlite_url) as backend:
            await backend.run_mutation(ledger.enter_many, what="x", count=count)
            await backend.run_query(ledger.entries, what="x")

    asyncio.run(use(3000))
    with file_of(sqlite_url).open("r+b") as file:
        file.seek(4096 * 40)
        file.write(b"\xff" * 4096 * 60)
    with pytest.raises(ConfigError, match="not a sound SQLite database"):
        asyncio.run(use(0))


# ----- the write-ahead log


def size_of_log(url: str) -> int:
    return Path(f"{file_of(url)}-wal").stat().st_size


async def test_the_log_is_kept_short_while_many_write(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "LOG_BYTES", 256 * 1024)
    monkeypatch.setattr(writer_module, "_MOST_LOG_BYTES", 1024 * 1024)

    async with ledger.app.open(sqlite_url, synchronous="normal") as backend:
        longest = 0
        for number in range(400):
            await backend.run_mutation(ledger.enter_many, what=f"{number}", count=10)
            longest = max(longest, size_of_log(sqlite_url))
        (pages,) = write_connection(backend).execute("pragma page_count").fetchone()
        assert pages * 4096 > 256 * 1024
        assert longest < 4 * 1024 * 1024
