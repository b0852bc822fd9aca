"""Indexes as they are declared."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import DeclarationError
from penstock.schema.index import Index, redundant_indexes
from penstock.schema.table import Table


class Visit(Table):
    customer: str
    place: str
    number: int

    by_customer = Index("customer")
    by_place = Index("customer", "place")
    by_all = Index("customer", "place", "number")
    by_number = Index("number", unique=True)
    by_number_too = Index("number", "place")


def test_an_index_knows_its_name_and_tells_what_it_is() -> None:
    assert (Visit.by_place.name, Visit.by_place.columns, Visit.by_place.unique) == (
        "by_place",
        ("customer", "place"),
        False,
    )
    assert repr(Visit.by_place) == "Index('customer', 'place')"
    assert repr(Visit.by_number) == "Index('number', unique=True)"
    assert Index("x").name == ""


def test_an_index_without_columns_or_with_one_twice_is_refused() -> None:
    with pytest.raises(DeclarationError, match="at least one column"):
        Index()
    with pytest.raises(DeclarationError, match="names a column twice"):
        Index("x", "y", "x")


@pytest.mark.parametrize("columns", [{"x", "y"}, ["x", "y"], ("x", "y"), 5])
def test_the_columns_of_an_index_are_named_one_after_another(columns: Any) -> None:
    with pytest.raises(DeclarationError, match="one after another"):
        Index(columns)


def test_an_index_whose_columns_begin_another_one_is_redundant_unless_it_is_unique() -> None:
    found = redundant_indexes(list(Visit.__indexes__))
    assert [(one.name, other.name) for one, other in found] == [("by_customer", "by_place"), ("by_place", "by_all")]
    assert redundant_indexes([]) == []
    assert redundant_indexes([Index("a"), Index("a")]) == [], "of two equal ones neither is longer"
