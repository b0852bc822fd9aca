"""What reactive tasks keep: their runs come about as quickly as jobs of a pool, and rows older than a task soon.

The program's own process plans and runs. ``task_drain``: rows are changed while nobody looks; then how long it takes
until the last handler, which does nothing, has ended, beside as many jobs of a pool. ``task_reconcile``: a task is
declared beside rows that were there before. ``task_bulk``: one statement changes all rows of a table
whose runs are pending; then how long it takes until that is planned. ``task_latency``: from the end of a
mutation, or of a statement of another program, to the handler, at forty changes a second; and before that, what it
costs to look while nothing is written.
"""

from __future__ import annotations

import asyncio
import statistics
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks.databases import Connection, StoreName, connect_sqlite
from benchmarks.harness import Bar, Bench, Benchmark, spread
from penstock import ActionCtx, App, Backend, Config, MutationCtx, Table, TaskCtx
from penstock.services.service import Group

_JOBS = 1000
_TURNS = 3
_LOOK_EVERY = 0.005
_LONGEST = 600.0
_RATE = 40
_PIECES = 100


class Invoice(Table, source="invoice", key="number", managed=False):
    """Rows that another program writes."""

    number: int
    status: str
    amount: int


class Order(Table):
    """Rows that this program writes."""

    amount: int


_CREATE = {
    "postgres": "create table invoice (number bigint primary key, status text not null, amount bigint not null)",
    "sqlite": "create table invoice (number integer primary key, status text not null, amount integer not null)",
}
_FILL = {
    "postgres": "insert into invoice select n, 'paid', n from generate_series($1::bigint, $2::bigint - 1) n",
    "sqlite": (
        "insert into invoice with recursive n (v) as (select ? union all select v + 1 from n where v + 1 < ?) "
        "select v, 'paid', v from n"
    ),
}

app = App(tables=[Invoice, Order])
pool = app.workpool("tasks", max_parallelism=_JOBS)
handled: dict[Any, float] = {}
timed: list[bool] = []


@app.internal_action
async def nothing(ctx: ActionCtx, number: int) -> None:
    """A job without effect."""


@app.reactive_task(Invoice, filter=lambda row: row.status == "paid", watch=("amount",), pool=pool)
async def invoiced(ctx: TaskCtx[Invoice]) -> None:
    """A run without effect, unless its time is asked for."""
    if timed:
        handled[ctx.doc_id] = time.monotonic()


@app.reactive_task(Order, watch=("amount",), pool=pool)
async def ordered(ctx: TaskCtx[Order]) -> None:
    """A run without effect."""
    handled[ctx.watched_values["amount"]] = time.monotonic()


@app.internal_mutation
async def order(ctx: MutationCtx, amount: int) -> None:
    """Write a row."""
    await ctx.db.insert(Order(amount=amount))


