"""The backlog of reactive tasks is counted from their jobs: however many records and finished runs there are."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import asyncpg
from stage.reactive import Stage, settle, task_row

from penstock import Table
from penstock.store.open import sqlite_path
from penstock.store.queries import load_queries

RECORDS, MOST = 20_000, 10


class Parcel(Table, name="counted_parcel"):
    number: int = 0


async def test_f26_sqlite_counts_without_reading_records(sqlite_url: str) -> None:
    """In steps of SQLite's machine: as many with 20,000 records and runs that have ended as with ten."""
    stage = Stage()
    stage.task(Parcel)
    async with stage.open(sqlite_url) as test:
        await stage.insert(test, *(Parcel() for _ in range(10)))
        await settle(test)
        await stage.insert(test, *(Parcel() for _ in range(3)))
        await test.plan()
        task = (await task_row(test)).id
    file = sqlite_path(sqlite_url)
    few = steps_of_backlog(file)
    connection = sqlite3.connect(file)
    numbers = f"with recursive n(n) as (select 1 union all select n + 1 from n where n < {RECORDS})"
    connection.execute(
        "insert into penstock_task_record (task, key, id, generation, live, idle, change, changed_at, due_at)"
        f" {numbers} select {task}, 'more' || n, randomblob(16), 1, 0, 1, 'enter', '2030', '2030' from n"
    )
    connection.execute(
        "insert into penstock_finished_job (id, pool, function, kind, args, priority, run_at, attempt, enqueued_at,"
        f" finished_at, expires_at, state, options) {numbers} select randomblob(16), 'default', 'm:f', 'action',"
        f" '{{}}', 0, '2030', 1, '2030', '2030', '3030', 'success', '{{\"task\":{task}}}' from n"
    )
    connection.commit()
    connection.close()
    assert steps_of_backlog(file) == few


def steps_of_backlog(file: Path) -> int:
    query = load_queries("penstock.store.sqlite", "records", "?")["backlog"]
    connection, steps = sqlite3.connect(file), 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    connection.set_progress_handler(count, 1)
    rows = connection.execute(query.statement.sql, query.args({"most": MOST})).fetchall()
    connection.set_progress_handler(None, 1)
    connection.close()
    assert [row[2] for row in rows] == [3]
    return steps


async def test_f26_postgres_counts_without_reading_records(postgres_url: str) -> None:
    stage = Stage()
    stage.task(Parcel)
    async with stage.open(postgres_url) as test:
        await stage.insert(test, *(Parcel() for _ in range(30)))
        await test.plan()
        task = (await task_row(test)).id
        connection = await asyncpg.connect(postgres_url, server_settings={"enable_seqscan": "off", "jit": "off"})
        try:
            await connection.execute(
                "insert into penstock.task_record"
                " (task, key, id, generation, live, idle, change, changed_at, due_at)"
                f" select {task}, 'more' || n, gen_random_uuid(), 1, false, true, 'enter', now(), now()"
                f" from generate_series(1, {RECORDS}) n"
            )
            await connection.execute(
                "insert into penstock.finished_job (id, pool, function, kind, args, priority, run_at, attempt,"
                " enqueued_at, finished_at, expires_at, state, slot, options)"
                " select gen_random_uuid(), 'default', 'm:f', 'action', '{}', 0, now(), 1, now(), now(),"
                f" now() + interval '1 year', case when n % 2 = 0 then 'failed' else 'success' end, -1,"
                f" '{{\"task\":{task}}}' from generate_series(1, {RECORDS}) n"
            )
            await connection.execute("analyze")
            well = await rows_read(connection)
            await connection.execute("update penstock.ready_job set error = 'E'")
            failing = await rows_read(connection)
        finally:
            await connection.close()
    assert well["task_record"] == 0, "none has failed or was put off"
    assert failing["task_record"] == MOST, "each is looked up by its key"
    assert well["ready_job"] == failing["ready_job"] == MOST
    assert well["finished_job_long"] == MOST, "of those that have failed"


async def rows_read(connection: asyncpg.Connection[Any]) -> dict[str, int]:
    """How many rows the query reads of each table; of records and ended jobs through an index."""
    query = load_queries("penstock.store.postgres", "records", "$")["backlog"]
    explain = f"explain (analyze, format json) {query.statement.sql}"
    (row,) = await connection.fetch(explain, *query.args({"most": MOST}))
    scans = [node for node in nodes(json.loads(row[0])[0]["Plan"]) if "Relation Name" in node]
    for table in ("finished_job_long", "task_record"):
        assert all("Index" in node["Node Type"] for node in scans if node["Relation Name"] == table)
    return {node["Relation Name"]: int(node["Actual Rows"] * node["Actual Loops"]) for node in scans}


def nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for child in plan.get("Plans", ()) for node in nodes(child))]
