"""Read-modify-write in a serializable transaction: a mutation, and the same by hand on the bare driver.

Both sides read one of all rows by its id and change one of its columns, with the same statements on the same table,
and choose rows by the same random numbers. At the end the counts in the table must add up to the calls made.

By hand on PostgreSQL: one held asyncpg connection for each caller, SERIALIZABLE, again at once on a conflict.
By hand on SQLite: one connection in one thread (WAL, synchronous=FULL, BEGIN IMMEDIATE), which does alone what the
callers of the other side do together; each side has a file of its own, as two writers would wait for each other.

The hot row is one that fifty callers in each of four processes change, beside fifty callers in one process.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import sqlite3
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks import program
from benchmarks.databases import Connection, connect_sqlite, load, sqlite_file
from benchmarks.harness import Bar, Bench, Benchmark, Side, alternate, compare, spread
from penstock import Backend, Id

_SELECT = 'select "id", "creation_time", "name", "count" from "counter" where "id" = '
_UPDATE = 'update "counter" set "count" = '
_HOT_PROCESSES, _HOT_CALLERS = 4, 50


async def postgres(bench: Bench, callers: int) -> float:
    """The share of the bare driver's rate that mutations on PostgreSQL reach."""
    async with AsyncExitStack() as stack:
        backend = await stack.enter_async_context(bench.databases.backend("postgres", max_connections=callers))
        url = backend.config.database
        rows = await _fill(bench, backend)
        connections = [await asyncpg.connect(url) for _ in range(callers)]
        for connection in connections:
            stack.push_async_callback(connection.close)
        ours = Side("penstock", [_mutation(backend, rows, caller) for caller in range(callers)])
        bare = Side("asyncpg", [_by_hand_postgres(own, rows, caller) for caller, own in enumerate(connections)])
        ratio = await compare(bench, ours, bare)
        total = await connections[0].fetchval("select sum(count) from counter")
        _check(total, ours.done + bare.done)
        return ratio


async def sqlite(bench: Bench, callers: int) -> float:
    """The share of a hand-written loop's rate that mutations on SQLite reach."""
    async with AsyncExitStack() as stack:
        other = await stack.enter_async_context(bench.databases.fresh("sqlite"))
        backend = await stack.enter_async_context(bench.databases.backend("sqlite"))
        url = backend.config.database
        rows = await _fill(bench, backend)
        shutil.copy(sqlite_file(url), sqlite_file(other))
        connection = connect_sqlite(other)
        stack.callback(connection.close)
        ours = Side("penstock", [_mutation(backend, rows, caller) for caller in range(callers)])
        bare = Side("sqlite3", _by_hand_sqlite(connection, rows))
        ratio = await compare(bench, ours, bare)
        for file, side in ((url, ours), (other, bare)):
            looking = connect_sqlite(file)
            _check(looking.execute("select sum(count) from counter").fetchone()[0], side.done)
            looking.close()
        return ratio


async def hot_row(bench: Bench) -> None:
    """The rate of callers of one row in several processes, by that of as many in one process; nobody fails."""
    conflicts: list[int] = []
    longest: list[float] = []
    async with AsyncExitStack() as stack:
        backend = await stack.enter_async_context(bench.databases.backend("postgres"))
        row = (await _fill(bench, backend))[0]
        processes = [
            await stack.enter_async_context(_callers(backend.config.database, row)) for _ in range(_HOT_PROCESSES)
        ]

        async def turn(count: int) -> float:
            begun = time.perf_counter()
            for process in processes[:count]:
                process.stdin.write(f"{bench.sizes.hot}\n".encode())
            told = [(await process.stdout.readline()).split() for process in processes[:count]]
            conflicts.extend(int(one[1]) for one in told)
            longest.extend(float(one[2]) for one in told)
            return sum(int(one[0]) for one in told) / (time.perf_counter() - begun)

        await alternate(1, partial(turn, 1), partial(turn, _HOT_PROCESSES))
        one, several = await alternate(bench.sizes.turns, partial(turn, 1), partial(turn, _HOT_PROCESSES))
    ratios = [b / a for a, b in zip(one, several, strict=True)]
    bench.row(spread("one process", one, "/s"), spread(f"{_HOT_PROCESSES}", several, "/s"), spread("ratio", ratios))
    bench.report("longest_ms", max(longest) * 1000)
    bench.hold("conflicts", sum(conflicts), Bar(at_most=0))
    bench.hold("", statistics.median(ratios), Bar(at_least=1.0))


@asynccontextmanager
async def _callers(url: str, row: str) -> AsyncIterator[Any]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.callers", url, row, str(_HOT_CALLERS),
        cwd=Path(__file__).parent.parent, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        if process.stdout is None or await process.stdout.readline() != b"ready\n":
            raise RuntimeError("The process of callers did not start.")
        yield process
    finally:
        process.kill()
        await process.wait()


def _mutation(backend: Backend, rows: list[str], caller: int) -> Callable[[], Awaitable[int]]:
    choose = partial(random.Random(caller).choice, rows)

    async def call() -> int:
        return await backend.run_mutation(program.add_one, counter=Id(choose()))

    return call


def _by_hand_postgres(connection: Connection, rows: list[str], caller: int) -> Callable[[], Awaitable[int]]:
    choose = partial(random.Random(caller).choice, rows)
    select, update = f"{_SELECT}$1", f'{_UPDATE}$1 where "id" = $2'

    async def call() -> int:
        row_id = choose()
        while True:
            try:
                async with connection.transaction(isolation="serializable"):
                    row = await connection.fetchrow(select, row_id)
                    count: int = row["count"] + 1
                    await connection.execute(update, count, row_id)
            except (asyncpg.SerializationError, asyncpg.DeadlockDetectedError):
                continue
            else:
                return count

    return call


def _by_hand_sqlite(connection: sqlite3.Connection, rows: list[str]) -> Callable[[], int]:
    choose = partial(random.Random(0).choice, rows)
    select, update = f"{_SELECT}?", f'{_UPDATE}? where "id" = ?'

    def call() -> int:
        row_id = choose()
        connection.execute("begin immediate")
        try:
            row = connection.execute(select, (row_id,)).fetchone()
            count: int = row[3] + 1
            connection.execute(update, (count, row_id))
        except BaseException:
            connection.execute("rollback")
            raise
        connection.execute("commit")
        return count

    return call


async def _fill(bench: Bench, backend: Backend) -> list[str]:
    rows = list(program.counters(bench.sizes.rows))
    await load(backend.config.database, "counter", program.COUNTER_COLUMNS, rows)
    return [row[0] for row in rows]


def _check(stored: Any, done: int) -> None:
    if stored != done:
        raise AssertionError(f"{done} calls were made, but the counts add up to {stored}.")


BENCHMARKS = (
    *(
        Benchmark(f"mutation_postgres_{callers}", partial(postgres, callers=callers), Bar(at_least=0.70))
        for callers in (1, 4, 16)
    ),
    Benchmark("mutation_hot_row", hot_row),
    Benchmark("mutation_postgres_16_uvloop", partial(postgres, callers=16), uvloop=True),
    *(
        Benchmark(f"mutation_sqlite_{callers}", partial(sqlite, callers=callers), Bar(at_least=0.40))
        for callers in (1, 4, 16)
    ),
)
