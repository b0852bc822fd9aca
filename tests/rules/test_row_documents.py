"""A stored row as pydantic writes and reads it: with its id and creation time."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError, model_validator
from pydantic_core import to_jsonable_python

from penstock.schema.ids import Id
from penstock.schema.table import Table, definition_of

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


class Order(Table):
    """What somebody wants."""

    customer: str
    due: datetime | None = None


class Parcel(Table):
    """With a validator of its own, and rows of another table inside."""

    order: Order
    parts: list[Order]

    @model_validator(mode="after")
    def check(self) -> Parcel:
        return self


def stored(table: type[Table], **fields: Any) -> Any:
    definition = definition_of(table)
    system = {"id": Id(f"{definition.name}_01jd3k4v5w6x7y8z9a0b1c2d3e"), "creation_time": NOON}
    return definition.make_rows([{**system, **fields} if definition.managed else fields])[0]


ORDER = stored(Order, customer="Ada", due=NOON)
PARCEL = stored(Parcel, order=ORDER, parts=[Order(customer="Bob")])
DOCUMENT = {
    "id": "order_01jd3k4v5w6x7y8z9a0b1c2d3e",
    "creation_time": "2030-01-01T12:00:00Z",
    "customer": "Ada",
    "due": "2030-01-01T12:00:00Z",
}


def test_a_stored_row_is_written_with_its_id_and_creation_time() -> None:
    assert ORDER.model_dump() == {"id": ORDER.id, "creation_time": NOON, "customer": "Ada", "due": NOON}
    assert ORDER.model_dump(mode="json") == json.loads(ORDER.model_dump_json()) == to_jsonable_python(ORDER) == DOCUMENT
    assert ORDER.model_dump(mode="json", exclude={"id", "due"}) == {
        "creation_time": "2030-01-01T12:00:00Z",
        "customer": "Ada",
    }
    assert PARCEL.model_dump(mode="json")["order"] == DOCUMENT


def test_a_row_that_is_not_stored_has_neither() -> None:
    assert Order(customer="Ada").model_dump() == {"customer": "Ada", "due": None}
    assert Order(customer="Ada").model_fields_set == {"customer"}
    with pytest.raises(AttributeError, match="has no id yet"):
        _ = Order(customer="Ada").id


@pytest.mark.parametrize("row", [ORDER, PARCEL, Order(customer="Ada")], ids=["stored", "nested", "new"])
def test_what_was_written_of_a_row_is_read_as_the_same_row(row: Table) -> None:
    table = type(row)
    for read in (
        table.model_validate_json(row.model_dump_json()),
        table.model_validate(row.model_dump(mode="json"), strict=False),
        TypeAdapter(list[table]).validate_json(TypeAdapter(list[table]).dump_json([row]))[0],  # type: ignore[valid-type]
    ):
        assert read == row
        assert hash(read) == hash(row)
        assert read.model_dump() == row.model_dump()
    assert Order.model_validate(ORDER.model_dump()) == ORDER


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"id": ORDER.id}, "both id and creation_time"),
        ({"id": "parcel_01jd3k4v5w6x7y8z9a0b1c2d3e", "creation_time": NOON}, "an id of table order"),
        ({"id": ORDER.id, "creation_time": datetime(2030, 1, 1)}, "timezone"),  # noqa: DTZ001 - refused for that
        ({"id": None, "creation_time": None}, "valid string"),
    ],
)
def test_a_row_is_not_given_half_of_what_a_stored_row_has(given: dict[str, Any], error: str) -> None:
    with pytest.raises(ValidationError, match=error):
        Order.model_validate({"customer": "Ada", **given})
