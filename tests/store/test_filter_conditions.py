"""Filters as SQL, one by one: what stands in it, what it can be put into, and what SQLite says wider."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from functools import reduce
from operator import and_, or_
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from store.filters import DEFINITION, OWNED, LiteThings, Thing

from penstock.reactive.tracing import trace_filter
from penstock.store.postgres.dialect import POSTGRES
from penstock.store.sql.conditions import ConditionSql, condition_sql
from penstock.store.sql.dialect import Dialect
from penstock.store.sqlite.dialect import SQLITE


def sql(
    dialect: Dialect, function: Any, *, own: bool = False, definition: Any = DEFINITION, alias: str = "new"
) -> ConditionSql:
    return condition_sql(trace_filter(definition, function, "Test"), definition, dialect, alias, own=own)


def test_a_condition_is_plain_sql() -> None:
    def paid(row: Any) -> Any:
        return (row.status == "paid") & ~(row.number > 100)

    assert sql(POSTGRES, paid).sql == """((new."status" = 'paid') and ((new."number" > (100)) is not true))"""
    assert sql(SQLITE, paid).sql == """((new."status" is 'paid') and ((new."number" > 100) is not true))"""
    assert sql(SQLITE, paid).exact
    assert sql(SQLITE, paid).columns == ("status", "number")


@pytest.mark.parametrize(
    ("function", "exact"),
    [
        (lambda o: (o.text == "a") & (o.number > 1) & o.flag & o.blob.is_none() & (o.span == None), True),  # noqa: E711
        (lambda o: o.real * 2 > o.ratio, True),
        (lambda o: o.text.startswith("a") | o.text.contains("a"), True),
        (lambda o: o.text.matches("a"), False),
        (lambda o: ~o.text.matches("a"), False),
        (lambda o: o.price > 1, False),
        (lambda o: o.data.a == 1, False),
        (lambda o: o.at > datetime(2026, 1, 1, tzinfo=UTC), False),  # other programs may write times in other forms
        (lambda o: o.number * 2 > 1, False),  # it may leave 64 bits
    ],
)
def test_sqlite_says_what_it_can_say_exactly(function: Callable[[Any], Any], exact: bool) -> None:
    assert sql(SQLITE, function).exact is exact
    assert sql(SQLITE, function, own=True).exact
    assert sql(POSTGRES, function).exact


def test_what_sqlite_says_wider_still_narrows(tmp_path: Path) -> None:
    things = LiteThings(str(tmp_path / "things.db"))
    things.store([Thing(price=Decimal(value), data={"a": value}) for value in range(10)])
    for function in (lambda o: o.price >= 7, lambda o: o.data.a >= 7, lambda o: o.data.a >= 6.5):
        (said,) = things.fire([trace_filter(DEFINITION, function, "Test")])
        assert said.rows == (*([False] * 7), *([True] * 3))


def test_the_largest_filter_fits_into_both(tmp_path: Path) -> None:
    things = LiteThings(str(tmp_path / "things.db"))
    things.store([Thing(number=199, data=199), Thing(number=200)])
    for function in (
        lambda o: reduce(or_, [o.number == number for number in range(200)]),
        lambda o: reduce(and_, [~(o.number == number) for number in range(200)]),
        lambda o: o.number.in_(range(5000)),
        lambda o: o.data.in_(range(200)),
    ):
        condition = trace_filter(DEFINITION, function, "Test")
        assert things.fire([condition])[0].rows == things.select([condition], own=True)[0].rows


def test_texts_compare_by_code_points_in_columns_of_others() -> None:
    assert 'collate "C"' in sql(POSTGRES, lambda o: o.text > "a", definition=OWNED).sql
    assert "collate binary" in sql(SQLITE, lambda o: o.text > "a", definition=OWNED).sql


def test_a_time_written_by_another_program_is_met_by_python(tmp_path: Path) -> None:
    things = LiteThings(str(tmp_path / "things.db"))
    things.store([Thing(at=datetime(2026, 1, 2, tzinfo=UTC)), Thing(at=datetime(2026, 1, 2, tzinfo=UTC))])
    with closing(things.connect()) as connection:
        connection.execute("update thing set at = '2026-01-01 23:00:00' where id like '%0'")
    conditions = [trace_filter(DEFINITION, lambda o: o.at < datetime(2026, 1, 1, 23, 30, tzinfo=UTC), "Test")]
    assert things.select(conditions, own=True)[0].rows == (True, False)
    assert things.fire(conditions)[0].rows == (True, False)


async def test_a_regular_expression_of_ours_runs_on_the_server(postgres_url: str) -> None:
    """Each part of a pattern is one that PostgreSQL has."""
    patterns = [
        "(?:a|b)+c{2,255}$",
        r"^\[[^\]\\^-]*\]\*$",
        r"\*\*\*:?",
        r"[\^a]\+",
        "(|a)()",
        r"\w\W\s\S\d\D.",
        r"[^\w\W]",
    ]

    connection = await asyncpg.connect(postgres_url)
    for pattern in patterns:
        found = sql(POSTGRES, lambda o, pattern=pattern: o.text.matches(pattern)).sql
        await connection.fetch(f"select {found} from (select 'a'::text as text) as new")
    await connection.close()
