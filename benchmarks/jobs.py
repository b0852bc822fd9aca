"""Jobs without effect: how many one worker process gets done in a second, and what that costs the database.

Jobs are stored first, then a worker in a process of its own is let go, and the clock runs until none is ready or
running. What it costs: processor time of the worker, commits, and bytes written. On PostgreSQL bytes are those of the
write-ahead log, and commits those of the server's statistics, less those of looking for the end. On SQLite commits are
read from the index of the write-ahead log (https://sqlite.org/walformat.html), and bytes written are those of the
worker process, where the system counts them.
"""

from __future__ import annotations

import asyncio
import statistics
import struct
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import asyncpg

from benchmarks import program
from benchmarks.claims import enqueue
from benchmarks.databases import Connection, StoreName, connect_sqlite, sqlite_file
from benchmarks.harness import Bench, Benchmark, spread
from penstock import Config
from penstock.functions.function import AnyFunction

_LOOK_EVERY = 0.02
_LONGEST = 300.0
_ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Drained:
    """One drain: what it took, in all."""

    seconds: float
    processor_seconds: float
    commits: float
    bytes_written: float | None


class Watcher(Protocol):
    """Looks at a database from outside."""

    async def left(self) -> bool:
        """Whether any job is ready or running."""

    async def written(self, process: int) -> float | None:
        """Bytes written so far; `process` is the worker's."""

    async def commits(self) -> float:
        """Commits so far; asked while no worker is connected."""


async def drain(bench: Bench, store: StoreName, function: AnyFunction) -> None:
    """Drain jobs a few times, each in a fresh database."""
    count = bench.sizes.actions if function.kind.value == "action" else bench.sizes.mutations
    drains = [await _drain_once(bench, store, function, count) for _ in range(bench.sizes.drains)]
    rates = [count / drained.seconds for drained in drains]
    bench.row(spread("drained", rates, "/s"), f"{count} jobs, {len(drains)} times")
    bench.report("per_second", statistics.median(rates))
    bench.report("worker_cpu_us_per_job", statistics.median(one.processor_seconds for one in drains) / count * 1e6)
    bench.report("commits_per_job", statistics.median(one.commits for one in drains) / count)
    written = [one.bytes_written for one in drains if one.bytes_written is not None]
    if written:
        bench.report(f"{'wal' if store == 'postgres' else 'written'}_bytes_per_job", statistics.median(written) / count)


async def _drain_once(bench: Bench, store: StoreName, function: AnyFunction, count: int) -> Drained:
    async with bench.databases.fresh(store) as url:
        async with program.app.open(config=Config(database=url)) as backend:
            await enqueue(backend, function, count)
        watching = _watch_postgres if store == "postgres" else _watch_sqlite
        async with watching(url) as watcher:
            commits = await watcher.commits()
            seconds, processor_seconds, written = await _run_worker(url, watcher)
            return Drained(seconds, processor_seconds, await watcher.commits() - commits, written)


async def _run_worker(url: str, watcher: Watcher) -> tuple[float, float, float | None]:
    """Let a worker drain all jobs; seconds, its processor seconds, and bytes written."""
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.worker", url,
        cwd=_ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        if worker.stdin is None or worker.stdout is None or await worker.stdout.readline() != b"ready\n":
            raise RuntimeError("The worker process did not start.")
        before = await watcher.written(worker.pid)
        begun = time.perf_counter()
        worker.stdin.write(b"go\n")
        while await watcher.left():
            if time.perf_counter() - begun > _LONGEST:
                raise TimeoutError(f"Jobs were left after {_LONGEST:.0f} seconds.")
            await asyncio.sleep(_LOOK_EVERY)
        seconds = time.perf_counter() - begun
        after = await watcher.written(worker.pid)
        worker.stdin.write(b"stop\n")
        processor_seconds = float(await worker.stdout.readline())
        await worker.wait()
    finally:
        if worker.returncode is None:
            worker.kill()
            await worker.wait()
    return seconds, processor_seconds, None if before is None or after is None else after - before


class _PostgresWatcher:
    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: Connection = None
        self._looks = 0

    async def left(self) -> bool:
        self._looks += 1
        return bool(
            await (await self._connected()).fetchval(
                "select exists (select from penstock.ready_job) or exists (select from penstock.running_job)"
            )
        )

    async def written(self, _process: int) -> float | None:
        self._looks += 1
        return float(await (await self._connected()).fetchval("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))

    async def commits(self) -> float:
        """The server's count is whole only when all connections that are counted have ended."""
        await self.close()
        connection = await self._connected()
        looks = 0
        while await connection.fetchval(
            "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() "
            "and backend_type = 'client backend'"
        ):
            looks += 1
            await asyncio.sleep(_LOOK_EVERY)
        await connection.execute("select pg_stat_clear_snapshot()")
        count = await connection.fetchval("select xact_commit from pg_stat_database where datname = current_database()")
        count, self._looks = count - self._looks, looks + 3
        return float(count)

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = await asyncpg.connect(self._url)
        return self._connection


@asynccontextmanager
async def _watch_postgres(url: str) -> AsyncIterator[Watcher]:
    watcher = _PostgresWatcher(url)
    try:
        yield watcher
    finally:
        await watcher.close()


class _SqliteWatcher:
    _changes = struct.Struct("=8xI")  # of the first of its two headers: how many transactions were written

    def __init__(self, url: str) -> None:
        self._connection = connect_sqlite(url)
        self._connection.execute("select 1 from sqlite_schema").fetchall()
        # Closing any descriptor of this file would drop the locks that the connection holds on it: it stays open.
        self._index = Path(f"{sqlite_file(url)}-shm").open("rb", buffering=0)  # noqa: SIM115 - closed in close

    async def left(self) -> bool:
        row = self._connection.execute(
            "select exists (select 1 from penstock_ready_job) or exists (select 1 from penstock_running_job)"
        ).fetchone()
        return bool(row[0])

    async def written(self, process: int) -> float | None:
        return _bytes_written(process)

    async def commits(self) -> float:
        self._index.seek(0)
        (count,) = self._changes.unpack(self._index.read(self._changes.size))
        return float(count)

    def close(self) -> None:
        self._connection.close()
        self._index.close()


@asynccontextmanager
async def _watch_sqlite(url: str) -> AsyncIterator[Watcher]:
    watcher = _SqliteWatcher(url)
    try:
        yield watcher
    finally:
        watcher.close()


def _bytes_written(process: int) -> float | None:
    try:
        counts = Path(f"/proc/{process}/io").read_text("utf-8")
    except OSError:
        return None  # not every system counts them
    return float(dict(line.split(": ") for line in counts.splitlines())["wchar"])


_STORES: tuple[StoreName, ...] = ("postgres", "sqlite")

BENCHMARKS = tuple(
    Benchmark(f"jobs_{store}_{what}", partial(drain, store=store, function=function))
    for store in _STORES
    for what, function in (("actions", program.nothing_outside), ("mutations", program.nothing))
)
