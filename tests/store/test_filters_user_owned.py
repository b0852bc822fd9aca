"""Filters on tables of other programs: columns of other types, and values that do not belong there."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from stage.needs import examples
from store.filters import OWNED, Dice, LiteThings, PostgresThings, of_stored, with_opposites

from penstock.reactive.evaluate import read_each, row_values, same
from penstock.store.postgres.dialect import POSTGRES
from penstock.store.sql.dialect import Dialect
from penstock.store.sql.statements import TableStatements
from penstock.store.sql.values import decode_stored_values
from penstock.store.sqlite.dialect import SQLITE

PROPERTY = settings(
    max_examples=examples(8),
    phases=[Phase.generate],
)
DICE = st.randoms(use_true_random=True).map(lambda random: Dice(random, OWNED))

LITE = """
create table owned (
    id text primary key, text varchar(9) collate nocase, other, status text collate rtrim, number integer, second,
    real real,
    ratio numeric, flag boolean, blob blob, at datetime, until text, day date, span integer, price numeric,
    cost decimal,
    uuid text, part json, data
)
"""
ODD: list[Any] = [
    None,
    0,
    1,
    2**63 - 1,
    0.1,
    1e300,
    math.inf,
    "",
    "a",
    "a ",
    "5.0",
    " 5 ",
    "1_000",
    "NaN",
    "-Infinity",
    "a\0b",
    b"",
    b"\xff",
    b'{"a": 1}',
    "2026-01-01 00:00:00",
    "2026-01-01T00:00:00.000000Z",
    "2026-01-01T01:00:00.000000+01:00",
    "2026-02-31T00:00:00.000000Z",
    "0000-01-01T00:00:00.000000Z",
    "2026-01-01T24:00:00.000000Z",
    "0000-01-01",
    "2026-01-01T00:00:00.0000001Z",
    "0A1B2C3D-0000-7000-8000-0123456789AB",
    "0a1b2c3d0000700080000123456789ab",
    "[]",
    '{"a": 1',
    '{"a": "\\u0061"}',
    '{"a": "\\ud800"}',
    '{"\\u0061": 1}',
    '{"a": "b\\"c"}',
    '{"a": NaN}',
    '"a"',
    '{"a":{"b":[null]}}',
    " [1] ",
    "[" * 3000,
    "9" * 400,
]


@pytest.fixture
def lite(tmp_path: Path) -> LiteThings:
    """A table in SQLite whose columns take anything."""
    return LiteThings(str(tmp_path / "owned.db"), OWNED, LITE)


@PROPERTY
@given(dice=DICE)
def test_sqlite_may_hold_anything_anywhere(lite: LiteThings, dice: Dice) -> None:
    width = len(OWNED.columns) - 1
    values = [[f"{key:03}", *(dice.random.choice(ODD) for _ in range(width))] for key in range(60)]
    rows = lite.load(values)
    conditions = with_opposites([dice.condition() for _ in range(40)])
    wanted = [of_stored(SQLITE, OWNED, rows, condition) for condition in conditions]
    for own, said in (
        (True, lite.select(conditions, own=True)),
        (False, lite.select(conditions, own=False)),
        (False, lite.fire(conditions)),
    ):
        for condition, one, outcome in zip(conditions, said, wanted, strict=True):
            for row, found, right in zip(rows, one.rows, outcome, strict=True):
                agrees = found is right or (found and not own and not one.sql.exact)
                assert agrees, f"{condition!s}\n{row}\nis {right} in Python, {found} in\n{one.sql.sql}"
    check_changes(lite, dice, SQLITE, lite.load(values[:25]))


def check_changes(things: LiteThings | PostgresThings, dice: Dice, dialect: Dialect, rows: list[Any]) -> None:
    names = [column.name for column in OWNED.columns]
    values = [decode_stored_values(dialect, OWNED, dict(zip(names, row, strict=True)), names) for row in rows]
    watches = [dice.watch() for _ in range(20)]
    for watch, (sql, said) in zip(watches, things.pairs(watches), strict=True):
        was = [read_each(watch.expressions, one) for one in values]
        outcome = [not same(before, after) for before in was for after in was]
        for found, right in zip(said, outcome, strict=True):
            assert found is right or (found and not sql.exact), (watch.names, sql.expressions)


def test_a_row_of_another_program_is_what_it_is_read_as(lite: LiteThings) -> None:
    """Wherever penstock can read such a row, a filter takes its values for the same as the row object has."""
    names = [column.name for column in OWNED.columns]
    values = [[f"{key:03}", *([odd] * (len(names) - 1))] for key, odd in enumerate(ODD)]
    statements = TableStatements(OWNED, SQLITE)
    compared = 0
    for name in names[1:]:
        alone = [
            [row[0], *(odd if other == name else None for other, odd in zip(names[1:], row[1:], strict=True))]
            for row in values
        ]
        for stored in lite.load(alone):
            try:
                (fields,) = statements.decode_fields([stored])
                (row,) = OWNED.make_rows([fields])
            except (ValidationError, ValueError, TypeError, ArithmeticError, AttributeError, LookupError):
                continue
            if fields[name] == math.inf and name in {"part", "data"}:
                continue  # in JSON a number may be greater than any float
            read = row_values(OWNED, row, [name])
            found = decode_stored_values(SQLITE, OWNED, dict(zip(names, stored, strict=True)), [name])
            assert same(found, read), (name, stored)
            compared += 1
    assert compared > 200


# ----- PostgreSQL

POSTGRES_TABLE = """
create table owned (
    id varchar(9) primary key, text varchar(20), other text, status name, number smallint, second numeric, real real,
    ratio double precision, flag boolean, blob bytea, at timestamp, until timestamptz, day date, span interval,
    price numeric(12, 3),
    cost numeric, uuid uuid, part json, data text[]
)
"""
POOLS: dict[str, list[str]] = {
    "text": ["''", "'a'", "'A'", "'ab'", "'é'", "'Z'", "'$1'", r"E'\\'"],
    "other": ["''", "'a'", "'A'", "'b'", "'ab'", "'é'", "'Z'", "'ž'"],
    "status": ["'new'", "'paid'"],
    "number": ["0", "1", "5", "-3"],
    "second": ["0", "1", "5.0", "2.5", "'NaN'", "9223372036854775808", "-3", "1e30"],
    "real": ["0.1", "2.5", "'NaN'", "'Infinity'", "1e30", "-0.0", "1e-31"],
    "ratio": ["0.1", "0.30000000000000004", "'NaN'", "'-Infinity'", "1e300", "2"],
    "flag": ["true", "false"],
    "blob": [r"'\x00'", r"'\xff'", "''"],
    "at": [
        "'2026-01-01'",
        "'2026-01-01 00:00:00.000001'",
        "'2025-12-31 23:59:59'",
        "'infinity'",
        "'-infinity'",
        "'0001-01-01'",
    ],
    "until": [
        "'2026-01-01 00:00:00+00'",
        "'2026-01-01 01:00:00+01'",
        "'infinity'",
        "'-infinity'",
        "'2026-01-01 00:00:00+05'",
    ],
    "day": ["'2026-01-01'", "'infinity'", "'-infinity'", "'2024-02-29'"],
    "span": [
        "'1 hour'",
        "'1 mon'",
        "'13 months 2 days'",
        "'-25 months'",
        "'30 days'",
        "'1 microsecond'",
        "'366 days 1 second'",
    ],
    "price": ["0", "1", "1.50", "'NaN'", "-3.5", "100"],
    "cost": ["0", "1.0", "'NaN'", "1e400", "1e-400", "0.1", "0.10000000000000000001", "2e1500"],
    "uuid": ["'00000000-0000-0000-0000-000000000000'", "'0A1B2C3D-0000-7000-8000-0123456789AB'"],
    "part": [
        "'{}'",
        "'null'",
        "'[1, \"a\"]'",
        "'{\"a\": 1.0}'",
        r"""'{"a": "\u0000"}'""",
        r"""'{"a": "\ud800"}'""",
        "'{\"a\": 1e200000}'",
        r"""'{"a": "\u0061"}'""",
        '\'{"b": 1, "a": [2.5, true]}\'',
        "'5'",
        "'\"a\"'",
    ],
    "data": ["'{}'", "array['a','b']", "array['a',null]", "array['1']"],
}


@pytest.fixture
def postgres(postgres_url: str) -> Iterator[PostgresThings]:
    """A table in PostgreSQL of other types than penstock chooses."""
    things = PostgresThings(postgres_url, OWNED, POSTGRES_TABLE)
    yield things
    things.close()


def fill(postgres: PostgresThings, dice: Dice, count: int) -> list[Any]:
    names = [column.name for column in OWNED.columns][1:]
    lines = [
        f"('{key:03}', "
        + ", ".join("null" if dice.random.random() < 0.2 else dice.random.choice(POOLS[name]) for name in names)
        + ")"
        for key in range(count)
    ]
    postgres.run(postgres.connection.execute("truncate owned"))
    postgres.run(postgres.connection.execute(f"insert into owned values {', '.join(lines)}"))
    return postgres.fetch()


@PROPERTY
@given(dice=DICE)
def test_postgresql_may_have_other_types(postgres: PostgresThings, dice: Dice) -> None:
    rows = fill(postgres, dice, 40)
    conditions = with_opposites([dice.condition() for _ in range(40)])
    wanted = [of_stored(POSTGRES, OWNED, rows, condition) for condition in conditions]
    check_changes(postgres, dice, POSTGRES, rows)
    for said in (postgres.select(conditions), postgres.fire(conditions)):
        for condition, one, outcome in zip(conditions, said, wanted, strict=True):
            for row, found, right in zip(rows, one.rows, outcome, strict=True):
                agrees = found is right or (found and not one.sql.exact)
                assert agrees, f"{condition!s}\n{row}\nis {right} in Python, {found} in\n{one.sql.sql}"
