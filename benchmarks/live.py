"""Live queries: how soon an answer comes after a commit, alone and among many, and what watching costs at rest.

One process watches and writes. An answer is timed from the end of the writing call until `async for` has it: writes of
mutations in this process, and of another connection, as other programs write. *Among many*: each write concerns one of
many watched queries. *All of them*: one write concerns each, and the clock runs until the last one has its answer. *At
rest*: the processor time of the process, in parts of a second each second, while nothing changes, and while a table is
written that is captured and that nobody watches, less the time of the writer.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import asyncpg

from benchmarks.databases import StoreName, connect_sqlite
from benchmarks.harness import Bar, Bench, Benchmark, spread
from penstock import App, Backend, Index, MutationCtx, QueryCtx, Table
from penstock.api.live import Watch

_SOON = 30.0
_PAUSE = 0.02
app = App()


class Seat(Table):
    """A row that is read alone."""

    number: int
    price: int = 0

    by_number = Index("number", unique=True)


class Tariff(Table):
    """A row that all read."""

    factor: int = 1


class Visit(Table):
    """A row that nobody watches."""

    number: int


@app.query
async def price(ctx: QueryCtx, number: int) -> int:
    """The price of a seat."""
    seat = await ctx.db.query(Seat).with_index(Seat.by_number, number=number).unique()
    tariff = await ctx.db.query(Tariff).first()
    return 0 if seat is None or tariff is None else seat.price * tariff.factor


@app.mutation
async def fill(ctx: MutationCtx, count: int) -> None:
    """Insert all rows."""
    await ctx.db.insert(Tariff())
    await ctx.db.insert(Visit(number=0))
    for number in range(count):
        await ctx.db.insert(Seat(number=number, price=1))


@app.mutation
async def put(ctx: MutationCtx, number: int) -> None:
    """Raise the price of a seat."""
    seat = await ctx.db.query(Seat).with_index(Seat.by_number, number=number).unique()
    if seat is not None:
        await ctx.db.patch(Seat, seat.id, price=seat.price + 1)


@app.mutation
async def raise_all(ctx: MutationCtx) -> None:
    """Raise the tariff."""
    tariff = await ctx.db.query(Tariff).first()
    if tariff is not None:
        await ctx.db.patch(Tariff, tariff.id, factor=tariff.factor + 1)


async def measure(bench: Bench, store: StoreName) -> None:
    """All of it on one store."""
    many = bench.sizes.rows // 10
    async with bench.databases.fresh(store) as url, AsyncExitStack() as stack:
        backend = await stack.enter_async_context(app.open(url))
        execute = await stack.enter_async_context(_other_program(store, url))
        await backend.run_mutation(fill, count=many)
        times = bench.sizes.pickups // 2
        async with backend.live(price, number=0) as watch:
            await _next(watch)
            await _latency(bench, "alone", [watch], times, lambda number: backend.run_mutation(put, number=number))
            await _latency(
                bench,
                "other_program",
                [watch],
                times,
                lambda number: execute(f"update seat set price = price + 1 where number = {number}"),
            )
        watches = [await stack.enter_async_context(backend.live(price, number=number)) for number in range(many)]
        begun = time.perf_counter()
        await asyncio.gather(*map(_next, watches))
        bench.report("first_answers_seconds", time.perf_counter() - begun)
        await _latency(bench, "among_many", watches, times, lambda number: backend.run_mutation(put, number=number))
        await _all_of_them(bench, backend, watches)
        await _at_rest(bench, execute)


async def _latency(
    bench: Bench, what: str, watches: list[Watch[int]], times: int, write: Callable[[int], Awaitable[Any]]
) -> None:
    taken = []
    for turn in range(times):
        number = turn * 7 % len(watches)
        answer = asyncio.ensure_future(_timed(watches[number]))
        await asyncio.sleep(_PAUSE * (turn % 5) / 5)
        await write(number)
        written_at = time.perf_counter()
        taken.append(max(0.0, (await answer) - written_at) * 1000)
    bench.row(what, spread("", taken, " ms"))
    bench.report(f"{what}_p50_ms", statistics.median(taken))
    bench.report(f"{what}_p95_ms", sorted(taken)[len(taken) * 95 // 100])


async def _all_of_them(bench: Bench, backend: Backend, watches: list[Watch[int]]) -> None:
    taken, firsts = [], []
    for _ in range(bench.sizes.turns):
        answers = [asyncio.ensure_future(_timed(watch)) for watch in watches]
        await asyncio.sleep(_PAUSE)
        begun = time.perf_counter()
        await backend.run_mutation(raise_all)
        came = sorted(at - begun for at in await asyncio.gather(*answers))
        taken.append(came[-1])
        firsts.append(came[0])
    bench.row("all of them", spread("first", firsts, " s"), spread("last", taken, " s"))
    bench.hold("all_seconds", statistics.median(taken), Bar(at_most=2.0))


async def _at_rest(bench: Bench, execute: Callable[[str], Awaitable[Any]]) -> None:
    await asyncio.sleep(bench.sizes.settle)
    begun, spent = time.perf_counter(), time.process_time()
    await asyncio.sleep(bench.sizes.settle)
    bench.report("at_rest_cpu", (time.process_time() - spent) / (time.perf_counter() - begun))
    begun, spent, own, count = time.perf_counter(), time.process_time(), 0.0, 0
    while time.perf_counter() - begun < bench.sizes.settle:
        at = time.process_time()
        count += 1
        await execute("update visit set number = number + 1")
        own += time.process_time() - at
        await asyncio.sleep(_PAUSE / 2)
    seconds = time.perf_counter() - begun
    bench.row("unwatched table", f"{count / seconds:.0f} writes/s")
    bench.report("unwatched_cpu", (time.process_time() - spent - own) / seconds)


# ----- steps


async def _next(watch: Watch[int]) -> int:
    return await asyncio.wait_for(anext(watch), _SOON)


async def _timed(watch: Watch[int]) -> float:
    await _next(watch)
    return time.perf_counter()


@asynccontextmanager
async def _other_program(store: StoreName, url: str) -> AsyncIterator[Callable[[str], Awaitable[Any]]]:
    """A connection that knows nothing of penstock."""
    if store == "postgres":
        connection = await asyncpg.connect(url)
        try:
            yield connection.execute
        finally:
            await connection.close()
        return
    file = connect_sqlite(url)
    try:

        async def execute(sql: str) -> None:
            file.execute(sql)

        yield execute
    finally:
        file.close()


BENCHMARKS = (
    Benchmark("live_postgres", partial(measure, store="postgres")),
    Benchmark("live_sqlite", partial(measure, store="sqlite")),
)
