"""Mutations as handlers of reactive tasks, on a table that another program owns and writes in plain SQL.

``task_mutations``: runs that read their row and insert another, beside jobs of a pool whose mutation does the same.
``task_conflicts``: rows are written while a mutation handles them, and its transactions are to be no conflict for each
other. ``large_task_backlog``: two tasks have many rows to run, and are to be as quick at the end as at the beginning.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from benchmarks.databases import StoreName
from benchmarks.harness import Bar, Bench, Benchmark, spread
from benchmarks.tasks import _reconciled, _Writer, database, ended
from penstock import App, Backend, Config, MutationCtx, MutationTaskCtx, Table
from penstock.services.service import Group

_JOBS = 1000
_TURNS = 3
_PARTS = (0.1, 0.3, 0.7, 0.9)
_LONGEST = 900.0


class Invoice(Table, source="invoice", key="number", managed=False):
    """Rows that another program writes."""

    number: int
    status: str
    amount: int


class Entry(Table):
    """What is written for each of them."""

    number: int


one, two, plain = (App(tables=[Invoice, Entry]) for _ in range(3))
pools = {app: app.workpool("tasks", max_parallelism=_JOBS) for app in (one, two, plain)}


async def enter(ctx: MutationTaskCtx[Invoice]) -> None:
    """Read the row, and insert another one."""
    row = await ctx.get_document()
    await ctx.db.insert(Entry(number=row.number))


for app, names in ((one, ("first",)), (two, ("first", "second"))):
    for name in names:

        async def handler(ctx: MutationTaskCtx[Invoice]) -> None:
            """The same under a name of its own."""
            await enter(ctx)

        handler.__name__ = handler.__qualname__ = name
        app.reactive_task(Invoice, name=name, watch=("amount",), pool=pools[app])(handler)


@plain.internal_mutation
async def entered(ctx: MutationCtx, number: int) -> None:
    """The same for a job."""
    key: Any = number
    row = await ctx.db.get(Invoice, key)
    if row is None:
        raise LookupError(number)
    await ctx.db.insert(Entry(number=row.number))


@asynccontextmanager
async def _running(app: App, url: str) -> AsyncIterator[tuple[Backend, Group]]:
    """An app whose tasks have looked at all rows, and its services, which are not started."""
    async with app.open(config=Config(database=url, worker_jobs=_JOBS)) as backend:
        if app is not plain:
            await _reconciled(backend)
        services = [backend.make_service("worker"), backend.make_service("planner")]
        group = Group(list(services), backend.engine.store.signals)
        try:
            yield backend, group
        finally:
            await group.stop()


async def beside_jobs(bench: Bench, store: StoreName) -> None:
    """Runs of a mutation task in a second, beside jobs whose mutation does the same."""
    rates: dict[str, list[float]] = {"tasks": [], "jobs": []}
    for turn in range(_TURNS if bench.sizes.turns > 1 else 1):
        for name in sorted(rates, reverse=bool(turn % 2)):
            async with database(bench, store) as (url, writer):
                rates[name].append(await _drain(one if name == "tasks" else plain, url, writer, store, bench))
    for name, found in rates.items():
        bench.row(spread(name, found, "/s"))
        bench.report(f"{name}_per_second", statistics.median(found))
    bench.hold("", statistics.median(rates["tasks"]) / statistics.median(rates["jobs"]), Bar(at_least=0.6))


async def _drain(app: App, url: str, writer: _Writer, store: StoreName, bench: Bench) -> float:
    count = bench.sizes.mutations
    async with _running(app, url) as (backend, group):
        await writer.fill(count)
        if app is plain:
            await pools[plain].enqueue_batch(backend, entered, ({"number": number} for number in range(count)))
        begun = time.perf_counter()
        group.start()
        await ended(writer, store, count)
        seconds = time.perf_counter() - begun
    if (found := await writer.count("select count(*) from entry")) != count:
        raise AssertionError(f"There are {count} rows, but {found} were handled.")
    return count / seconds


async def conflicts(bench: Bench) -> None:
    """How many transactions are undone for a hundred runs, while their rows are written one by one."""
    count = bench.sizes.mutations
    undone = "select xact_rollback from pg_stat_database where datname = current_database()"
    async with database(bench, "postgres") as (url, writer), _running(one, url) as (_backend, group):
        group.start()
        await asyncio.sleep(bench.sizes.settle / 2)
        before = await writer.count(undone)
        for number in range(count):
            await writer.execute("insert into invoice values ($1, 'paid', $1)", number)
        await ended(writer, "postgres", count)
        await asyncio.sleep(1.5)  # until the server has counted
        found = (await writer.count(undone) - before) / count * 100
    bench.row(f"{count} rows", f"{found:.1f} transactions undone for 100 runs")
    bench.hold("per_100_runs", found, Bar(at_most=5.0))


async def backlog(bench: Bench, store: StoreName) -> None:
    """Runs of two tasks in a second, at the beginning of a backlog and at its end."""
    count = bench.sizes.batch // 5
    async with database(bench, store) as (url, writer), _running(two, url) as (_backend, group):
        await writer.fill(count)
        group.start()
        times = await _reached(writer, store, [int(part * 2 * count) for part in _PARTS])
    (first, first_at), (second, second_at), (third, third_at), (last, last_at) = times
    start, end = _rate(second - first, second_at - first_at), _rate(last - third, last_at - third_at)
    bench.row(f"{count} rows", f"{start:.0f}/s at the beginning, {end:.0f}/s at the end")
    bench.report("runs_per_second", end)
    bench.hold("", end / start, Bar(at_least=0.8))


def _rate(count: int, seconds: float) -> float:
    """So many in a second; one, if there are so few that all were there at the first look."""
    return max(1, count) / max(seconds, 0.001)


async def _reached(writer: _Writer, store: StoreName, counts: Sequence[int]) -> list[tuple[int, float]]:
    """When so many runs had ended: how many they were then, and the time."""
    prefix, found = "penstock." if store == "postgres" else "penstock_", list[tuple[int, float]]()
    async with asyncio.timeout(_LONGEST):
        for wanted in counts:
            while (ended := await writer.count(f"select count(*) from {prefix}finished_job")) < wanted:  # noqa: ASYNC110 - the database is asked
                await asyncio.sleep(0.2)
            found.append((ended, time.perf_counter()))
    return found


BENCHMARKS = (
    *(Benchmark(f"task_mutations_{store}", partial(beside_jobs, store=store)) for store in ("postgres", "sqlite")),
    Benchmark("task_conflicts_postgres", conflicts),
    *(Benchmark(f"large_task_backlog_{store}", partial(backlog, store=store)) for store in ("postgres", "sqlite")),
)
