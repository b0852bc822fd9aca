"""The price list: what each feature costs a job, beside the plain job of the same kind and database.

``price_postgres``, ``price_sqlite``: jobs of each row wait in a fresh database; the time until the last has ended is
taken, from the start of one worker. Rows take turns with the plain one. Nothing sleeps in a handler.
"""

from __future__ import annotations

import logging
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from benchmarks.databases import StoreName
from benchmarks.harness import Bench, Benchmark, Side, plain
from benchmarks.tasks import database, ended
from penstock import (
    ActionCtx,
    App,
    Backend,
    Config,
    Id,
    Index,
    MutationCtx,
    MutationTaskCtx,
    QueryCtx,
    Retry,
    Table,
    TaskCtx,
    TokenBucket,
    WorkId,
    WorkResult,
)

_PLACES = 200
_AT_ONCE = 500

app = App(name="prices")
pool = app.workpool("prices", max_parallelism=_PLACES, default_retry=Retry(max_attempts=3, initial_backoff=0.05))
keyed = app.workpool("keyed", max_parallelism=_PLACES, key_parallelism=10)
limited = app.workpool("limited", max_parallelism=_PLACES, rate_limit=TokenBucket(rate=10**6, period=timedelta(1)))


class Account(Table):
    """Rows that handlers read and change."""

    owner: str
    balance: int = 0
    by_owner = Index("owner")


class Audit(Table):
    """Rows that handlers write."""

    owner: str


class Order(Table):
    """Rows that reactive tasks follow."""

    owner: str


class Parcel(Table):
    """The same, for a task that is a mutation."""

    owner: str


@dataclass(frozen=True)
class One:
    """One call of a batch."""

    owner: str


@app.internal_action
async def act(ctx: ActionCtx, owner: str) -> None:
    """Do nothing outside."""


@app.internal_action
async def fail_once(ctx: ActionCtx, owner: str) -> None:
    """Raise at the first attempt."""
    if ctx.work.attempt == 1:
        raise ConnectionError(owner)


@app.internal_action(batch=100, of=One)
async def act_together(ctx: ActionCtx, calls: list[One]) -> list[None]:  # noqa: ARG001 - it is called so
    """Do nothing outside, for many."""
    return [None] * len(calls)


@app.internal_mutation
async def insert(ctx: MutationCtx, owner: str) -> None:
    """Write a row."""
    await ctx.db.insert(Audit(owner=owner))


@app.internal_mutation(batch=100, of=One)
async def insert_together(ctx: MutationCtx, calls: list[One]) -> list[None]:
    """Write rows for many."""
    await ctx.db.insert_many([Audit(owner=call.owner) for call in calls])
    return [None] * len(calls)


@app.internal_mutation
async def change_by_id(ctx: MutationCtx, account: Id[Account]) -> None:
    """Read a row by its id, and change it."""
    row = await ctx.db.get(Account, account)
    await ctx.db.patch(Account, account, balance=row.balance + 1 if row else 0)


@app.internal_mutation
async def change_by_index(ctx: MutationCtx, owner: str) -> None:
    """Read a row by an index, and change it."""
    row = await ctx.db.query(Account).with_index(Account.by_owner, owner=owner).unique()
    if row is not None:
        await ctx.db.patch(Account, row.id, balance=row.balance + 1)


@app.internal_query
async def read_by_index(ctx: QueryCtx, owner: str) -> int:
    """Read a row by an index."""
    row = await ctx.db.query(Account).with_index(Account.by_owner, owner=owner).unique()
    return row.balance if row else 0


@app.internal_mutation
async def write_two(ctx: MutationCtx, owner: str) -> None:
    """Read a row by an index, change it, and write another."""
    await change_by_index(ctx, owner)
    await ctx.db.insert(Audit(owner=owner))


@app.internal_mutation
async def done(ctx: MutationCtx, work_id: WorkId, result: WorkResult[Any], context: Any) -> None:  # noqa: ARG001 - it is called so
    """Write a row for work that has ended."""
    await ctx.db.insert(Audit(owner=work_id))


@app.reactive_task(Order, pool=pool)
async def follow(ctx: TaskCtx[Order]) -> None:
    """Do nothing for a row that is new."""


@app.reactive_task(Parcel, pool=pool)
async def follow_within(ctx: MutationTaskCtx[Parcel]) -> None:
    """Write a row for one that is new."""
    row = await ctx.get_document()
    await ctx.db.insert(Audit(owner=row.owner))


@app.internal_mutation
async def open_accounts(ctx: MutationCtx, first: int, count: int) -> list[Id[Account]]:
    """Make the rows that handlers change."""
    return await ctx.db.insert_many([Account(owner=f"o{number}") for number in range(first, first + count)])


@app.internal_mutation
async def place(ctx: MutationCtx, table: str, count: int) -> None:
    """Make rows that tasks follow."""
    rows: list[Any] = [(Order if table == "order" else Parcel)(owner=f"o{number}") for number in range(count)]
    await ctx.db.insert_many(rows)


Fill = Callable[[Backend, Sequence[Id[Account]]], Awaitable[Any]]


def _calls(function: Any, way: Any = pool) -> Fill:
    async def fill(backend: Backend, accounts: Sequence[Id[Account]]) -> None:
        count = len(accounts)
        if function is change_by_id:
            calls: list[dict[str, Any]] = [{"account": account} for account in accounts]
        else:
            calls = [{"owner": f"o{number}"} for number in range(count)]
        await way.enqueue_batch(backend, function, calls)

    return fill


