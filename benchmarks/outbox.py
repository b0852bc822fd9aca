"""What an outbox keeps: beside the plain cursor loop that most programs write, and what it costs those who write.

``outbox_drain``: rows wait; how many a second are handed over to handlers that do nothing, the cursor written: by a
mutation in batches, by a mutation and by an action one at a time; and by a loop over a bare driver that holds a
transaction open, handles rows one after another, and writes its cursor after each. ``large_outbox_backlog``: the
same rate with 250 times as many that wait. ``outbox_latency``: from the end of a mutation to the handler, at two
hundred messages a second. ``outbox_writers``: single rows inserted by a bare driver, with one outbox and without.
"""

from __future__ import annotations

import asyncio
import statistics
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import asyncpg

from benchmarks.databases import Connection, StoreName, connect_sqlite
from benchmarks.harness import Bar, Bench, Benchmark, Side, compare, spread
from penstock import ActionCtx, App, Backend, Config, Message, MutationCtx, Table
from penstock.services.service import Group

_TURNS = 3
_LOOK_EVERY = 0.002
_LONGEST = 600.0
_RATE = 200
_PIECE = 10_000
_FEW = 1_000

_CREATE = {
    "postgres": (
        "create table booking (number bigint primary key, customer text not null, starts_at timestamptz not null, "
        "created_at timestamptz not null default clock_timestamp())"
    ),
    "sqlite": (
        "create table booking (number integer primary key, customer text not null, starts_at text not null, "
        "created_at text not null)"
    ),
}
_FILL = {
    "postgres": (
        "insert into booking (number, customer, starts_at) select n, 'customer ' || n, now() "
        "from generate_series($1::bigint, $2::bigint - 1) n"
    ),
    "sqlite": (
        "insert into booking with recursive n (v) as (select ? union all select v + 1 from n where v + 1 < ?) "
        "select v, 'customer ' || v, '2030-01-01 00:00:00', '2030-01-01 00:00:00' from n"
    ),
}
_INSERT = "insert into {} (number, customer, starts_at) values ($1, 'a customer', now())"


class Booking(Table, source="booking", key="number", managed=False):
    """Rows that another program writes."""

    number: int
    customer: str


class Order(Table):
    """Rows that this program writes."""

    number: int


seen: dict[str, int] = {}
handled: dict[int, float] = {}


def _count(name: str, count: int = 1) -> None:
    seen[name] = seen.get(name, 0) + count


batched, single, acting, ordering = App(), App(), App(), App()


@batched.outbox(Booking, name="batched", batch=100)
async def in_batches(ctx: MutationCtx, bookings: list[Booking]) -> None:  # noqa: ARG001 - every handler is given these
    """A batch without effect."""
    _count("batched", len(bookings))


@single.outbox(Booking, name="single")
async def one_by_one(ctx: MutationCtx, booking: Booking) -> None:  # noqa: ARG001 - every handler is given these
    """A message without effect, in a transaction."""
    _count("single")


@acting.outbox(Booking, name="acting")
async def act(ctx: ActionCtx, booking: Booking) -> None:  # noqa: ARG001 - every handler is given these
    """A message without effect."""
    _count("acting")


@ordering.outbox(Order, name="ordering")
async def ordered(ctx: ActionCtx, message: Message[Order]) -> None:  # noqa: ARG001 - every handler is given these
    """A message whose time is noted."""
    if message.row is not None:
        handled[message.row.number] = time.monotonic()


@ordering.internal_mutation
async def order(ctx: MutationCtx, number: int) -> None:
    """Write a row."""
    await ctx.db.insert(Order(number=number))


_APPS = {"batched": batched, "single": single, "acting": acting}


@asynccontextmanager
async def _database(bench: Bench, store: StoreName) -> AsyncIterator[tuple[str, Connection]]:
    async with bench.databases.fresh(store) as url:
        connection = await asyncpg.connect(url) if store == "postgres" else connect_sqlite(url)
        try:
            await _execute(connection, store, _CREATE[store])
            yield url, connection
        finally:
            closed = connection.close()
            if closed is not None:
                await closed


