"""Rows of tables with keys of several columns are looked at by their whole keys, not by the first column alone."""

from __future__ import annotations

import json
import sqlite3

import asyncpg
from stage.composite import ORDERS, spelled
from stage.feed import feed, write

from penstock.changes.interest import Interest
from penstock.clock import SystemClock
from penstock.store.open import sqlite_path
from penstock.store.sqlite.functions import register_functions

KEYS = json.dumps([[1, "a"], [2, "b"]])
AFTER = json.dumps([1, "a"])
ORDER = Interest(name="order", table="orders", key=("tenant", "number"), after=("amount",), matches="{row}.amount > 0")
SETTINGS = {"enable_seqscan": "off", "jit": "off"}  # as postgres/route.py has them


async def test_sqlite_looks_by_the_whole_key(sqlite_url: str) -> None:
    async with feed(sqlite_url) as store:
        await write(store, *spelled(sqlite_url, ORDERS))
        (number,) = await store.interests.declare([ORDER], SystemClock().now())
        source = await store.interests.source(number)
        assert source is not None
        connection = sqlite3.connect(sqlite_path(sqlite_url))
        register_functions(connection)
        for statement, args, expected in (
            (source.first, [10], "SCAN r USING INDEX"),
            (source.following, [AFTER, 10], "((tenant,number)>(?,?))"),
            (source.among, [KEYS], "(tenant=? AND number=?)"),
            (source.keys, [KEYS], "(tenant=? AND number=?)"),
        ):
            steps = [step[3] for step in connection.execute(f"explain query plan {statement.sql}", args)]
            assert any(expected in step for step in steps), steps
            assert not any("TEMP B-TREE" in step for step in steps), steps
        connection.close()


async def test_postgres_looks_by_the_whole_key(postgres_url: str) -> None:
    async with feed(postgres_url) as store:
        await write(store, *spelled(postgres_url, ORDERS))
        await write(store, "insert into orders select n / 1000, n::text, 1, null from generate_series(1, 20000) n")
        (number,) = await store.interests.declare([ORDER], SystemClock().now())
        source = await store.interests.source(number)
        assert source is not None
        connection = await asyncpg.connect(postgres_url, server_settings=SETTINGS, statement_cache_size=0)
        try:
            await connection.execute("analyze orders")
            for statement, args, expected in (
                (source.first, [10], "Index Scan using orders_pkey"),
                (source.following, [AFTER, 10], "Index Cond: (ROW(tenant, (number)::text) > ROW("),
                (source.among, [KEYS], "Index Cond: ((tenant = "),
                (source.keys, [KEYS], "Index Cond: ((tenant = "),
            ):
                steps = [row[0] for row in await connection.fetch(f"explain {statement.sql}", *args)]
                assert any(expected in step for step in steps), steps
                assert not any("Seq Scan" in step or "Sort" in step for step in steps), steps
        finally:
            await connection.close()
