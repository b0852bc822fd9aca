"""Python, SQLite and PostgreSQL say the same of every row: rows and filters at random."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from stage.filters import (
    CONDITIONS,
    DEFINITION,
    ROWS,
    LiteThings,
    PostgresThings,
    Said,
    Thing,
    expected,
    of_stored,
    with_opposites,
)

from penstock.reactive.describe import describe
from penstock.reactive.expression import Condition
from penstock.reactive.signature import read_signature, signature
from penstock.store.postgres.dialect import POSTGRES
from penstock.store.sqlite.dialect import SQLITE

PROPERTY = settings(
    deadline=None,
    database=None,
    max_examples=60,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
MANY_ROWS = st.lists(ROWS, min_size=1, max_size=12)
MANY_CONDITIONS = st.lists(CONDITIONS, min_size=1, max_size=12)

Outcomes = list[list[bool]]


@pytest.fixture
def things(request: pytest.FixtureRequest, tmp_path: Path, store: str) -> Iterator[LiteThings | PostgresThings]:
    """The table of things, in a store."""
    if store == "sqlite":
        yield LiteThings(str(tmp_path / "things.db"))
        return
    made = PostgresThings(request.getfixturevalue("postgres_url"))
    yield made
    made.close()


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def check(said: Sequence[Said], conditions: Sequence[Condition], rows: Sequence[Thing], wanted: Outcomes) -> None:
    for condition, one, outcome in zip(conditions, said, wanted, strict=True):
        for row, found, right in zip(rows, one.rows, outcome, strict=True):
            agrees = found is right or (found and not one.sql.exact)
            assert agrees, f"{describe(condition)}\n{row!r}\nis {right} in Python, {found} in\n{one.sql.sql}"


@PROPERTY
@given(rows=MANY_ROWS, some=MANY_CONDITIONS)
def test_a_query_selects_what_python_does(
    things: LiteThings | PostgresThings, store: str, rows: list[Thing], some: list[Condition]
) -> None:
    stored = things.store(rows)
    conditions = with_opposites(some)
    wanted = expected(rows, conditions)
    said = things.select(conditions, own=True)
    assert all(one.sql.exact for one in said)
    check(said, conditions, rows, wanted)
    dialect = SQLITE if store == "sqlite" else POSTGRES
    assert [of_stored(dialect, DEFINITION, stored, condition) for condition in conditions] == wanted


@PROPERTY
@given(rows=MANY_ROWS, some=MANY_CONDITIONS)
def test_a_trigger_fires_for_what_python_selects(
    things: LiteThings | PostgresThings, rows: list[Thing], some: list[Condition]
) -> None:
    things.store(rows)
    conditions = with_opposites(some)
    check(things.fire(conditions), conditions, rows, expected(rows, conditions))


@PROPERTY
@given(condition=CONDITIONS)
def test_a_signature_says_all_of_a_filter(condition: Condition) -> None:
    assert read_signature(signature(condition)) == condition