async def _execute(connection: Connection, store: StoreName, statement: str, *args: Any) -> None:
    if store == "postgres":
        await connection.execute(statement, *args)
    else:
        connection.execute(statement, args)


async def _fill(connection: Connection, store: StoreName, count: int) -> None:
    for first in range(0, count, _PIECE):
        await _execute(connection, store, _FILL[store], first, min(first + _PIECE, count))


# ----- draining


async def drain(bench: Bench, store: StoreName) -> None:
    """Messages handed over in a second, and rows that a plain cursor loop handles."""
    runs: dict[str, Callable[[], Awaitable[float]]] = {
        name: partial(_drain, bench, store, name, bench.sizes.rows) for name in _APPS
    }
    if store == "postgres":
        runs["plain"] = partial(_plain, bench, bench.sizes.rows // 2)
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(_TURNS if bench.sizes.turns > 1 else 1):
        for name in sorted(rates, reverse=bool(turn % 2)):
            rates[name].append(await runs[name]())
    for name, found in rates.items():
        bench.row(spread(name, found, "/s"))
        bench.report(f"{name}_per_second", statistics.median(found))
    if store == "postgres":
        plain = statistics.median(rates["plain"])
        bench.hold("batched_to_plain", statistics.median(rates["batched"]) / plain, Bar(at_least=20))
        bench.hold("acting_to_plain", statistics.median(rates["acting"]) / plain, Bar(at_least=1))


async def _drain(bench: Bench, store: StoreName, name: str, count: int) -> float:
    """Messages of one outbox in a second."""
    async with (
        _database(bench, store) as (url, connection),
        _APPS[name].open(config=Config(database=url)) as backend,
    ):
        await _begun(backend)
        await _fill(connection, store, count)
        seen.clear()
        group = Group([backend.make_service("relay")], backend.engine.store.signals)
        begun = time.perf_counter()
        group.start()
        await _delivered(backend, count)
        seconds = time.perf_counter() - begun
        await group.stop()
    if seen[name] != count:
        raise AssertionError(f"{count} messages were to be handed over, and {seen[name]} were.")
    return count / seconds


async def _begun(backend: Backend) -> None:
    """See to it that no older rows are to be handed over."""
    group = Group([backend.make_service("relay")], backend.engine.store.signals)
    group.start()
    async with asyncio.timeout(_LONGEST):
        while any(row.backfill is not None for row in await backend.engine.store.outboxes.list()):  # noqa: ASYNC110 - the database is asked
            await asyncio.sleep(_LOOK_EVERY)
    await group.stop()


async def _delivered(backend: Backend, count: int) -> None:
    async with asyncio.timeout(_LONGEST):
        while sum(row.delivered for row in await backend.engine.store.outboxes.list()) < count:  # noqa: ASYNC110 - the database is asked
            await asyncio.sleep(_LOOK_EVERY)


async def _plain(bench: Bench, count: int) -> float:
    """Rows in a second of a cursor loop: a locked cursor, rows in the order of their times, the cursor after each."""
    async with _database(bench, "postgres") as (url, connection):
        await connection.execute(
            'create table "cursor" (process_name text primary key, position bigint not null default 0)'
        )
        await connection.execute("insert into \"cursor\" values ('sms')")
        await connection.execute("create index on booking (created_at)")
        await _fill(connection, "postgres", count)
        own = await asyncpg.connect(url)
        handled_rows = 0

        async def handle(_row: Any) -> None:
            nonlocal handled_rows
            handled_rows += 1

        begun = time.perf_counter()
        while handled_rows < count:
            async with own.transaction():
                position = await own.fetchval(
                    "select position from \"cursor\" where process_name = 'sms' for update skip locked"
                )
                rows = await own.fetch(
                    "select * from booking where ($1::bigint = 0 or created_at > (select created_at from booking "
                    "where number = $1)) and created_at < clock_timestamp() - interval '5 milliseconds' "
                    "order by created_at",
                    position,
                )
                for row in rows:
                    await handle(row)
                    await own.execute("update \"cursor\" set position = $1 where process_name = 'sms'", row["number"])
        seconds = time.perf_counter() - begun
        await own.close()
    return count / seconds


async def backlog(bench: Bench, store: StoreName) -> float:
    """The rate with 250 times as many messages that wait, beside that with few; and what memory it takes."""
    many = bench.sizes.later // 4
    few = max(1, many // 250)
    rates = [await _drain(bench, store, "batched", few) for _ in range(_TURNS)]
    tracemalloc.start()
    await _drain(bench, store, "batched", few)
    least = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    rate = await _drain(bench, store, "batched", many)
    tracemalloc.start()
    await _drain(bench, store, "batched", many // 10)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    bench.row(f"{few}: {statistics.median(rates):.0f}/s", f"{many}: {rate:.0f}/s")
    bench.row(f"memory {least / 2**20:.1f} MiB with {few}", f"{most / 2**20:.1f} MiB with {many // 10}")
    bench.report("per_second", rate)
    return rate / statistics.median(rates)


# ----- latency and writers


async def latency(bench: Bench, store: StoreName) -> None:
    """Milliseconds from a commit to the handler."""
    async with _database(bench, store) as (url, _), ordering.open(config=Config(database=url)) as backend:
        group = Group([backend.make_service("relay")], backend.engine.store.signals)
        group.start()
        await asyncio.sleep(bench.sizes.settle / 2)
        handled.clear()
        written: dict[int, float] = {}
        count = bench.sizes.pickups * 2
        for number in range(count):
            await backend.run_mutation(order, number)
            written[number] = time.monotonic()
            await asyncio.sleep((0.5 + number * 0.618 % 1) / _RATE)
        async with asyncio.timeout(_LONGEST):
            while len(handled) < count:  # noqa: ASYNC110 - the database is asked
                await asyncio.sleep(_LOOK_EVERY)
        await group.stop()
    waits = [(handled[number] - written[number]) * 1000 for number in written]
    bench.row(spread("commit to handler", waits, " ms"))
    bench.report("p99_ms", statistics.quantiles(waits, n=100, method="inclusive")[98])
    bench.hold("p50", statistics.median(waits), Bar(at_most=20))


async def writers(bench: Bench, clients: int) -> float:
    """The share of its rate that a writer keeps beside an outbox."""
    async with _database(bench, "postgres") as (url, connection):
        await connection.execute("create table plain (like booking including all)")
        async with acting.open(config=Config(database=url)):
            connections = [await asyncpg.connect(url) for _ in range(clients)]
            numbers = iter(range(1, 2**62))

            def caller(own: Connection, table: str) -> Callable[[], Awaitable[Any]]:
                statement = _INSERT.format(table)
                return lambda: own.execute(statement, next(numbers))

            sides = [Side(table, [caller(own, table) for own in connections]) for table in ("booking", "plain")]
            ratio = await compare(bench, *sides, finer=3)
            for own in connections:
                await own.close()
    return ratio


BENCHMARKS = (
    *(Benchmark(f"outbox_drain_{store}", partial(drain, store=store)) for store in ("postgres", "sqlite")),
    *(
        Benchmark(f"large_outbox_backlog_{store}", partial(backlog, store=store), Bar(at_least=0.9))
        for store in ("postgres", "sqlite")
    ),
    *(Benchmark(f"outbox_latency_{store}", partial(latency, store=store)) for store in ("postgres", "sqlite")),
    *(
        Benchmark(f"outbox_writers_{clients}", partial(writers, clients=clients), Bar(at_least=0.8))
        for clients in (1, 8, 24)
    ),
)
