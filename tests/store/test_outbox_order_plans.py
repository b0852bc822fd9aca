"""Older rows of an outbox are read in the order of an index: of a large table few rows are looked at for a page."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import Any

import pytest
from conformance.bench import NOW
from stage.databases import connected
from stage.feed import feed

from penstock.changes.interest import Interest
from penstock.store.nouns.interests import Source
from penstock.store.open import sqlite_path
from penstock.store.sqlite.functions import register_functions

TABLE = "create table ordered (number integer primary key, value {kind} not null, whole integer not null)"
FILL = "insert into ordered select n, (n * 7919) % 5000 / 4, n from {numbers}"
ROWS = 5000
POSTGRES, SQLITE = (
    f"generate_series(1, {ROWS}) n",
    f"(with recursive s(n) as (select 1 union all select n + 1 from s where n < {ROWS}) select n from s)",
)


@pytest.mark.parametrize("kind", ["bigint", "text"])
async def test_a_page_of_older_rows_is_read_along_the_index(database_url: str, kind: str) -> None:
    lite = database_url.startswith("sqlite")
    statements = (
        TABLE.format(kind=kind),
        FILL.format(numbers=SQLITE if lite else POSTGRES),
        "create index ordered_value on ordered (value, number)",
        "analyze ordered",
    )
    async with feed(database_url) as store:
        if lite:
            with closing(sqlite3.connect(sqlite_path(database_url))) as connection, connection:
                for statement in statements:
                    connection.execute(statement)
        else:
            async with connected(database_url) as other:
                for statement in statements:
                    await other.execute(statement)
        for matches in (None, "{row}.whole > 0"):
            interest = Interest(
                name="o", table="ordered", key=("number",), matches=matches, after=("whole",), order=("value",)
            )
            (number,) = await store.interests.declare([interest], NOW)
            source = await store.interests.source(number)
            assert source is not None
            session = await store.begin_read()
            rows = list(await session.fetch(source.first, [3]))
            await session.rollback()
            assert [json.loads(row[3])[1] for row in rows] == [json.loads(row[0])[0] for row in rows]
            looked = lite_plan if lite else postgres_plan
            await looked(database_url, source, rows[-1][3])


async def lite_plan(url: str, source: Source, after: str) -> None:
    with closing(sqlite3.connect(sqlite_path(url))) as connection:
        register_functions(connection)
        plans = [
            [row[3] for row in connection.execute(f"explain query plan {statement.sql}", args)]
            for statement, args in ((source.first, [3]), (source.following, [after, 3]))
        ]
    for plan in plans:
        assert any("USING INDEX ordered_value" in step for step in plan), plan
        assert not any("TEMP B-TREE" in step for step in plan), plan
    assert any("SEARCH r USING INDEX ordered_value (value>?)" in step for step in plans[1]), plans[1]


async def postgres_plan(url: str, source: Source, after: str) -> None:
    async with connected(url) as connection:
        for statement, args in ((source.first, [3]), (source.following, [after, 3])):
            explained = await connection.fetchval(f"explain (analyze, format json) {statement.sql}", *args)
            nodes: list[dict[str, Any]] = [json.loads(explained)[0]["Plan"]]
            for node in nodes:
                nodes += node.get("Plans", [])
            assert "Sort" not in {node["Node Type"] for node in nodes}
            (scan,) = [node for node in nodes if node.get("Index Name") == "ordered_value"]
            assert scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0) <= 3
            assert ("Index Cond" in scan) is (statement is source.following)
