"""The statements that run all the time read through their indexes, however many jobs wait, run or have ended."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

import asyncpg
import pytest

from penstock.clock import SystemClock
from penstock.config import Config
from penstock.store.nouns.jobs import ABOVE_ALL, BELOW_ALL
from penstock.store.nouns.noun import Access
from penstock.store.open import make_store
from penstock.store.postgres.dialect import POSTGRES
from penstock.store.push.migrate import push
from penstock.store.sql.dialect import Dialect
from penstock.store.sql.queries import Query, load_queries
from penstock.store.sqlite.dialect import SQLITE

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SCHEDULED, FINISHED, READY, RUNNING, WAITING, KEYS = 50_000, 50_000, 2_000, 500, 20_000, 5_000
UNKNOWN = UUID(int=1)

WORDS = ("state", "pool", "function", "name", "key", "concurrency_key", "error", "on_complete_error", "prefix")
FILTER = (*WORDS, "since", "before")

# What each statement is asked, and through which indexes it must read which table.
HOT: dict[str, tuple[dict[str, Any], dict[str, set[str]]]] = {
    "claim": (
        {
            "pool": "default",
            "epoch": None,
            "lease": 1,
            "limit": 10,
            "now": NOW,
            "pools": ["default"],
            "rooms": [10],
            "epochs": [None],
            "running": [0],
            "after_ranks": [-(2**63)],
            "after_seqs": [-(2**63)],
        },
        {
            "ready_job": {"ready_job_order", "ready_job_ending", "key"},
            "cancel_request": {"cancel_request_job"},
        },
    ),
    "promote": (
        {"now": NOW + timedelta(seconds=100), "limit": 50},
        {"scheduled_job": {"scheduled_job_run_at", "key"}, "cancel_request": {"cancel_request_job"}},
    ),
    "succeed": (
        {
            "lease": 1,
            "ids": [UNKNOWN],
            "result": "null",
            "finished_at": NOW,
            "expires_at": NOW,
            "day": 3,
            **dict.fromkeys(["returned", "results", "finished_ats", "expires_ats", "days"]),
        },
        {"running_job": {"key"}},
    ),
    "settle": ({"lease": 1, "id": UNKNOWN}, {"running_job": {"key"}, "job_key": {"job_key_job"}}),
    "turns": (
        {"pool": "keyed", "room": 10, "keys": 32, "now": NOW},
        {"scheduled_job": {"scheduled_job_gate", "scheduled_job_blocking"}, "running_job": {"running_job_key"}},
    ),
    "start": (
        {
            "pool": "keyed",
            "lease": 1,
            "epoch": 1,
            "now": NOW,
            "last": "key-7",
            "keys": ["key-7", "key-8"],
            "counts": [2, 1],
            "key": "key-7",
            "count": 2,
        },
        {
            "scheduled_job": {"scheduled_job_gate", "scheduled_job_next", "key"},
            "cancel_request": {"cancel_request_job"},
            "job_key": {"job_key_job"},
        },
    ),
    "find": (
        {"id": [UNKNOWN], "now": NOW},
        {"ready_job": {"key"}, "scheduled_job": {"key"}, "running_job": {"key"}, "finished_job": {"key"}},
    ),
    "prune": ({"now": NOW + timedelta(days=400), "limit": 10}, {"finished_job": {"finished_job_expires_at", "key"}}),
    "list": (
        {**dict.fromkeys(FILTER), "below": ABOVE_ALL, "down_to": BELOW_ALL, "limit": 10, "now": NOW},
        {"ready_job": {"key"}, "scheduled_job": {"key"}, "running_job": {"key"}, "finished_job": {"key"}},
    ),
    "list_failed": (
        {**dict.fromkeys(FILTER), "state": "failed", "below": ABOVE_ALL, "down_to": BELOW_ALL, "limit": 10, "now": NOW},
        {"finished_job": {"finished_job_failed_id"}},
    ),
    "count_failed": ({"now": NOW, "most": 10}, {"finished_job": {"finished_job_failed_id"}}),
}


OF_GATES = {"turns", "start"}  # the others are of jobs
SMALL = {"pool", "gate", "rate_limit"}  # there are few pools
LIMITED = {"list", "list_failed", "count_failed", "look", "claim_ending", "next_run_at"}


def query_of(dialect: Dialect, name: str) -> Query:
    nouns = ("gates",) if name in OF_GATES else ("jobs", "moves")
    return next(found[name] for noun in nouns if name in (found := load_queries(noun, dialect)))


# ----- PostgreSQL


@pytest.fixture(scope="module")
def postgres_plans(postgres_server: str) -> Iterator[str]:
    """A database full of jobs, once for all tests here."""
    asyncio.run(on_server(postgres_server, "create database test_plans"))
    url = urlunsplit(urlsplit(postgres_server)._replace(path="/test_plans"))
    asyncio.run(fill_postgres(url))
    yield url
    asyncio.run(on_server(postgres_server, "drop database test_plans with (force)"))


async def on_server(url: str, sql: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(sql)
    await connection.close()


async def fill_postgres(url: str) -> None:
    store = make_store(Config(database=url), SystemClock())
    await store.open()
    await push(store, [])
    await store.close()
    connection = await asyncpg.connect(url)
    columns = "id, pool, function, kind, args, priority, run_at, options, attempt, enqueued_at, rank"
    some = (
        "gen_random_uuid(), 'default', 'm:f', 'mutation', '{}', 0, $1::timestamptz + n * interval '1 s', null, 0, $1, n"
    )
    waiting = some.replace("'default'", "'keyed'") + f", true, true, 'key-' || n % {KEYS}"
    next_ones = some.replace("'default'", "'keyed'").replace("0, $1, n", "0, $1, n * 9") + ", true, 'key-' || n % 10"
    running = some.replace("'default'", "'keyed'") + f", true, 'key-' || n % {KEYS}, $1, n % 10"
    ended = (
        "id, pool, function, kind, args, priority, run_at, attempt, enqueued_at, finished_at, expires_at, state, day"
    )
    soon = "$1::timestamptz + n * interval '1 min'"
    values = f"gen_random_uuid(), 'default', 'm:f', 'mutation', '{{}}', 0, $1, 1, $1, $1, {soon}"
    for table, count, into, row in (
        ("scheduled_job", SCHEDULED, columns, some),
        ("ready_job", READY, columns, some),
        ("running_job", RUNNING, f"{columns}, started_at, lease", f"{some}, $1, n % 10"),
        ("scheduled_job", WAITING, f"{columns}, gated, waiting, concurrency_key", waiting),
        ("scheduled_job", WAITING, f"{columns}, gated, concurrency_key", next_ones),
        ("running_job", RUNNING, f"{columns}, gated, concurrency_key, started_at, lease", running),
        ("job_key", KEYS, "pool, key, job_id, until_start", "'keyed', n::text, gen_random_uuid(), false"),
        ("finished_job", FINISHED, ended, f"{values}, 'success', n % 17 - 1"),
        ("lease", 10, "holder, started_at, expires_at", "'worker', $1, $1"),
    ):
        sql = f"insert into penstock.{table} ({into}) select {row} from generate_series(1, {count}) n"
        await connection.execute(sql, *([NOW] if "$1" in row else []))
    await connection.execute(
        "insert into penstock.pool (name, declared, max_parallelism, key_parallelism) values ('keyed', 9, 9, 2)"
    )
    await connection.execute("insert into penstock.gate values ('keyed', 'key-3')")
    await connection.execute("analyze")
    await connection.close()


async def postgres_plan(url: str, query: Query, asked: dict[str, Any], how: str) -> list[dict[str, Any]]:
    """The nodes of a statement's plan, on a connection as the store has it; nothing it does is kept."""
    store = make_store(Config(database=url), SystemClock())
    connection = await store._connections.connect()  # type: ignore[attr-defined]
    try:
        await connection.execute("begin")
        if how == "generic":
            nothing = ", ".join(["null"] * len(query.parameters))
            await connection.execute("set local plan_cache_mode = force_generic_plan")
            await connection.execute(f"prepare it as {query.statement.sql}")
            (row,) = await connection.fetch(f"explain (format json) execute it ({nothing})")
        else:
            arguments = [postgres_value(query, name, asked) for name in query.parameters]
            (row,) = await connection.fetch(f"explain (analyze, format json) {query.statement.sql}", *arguments)
        await connection.execute("rollback")
    finally:
        await connection.close()
    return list(nodes(json.loads(row[0])[0]["Plan"]))


