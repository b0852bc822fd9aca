"""Which rows of a reactive task are run one at a time: those whose keys are equal, however they are spelled."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from penstock.changes.change import read_values
from penstock.reactive.planning import partition_of
from penstock.reactive.task import ReactiveTask, spec_of
from penstock.schema.fields import Kind
from penstock.schema.table import Table, definition_of
from penstock.store.postgres.dialect import POSTGRES
from penstock.store.sql.dialect import Dialect
from penstock.store.sql.values import decode_capture
from penstock.store.sqlite.dialect import SQLITE


class Parted(Table):
    owner: str | None
    price: Decimal
    ratio: float
    number: int


def spelled(column: str, captured: str, dialect: Dialect = POSTGRES) -> str | None:
    task = ReactiveTask(name="task", definition=definition_of(Parted), key=column, pool="default")

    def read(kind: Kind, value: Any) -> Any:
        return decode_capture(dialect, kind, value)

    return partition_of(spec_of(task, exact=True), read_values(f'{{"{column}": {captured}}}'), read)


@pytest.mark.parametrize(
    ("column", "texts", "expected"),
    [
        ("price", ("1", "1.0", "1.00", "1E+0"), "1"),
        ("price", ("0", "0.0", "-0.00"), "0"),
        ("price", ("100", "1E+2", "100.0"), "100"),
        ("price", ("-0.5", "-0.50", "-5E-1"), "-0.5"),
        ("price", ("12345678901234567890123456789012345678.10", "12345678901234567890123456789012345678.1"), None),
        ("ratio", ("0.0", "-0.0", "0"), "0"),
        ("ratio", ("1.5", "1.50"), "1.5"),
        ("number", ("7",), "7"),
    ],
)
def test_equal_numbers_are_one_key(column: str, texts: tuple[str, ...], expected: str | None) -> None:
    found = {spelled(column, text) for text in texts}
    if column == "price":  # which is text on SQLite
        found |= {spelled(column, json.dumps(text), SQLITE) for text in texts}
    assert found == {texts[-1] if expected is None else expected}


@pytest.mark.parametrize(
    "text", ['"NaN"', '"Infinity"', '"-Infinity"', "1E+9999", "-1E-9999", '"odd"', "null", "[1]", "true"]
)
def test_whatever_stands_there_is_some_key(text: str) -> None:
    for column in ("owner", "price", "ratio", "number"):
        for dialect in (POSTGRES, SQLITE):
            found = spelled(column, text, dialect)
            assert found is not None
            assert 0 < len(found) <= 200


def test_different_values_are_different_keys() -> None:
    assert len({spelled("price", text) for text in ("1", "10", "0.1", "-1", "1.01", "1E+9999")}) == 6


def test_a_text_is_its_key_and_the_empty_one_has_one_too() -> None:
    assert [spelled("owner", text) for text in ('"a"', '"1.0"', '" "', "null")] == ["a", "1.0", " ", "None"]
    assert spelled("owner", '""')
