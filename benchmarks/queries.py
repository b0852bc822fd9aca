"""A query through an index, equality and take: penstock, and the same by hand on the bare driver.

Both sides read twenty rows of one of all customers in one snapshot, with the same statement on the same table. penstock
gives typed rows. By hand each row becomes a dict: on PostgreSQL from asyncpg's records, in REPEATABLE READ, READ ONLY
on one held connection for each caller; on SQLite from the cursor's column names, between BEGIN and COMMIT on one
connection in one thread.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, TypeVar

import asyncpg

from benchmarks import program
from benchmarks.databases import Connection, connect_sqlite, load
from benchmarks.harness import Bar, Bench, Benchmark, Side, compare
from penstock import Backend

T = TypeVar("T")

_SELECT = 'select "id", "creation_time", "customer", "product", "amount", "placed_at" from "purchase"'
_ORDER = 'order by "customer" asc, "id" asc limit'


async def postgres(bench: Bench, callers: int) -> float:
    """The share of the bare driver's rate that queries on PostgreSQL reach."""
    async with AsyncExitStack() as stack:
        backend = await stack.enter_async_context(bench.databases.backend("postgres", max_connections=callers))
        customers = await _fill(bench, backend)
        connections = [await asyncpg.connect(backend.config.database) for _ in range(callers)]
        for connection in connections:
            stack.push_async_callback(connection.close)
        ours = Side("penstock", [_query(backend, customers, caller) for caller in range(callers)])
        bare = Side("asyncpg", [_by_hand_postgres(own, customers, caller) for caller, own in enumerate(connections)])
        return await compare(bench, ours, bare)


async def sqlite(bench: Bench, callers: int) -> float:
    """The share of a hand-written loop's rate that queries on SQLite reach."""
    async with AsyncExitStack() as stack:
        backend = await stack.enter_async_context(bench.databases.backend("sqlite"))
        customers = await _fill(bench, backend)
        connection = connect_sqlite(backend.config.database)
        stack.callback(connection.close)
        ours = Side("penstock", [_query(backend, customers, caller) for caller in range(callers)])
        bare = Side("sqlite3", _by_hand_sqlite(connection, customers))
        return await compare(bench, ours, bare)


def _query(backend: Backend, customers: list[str], caller: int) -> Callable[[], Awaitable[list[program.Purchase]]]:
    choose = partial(random.Random(caller).choice, customers)

    async def call() -> list[program.Purchase]:
        return _full(await backend.run_query(program.purchases_of, customer=choose()))

    return call


def _by_hand_postgres(
    connection: Connection, customers: list[str], caller: int
) -> Callable[[], Awaitable[list[dict[str, Any]]]]:
    choose = partial(random.Random(caller).choice, customers)
    select = f'{_SELECT} where "customer" = $1 {_ORDER} $2'

    async def call() -> list[dict[str, Any]]:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            rows = await connection.fetch(select, choose(), program.TAKE)
        return _full([dict(row) for row in rows])

    return call


def _by_hand_sqlite(connection: sqlite3.Connection, customers: list[str]) -> Callable[[], list[dict[str, Any]]]:
    choose = partial(random.Random(0).choice, customers)
    select = f'{_SELECT} where "customer" = ? {_ORDER} ?'

    def call() -> list[dict[str, Any]]:
        connection.execute("begin")
        cursor = connection.execute(select, (choose(), program.TAKE))
        names = [column[0] for column in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in cursor]
        connection.execute("commit")
        return _full(rows)

    return call


def _full(rows: list[T]) -> list[T]:
    if len(rows) != program.TAKE:
        raise AssertionError(f"{len(rows)} rows were read instead of {program.TAKE}.")
    return rows


async def _fill(bench: Bench, backend: Backend) -> list[str]:
    rows = list(program.purchases(bench.sizes.rows))
    await load(backend.config.database, "purchase", program.PURCHASE_COLUMNS, rows)
    return sorted({row[2] for row in rows})


BENCHMARKS = (
    *(
        Benchmark(f"query_postgres_{callers}", partial(postgres, callers=callers), Bar(at_least=0.70))
        for callers in (1, 16)
    ),
    Benchmark("query_postgres_16_uvloop", partial(postgres, callers=16), uvloop=True),
    Benchmark("query_sqlite_16", partial(sqlite, callers=16)),
)