def postgres_value(query: Query, name: str, asked: dict[str, Any]) -> Any:
    """What was asked; the other parameters of a settlement are arrays of nothing."""
    asked = {**Access.left, **asked}
    if name in asked:
        return asked[name]
    assert query.name == "settle", name
    return [asked["id"]] if name == "ids" else [None]


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


@pytest.mark.parametrize("how", ["for what is asked", "generic"])
@pytest.mark.parametrize("name", HOT)
def test_postgres_reads_through_indexes(postgres_plans: str, name: str, how: str) -> None:
    asked, expected = HOT[name]
    query = query_of(POSTGRES, name)
    plan = asyncio.run(postgres_plan(postgres_plans, query, asked, how))
    scans = [node for node in plan if node["Node Type"].endswith("Scan") and "Relation Name" in node]
    used: dict[str, set[str]] = {}
    for scan in scans:
        table = scan["Relation Name"]
        if table in SMALL or scan["Node Type"] == "Tid Scan":
            continue  # a row's place is found without an index
        by = scan["Plans"][0] if scan["Node Type"] == "Bitmap Heap Scan" else scan
        assert "Index Name" in by, f"{scan['Node Type']} on {table}"
        used.setdefault(one_partition(table), set()).add(index_kind(table, by["Index Name"]))
    for table, indexes in expected.items():
        assert used.pop(table) <= indexes, table
    assert used.keys() <= {"lease", "scheduled_job", "workflow_state", "workflow_wake"}


