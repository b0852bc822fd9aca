"""The two dialects of SQL say the same: same names, same parameters, a purpose above each, and each one prepares."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from importlib.resources import files
from pathlib import Path

import asyncpg
import pytest

from penstock.clock import SystemClock
from penstock.config import Config
from penstock.store.open import make_store
from penstock.store.push.migrate import push
from penstock.store.sql.queries import Query, load_queries
from penstock.store.sqlite.functions import register_functions

NOUNS = sorted(file.name.removesuffix(".sql") for file in (files("penstock.store.sqlite") / "sql").iterdir())
DIALECTS = {"sqlite": ("SQLite only", "?"), "postgres": ("PostgreSQL only", "$")}
HEADER = re.compile(r"^-- ([a-z_]+): (.+)$", re.MULTILINE)


def comments(dialect: str, noun: str) -> dict[str, str]:
    """The lines above each query, by its name."""
    text = (files(f"penstock.store.{dialect}") / "sql" / f"{noun}.sql").read_text()
    parts = re.split(r"(?m)^(?=-- [a-z_]+: )", text)[1:]
    return {
        HEADER.match(part)[1]: "\n".join(line for line in part.splitlines() if line.startswith("--"))  # type: ignore[index]
        for part in parts
    }


def only(dialect: str, noun: str) -> set[str]:
    """Queries that say they exist in this dialect only."""
    mark, _ = DIALECTS[dialect]
    return {name for name, text in comments(dialect, noun).items() if f"({mark}: " in text}


@pytest.mark.parametrize("noun", NOUNS)
def test_both_dialects_have_the_same_queries(noun: str) -> None:
    shared = {dialect: comments(dialect, noun).keys() - only(dialect, noun) for dialect in DIALECTS}
    assert shared["sqlite"] == shared["postgres"]
    assert shared["sqlite"], "a noun has queries"


@pytest.mark.parametrize("noun", NOUNS)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_each_query_says_what_it_is_for(dialect: str, noun: str) -> None:
    for name, text in comments(dialect, noun).items():
        purpose = text.splitlines()[0].partition(": ")[2]
        assert purpose[0].islower(), name
        assert purpose.endswith((".", ")")) or text.count("\n"), name
        assert len(purpose.split()) > 2, name


@pytest.mark.parametrize("noun", NOUNS)
def test_queries_that_take_other_parameters_say_where_they_part(noun: str) -> None:
    sqlite, postgres = (
        load_queries(f"penstock.store.{dialect}", noun, mark) for dialect, (_, mark) in DIALECTS.items()
    )
    for name in sqlite.keys() & postgres.keys():
        if set(sqlite[name].parameters) != set(postgres[name].parameters):
            told = comments("sqlite", noun)[name] + comments("postgres", noun)[name]
            assert "-- Differs: " in told, f"{noun}.{name}"


def bare(query: Query) -> str:
    """Its SQL without texts."""
    return re.sub(r"'[^']*'", "", query.statement.sql)


@pytest.mark.parametrize("noun", NOUNS)
def test_no_parameter_is_overlooked(noun: str) -> None:
    for dialect, (_, mark) in DIALECTS.items():
        for query in load_queries(f"penstock.store.{dialect}", noun, mark).values():
            assert ":" not in bare(query).replace("::", ""), query.name


@pytest.mark.parametrize("noun", NOUNS)
def test_parameters_of_postgres_are_numbered_without_gaps(noun: str) -> None:
    for query in load_queries("penstock.store.postgres", noun, "$").values():
        numbers = {int(number) for number in re.findall(r"\$(\d+)", query.statement.sql)}
        assert numbers == set(range(1, len(query.parameters) + 1)), query.name


@pytest.mark.parametrize("noun", NOUNS)
def test_parameters_of_sqlite_are_question_marks_without_numbers(noun: str) -> None:
    for query in load_queries("penstock.store.sqlite", noun, "?").values():
        assert re.findall(r"\?\d*|[:@$#]\w+", bare(query)) == ["?"] * len(query.parameters), query.name


@pytest.mark.parametrize("noun", NOUNS)
def test_each_query_prepares_on_sqlite(noun: str, tmp_path: Path) -> None:
    file = tmp_path / "pairs.db"
    migrate(f"sqlite:///{file}")
    connection = sqlite3.connect(file)
    register_functions(connection)
    for query in load_queries("penstock.store.sqlite", noun, "?").values():
        connection.execute(f"explain {query.statement.sql}", [None] * len(query.parameters)).fetchall()
    connection.close()


@pytest.mark.parametrize("noun", NOUNS)
def test_each_query_prepares_on_postgres(noun: str, postgres_url: str) -> None:
    migrate(postgres_url)

    async def prepare() -> None:
        connection = await asyncpg.connect(postgres_url)
        for query in load_queries("penstock.store.postgres", noun, "$").values():
            statement = await connection.prepare(query.statement.sql)
            assert len(statement.get_parameters()) == len(query.parameters), query.name
        await connection.close()

    asyncio.run(prepare())


def test_the_states_in_sql_are_those_of_the_state_machine() -> None:
    from penstock.jobs.states import FINISHED  # noqa: PLC0415

    expected = {state.value for state in FINISHED}
    for dialect in DIALECTS:
        text = (files(f"penstock.store.{dialect}") / "migrations" / "0001_initial.sql").read_text()
        (listed,) = re.findall(r"check \(state in \((.*?)\)\)", text)
        assert set(re.findall(r"'(\w+)'", listed)) == expected


def test_users_transactions_only_insert_into_hot_tables() -> None:
    """The rule of the store, read off the SQL: what a session of a user's runs is an insert."""
    for dialect, (_, mark) in DIALECTS.items():
        queries = load_queries(f"penstock.store.{dialect}", "jobs", mark)
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
