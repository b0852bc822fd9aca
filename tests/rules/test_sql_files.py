"""SQL: named queries in .sql files, what stands for parameters, and how rows become values of classes."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from penstock.calls.run.sql import prepare_sql
from penstock.jobs.job import NO_OPTIONS, Options
from penstock.store.postgres.dialect import POSTGRES
from penstock.store.sql.dialect import Dialect
from penstock.store.sql.queries import Query, parse_queries
from penstock.store.sqlite.access import SqliteAccess
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


SHARED = """
-- hold: notes of some writers, held against others.
select id, greatest(views, 0) from shop.note where writer = any(:writers::text[]) and id = any(:ids::uuid[])
for no key update of note skip locked;

-- drop: forget a note, and what was said of it.
-- SQLite: there is no DELETE in WITH.
delete from shop.note where id = :id;
delete from shop.comment where note = :id and note <> :other;
-- PostgreSQL: one statement for both.
with gone as (delete from shop.note where id = :id returning id)
delete from shop.comment c using gone where c.note = gone.id;

-- version: a number that changes when others commit.
-- SQLite: PostgreSQL tells of it by notify.
-- Unbounded: as an example.
pragma data_version;
"""


def test_what_both_stores_share_is_respelled_for_sqlite() -> None:
    postgres, sqlite = (parse_queries(SHARED, dialect)["hold"].statement.sql for dialect in (POSTGRES, SQLITE))
    assert postgres == (
        "select id, greatest(views, 0) from shop.note where writer = any($1::text[]) and id = any($2::uuid[])"
        " for no key update of note skip locked"
    )
    assert sqlite == (
        "select id, max(views, 0) from shop.note where writer in (select value from json_each(?))"
        " and id in (select penstock_bytes(value) from json_each(?))"
    )


def test_a_query_has_a_form_in_each_store_or_exists_in_one_only() -> None:
    postgres, sqlite = (parse_queries(SHARED, dialect) for dialect in (POSTGRES, SQLITE))
    assert postgres["drop"].statement.sql.startswith("with gone")
    assert postgres["drop"].then == ()
    assert sqlite["drop"].statement.sql == "delete from shop.note where id = ?"
    assert "version" not in postgres
    assert not sqlite["version"].statement.bounded


def test_statements_that_follow_take_values_of_their_own() -> None:
    (then,) = parse_queries(SHARED, SQLITE)["drop"].then
    assert then.statement.sql == "delete from shop.comment where note = ? and note <> ?"
    assert then.args({"id": 5, "other": 6}) == [5, 6]


def test_two_queries_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="Two queries are called one"):
        parse_queries("-- one: a.\nselect 1;\n-- one: b.\nselect 2;\n", SQLITE)


FRAGMENTS = """
-- {readable}: what a reader may see.
(writer = :writer
or not secret)

-- mine: notes of a writer.
select id, '{other}' from note where {readable};

-- all: the same of all.
select count(*) from note where {readable} and text <> '';
"""


def test_a_fragment_stands_in_the_queries_after_it() -> None:
    found = parse_queries(FRAGMENTS, POSTGRES)
    assert list(found) == ["mine", "all"]
    assert found["mine"].statement.sql == "select id, '{other}' from note where (writer = $1 or not secret)"
    assert found["all"].statement.sql.endswith("where (writer = $1 or not secret) and text <> ''")


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


ACCESS = SqliteAccess(None, None, None)  # type: ignore[arg-type]  # it converts values only
NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)


@dataclass(frozen=True)
class Text:
    said: str

    @classmethod
    def parse(cls, text: str) -> Text:
        return cls(text.upper())


@dataclass(frozen=True)
class Plan:
    name: str
    paused: bool


@dataclass(frozen=True)
class Kept:
    id: UUID
    plan: Plan
    at: datetime
    until: datetime | None
    numbers: tuple[int, ...]
    text: Text | None
    options: Options
    length: int = 0
    more: str = "none"


def rows(sql: str) -> list[sqlite3.Row]:
    connection = sqlite3.connect(":memory:")
    connection.row_factory = sqlite3.Row
    return connection.execute(sql).fetchall()


def test_a_field_is_the_column_of_its_name() -> None:
    found = rows(
        f"select 'x' as text, '[1, 2]' as numbers, null as until, '2026-11-29T12:00:00.000000Z' as at, 1 as paused, "
        f"'p' as name, x'{UUID(int=7).hex}' as id, null as options, 9 as unknown"
    )
    assert ACCESS.read(Kept, found, length=lambda row: len(row["name"])) == [
        Kept(UUID(int=7), Plan("p", paused=True), NOON, None, (1, 2), Text("X"), NO_OPTIONS, 1, "none")
    ]