def one_partition(table: str) -> str:
    return "finished_job" if table.startswith("finished_job") else table


def index_kind(table: str, index: str) -> str:
    if index.startswith("finished_job_") and index.endswith("_id_expires_at_idx"):  # as PostgreSQL names it
        return "finished_job_failed_id"
    return "key" if index == f"{table}_pkey" else index.replace("finished_job_long", "finished_job")


def test_postgres_claims_without_touching_scheduled_jobs(postgres_plans: str) -> None:
    """Of 50,000 scheduled jobs, such as runs that sleep, it looks at one; of ready ones at what it takes. (WF52)"""
    asked, _ = HOT["claim"]
    query = load_queries("moves", POSTGRES)["claim"]
    plan = asyncio.run(postgres_plan(postgres_plans, query, asked, "for what is asked"))
    touched: dict[str, float] = {}
    for node in plan:
        if "Index Name" in node:
            rows = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
            touched[node["Index Name"]] = touched.get(node["Index Name"], 0) + rows
    assert touched["scheduled_job_run_at"] == 1
    assert touched["ready_job_order"] == 10
    assert "ready_job_pkey" not in touched
    assert not any(node["Node Type"] == "Sort" and node["Actual Rows"] > 11 for node in plan), "one is of none of them"


@pytest.mark.parametrize("how", ["for what is asked", "generic"])
def test_postgres_counts_a_backlog_no_further_than_it_is_told(postgres_plans: str, how: str) -> None:
    query = load_queries("pools", POSTGRES)["backlog"]
    plan = asyncio.run(postgres_plan(postgres_plans, query, {"most": 10, "first": 10}, how))
    scans = [node for node in plan if node.get("Relation Name", "").endswith("_job")]
    assert {scan["Index Name"] for scan in scans} == {"ready_job_order", "scheduled_job_gate", "scheduled_job_run_at"}
    assert all(scan.get("Actual Rows", 0) <= 10 for scan in scans)
    assert not [node for node in plan if node["Node Type"] == "Sort" and node.get("Actual Rows", 0) > 10]


@pytest.mark.parametrize("how", ["for what is asked", "generic"])
@pytest.mark.parametrize("name", ["look", "waiting"])
def test_postgres_follows_the_line_of_keys_no_further_than_it_is_told(postgres_plans: str, name: str, how: str) -> None:
    query = load_queries("pools", POSTGRES)[name]
    heads = {"after_ranks": [-(2**63)], "after_seqs": [-(2**63)]}
    asked = {"lease": 1, "pools": ["keyed"], "pool": "keyed", "keys": 10, "most": 10, **heads}
    plan = asyncio.run(postgres_plan(postgres_plans, query, asked, how))
    scans = [node for node in plan if node.get("Relation Name", "").endswith("_job")]
    used = {scan["Index Name"] for scan in scans}
    assert used <= {"ready_job_order", "scheduled_job_gate", "running_job_key"}
    assert sum(scan.get("Actual Rows", 0) * scan.get("Actual Loops", 0) for scan in scans) < 100


# ----- SQLite

