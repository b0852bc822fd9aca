"""What capturing changes costs writers: the same statements on a table that an interest is about, and on another.

Both tables lie in one database and are written in turn, each row in a transaction of its own, on bare drivers as any
other program has them. The interest has a condition and a watched column, captures one column, and is of a reactive
task's usual kind. Rows *of interest* meet the condition and are captured; rows *of none* cost the triggers' conditions.
What was captured is counted at the end. *Unwatched*: the interest is that of live queries, and nobody watches.
*By hand*: the same with the shortest trigger that one would write by hand: one insert, and no trigger can cost less.
*Bulk*: many rows in one statement, all of them captured.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Literal

import asyncpg

from benchmarks.databases import Connection, connect_sqlite
from benchmarks.harness import Bar, Bench, Benchmark, Side, alternate, compare, spread
from penstock.changes.interest import Interest
from penstock.changes.position import BEGINNING
from penstock.clock import SystemClock
from penstock.config import Config
from penstock.store.open import make_store
from penstock.store.push.migrate import push
from penstock.store.store import Store

Writing = Literal["insert", "update"]

_ROWS = 10_000
_LIMIT = 1_000
_TABLE = {
    "postgres": "create table {} (id bigserial primary key, status text not null, amount bigint not null, note text)",
    "sqlite": "create table {} (id integer primary key, status text not null, amount integer not null, note text)",
}
_NOTE = "a note of the length that notes have"
_INTEREST = Interest(
    name="paid",
    table="captured",
    key=["id"],
    matches="{row}.status = 'paid'",
    watches=["{row}.amount"],
    kinds=["enter", "change", "delete"],
    after=["amount"],
)
_COLUMNS = ["status", "amount", "id"]
_LIVE = Interest(name="live", table="captured", key=["id"], before=_COLUMNS, after=_COLUMNS, on_demand=True)
_EVERY = Interest(name="every", table="captured", key=["id"], kinds=["enter"], after=["amount"])


_BY_HAND = (
    "create table penstock.change (id bigserial primary key, kind text not null, row text)",
    """create function capture() returns trigger language plpgsql as $$ begin
        insert into penstock.change (kind, row) values ('enter', json_build_object('amount', new.amount)::text);
        return null;
    end $$""",
    "create trigger captured after insert or update on captured for each row execute function capture()",
)


async def postgres(
    bench: Bench,
    writing: Writing,
    status: str,
    callers: int,
    *,
    interest: Interest = _INTEREST,
    by_hand: bool = False,
) -> float:
    """The share of its rate that a writer keeps on PostgreSQL."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(bench.databases.fresh("postgres"))
        connections = [await asyncpg.connect(url) for _ in range(callers)]
        for connection in connections:
            stack.push_async_callback(connection.close)
        for table in ("plain", "captured"):
            await connections[0].execute(_TABLE["postgres"].format(table))
            await connections[0].execute(
                f"insert into {table} (status, amount, note) select $1, 0, $2 from generate_series(1, {_ROWS})",
                status,
                _NOTE,
            )
            await connections[0].execute(f"vacuum analyze {table}")
        if by_hand:
            for statement in ("create schema penstock", *_BY_HAND):
                await connections[0].execute(statement)
        else:
            store = await _open(stack, url)
            await store.interests.declare([interest], SystemClock().now())
        sides = [
            Side(table, [_on_postgres(own, table, writing, status, caller) for caller, own in enumerate(connections)])
            for table in ("captured", "plain")
        ]
        ratio = await compare(bench, *sides, finer=3)
        captured = await connections[0].fetchval("select count(*) from penstock.change")
        _check(captured, sides[0].done if status == "paid" and interest is _INTEREST else 0)
        return ratio


async def bulk(bench: Bench) -> float:
    """The share of its rate that one statement keeps which inserts many rows, all of them of interest."""
    count = bench.sizes.rows * 5
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(bench.databases.fresh("postgres"))
        connection = await asyncpg.connect(url)
        stack.push_async_callback(connection.close)
        for table in ("plain", "captured"):
            await connection.execute(_TABLE["postgres"].format(table))
        store = await _open(stack, url)
        await store.interests.declare([_EVERY], SystemClock().now())

        async def fill(table: str) -> float:
            await connection.execute(f"truncate {table}")
            insert = (
                f"insert into {table} (status, amount, note) select 'paid', n, $1 from generate_series(1, $2::int) n"
            )
            begun = time.perf_counter()
            await connection.execute(insert, _NOTE, count)
            return count / (time.perf_counter() - begun)

        fills = [partial(fill, table) for table in ("captured", "plain")]
        await alternate(1, *fills)
        captured, plain = await alternate(bench.sizes.pairs, *fills)
        _check(await connection.fetchval("select count(*) from penstock.change"), count * (bench.sizes.pairs + 1))
        bench.row(spread("captured", captured, "/s"), spread("plain", plain, "/s"))
        return statistics.median(captured) / statistics.median(plain)


