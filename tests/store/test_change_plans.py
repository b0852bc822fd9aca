"""Reading the change feed touches what is unread, however much else is kept, and whoever keeps a transaction open."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from stage.feed import entry, feed

from penstock.changes.position import BEGINNING, Position
from penstock.store.open import sqlite_path
from penstock.store.postgres.dialect import POSTGRES
from penstock.store.sql.queries import load_queries
from penstock.store.sqlite.dialect import SQLITE
from penstock.store.store import Store

ROWS = 20_000
OWN = 2  # what the old transaction has written is looked at each time, but is not there yet
SETTINGS = {"enable_seqscan": "off", "jit": "off"}  # as postgres/route.py has them


@asynccontextmanager
async def filled(url: str) -> AsyncIterator[tuple[Store, Any, Position]]:
    """A feed of many changes, written while an old transaction stays open; a connection, and where it ended before."""
    async with feed(url) as store:
        old = await asyncpg.connect(url)
        other = await asyncpg.connect(url, server_settings=SETTINGS, statement_cache_size=0)
        try:
            await old.execute(f"begin; {entry(999, 1)}")
            before = (await store.changes.read(BEGINNING, 10)).position
            await other.execute(
                "do $$ begin for k in 1..100 loop insert into entry select k, n, null from"
                f" generate_series(1, {ROWS // 100}) n; commit; end loop; end $$"
            )
            yield store, other, before
        finally:
            await old.close()
            await other.close()


async def touched(connection: Any, name: str, position: Position, limit: int, how: str) -> dict[str, float]:
    """How many rows a statement looks at through which indexes."""
    query = load_queries("changes", POSTGRES)[name]
    values = query.args({**position.bounds(), "interests": None, "limit": limit, "most": limit})
    await connection.execute(f"set plan_cache_mode = {how}")
    explained = await connection.fetchval(f"explain (analyze, format json) {query.statement.sql}", *values)
    found: dict[str, float] = {}
    pending = [json.loads(explained)[0]["Plan"]]
    while pending:
        node = pending.pop()
        pending += node.get("Plans", [])
        assert node["Node Type"] != "Seq Scan", node
        if "Index Name" in node:
            rows = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
            index = node["Index Name"].split("_", 2)[2]
            found[index] = found.get(index, 0) + rows
    return found


async def test_postgres_looks_at_what_is_unread(postgres_url: str) -> None:
    async with filled(postgres_url) as (store, other, before):
        for how in ("force_custom_plan", "force_generic_plan"):
            await looks_at_what_is_unread(store, other, before, how)


async def looks_at_what_is_unread(store: Store, other: Any, before: Position, how: str) -> None:
    begun = await touched(other, "begin", before, 10, how)
    assert begun.keys() == {"xid_idx"}
    assert begun["xid_idx"] <= ROWS + OWN, "once for a batch"
    far = await touched(other, "begin_far", before, 10, how)
    assert far.keys() == {"seq_idx"}
    assert far["seq_idx"] <= 10 + OWN, "or less, if nothing that is seen is kept"
    batch = await store.changes.read(before, 10)
    pieces = await touched(other, "go_on", batch.position, 10, how)
    assert pieces.keys() == {"seq_idx"}
    assert pieces["seq_idx"] <= 11, "for a piece of it only the piece"
    end = (await store.changes.read(before, ROWS + 1)).position
    for name in ("begin", "lag"):
        assert sum((await touched(other, name, end, 10, how)).values()) <= OWN, "not what came since the old one"


async def test_sqlite_looks_at_what_is_unread(sqlite_url: str) -> None:
    async with feed(sqlite_url):
        connection = sqlite3.connect(sqlite_path(sqlite_url))
        queries = load_queries("changes", SQLITE)
        for name in ("begin", "lag", "clear"):
            query = queries[name]
            plan = connection.execute(f"explain query plan {query.statement.sql}", [None] * len(query.parameters))
            steps = [step[3] for step in plan if "penstock_change" in step[3]]
            assert steps, name
            assert all("USING INTEGER PRIMARY KEY" in step for step in steps), name
        connection.close()
