"""Claiming ready jobs while a million others are scheduled for later: as quick as if there were none.

Two databases stand side by side, alike but for the jobs scheduled for later; batches are claimed from them in turn.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from uuid import UUID

import asyncpg

from benchmarks import program
from benchmarks.databases import StoreName, connect_sqlite
from benchmarks.harness import Bar, Bench, Benchmark, alternate, spread
from penstock import Backend
from penstock.functions.function import AnyFunction
from penstock.jobs.job import DEFAULT_POOL, NewJob
from penstock.jobs.order import rank
from penstock.store.nouns.jobs import Room

_BATCH = 100
_AT_ONCE = 1000
_LEASE = timedelta(hours=1)

_LATER_POSTGRES = """
insert into penstock.scheduled_job (id, pool, function, kind, args, priority, rank, run_at, options, attempt,
    enqueued_at)
select gen_random_uuid(), 'default', $1, 'mutation', '{}', 0, n, now() + interval '1 day' + n * interval '1 second',
       null, 0, now()
from generate_series(1, $2::integer) as n
"""
_LATER_SQLITE = """
insert into penstock_scheduled_job (id, pool, function, kind, args, priority, rank, run_at, options, attempt,
    enqueued_at)
with recursive series (n) as (select 1 union all select n + 1 from series where n < ?)
select randomblob(16), 'default', ?, 'mutation', '{}', 0, n,
       strftime('%Y-%m-%dT%H:%M:%S', 'now', '+1 day', '+' || n || ' seconds') || '.000000Z', null, 0,
       strftime('%Y-%m-%dT%H:%M:%S', 'now') || '.000000Z'
from series
"""


async def claims(bench: Bench, store: StoreName) -> float:
    """How much longer a claim takes with jobs scheduled for later than without."""
    async with AsyncExitStack() as stack:
        empty = await stack.enter_async_context(bench.databases.backend(store))
        full = await stack.enter_async_context(bench.databases.backend(store))
        for backend in (empty, full):
            await enqueue(backend, program.nothing, _BATCH * (bench.sizes.claims + 1))
        await _schedule_for_later(empty, 0)
        await _schedule_for_later(full, bench.sizes.later)
        first, second = [await _claimer(backend) for backend in (empty, full)]
        await alternate(1, first, second)
        without, beside = await alternate(bench.sizes.claims, first, second)
        ratios = [b / a for a, b in zip(without, beside, strict=True)]
        bench.row(
            spread("beside none", without, " ms"),
            spread(f"beside {bench.sizes.later}", beside, " ms"),
            f"ratio of neighbours {statistics.median(ratios):.2f}",
        )
        return statistics.median(beside) / statistics.median(without)


async def enqueue(backend: Backend, function: AnyFunction, count: int) -> None:
    """Store jobs without arguments that are due at once."""
    engine, now = backend.engine, backend.engine.clock.now()
    for start in range(0, count, _AT_ONCE):
        jobs = [
            NewJob(UUID(int=engine.clock.uuid7()), function.name, function.kind.job_kind, "{}", now, rank(now))
            for _ in range(min(_AT_ONCE, count - start))
        ]
        await backend.job_calls.enqueue_all(jobs)


async def _claimer(backend: Backend) -> Callable[[], Awaitable[float]]:
    """Claims a batch; the milliseconds that took."""
    engine = backend.engine
    lease = await engine.store.leases.take("benchmark", _LEASE, engine.clock.now())

    async def claim() -> float:
        begun = time.perf_counter()
        claim = await engine.store.jobs.claim(lease, _BATCH, [Room(DEFAULT_POOL, _BATCH)], engine.clock.now())
        taken = time.perf_counter() - begun
        if len(claim.jobs) != _BATCH:
            raise AssertionError(f"{len(claim.jobs)} jobs were claimed instead of {_BATCH}.")
        return taken * 1000

    return claim


async def _schedule_for_later(backend: Backend, count: int) -> None:
    url = backend.config.database
    if url.startswith("sqlite"):
        file = connect_sqlite(url)
        if count:
            file.execute(_LATER_SQLITE, (count, program.nothing.name))
        file.execute("analyze")
        file.execute("pragma wal_checkpoint(truncate)").fetchall()
        file.close()
        return
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(_LATER_POSTGRES, program.nothing.name, count)
        await connection.execute("vacuum analyze")
        await connection.execute("checkpoint")
    finally:
        await connection.close()


BENCHMARKS = (
    Benchmark("claim_postgres", partial(claims, store="postgres"), Bar(at_most=1.5)),
    Benchmark("claim_sqlite", partial(claims, store="sqlite"), Bar(at_most=1.5)),
)
