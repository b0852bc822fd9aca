"""What scheduling adds to a mutation: statements sent to the database.

Every statement is counted where the driver sends it, on the connection that has the mutation's transaction. The
wake-up of workers, which goes out after the commit on a connection of its own, at most once in a few milliseconds, is
reported beside it. On SQLite, where a statement is a call and not a round trip, the count is only reported.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import asyncpg

from benchmarks import program
from benchmarks.databases import StoreName, load
from benchmarks.harness import Bar, Bench, Benchmark
from penstock import Backend, Id

_JOBS = 3
_TIMES = 20


async def postgres(bench: Bench) -> float:
    """Statements that three scheduled jobs add to a mutation on PostgreSQL."""
    counted: Counter[str] = Counter()
    with _counting_asyncpg(counted):
        without, with_jobs = await _measure(bench, "postgres", counted)
    bench.row(f"without jobs {without['sent']:g}", f"with {_JOBS} jobs {with_jobs['sent']:g}")
    bench.report("wake_ups", with_jobs["wake-ups"])
    return with_jobs["sent"] - without["sent"]


async def sqlite(bench: Bench) -> float:
    """The same on SQLite."""
    counted: Counter[str] = Counter()
    with _counting_sqlite(counted):
        without, with_jobs = await _measure(bench, "sqlite", counted)
    bench.row(f"without jobs {without['sent']:g}", f"with {_JOBS} jobs {with_jobs['sent']:g}")
    return with_jobs["sent"] - without["sent"]


async def _measure(bench: Bench, store: StoreName, counted: Counter[str]) -> list[dict[str, float]]:
    async with bench.databases.backend(store, max_connections=1) as backend:
        rows = list(program.counters(1))
        await load(backend.config.database, "counter", program.COUNTER_COLUMNS, rows)
        await _run(backend, rows[0][0], _JOBS)  # connections opened
        found = []
        for jobs in (0, _JOBS):
            counted.clear()
            for _ in range(_TIMES):
                await _run(backend, rows[0][0], jobs)
            found.append({what: counted[what] / _TIMES for what in ("sent", "wake-ups")})
        return found


async def _run(backend: Backend, row_id: str, jobs: int) -> None:
    await backend.run_mutation(program.add_one_and_schedule, counter=Id(row_id), jobs=jobs)


@contextmanager
def _counting_asyncpg(counted: Counter[str]) -> Iterator[None]:
    connect = asyncpg.connect

    async def connect_and_count(*args: Any, **kwargs: Any) -> Any:
        connection = await connect(*args, **kwargs)
        connection.add_query_logger(lambda sent: counted.update(["wake-ups" if "pg_notify" in sent.query else "sent"]))
        return connection

    with mock.patch.object(asyncpg, "connect", connect_and_count):
        yield


@contextmanager
def _counting_sqlite(counted: Counter[str]) -> Iterator[None]:
    connect = sqlite3.connect

    def connect_and_count(*args: Any, **kwargs: Any) -> Any:
        connection = connect(*args, **kwargs)
        connection.set_trace_callback(lambda _: counted.update(["sent"]))
        return connection

    with mock.patch.object(sqlite3, "connect", connect_and_count):
        yield


BENCHMARKS = (
    Benchmark("scheduling_statements", postgres, Bar(at_most=1)),
    Benchmark("scheduling_statements_sqlite", sqlite),
)
