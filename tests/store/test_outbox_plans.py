"""What a relay asks of messages aside reads as much as it answers, however many others are aside."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from stage.databases import Databases, connected

from penstock.store.postgres.dialect import POSTGRES
from penstock.store.sql.queries import Query, load_queries
from penstock.store.sqlite.dialect import SQLITE

FEW, MANY, MOST = 40, 20_000, 5
SETTINGS = {"enable_seqscan": "off", "jit": "off", "plan_cache_mode": "force_generic_plan"}  # as services have them

# A quarter is parked and comes first, then come three that have failed, and the rest waits: the first one for one that
# has failed, all others for none.
COLUMNS = "outbox, seq, key, state, interest, kind, row_key, changed_at, failed_at, retry_at, as_insert"
STATE = "case when n <= {number} / 4 then 'parked' when n <= {number} / 4 + 3 then 'halted' else 'waiting' end"
KEY = "'k' || case when n = {number} / 4 + 4 then n - 3 else n end"
VALUES = f"1, n, {KEY}, {STATE}, 1, 'enter', 'r' || n, '2030-01-01', '2030-01-01', '2030-01-01', n in (1, 7)"
OUTBOX = (
    "(name, function, kind, source, spec, version, keep_for, declared_at) values ('o', 'f', 'action', 't', '{}', 1,"
)
LAST = ["r8", "r30", "gone"]  # rows of which the first two have something aside, in the small table too

ASKED: dict[str, dict[str, Any]] = {
    "waiting": {"limit": MOST},
    "failed": {"now": "2040-01-01", "limit": MOST},
    "next_retry": {},
    "inserts": {},
    "aside": {"states": ["halted", "parked"], "after": 4, "limit": MOST},
    "put_keys": {"keys": LAST, "kinds": ["enter"]},
    "backlog": {"most": MOST},
}
ANSWERS = {"waiting": MOST, "failed": 3, "next_retry": 1, "inserts": 2, "aside": MOST, "put_keys": 2, "backlog": 3}

# The others, that read more the more there is.
GROWING: dict[str, dict[str, Any]] = {
    "kept_keys": {},
    "retry_aside": {"name": "o", "now": "2040-01-01", "seqs": None},
    "forget_unread": {"older": False, "high": 0, "interests": [1]},
    "forget_aside": {"parked": True},
    "forget": {"name": "o"},
}


# ----- PostgreSQL

# How many rows each reads through which index.
INDEXES = {"pkey", "state", "key", "row", "due", "as_insert"}
READ = {
    "waiting": {"state": MOST + 1, "key": 1},
    "failed": {"due": 3},
    "next_retry": {"due": 1},
    "inserts": {"as_insert": 2},
    "aside": {"state": 3 + MOST},
    "put_keys": {"row": 2},
    "backlog": {"state": MOST + 3 + MOST},
}


@pytest.fixture
def tables_url(databases: Databases, postgres_template: str) -> Iterator[str]:
    """URL of a database with penstock's own tables."""
    with databases.one(postgres_template) as url:
        yield url


@pytest.mark.parametrize("known", ["when it was empty", "nothing", "all", "that none had failed"])
async def test_postgres_reads_what_it_answers_whatever_it_knows_of_the_table(tables_url: str, known: str) -> None:
    async with connected(tables_url) as other:
        await other.execute("alter table penstock.outbox_message set (autovacuum_enabled = false)")
        await other.execute(f"insert into penstock.outbox {OUTBOX} '1 s', now())")
        connection = await asyncpg.connect(tables_url, server_settings=SETTINGS, statement_cache_size=0)
        if known == "when it was empty":
            await plan(connection)
        numbers = f"generate_series(1, {MANY}) n"
        await other.execute(
            f"insert into penstock.outbox_message ({COLUMNS}) select {VALUES.format(number=MANY)} from {numbers}"
        )
        if known == "that none had failed":
            await other.execute("update penstock.outbox_message set state = 'waiting'")
        if known in {"all", "that none had failed"}:
            await other.execute("analyze penstock.outbox_message")
        if known == "that none had failed":
            state = STATE.format(number=MANY).replace("n <=", "seq <=")
            await other.execute(f"update penstock.outbox_message set state = {state} where seq <= {MANY} / 4 + 3")
        if known != "when it was empty":
            await plan(connection)
        found = {name: await connection.fetch(asked(name)) for name in ASKED}
        read = {name: await rows_read(connection, name) for name in ASKED}
        await connection.close()
    assert {name: len(rows) for name, rows in found.items()} == ANSWERS
    assert read == READ


async def plan(connection: Any) -> None:
    """Have the server plan each statement, and keep to that."""
    for name in ASKED:
        await connection.execute(f"prepare {name} as {postgres(name).statement.sql}")
        await connection.execute(asked(name))


def asked(name: str) -> str:
    values = postgres(name).args({"outbox": 1, **ASKED[name]})
    return f"execute {name} ({', '.join(map(literal, values))})" if values else f"execute {name}"


def literal(value: Any) -> str:
    return f"'{{{','.join(value)}}}'" if isinstance(value, list) else f"'{value}'"


def postgres(name: str) -> Query:
    return load_queries("outboxes", POSTGRES)[name]


async def rows_read(connection: Any, name: str) -> dict[str, int]:
    """How many rows of those aside a statement reads, through which indexes."""
    explained = await connection.fetchval(f"explain (analyze, format json) {asked(name)}")
    read: dict[str, int] = {}
    pending = [json.loads(explained)[0]["Plan"]]
    while pending:
        node = pending.pop()
        pending += node.get("Plans", [])
        assert node["Node Type"] != "Seq Scan", node
        if (index := node.get("Index Name", "").removeprefix("outbox_message_")) in INDEXES:
            rows = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
            read[index] = read.get(index, 0) + round(rows)
    return read


# ----- SQLite


def test_sqlite_takes_as_many_steps_however_many_are_aside(sqlite_template: Path, tmp_path: Path) -> None:
    """In steps of SQLite's machine: as many with 20,000 messages aside as with 40."""
    few, many = (steps_of(Path(shutil.copy(sqlite_template, tmp_path / str(number))), number) for number in (FEW, MANY))
    assert {name: many[name] for name in ASKED} == {name: few[name] for name in ASKED}
    for name in GROWING:
        assert many[name] > few[name], name
        assert not lite(name).statement.bounded, f"{name} would block the event loop"


def steps_of(file: Path, number: int) -> Mapping[str, int]:
    connection, steps = sqlite3.connect(file), 0
    connection.execute(f"insert into penstock_outbox {OUTBOX} 1, '2030-01-01')")
    numbers = f"with recursive s(n) as (select 1 union all select n + 1 from s where n < {number})"
    connection.execute(
        f"insert into penstock_outbox_message ({COLUMNS}) {numbers} select {VALUES.format(number=number)} from s"
    )

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    connection.commit()
    connection.execute("pragma foreign_keys = on")
    connection.set_progress_handler(count, 1)
    taken = {}
    for name, given in (ASKED | GROWING).items():
        steps = 0
        values = {key: json.dumps(value) if isinstance(value, list) else value for key, value in given.items()}
        rows = connection.execute(lite(name).statement.sql, lite(name).args({"outbox": 1, **values})).fetchall()
        taken[name] = steps
        connection.rollback()
        assert len(rows) == ANSWERS.get(name, len(rows))
    connection.close()
    return taken


def lite(name: str) -> Query:
    return load_queries("outboxes", SQLITE)[name]
