"""The fields that penstock gives to each row of its own tables: `id` and `creation_time`."""

from __future__ import annotations

from typing import Any

from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from penstock.schema.fields import Column, Kind
from penstock.schema.ids import Id

SYSTEM_COLUMNS = ("id", "creation_time")

SYSTEM_FIELDS = (
    Column("id", Kind.TEXT, optional=False, decode=Id),
    Column("creation_time", Kind.DATETIME, optional=False),
)

_Checked = tuple[dict[str, Any], dict[str, Any] | None, set[str]]  # fields, extra ones, and names of those given


def add_system_fields(schema: CoreSchema, id_schema: CoreSchema) -> None:
    """Add the system fields to the schema of a table, in place."""
    outer: Any = schema
    inner: Any = outer.get("schema", {})
    while "fields" not in inner and "schema" in inner:  # inside validators of the user's own
        outer, inner = inner, inner["schema"]
    if inner.get("type") != "model-fields" or inner["fields"].keys() >= {*SYSTEM_COLUMNS}:
        return  # it has them already: pydantic makes a schema of a class once, and asks for it each time
    kinds = (id_schema, core_schema.datetime_schema(tz_constraint="aware"))
    system = {
        name: core_schema.model_field(core_schema.with_default_schema(kind, default=None, validate_default=False))
        for name, kind in zip(SYSTEM_COLUMNS, kinds, strict=True)
    }
    fields = {**inner, "fields": {**system, **inner["fields"]}}
    outer["schema"] = core_schema.no_info_after_validator_function(_both_or_neither, fields)


def _both_or_neither(checked: _Checked) -> _Checked:
    """Remove the system fields from a row that is not stored."""
    fields = checked[0]
    missing = [name for name in SYSTEM_COLUMNS if fields[name] is None]
    if len(missing) == 1:
        raise PydanticCustomError("half_a_stored_row", "A stored row has both id and creation_time")
    for name in missing:
        del fields[name]
    return checked
