"""The two dialects of SQL say the same: the same parameters, and each one prepares."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import asyncpg
import pytest

from penstock.clock import SystemClock
from penstock.config import Config
from penstock.store.open import make_store
from penstock.store.postgres.dialect import POSTGRES
from penstock.store.push.migrate import load_migrations, push
from penstock.store.sql.dialect import Dialect
from penstock.store.sql.queries import Query, load_queries
from penstock.store.sqlite.dialect import SQLITE
from penstock.store.sqlite.functions import register_functions

NOUNS = sorted(path.stem for path in Path(str(files("penstock.store.nouns"))).glob("*.sql"))
DIALECTS = {"sqlite": SQLITE, "postgres": POSTGRES}


def statements(noun: str, dialect: Dialect) -> Iterator[Query]:
    """All statements of a noun's queries."""
    for query in load_queries(noun, dialect).values():
        yield query
        yield from query.then


def bare(query: Query) -> str:
    """Its SQL without texts."""
    return re.sub(r"'[^']*'", "", query.statement.sql)


@pytest.mark.parametrize("noun", NOUNS)
def test_parameters_are_numbered_without_gaps_and_none_is_overlooked(noun: str) -> None:
    for query in statements(noun, POSTGRES):
        numbers = {int(number) for number in re.findall(r"\$(\d+)", query.statement.sql)}
        assert numbers == set(range(1, len(query.parameters) + 1)), query.name
        assert ":" not in bare(query).replace("::", ""), query.name
    for query in statements(noun, SQLITE):
        assert re.findall(r"\?\d*|[:@$#]\w+", bare(query)) == ["?"] * len(query.parameters), query.name


def test_each_query_prepares(tmp_path: Path, postgres_url: str) -> None:
    file = tmp_path / "pairs.db"
    migrate(f"sqlite:///{file}")
    connection = sqlite3.connect(file)
    register_functions(connection)
    for noun in NOUNS:
        for query in statements(noun, SQLITE):
            connection.execute(f"explain {query.statement.sql}", [None] * len(query.parameters)).fetchall()
    connection.close()
    migrate(postgres_url)

    async def prepare() -> None:
        connection = await asyncpg.connect(postgres_url)
        for noun in NOUNS:
            for query in statements(noun, POSTGRES):
                statement = await connection.prepare(query.statement.sql)
                assert len(statement.get_parameters()) == len(query.parameters), (noun, query.name)
        await connection.close()

    asyncio.run(prepare())


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_no_name_of_the_default_schema_is_left_in_another_one(dialect: Dialect) -> None:
    other = dialect.in_schema("other")
    queries = {query.name: query.statement.sql for noun in NOUNS for query in statements(noun, other)}
    made = {name: re.sub("--.*", "", other.qualify(sql)) for name, sql in load_migrations(dialect.name)}
    python = re.compile(r"penstock_\w+\(|'penstock: |\$penstock\$")  # functions of connections, errors, quotes
    for name, sql in {**queries, **made, "unless_each": other.unless_each}.items():
        assert "penstock" not in python.sub("", sql), name
    assert "other" in queries["enqueue"] + made["0001_initial"]
    for noun in NOUNS:
        for one, query in load_queries(noun, dialect.in_schema("penstock")).items():
            assert query.statement == load_queries(noun, dialect)[one].statement, one


def test_the_states_in_sql_are_those_of_the_state_machine() -> None:
    from penstock.jobs.states import FINISHED  # noqa: PLC0415

    expected = {state.value for state in FINISHED}
    for dialect in DIALECTS:
        text = "".join(sql for _, sql in load_migrations(dialect))
        (listed,) = re.findall(r"check \(state in \((.*?)\)\)", text)
        assert set(re.findall(r"'(\w+)'", listed)) == expected


def test_users_transactions_only_insert_into_hot_tables() -> None:
    """The rule of the store, read off the SQL: what a session of a user's runs is an insert."""
    for dialect in DIALECTS.values():
        queries = {**load_queries("jobs", dialect), **load_queries("moves", dialect)}
        for name in ("enqueue", "enqueue_scheduled", "request_cancel"):
            if name in queries:
                sql = queries[name].statement.sql
                assert not re.search(r"\b(update|delete)\b", sql), name


def migrate(url: str) -> None:
    async def run() -> None:
        store = make_store(Config(database=url), SystemClock())
        await store.open()
        await push(store, [])
        await store.close()

    asyncio.run(run())