class _Writer:
    """Another program that writes rows.

    On SQLite it waits for its turn in a thread: on the event loop it would keep whoever writes from coming to an end.
    """

    def __init__(self, connection: Connection, store: StoreName) -> None:
        self._connection = connection
        self._store = store

    async def execute(self, statement: str, *args: Any) -> None:
        if self._store == "postgres":
            await self._connection.execute(statement, *args)
        else:
            await asyncio.to_thread(self._connection.execute, statement, args)

    async def fill(self, count: int) -> None:
        """Write rows in pieces."""
        step = max(1, count // _PIECES)
        for first in range(0, count, step):
            await self.execute(_FILL[self._store], first, min(first + step, count))

    async def server_processes(self) -> list[int]:
        """The processes of a PostgreSQL server that serve this database."""
        sql = "select pid from pg_stat_activity where datname = current_database()"
        return [row[0] for row in await self._connection.fetch(sql)]

    async def count(self, sql: str) -> int:
        """A number from the database."""
        if self._store == "postgres":
            return int(await self._connection.fetchval(sql))
        return int(self._connection.execute(sql).fetchone()[0])


@asynccontextmanager
async def database(bench: Bench, store: StoreName) -> AsyncIterator[tuple[str, _Writer]]:
    """A fresh database, and a program that writes into it."""
    async with bench.databases.fresh(store) as url:
        connection = await asyncpg.connect(url) if store == "postgres" else connect_sqlite(url)
        writer = _Writer(connection, store)
        await writer.execute(_CREATE[store])
        try:
            yield url, writer
        finally:
            closed = connection.close()
            if closed is not None:
                await closed


async def drain(bench: Bench, store: StoreName) -> None:
    """Runs of a task in a second, beside jobs of a pool."""
    rates: dict[str, list[float]] = {"tasks": [], "jobs": []}
    for turn in range(_TURNS if bench.sizes.turns > 1 else 1):
        for name in sorted(rates, reverse=bool(turn % 2)):
            async with database(bench, store) as (url, writer):
                rates[name].append(await _drain(url, writer, store, bench.sizes.batch // 8, tasks=name == "tasks"))
    for name, found in rates.items():
        bench.row(spread(name, found, "/s"))
        bench.report(f"{name}_per_second", statistics.median(found))
    bench.hold("", statistics.median(rates["tasks"]) / statistics.median(rates["jobs"]), Bar(at_least=0.7))


async def _drain(url: str, writer: _Writer, store: StoreName, count: int, *, tasks: bool) -> float:
    async with app.open(config=Config(database=url, worker_jobs=_JOBS)) as backend:
        services = [backend.make_service("worker"), backend.make_service("planner")]
        group = Group(list(services), backend.engine.store.signals)
        if tasks:
            await _reconciled(backend)
            await writer.fill(count)
        else:
            await pool.enqueue_batch(backend, nothing, ({"number": number} for number in range(count)))
        begun = time.perf_counter()
        group.start()
        await ended(writer, store, count)
        seconds = time.perf_counter() - begun
        await group.stop()
    return count / seconds


async def _reconciled(backend: Backend) -> None:
    group = Group([backend.make_service("planner")], backend.engine.store.signals)
    group.start()
    async with asyncio.timeout(_LONGEST):
        while any(row.reconciling is not None for row in await backend.engine.store.tasks.list()):  # noqa: ASYNC110 - the database is asked
            await asyncio.sleep(_LOOK_EVERY)
    await group.stop()


async def ended(writer: _Writer, store: StoreName, count: int) -> None:
    """Wait until so many jobs have ended."""
    prefix = "penstock." if store == "postgres" else "penstock_"
    async with asyncio.timeout(_LONGEST):
        while await writer.count(f"select count(*) from {prefix}finished_job") < count:  # noqa: ASYNC110 - the database is asked
            await asyncio.sleep(0.05)


async def reconcile(bench: Bench, store: StoreName) -> None:
    """How many rows that are older than a task are planned in a second, and how much memory that takes."""
    count = bench.sizes.planned
    async with database(bench, store) as (url, writer):
        await writer.fill(count)
        async with app.open(config=Config(database=url, worker_jobs=_JOBS)) as backend:
            tracemalloc.start()
            begun = time.perf_counter()
            await _reconciled(backend)
            seconds = time.perf_counter() - begun
            _, most = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        prefix = "penstock." if store == "postgres" else "penstock_"
        planned = await writer.count(f"select count(*) from {prefix}task_record")
    if planned != count:
        raise AssertionError(f"There are {count} rows, but {planned} records.")
    bench.row(f"{count} rows", f"{count / seconds:.0f}/s", f"at most {most / 2**20:.1f} MiB at once")
    bench.report("rows_per_second", count / seconds)
    bench.report("mebibytes", most / 2**20)


async def bulk(bench: Bench, store: StoreName) -> None:
    """How many rows that one statement has changed are planned in a second, and how much memory that takes."""
    count, prefix = bench.sizes.planned, "penstock." if store == "postgres" else "penstock_"
    async with database(bench, store) as (url, writer):
        await writer.fill(count)
        async with app.open(config=Config(database=url, worker_jobs=_JOBS)) as backend:
            await _reconciled(backend)
            await writer.execute("update invoice set amount = amount + 1")
            group = Group([backend.make_service("planner")], backend.engine.store.signals)
            tracemalloc.start()
            begun = time.perf_counter()
            group.start()
            task = f"task = (select id from {prefix}task where name like '%invoiced')"
            last = f"select count(*) from {prefix}task_record where {task} and key = '[{count - 1}]' and generation = 2"
            async with asyncio.timeout(_LONGEST):
                while not await writer.count(last):  # noqa: ASYNC110 - the database is asked
                    await asyncio.sleep(_LOOK_EVERY)
            seconds = time.perf_counter() - begun
            _, most = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            await group.stop()
        planned = await writer.count(f"select count(*) from {prefix}task_record where generation = 2")
    if planned != count:
        raise AssertionError(f"{count} rows have changed, but {planned} are planned.")
    bench.row(f"{count} rows", f"{count / seconds:.0f}/s", f"at most {most / 2**20:.1f} MiB at once")
    bench.report("rows_per_second", count / seconds)
    bench.report("mebibytes", most / 2**20)


async def latency(bench: Bench, store: StoreName) -> None:
    """Milliseconds from a commit to the handler."""
    async with database(bench, store) as (url, writer), app.open(config=Config(database=url)) as backend:
        group = Group([backend.make_service("worker"), backend.make_service("planner")], backend.engine.store.signals)
        group.start()
        timed.append(True)
        await asyncio.sleep(6 * bench.sizes.settle)  # services look less often where nothing has happened for a while
        bench.hold("looking_percent", 100 * await _looking(writer, store, 2 * bench.sizes.settle), Bar(at_most=1.0))
        for name, most in (("penstock", 10.0), ("sql", 30.0)):
            handled.clear()
            written: dict[int, float] = {}
            for number in range(bench.sizes.pickups):
                if name == "penstock":
                    await backend.run_mutation(order, number)
                else:
                    await writer.execute(_FILL[store], number, number + 1)
                written[number] = time.monotonic()
                await asyncio.sleep((0.5 + number * 0.618 % 1) / _RATE)
            async with asyncio.timeout(_LONGEST):
                while len(handled) < len(written):  # noqa: ASYNC110 - the database is asked
                    await asyncio.sleep(_LOOK_EVERY)
            waits = [(handled[number] - written[number]) * 1000 for number in written]
            bench.row(spread(name, waits, " ms"))
            bench.report(f"{name}_p99_ms", statistics.quantiles(waits, n=100, method="inclusive")[98])
            bench.hold(f"{name}_p50", statistics.median(waits), Bar(at_most=most))
        await group.stop()


async def _looking(writer: _Writer, store: StoreName, seconds: float) -> float:
    """The share of a core that idle services take, with what the server does for them if it runs on this machine."""

    async def spent() -> float:
        servers = await writer.server_processes() if store == "postgres" else ()
        files = [file for pid in servers if (file := Path(f"/proc/{pid}/schedstat")).exists()]
        return time.process_time() + sum(int(file.read_text("ascii").split()[0]) for file in files) / 1e9

    before, begun = await spent(), time.perf_counter()
    await asyncio.sleep(seconds)
    return (await spent() - before) / (time.perf_counter() - begun)


BENCHMARKS = tuple(
    Benchmark(f"task_{name}_{store}", partial(run, store=store))
    for name, run in (("drain", drain), ("reconcile", reconcile), ("bulk", bulk), ("latency", latency))
    for store in ("postgres", "sqlite")
)
