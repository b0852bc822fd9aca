"""Named queries in .sql files: a name, a purpose, and parameters by name."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest

from penstock.store.sql.queries import Query, load_queries

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
def mark() -> str:
    return "$"


@pytest.fixture
def queries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str) -> Mapping[str, Query]:
    (tmp_path / "shop" / "sql").mkdir(parents=True)
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "sql" / "notes.sql").write_text(SQL)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    load_queries.cache_clear()
    found = load_queries("shop", "notes", mark)
    assert isinstance(sys.modules.pop("shop"), ModuleType)
    return found


def test_each_query_has_its_name_and_its_purpose(queries: Mapping[str, Query]) -> None:
    assert [(query.name, query.purpose) for query in queries.values()] == [
        ("find", "one note, whoever wrote it."),
        ("any", "whether there is a note."),
        ("later", "none that was is lost."),
    ]


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


@pytest.mark.parametrize("mark", ["?"])
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
