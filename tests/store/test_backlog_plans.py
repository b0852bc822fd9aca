"""The backlog of reactive tasks is counted from their jobs, however many records and finished runs there are."""

from __future__ import annotations

import json
from typing import Any

import asyncpg
from stage.stories import Stage, task_row

from penstock import Table
from penstock.store.postgres.dialect import POSTGRES
from penstock.store.sql.queries import load_queries

RECORDS, MOST = 20_000, 10


class Parcel(Table, name="counted_parcel"):
    number: int = 0


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
                " enqueued_at, finished_at, expires_at, state, day, options)"
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
    query = load_queries("records", POSTGRES)["backlog"]
    explain = f"explain (analyze, format json) {query.statement.sql}"
    (row,) = await connection.fetch(explain, *query.args({"most": MOST}))
    scans = [node for node in nodes(json.loads(row[0])[0]["Plan"]) if "Relation Name" in node]
    for table in ("finished_job_long", "task_record"):
        assert all("Index" in node["Node Type"] for node in scans if node["Relation Name"] == table)
    return {node["Relation Name"]: int(node["Actual Rows"] * node["Actual Loops"]) for node in scans}


def nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for child in plan.get("Plans", ()) for node in nodes(child))]