async def _with_unique_keys(backend: Backend, accounts: Sequence[Id[Account]]) -> None:
    for number in range(len(accounts)):
        await pool.with_options(key=f"k{number}").enqueue(backend, act, owner="o")


async def _with_keys(backend: Backend, accounts: Sequence[Id[Account]]) -> None:
    for number in range(0, len(accounts), 100):
        way = keyed.with_options(concurrency_key=f"k{number}")
        await way.enqueue_batch(backend, act, [{"owner": "o"}] * 100)


def _rows(table: str) -> Fill:
    async def fill(backend: Backend, accounts: Sequence[Id[Account]]) -> None:
        await backend.run_mutation(place, table, len(accounts))

    return fill


_BASES: dict[str, Fill] = {"plain": _calls(act), "mutation": _calls(insert)}
_ROWS: dict[str, tuple[str, Fill]] = {  # beside what, and how jobs are made
    "batch": ("plain", _calls(act_together)),
    "timeout": ("plain", _calls(act, pool.with_options(timeout=timedelta(hours=1)))),
    "priority": ("plain", _calls(act, pool.with_options(priority=1))),
    "on_complete": ("plain", _calls(act, pool.with_options(on_complete=done))),
    "one_failure": ("plain", _calls(fail_once, pool.with_options(retry=True))),
    "run_after": ("plain", _calls(act, pool.with_options(run_after=timedelta(milliseconds=1)))),
    "unique_key": ("plain", _with_unique_keys),
    "concurrency_key": ("plain", _with_keys),
    "rate_limit": ("plain", _calls(act, limited)),
    "task": ("plain", _rows("order")),
    "by_id": ("mutation", _calls(change_by_id)),
    "by_index": ("mutation", _calls(change_by_index)),
    "two_writes": ("mutation", _calls(write_two)),
    "mutation_batch": ("mutation", _calls(insert_together)),
    "mutation_on_complete": ("mutation", _calls(insert, pool.with_options(on_complete=done))),
    "mutation_task": ("mutation", _rows("parcel")),
}


async def prices(bench: Bench, store: StoreName) -> None:
    """The rate of each row, and its ratio to that of the plain job that was drained next to it."""
    logging.getLogger("penstock").setLevel(logging.ERROR)  # a line for each failure would be what is measured
    for name, (base, fill) in _ROWS.items():
        rates: dict[str, list[float]] = {base: [], name: []}
        costs: list[float] = []
        for turn in range(bench.sizes.drains):
            for side in sorted(rates, reverse=bool(turn % 2)):
                rate, cost = await _drain(bench, store, fill if side == name else _BASES[base])
                rates[side].append(rate)
                if side == name:
                    costs.append(cost)
        rate, beside = (statistics.median(rates[side]) for side in (name, base))
        cost = statistics.median(costs)
        bench.row(f"{name:<22}", f"{plain(rate)}/s", f"{cost:.0f} us", f"{rate / beside:.2f} of {base}")
        bench.report(f"{name}_per_second", rate)
        bench.report(f"{name}_of_{base}", rate / beside)


async def drain_rate(bench: Bench, store: StoreName, name: str) -> float:
    """Jobs of a row that have ended in a second."""
    fill = _BASES[name] if name in _BASES else _ROWS[name][1]
    return (await _drain(bench, store, fill))[0]


async def callers_rate(bench: Bench, store: StoreName, kind: str, callers: int) -> float:
    """Calls in a second, of callers that read rows by an index, or change them."""
    count = bench.sizes.mutations
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(bench.databases.fresh(store))
        backend = await stack.enter_async_context(app.open(config=Config(database=url), push_schema=True))
        await _open_accounts(backend, count)
        dice = random.Random(1)

        async def call() -> None:
            owner = f"o{dice.randrange(count)}"
            if kind == "query":
                await backend.run_query(read_by_index, owner)
            else:
                await backend.run_mutation(change_by_index, owner)

        side = Side(kind, [call] * callers)
        await side.turn(bench.sizes.seconds)
        return await side.turn(bench.sizes.seconds * 8)


async def _open_accounts(backend: Backend, count: int) -> list[Id[Account]]:
    accounts: list[Id[Account]] = []
    for first in range(0, count, _AT_ONCE):
        accounts += await backend.run_mutation(open_accounts, first, min(_AT_ONCE, count - first))
    return accounts


async def _drain(bench: Bench, store: StoreName, fill: Fill) -> tuple[float, float]:
    """Jobs that have ended in a second, and microseconds of processor time for each."""
    count = bench.sizes.mutations
    async with AsyncExitStack() as stack:
        url, writer = await stack.enter_async_context(database(bench, store))
        config = Config(database=url, worker_jobs=_PLACES)
        backend = await stack.enter_async_context(app.open(config=config, push_schema=True))
        await fill(backend, await _open_accounts(backend, count))
        begun, used = time.perf_counter(), time.process_time()
        await stack.enter_async_context(app.open(config=config, services=("worker", "planner")))
        await ended(writer, store, count)
        return count / (time.perf_counter() - begun), (time.process_time() - used) / count * 1e6


BENCHMARKS = tuple(Benchmark(f"price_{store}", partial(prices, store=store)) for store in ("postgres", "sqlite"))
