"""What stands for parameters in SQL: numbers on PostgreSQL, and one question mark for each value on SQLite.

Python's sqlite3 takes a question mark with a number for a named parameter. It refuses a list of values for one from
Python 3.14 on, and does not say so before 3.12.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock import Index, Table
from penstock.calls.run.sql import prepare_sql
from penstock.schema.table import definition_of
from penstock.store.postgres.dialect import POSTGRES
from penstock.store.session import Statement
from penstock.store.sql.dialect import Placeholders, placeholder
from penstock.store.sql.statements import Condition, TableStatements
from penstock.store.sqlite.dialect import SQLITE


class Letter(Table):
    to: str
    weight: int = 0
    note: str | None = None

    by_to = Index("to", "weight")
    by_note = Index("note")


CONDITIONS = (Condition("to", "="), Condition("note", "is null"), Condition("weight", ">="), Condition("weight", "<"))
LETTERS = definition_of(Letter)
COLUMNS = len(LETTERS.columns)
STATEMENTS: dict[str, tuple[Callable[[TableStatements], Statement], int]] = {
    "get": (lambda letters: letters.get(), 1),
    "insert": (lambda letters: letters.insert(), COLUMNS),
    "insert some": (lambda letters: letters.insert(("to", "note")), 2),
    "load": (lambda letters: letters.load(), COLUMNS),
    "clear": (lambda letters: letters.clear(), 0),
    "update": (lambda letters: letters.update(("to", "note")), 3),
    "delete": (lambda letters: letters.delete(), 1),
    "scan": (lambda letters: letters.scan(CONDITIONS, ("to", "weight"), "asc", limit=5, indexed=True), 4),
    "scan without end": (lambda letters: letters.scan(CONDITIONS, ("to",), "desc", limit=None, indexed=True), 3),
    "aggregate": (lambda letters: letters.aggregate(CONDITIONS, "sum", "weight", ()), 3),
    "groups": (lambda letters: letters.aggregate(CONDITIONS, "count", None, ("to",)), 4),
}


def test_a_placeholder_has_a_number_unless_it_is_a_question_mark() -> None:
    assert placeholder("$", 12) == "$12"
    assert placeholder("?", 12) == "?"


@pytest.mark.parametrize(
    ("mark", "put", "names"),
    [("$", ["$1", "$2", "$1"], ["to", "weight"]), ("?", ["?", "?", "?"], ["to", "weight", "to"])],
)
def test_names_are_put_in_the_order_of_the_values(mark: str, put: list[str], names: list[str]) -> None:
    placeholders = Placeholders(mark)
    assert [placeholders.put(name) for name in ("to", "weight", "to")] == put
    assert placeholders.names == names


@pytest.mark.parametrize("name", STATEMENTS)
def test_statements_on_tables_take_their_values_in_the_order_of_the_text(name: str) -> None:
    make, count = STATEMENTS[name]
    numbered = make(TableStatements(LETTERS, POSTGRES)).sql
    nameless = make(TableStatements(LETTERS, SQLITE)).sql
    assert [word for word in words(numbered) if word[0] == "$"] == [f"${number}" for number in range(1, count + 1)]
    assert [word for word in words(nameless) if word[0] == "?"] == ["?"] * count


def words(sql: str) -> list[str]:
    for sign in "(),":
        sql = sql.replace(sign, " ")
    return sql.replace("::", " ").split()


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
