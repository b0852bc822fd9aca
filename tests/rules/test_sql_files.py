"""SQL: named queries in .sql files, and what stands for parameters."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

import pytest

from penstock.calls.run.sql import prepare_sql
from penstock.store.postgres.dialect import POSTGRES
from penstock.store.sql.dialect import Dialect
from penstock.store.sql.queries import Query, parse_queries
from penstock.store.sqlite.dialect import SQLITE

SQL = """-- What this file is about is said without a colon at the beginning of a line.

-- find: one note, whoever wrote it.
-- Differs: nothing does.
select id, text::varchar -- :neither
from note
where id = :id and (writer = :writer or :writer is null);

-- any: whether there is a note.
-- Unbounded: as an example.
select 1 from note limit 1;

-- later: none that was is lost.
insert into note (id, at) values (:id, '12:30');
"""


@pytest.fixture
def dialect() -> Dialect:
    return POSTGRES


@pytest.fixture
def queries(dialect: Dialect) -> Mapping[str, Query]:
    return parse_queries(SQL, dialect)


def test_names_become_numbers_the_same_for_the_same_name(queries: Mapping[str, Query]) -> None:
    find = queries["find"]
    assert find.parameters == ("id", "writer")
    assert find.statement.sql.endswith("from note where id = $1 and (writer = $2 or $2 is null)")
    assert "::varchar" in find.statement.sql
    assert find.args({"writer": "Ada", "id": 5, "more": 1}) == [5, "Ada"]
    with pytest.raises(KeyError):
        find.args({"id": 5})
    assert queries["later"].statement.sql == "insert into note (id, at) values ($1, '12:30')"
    assert queries["any"].parameters == ()


@pytest.mark.parametrize("dialect", [SQLITE], ids=["sqlite"])
def test_names_become_question_marks_one_for_each_value(queries: Mapping[str, Query]) -> None:
    find = queries["find"]
    assert find.parameters == ("id", "writer", "writer")
    assert find.statement.sql.endswith("from note where id = ? and (writer = ? or ? is null)")
    assert find.args({"writer": "Ada", "id": 5, "more": 1}) == [5, "Ada", "Ada"]
    assert queries["later"].statement.sql == "insert into note (id, at) values (?, '12:30')"
    assert queries["any"].parameters == ()


def test_a_query_is_bounded_unless_it_says_otherwise(queries: Mapping[str, Query]) -> None:
    assert {name: query.statement.bounded for name, query in queries.items()} == {
        "find": True,
        "any": False,
        "later": True,
    }


def test_two_queries_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="Two queries are called one"):
        parse_queries("-- one: a.\nselect 1;\n-- one: b.\nselect 2;\n", SQLITE)


def test_sql_of_users_takes_a_value_for_each_time_that_its_name_occurs() -> None:
    query = "select ':b', :b, \"':b\" -- it's :b\n, :a /* :a */ from c where d = :b and e = :missing"
    values: dict[str, Any] = {"a": 1, "b": "x"}
    assert prepare_sql(query, values, SQLITE) == (
        "select ':b', ?, \"':b\" -- it's :b\n, ? /* :a */ from c where d = ? and e = :missing",
        ["x", 1, "x"],
    )
    assert prepare_sql(query, values, POSTGRES) == (
        "select ':b', $1, \"':b\" -- it's :b\n, $2 /* :a */ from c where d = $1 and e = :missing",
        ["x", 1],
    )


def rows(sql: str) -> list[sqlite3.Row]:
    connection = sqlite3.connect(":memory:")
    connection.row_factory = sqlite3.Row
    return connection.execute(sql).fetchall()