async def sqlite(bench: Bench, writing: Writing, status: str, *, interest: Interest = _INTEREST) -> float:
    """The share of its rate that a writer keeps on SQLite."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(bench.databases.fresh("sqlite"))
        store = await _open(stack, url)
        connection = connect_sqlite(url)
        stack.callback(connection.close)
        for table in ("plain", "captured"):
            connection.execute(_TABLE["sqlite"].format(table))
            connection.execute("begin")
            connection.executemany(
                f"insert into {table} (status, amount, note) values (?, 0, ?)", [(status, _NOTE)] * _ROWS
            )
            connection.execute("commit")
        await store.interests.declare([interest], SystemClock().now())
        sides = [Side(table, _on_sqlite(connection, table, writing, status)) for table in ("captured", "plain")]
        ratio = await compare(bench, *sides)
        captured = connection.execute("select count(*) from penstock_change").fetchone()[0]
        _check(captured, sides[0].done if status == "paid" and interest is _INTEREST else 0)
        return ratio


async def reading(bench: Bench, kind: Literal["postgres", "sqlite"]) -> float:
    """How many changes a second are read of a backlog, in pieces."""
    rows = bench.sizes.rows * 10
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(bench.databases.fresh(kind))
        store = await _open(stack, url)
        await _backlog(url, kind, store, rows)
        position, read, slowest = BEGINNING, 0, 0.0
        begun = time.perf_counter()
        while True:
            asked = time.perf_counter()
            batch = await store.changes.read(position, _LIMIT)
            slowest = max(slowest, time.perf_counter() - asked)
            position, read = batch.position, read + len(batch.changes)
            if batch.complete:
                break
        taken = time.perf_counter() - begun
        _check(read, rows)
        bench.row(f"{rows} changes in pieces of {_LIMIT}", f"slowest piece {slowest * 1000:.0f} ms")
        return read / taken


async def _backlog(url: str, kind: str, store: Store, rows: int) -> None:
    if kind == "sqlite":
        file = connect_sqlite(url)
        file.execute(_TABLE[kind].format("captured"))
        await store.interests.declare([_INTEREST], SystemClock().now())
        file.execute("begin")
        file.executemany("insert into captured (status, amount) values ('paid', ?)", ((n,) for n in range(rows)))
        file.execute("commit")
        file.close()
        return
    connection = await asyncpg.connect(url)
    await connection.execute(_TABLE[kind].format("captured"))
    await store.interests.declare([_INTEREST], SystemClock().now())
    fill = f"insert into captured (status, amount) select 'paid', n from generate_series(1, {rows // 100}) n"
    for _ in range(100):
        await connection.execute(fill)
    await connection.close()


async def _open(stack: AsyncExitStack, url: str) -> Store:
    store = make_store(Config(database=url), SystemClock())
    await store.open()
    stack.push_async_callback(store.close)
    await push(store, [])
    return store


def _on_postgres(
    connection: Connection, table: str, writing: Writing, status: str, caller: int
) -> Callable[[], Awaitable[Any]]:
    choose = random.Random(caller)
    if writing == "insert":
        insert = f"insert into {table} (status, amount, note) values ($1, $2, $3)"
        return lambda: connection.execute(insert, status, 1, _NOTE)
    update = f"update {table} set amount = amount + 1 where id = $1"
    return lambda: connection.execute(update, choose.randint(1, _ROWS))


def _on_sqlite(connection: Connection, table: str, writing: Writing, status: str) -> Callable[[], Any]:
    choose = random.Random(0)
    if writing == "insert":
        insert = f"insert into {table} (status, amount, note) values (?, ?, ?)"
        return lambda: connection.execute(insert, (status, 1, _NOTE))
    update = f"update {table} set amount = amount + 1 where id = ?"
    return lambda: connection.execute(update, (choose.randint(1, _ROWS),))


def _check(counted: int, done: int) -> None:
    if counted != done:
        raise AssertionError(f"{done} rows of interest were written, but there are {counted} changes.")


_UNWATCHED = Bar(at_least=0.85)
_INTERESTS = (("paid", "of_interest", Bar(at_least=0.80)), ("open", "of_none", Bar(at_least=0.97)))

BENCHMARKS = (
    *(
        Benchmark(
            f"changes_postgres_{writing}_{named}_{callers}",
            partial(postgres, writing=writing, status=status, callers=callers),
            bar,
        )
        for writing in ("insert", "update")
        for status, named, bar in _INTERESTS
        for callers in (1, 24)
    ),
    *(
        Benchmark(
            f"changes_postgres_insert_by_hand_{callers}",
            partial(postgres, writing="insert", status="paid", callers=callers, by_hand=True),
        )
        for callers in (8, 24)
    ),
    Benchmark("changes_postgres_bulk", bulk, Bar(at_least=0.35)),
    *(
        Benchmark(f"changes_sqlite_{writing}_{named}", partial(sqlite, writing=writing, status=status), bar)
        for writing in ("insert", "update")
        for status, named, bar in _INTERESTS
    ),
    *(
        Benchmark(
            f"changes_postgres_{writing}_unwatched_{callers}",
            partial(postgres, writing=writing, status="paid", callers=callers, interest=_LIVE),
            _UNWATCHED,
        )
        for writing in ("insert", "update")
        for callers in (1, 8)
    ),
    *(
        Benchmark(
            f"changes_sqlite_{writing}_unwatched",
            partial(sqlite, writing=writing, status="paid", interest=_LIVE),
            _UNWATCHED,
        )
        for writing in ("insert", "update")
    ),
    *(Benchmark(f"changes_{kind}_read", partial(reading, kind=kind)) for kind in ("postgres", "sqlite")),
)
