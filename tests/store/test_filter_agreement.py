"""Python, SQLite and PostgreSQL say the same of every row: rows and filters at random."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from stage.needs import examples
from store.filters import (
    DEFINITION,
    Dice,
    LiteThings,
    PostgresThings,
    Said,
    Thing,
    changes,
    expected,
    of_stored,
    with_opposites,
)

from penstock.reactive.expression import Condition
from penstock.reactive.signature import read_signature, signature
from penstock.store.postgres.dialect import POSTGRES
from penstock.store.sqlite.dialect import SQLITE

PROPERTY = settings(
    max_examples=examples(12),
    phases=[Phase.generate, Phase.shrink],
)
DICE = st.randoms(use_true_random=True).map(Dice)  # a pair that fails is told by itself, so nothing needs shrinking
ROWS, CONDITIONS = 25, 40

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
            assert agrees, f"{condition!s}\n{row!r}\nis {right} in Python, {found} in\n{one.sql.sql}"


@PROPERTY
@given(dice=DICE)
def test_queries_and_triggers_select_what_python_does(
    things: LiteThings | PostgresThings, store: str, dice: Dice
) -> None:
    rows = [dice.thing() for _ in range(ROWS)]
    stored = things.store(rows)
    conditions = with_opposites([dice.condition() for _ in range(CONDITIONS)])
    wanted = expected(rows, conditions)
    said = things.select(conditions, own=True)
    assert all(one.sql.exact for one in said)
    check(said, conditions, rows, wanted)
    check(things.fire(conditions), conditions, rows, wanted)
    dialect = SQLITE if store == "sqlite" else POSTGRES
    assert [of_stored(dialect, DEFINITION, stored, condition) for condition in conditions] == wanted


@PROPERTY
@given(dice=DICE)
def test_what_is_watched_changes_alike(things: LiteThings | PostgresThings, dice: Dice) -> None:
    rows = [dice.thing() for _ in range(15)]
    things.store(rows)
    watches = [dice.watch() for _ in range(25)]
    for watch, (sql, said) in zip(watches, things.pairs(watches), strict=True):
        for found, right in zip(said, changes(rows, watch), strict=True):
            assert found is right or (found and not sql.exact), (
                f"{watch.names} changed: {right}, not so in\n{sql.expressions}"
            )


@PROPERTY
@given(dice=DICE)
def test_a_signature_says_all_of_a_filter(dice: Dice) -> None:
    for _ in range(CONDITIONS):
        condition = dice.condition()
        assert read_signature(signature(condition)) == condition
