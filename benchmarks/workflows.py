"""Workflows by themselves: runs that sleep, that are due at once, that are replayed, and that wait for many parts.

Runs that sleep are copies of one that a worker has put to sleep. Where a bar is about cost, it is held to processor
time, of the worker's process and of PostgreSQL: other programs of the machine take none of that.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import asyncpg

from benchmarks.databases import StoreName, connect_sqlite
from benchmarks.harness import Bar, Bench, Benchmark, alternate, spread
from benchmarks.peers.protocol import server_cpu
from penstock import ActionCtx, App, Backend, Config, JobId, MutationCtx
from penstock.calls.workflows.body import Body
from penstock.calls.workflows.context import WorkflowCtx
from penstock.jobs.job import job_uuid
from penstock.services.service import Group
from penstock.services.worker.worker import Worker
from penstock.workflows.history import History
from penstock.workflows.record import Beginning

_LOOK_EVERY = 0.05
_LONGEST = 240.0
_LONG = timedelta(days=30)
_SOON = 3  # seconds until the first copies are due
_TABLES = ("scheduled_job", "workflow_record")

app = App()
pool = app.workpool("parts", max_parallelism=100)


@app.internal_action
async def nothing(ctx: ActionCtx) -> None:
    """A step without effect."""


@app.internal_mutation
async def no_change(ctx: MutationCtx) -> None:
    """A part without effect."""


@app.workflow
async def sleep(ctx: WorkflowCtx) -> None:
    """Sleep for a month."""
    await ctx.sleep(_LONG)


@app.workflow
async def take_steps(ctx: WorkflowCtx, number: int) -> None:
    """Make steps one after another, and sleep."""
    for _ in range(number):
        await ctx.run_action(nothing)
    await ctx.sleep(_LONG)


@app.workflow
async def fan_out(ctx: WorkflowCtx, number: int) -> None:
    """Wait for many parts, each in a pool."""
    await asyncio.gather(*(ctx.with_options(pool=pool).run_mutation(no_change) for _ in range(number)))


@asynccontextmanager
async def _working(backend: Backend) -> AsyncIterator[Worker]:
    """Let a worker run, for the time of a block."""
    worker = backend.make_service("worker")
    assert isinstance(worker, Worker)
    group = Group([worker], backend.engine.store.signals)
    group.start()
    try:
        yield worker
    finally:
        await group.stop()


async def _until(backend: Backend, state: str, count: int) -> float:
    """Wait until so many jobs are in a state; the seconds."""
    begun = time.monotonic()
    while (await backend.job_counts()).get(state, 0) < count:
        if time.monotonic() - begun > _LONGEST:
            raise TimeoutError(f"Not {count} jobs came to be {state} within {_LONGEST:.0f} seconds.")
        await asyncio.sleep(_LOOK_EVERY)
    return time.monotonic() - begun


async def _put_to_sleep(backend: Backend, workflow: Any, *args: Any) -> JobId:
    job = await backend.scheduler.run_after(timedelta(0), workflow, *args)
    async with _working(backend):
        await _until(backend, "scheduled", 1)
    return job


async def _copy(backend: Backend, job: JobId, count: int, *, due: bool = False) -> None:
    """Store copies of a run that sleeps; they are due within a second, or in a month."""
    url, run = backend.config.database, job_uuid(job)
    if url.startswith("sqlite"):
        file = connect_sqlite(url)
        file.execute(_FRESH_SQLITE.format(count=count))
        for table in _TABLES:
            columns = [row[1] for row in file.execute(f"pragma table_info(penstock_{table})")]
            file.execute(_copying(f"penstock_{table}", columns, "?", _DUE_SQLITE if due else {}), (run.bytes,))
        file.execute("analyze")
        file.execute("pragma wal_checkpoint(truncate)").fetchall()
        file.close()
        return
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(_FRESH_POSTGRES.format(count=count))
        for table in _TABLES:
            columns = [row[0] for row in await connection.fetch(_COLUMNS, table)]
            await connection.execute(_copying(f"penstock.{table}", columns, "$1", _DUE_POSTGRES if due else {}), run)
        await connection.execute("vacuum analyze")
        await connection.execute("checkpoint")
    finally:
        await connection.close()


_COLUMNS = """
select attname from pg_attribute where attrelid = ('penstock.' || $1)::regclass and attnum > 0 and not attisdropped
"""
_FRESH_POSTGRES = "create temp table fresh as select n, gen_random_uuid() as id from generate_series(1, {count}) as n"
_FRESH_SQLITE = """
create temp table fresh as with recursive series (n) as (select 1 union all select n + 1 from series where n < {count})
select n, randomblob(16) as id from series
"""
_DUE_POSTGRES = {
    "run_at": f"now() + interval '{_SOON} seconds' + n % 1000 * interval '1 millisecond'",
    "at": f"now() + interval '{_SOON} seconds' + n % 1000 * interval '1 millisecond' - interval '30 days'",
}
_DUE_SQLITE = {
    "run_at": f"strftime('%Y-%m-%dT%H:%M:%S', 'now', '+{_SOON} seconds') || printf('.%06dZ', n % 1000 * 1000)",
    "at": f"strftime('%Y-%m-%dT%H:%M:%S', 'now', '+{_SOON} seconds', '-30 days') || printf('.%06dZ', n % 1000 * 1000)",
}


def _copying(table: str, columns: list[str], run: str, given: dict[str, str]) -> str:
    key = "run" if table.endswith("record") else "id"
    values = ", ".join("f.id" if one == key else given.get(one, f"t.{one}") for one in columns if one != "seq")
    names = ", ".join(one for one in columns if one != "seq")
    return f"insert into {table} ({names}) select {values} from {table} t cross join fresh f where t.{key} = {run}"


@asynccontextmanager
async def _backend(bench: Bench, store: StoreName) -> AsyncIterator[Backend]:
    async with bench.databases.fresh(store) as url, app.open(config=Config(database=url)) as backend:
        yield backend


# ----- what is measured


async def sleepers(bench: Bench, store: StoreName) -> float:
    """How much more processor time an idle worker and its database take with sleeping runs than without."""
    async with AsyncExitStack() as stack:
        empty = await stack.enter_async_context(_backend(bench, store))
        full = await stack.enter_async_context(_backend(bench, store))
        await _copy(full, await _put_to_sleep(full, sleep), bench.sizes.sleepers)
        await _put_to_sleep(empty, sleep)
        first, second = (partial(_idle, backend, bench.sizes.settle) for backend in (empty, full))
        without, beside = await alternate(bench.sizes.turns, first, second)
        bench.row(spread("with one", without, " ms/s"), spread(f"with {bench.sizes.sleepers}", beside, " ms/s"))
        bench.report("ms_per_second", statistics.median(beside))
        return statistics.median(beside) / statistics.median(without)


async def _idle(backend: Backend, seconds: float) -> float:
    async with _working(backend):
        await asyncio.sleep(1)
        before = time.process_time() + server_cpu(backend.config.database)
        await asyncio.sleep(seconds)
        return (time.process_time() + server_cpu(backend.config.database) - before) * 1000 / seconds


async def due(bench: Bench, store: StoreName) -> float:
    """How many seconds it takes until all of many runs have gone on that are due within one second."""
    async with _backend(bench, store) as backend:
        job, count = await _put_to_sleep(backend, sleep), bench.sizes.due
        soon = time.monotonic() + _SOON
        await _copy(backend, job, count, due=True)
        before, begun = (time.process_time(), server_cpu(backend.config.database)), time.monotonic()
        async with _working(backend):
            seconds = await _until(backend, "success", count) - max(0.0, soon - begun)
            worked, served = time.process_time() - before[0], server_cpu(backend.config.database) - before[1]
        bench.row(f"{count} runs went on in {seconds:.1f} s; processor {worked:.1f} s, of the server {served:.1f} s")
        bench.report("cpu_us_per_run", worked / count * 1e6)
        bench.report("server_cpu_us_per_run", served / count * 1e6)
        return seconds


async def replay(bench: Bench, store: StoreName) -> float:
    """How many milliseconds of processor time it takes to read and replay a run of 1,000 steps."""
    async with _backend(bench, store) as backend:
        job = await _put_to_sleep(backend, take_steps, bench.sizes.steps)
        taken = [await _replay_once(backend, job, bench.sizes.steps) for _ in range(bench.sizes.pairs)]
        bench.row(spread("replayed", taken, " ms"), f"{bench.sizes.steps} steps")
        return statistics.median(taken)


async def _replay_once(backend: Backend, job: JobId, steps: int) -> float:
    store = backend.engine.store
    begun = time.process_time()
    history = History(await store.workflows.read_history(job_uuid(job)))
    body = Body(take_steps, history, job_uuid(job).int, Beginning(), store.encryption.decrypt)
    first, *others = history.deliveries
    body.begin(first.at, WorkflowCtx(body, backend.engine.registry, job), {"number": steps})
    for record in others:
        body.deliver(record)
    taken = time.process_time() - begun
    if body.has_ended or body.open:
        raise AssertionError("The body did not come to its sleep.")
    body.drop()
    return taken * 1000


async def wakes(bench: Bench, store: StoreName) -> float:
    """How often a run is claimed that waits for 1,000 parts."""
    async with _backend(bench, store) as backend:
        claimed = 0
        async with _working(backend) as worker:
            then: Callable[[Any], None] = worker.on_claimed

            def count(jobs: Any) -> None:
                nonlocal claimed
                claimed += sum(job.function == fan_out.name for job in jobs)
                then(jobs)

            worker.on_claimed = count
            before = time.process_time(), server_cpu(backend.config.database)
            await backend.scheduler.run_after(timedelta(0), fan_out, bench.sizes.parts)
            seconds = await _until(backend, "success", bench.sizes.parts + 1)
            worked, served = time.process_time() - before[0], server_cpu(backend.config.database) - before[1]
        bench.row(
            f"{bench.sizes.parts} parts in {seconds:.1f} s; processor {worked:.1f} s, of the server {served:.1f} s"
        )
        return claimed


_STORES: tuple[StoreName, ...] = ("postgres", "sqlite")

BENCHMARKS = (
    *(Benchmark(f"large_flow_sleepers_{store}", partial(sleepers, store=store), Bar(at_most=1.2)) for store in _STORES),
    *(Benchmark(f"large_flow_due_{store}", partial(due, store=store), Bar(at_most=10)) for store in _STORES),
    *(Benchmark(f"flow_replay_{store}", partial(replay, store=store), Bar(at_most=50)) for store in _STORES),
    *(Benchmark(f"flow_wakes_{store}", partial(wakes, store=store), Bar(at_most=20)) for store in _STORES),
)
