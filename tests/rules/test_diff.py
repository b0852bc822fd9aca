"""The rules of the schema push, without a database."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import Any, Literal

import pytest
from pydantic import Field

from penstock import Index, Table
from penstock.errors import DeclarationError
from penstock.schema.diff import (
    CreateTable,
    Difference,
    IndexStep,
    check_names,
    columns_to_add,
    diff,
)
from penstock.schema.stored import StoredCheck, StoredColumn, StoredIndex, StoredTable, choices_name, next_name
from penstock.schema.table import definition_of
from penstock.store.postgres.dialect import POSTGRES
from penstock.store.sql.ddl import describe


class Booking(Table):
    customer: str
    phone: str | None = None
    status: Literal["pending", "paid"] = "pending"

    by_customer = Index("customer", "phone")
    by_phone = Index("phone", unique=True)


def stored(table: type[Table] = Booking, **changes: Any) -> StoredTable:
    return replace(describe(definition_of(table), POSTGRES), **changes)


def compare(table: type[Table], found: StoredTable | None) -> Difference:
    definition = definition_of(table)
    return diff(definition, describe(definition, POSTGRES), found)


def without(mapping: Any, *names: str) -> dict[str, Any]:
    return {name: value for name, value in mapping.items() if name not in names}


def test_a_table_that_does_not_exist_is_created_and_one_that_fits_is_left_alone() -> None:
    assert compare(Booking, None).steps == [CreateTable()]
    capitals = {name: replace(column, type=column.type.upper()) for name, column in stored().columns.items()}
    for found in (stored(), stored(columns=capitals)):
        same = compare(Booking, found)
        assert (same.steps, same.guards, same.problems, same.notes) == ([], [], [], [])


def added(**declaration: Any) -> Difference:
    """The difference that one new field makes."""
    annotations = {"customer": "str", "new": declaration.pop("annotation")}
    body = {"__annotations__": annotations, "__module__": __name__, **declaration}
    make: Any = type(Table)
    table = make("Changed", (Table,), body, name="booking")
    before = make("Before", (Table,), {"__annotations__": {"customer": "str"}, "__module__": __name__}, name="booking")
    return compare(table, stored(before))


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@pytest.mark.parametrize(
    ("declaration", "fill"),
    [
        ({"annotation": "str | None"}, None),
        ({"annotation": "str | None", "new": "x"}, "x"),
        ({"annotation": "bool", "new": False}, False),
        ({"annotation": "list[str]", "new": Field(default_factory=list)}, "[]"),
        ({"annotation": "dict[str, int]", "new": Field(default_factory=dict)}, "{}"),
        ({"annotation": "Colour", "new": Colour.BLUE}, "blue"),
        ({"annotation": "str | None", "new": Field(default_factory=lambda: "never asked for")}, None),
    ],
)
def test_a_new_column_fills_the_rows_that_exist(declaration: dict[str, Any], fill: Any) -> None:
    found = added(**declaration)
    assert {name: step.fill for name, step in columns_to_add(found.steps).items()} == {"new": fill}
    assert not found.guards
    assert not found.problems


@pytest.mark.parametrize(
    "change",
    [
        {"columns": ('"customer"', '"phone"', '"id"')},  # NULLs in another place of the order
        {"columns": ('"phone" nulls first', '"customer"', '"id"')},
        {"unique": True},
        {"extra": "where (phone is not null)"},
    ],
)
def test_an_index_of_the_same_name_that_says_something_else_is_replaced(change: dict[str, Any]) -> None:
    indexes = dict(stored().indexes)
    indexes["booking_by_customer"] = replace(indexes["booking_by_customer"], **change)
    found = compare(Booking, stored(indexes=indexes))
    assert found.steps == [IndexStep("replace", Booking.by_customer)]


def test_what_is_no_longer_declared_is_left_alone_unless_inserts_would_fail() -> None:
    columns = {
        **stored().columns,
        "note": StoredColumn("note", "text", nullable=True),
        "number": StoredColumn("number", "bigint", nullable=False, filled=True),
        "total": StoredColumn("total", "bigint", nullable=False, generated=True),
        "legacy": StoredColumn("legacy", "text", nullable=False),
    }
    indexes = {
        **stored().indexes,
        "booking_by_note": StoredIndex("booking_by_note", ('"note"',), unique=False),
        "dba_own": StoredIndex("dba_own", ('"note"',), unique=False),
    }
    found = compare(Booking, stored(columns=columns, indexes=indexes))
    assert found.steps == []
    assert [problem.column for problem in found.problems] == ["legacy"]
    assert [note.split(" is ")[0] for note in found.notes] == [
        "booking.note",
        "booking.number",
        "booking.total",
    ]
    assert found.remarks == ["Index booking_by_note is stored, but not declared; it is left alone."]


@pytest.mark.parametrize("change", [{"kind": "view"}, {"key": ("number",)}, {"key": ()}])
def test_a_table_that_penstock_cannot_keep_rows_in_is_refused(change: dict[str, Any]) -> None:
    found = compare(Booking, stored(**change))
    assert len(found.problems) == 1
    assert found.steps == []


class Invoice(Table, source="shop.invoice", key="number", managed=False):
    number: int
    total: int
    customer: str


def test_a_table_of_another_program_is_checked_and_never_changed() -> None:
    columns = stored(Invoice).columns
    assert compare(Invoice, stored(Invoice, kind="view", key=())).problems == []
    (absent,) = compare(Invoice, None).problems
    (short,) = compare(Invoice, stored(Invoice, columns=without(columns, "number", "customer"))).problems
    assert "does not exist" in absent.what
    assert short.column == "number, customer"
    assert "Its columns are total." in short.fix
    assert compare(Invoice, stored(Invoice, indexes={}, checks={})).steps == []


def test_two_things_of_one_name_are_refused_and_long_names_stay_apart() -> None:
    class A(Table, name="a"):
        c: str
        b_c = Index("c")

    class AB(Table, name="a_b"):
        c: str
        c_ = Index("c")

    class Same(Table, name="a_b_c"):
        c: str

    class Pkey(Table, name="p"):
        c: str
        pkey = Index("c")

    class Again(Table, name="a"):
        c: str

    class Long(Table, name="b" * 40):
        customer: str
        ix_01234567890123456789 = Index("customer")

    check_names([definition_of(A), definition_of(AB)])
    for tables in ([A, Same], [Pkey], [A, Again]):
        with pytest.raises(DeclarationError, match="would be named"):
            check_names([definition_of(table) for table in tables])
    with pytest.raises(DeclarationError, match="64 characters"):
        check_names([definition_of(Long)])
    check_names([definition_of(Invoice), definition_of(Invoice)])
    names = {choices_name("t" * 48, "c" * 47 + letter) for letter in "ab"}
    assert len(names) == 2
    assert all(len(name) == 63 for name in names | {next_name(name) for name in names})


def done(found: Difference) -> list[str]:
    return [step.do for step in found.steps if not isinstance(step, CreateTable)]


def test_what_an_interrupted_push_left_is_finished_or_taken_away() -> None:
    name = choices_name("booking", "status")
    passing = StoredCheck(next_name(name))
    unproven = StoredCheck(name, frozenset({"pending", "paid"}), valid=False)
    found = compare(Booking, stored(checks={name: unproven, passing.name: passing}))
    assert done(found) == ["drop check", "validate choices"]

    indexes = dict(stored().indexes)
    indexes["booking_by_phone"] = replace(indexes["booking_by_phone"], valid=False)
    half_built = replace(indexes["booking_by_customer"], name=next_name("booking_by_customer"))
    found = compare(Booking, stored(indexes={**indexes, half_built.name: half_built}))
    assert done(found) == ["drop invalid", "drop invalid", "create"]
    named = [step.name for step in found.steps if not isinstance(step, CreateTable)]
    assert named == [half_built.name, "booking_by_phone", ""]
