"""Any annotation, any value of it: what is accepted comes back equal and of the same class, or it is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import FutureDatetime, TypeAdapter
from stage.annotations import Make, Money, Tree, alike, annotation_of
from stage.needs import examples

from penstock import Table
from penstock.cli.data import Documents
from penstock.clock import SystemClock
from penstock.errors import ArgumentsInvalid, DeclarationError, PenstockError, ResultInvalid, ValueInvalid
from penstock.functions.signature import Signature
from penstock.schema.fields import Column
from penstock.schema.table import definition_of
from penstock.store.postgres.dialect import POSTGRES
from penstock.store.sql.dialect import Dialect
from penstock.store.sql.statements import TableStatements
from penstock.store.sqlite.dialect import SQLITE

NOW = datetime(2030, 1, 1, tzinfo=UTC)
_MISFIT = (TypeError, ValueError, AttributeError)  # as a column says it; the table tells which column it was
Road = tuple[str, Callable[[], Any], Callable[[], Any]]


def signature_of(annotation: Any) -> Signature:
    async def give(ctx: Any, v: Any) -> Any:
        """Is never called."""

    give.__annotations__ = {"v": annotation, "return": annotation}
    return Signature(give, "app:give")


def table_of(annotation: Any) -> Any:
    return type("Odd", (Table,), {"__annotations__": {"v": annotation}, "__module__": __name__})


def column_of(annotation: Any) -> Column:
    return definition_of(table_of(annotation)).column("v")


def exported(dialect: Dialect, table: Any, value: Any) -> Any:
    """The field of a row that was exported, and imported again."""
    row, statements = table(v=value), TableStatements(definition_of(table), dialect)
    documents, row_id = Documents(statements, SystemClock()), "odd_00000000000000000000000000"
    stored = statements.encode(statements.definition.encode_row(row, row_id, NOW))
    return statements.decode_fields((documents.row(documents.line(stored)),))[0]["v"]


def roads(annotation: Any, make: Make, chance: Any) -> Iterator[Road]:
    """For each value and road: its name, what gives the value at the door, and what gives it at the end."""
    signature, column, table = signature_of(annotation), column_of(annotation), table_of(annotation)
    value = make(chance)
    stored, read = column.encode, column.decode or (lambda kept: kept)

    def checked() -> Any:
        return signature.check({"v": value})["v"]

    def result() -> Any:
        return signature.check_result(value)

    yield "argument", checked, lambda: signature.check_json(signature.encode({"v": checked()}))["v"]
    yield "context", checked, lambda: signature.check_json(f'{{"v":{signature.encode_one("v", value, "It")}}}')["v"]
    yield "result", result, lambda: signature.result_of_json(signature.result_json(result()))
    if value is not None:
        yield "column", lambda: column.check(value), lambda: read(stored(column.check(value)))
        yield "unchecked", lambda: value, lambda: read(stored(value))
        for dialect in (SQLITE, POSTGRES):
            yield "file", lambda: table(v=value).v, partial(exported, dialect, table, value)


@settings(max_examples=examples(2_000))
@given(st.randoms(use_true_random=True))
def test_a_value_comes_back_as_it_is_or_is_refused_on_every_road(chance: Any) -> None:
    annotation, make = annotation_of(chance)
    try:
        found = list(roads(annotation, make, chance))
    except (DeclarationError, TypeError, ValueError):  # there is no such type, or no such value
        return
    for road, door, carry in found:
        try:
            given_in = door()
        except (PenstockError, ValueError, TypeError):  # it is no value of the annotation
            continue
        try:
            got = carry()
        except PenstockError:
            continue
        except _MISFIT:
            if road in {"column", "unchecked"}:
                continue
            raise
        assert alike(given_in, got), f"{road} changes, {annotation!r}: {given_in!r} is {got!r}"


def test_a_value_of_another_class_is_found_however_deep_it_lies_in_a_set() -> None:
    with pytest.raises(ValueInvalid, match="is a Money"):
        column_of(frozenset[tuple[Decimal, ...]]).encode(frozenset({(Money("1.5"),)}))


def test_a_time_of_the_future_is_checked_when_it_comes_and_read_at_any_time() -> None:
    signature, column = signature_of(FutureDatetime), column_of(list[FutureDatetime])
    past, text = datetime(2000, 1, 1, tzinfo=UTC), '{"v":"2000-01-01T00:00:00Z"}'
    assert signature.check_json(text) == {"v": past}
    assert signature.result_of_json('"2000-01-01T00:00:00Z"') == past
    assert column.decode is not None
    assert column.decode('["2000-01-01T00:00:00Z"]') == [past]
    with pytest.raises(ArgumentsInvalid, match="in the future"):
        signature.check_sent(signature.check_json(text))
    with pytest.raises(ArgumentsInvalid, match="in the future"):
        signature.check({"v": past})
    with pytest.raises(ResultInvalid, match="in the future"):
        signature.check_result(past)


def test_the_schemas_of_a_users_models_stay_as_pydantic_made_them() -> None:
    before = repr(TypeAdapter(list[Tree]).core_schema)
    for annotation in (Tree, list[Tree], Tree | None):
        signature_of(annotation)
        column_of(annotation)
    assert repr(TypeAdapter(list[Tree]).core_schema) == before