FEW = {
    "SCAN job",
    "SCAN few",
    "SCAN first",
    "SCAN old",
    "SCAN CONSTANT ROW",
    "SCAN gate",
    "SCAN free",
    "SCAN k",
    "SCAN ahead",
    "SCAN again",
    "SCAN turn",
    "SCAN penstock_workflow_wake",
}


@pytest.fixture(scope="module")
def sqlite_plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file full of jobs, once for all tests here."""
    file = tmp_path_factory.mktemp("plans") / "plans.db"

    async def make() -> None:
        store = make_store(Config(database=f"sqlite:///{file}"), SystemClock())
        await store.open()
        await push(store, [])
        await store.close()

    asyncio.run(make())
    connection = sqlite3.connect(file)
    numbers = f"with recursive n(n) as (select 1 union all select n + 1 from n where n < {SCHEDULED}) "
    some = "randomblob(16), 'default', 'm:f', 'mutation', '{}', 0, printf('2030-%06d', n), null, 0, '2030', n"
    columns = "id, pool, function, kind, args, priority, run_at, options, attempt, enqueued_at, rank"
    for table, count, more, values in (
        ("scheduled_job", SCHEDULED, "", ""),
        ("ready_job", READY, "", ""),
        ("running_job", RUNNING, ", lease, started_at", ", n % 10, '2030'"),
    ):
        connection.execute(
            f"insert into penstock_{table} ({columns}{more}) {numbers} select {some}{values} from n where n <= {count}"
        )
    connection.execute(
        "insert into penstock_finished_job (id, pool, function, kind, args, priority, run_at, attempt, enqueued_at,"
        f" finished_at, expires_at, state) {numbers} select randomblob(16), 'default', 'm:f', 'mutation', '{{}}', 0,"
        " '2030', 1, '2030',"
        " '2030', printf('2030-%06d', n), 'success' from n"
    )
    connection.commit()
    connection.close()
    return file


@pytest.mark.parametrize(
    "name",
    [
        *HOT,
        *("look", "waiting", "claim_ending", "next_run_at"),
        *("start", "settle_pending"),
    ],
)
def test_sqlite_reads_through_indexes(sqlite_plans: Path, name: str) -> None:
    query = query_of(SQLITE, name)
    connection, steps = sqlite3.connect(sqlite_plans), []
    for one in (query, *query.then):
        steps += connection.execute(f"explain query plan {one.statement.sql}", [None] * len(one.parameters)).fetchall()
    connection.close()
    reads = [step[3] for step in steps if step[3].startswith(("SEARCH", "SCAN"))]
    assert reads
    for read in reads:
        if "VIRTUAL TABLE" in read:
            continue  # what was asked for
        assert " USING " in read or "(subquery" in read or read.removesuffix(" LEFT-JOIN") in FEW, read
        if read.startswith("SCAN") and "USING" in read:
            assert name in LIMITED, "only what is ordered by an index and limited may begin at its end"
    sorts = [step[3] for step in steps if "TEMP B-TREE" in step[3]]
    assert len(sorts) == (name == "list"), "it sorts no more than the few rows it has found"


def test_sqlite_claims_without_touching_scheduled_jobs(sqlite_plans: Path) -> None:
    """The work of a claim, in steps of SQLite's machine, is that with one scheduled job, not with 50,000. (WF52)"""
    all_but_one = "delete from penstock_scheduled_job where rowid > 1"
    assert steps_of_claim(sqlite_plans, all_but_one, "delete from penstock_finished_job") == steps_of_claim(
        sqlite_plans
    )


def steps_of_claim(file: Path, *before: str) -> int:
    queries = load_queries("moves", SQLITE)
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("begin")
    for statement in before:
        connection.execute(statement)
    lease = "insert into penstock_lease (id, holder, started_at, expires_at) values (1, 'w', '2030', '2031')"
    connection.execute(lease)
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    connection.set_progress_handler(count, 1)
    for name in ("look", "next_run_at", "claim_ending", "claim", "waiting"):
        query = queries[name]
        values = {"pool": "default", "pools": '["default"]', "lease": 1, "epoch": None, "limit": 10}
        values |= {"others": "[]", "shared": "[]", "programs": "[]"}
        connection.execute(query.statement.sql, query.args(values)).fetchall()
    connection.set_progress_handler(None, 1)
    connection.execute("rollback")
    connection.close()
    return steps
