"""Changes pydantic's schemas, node by node. Knows no type of penstock's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from pydantic_core import CoreSchema

Change = Callable[[dict[str, Any]], None]

OPAQUE = frozenset(
    {"cls", "metadata", "ref", "schema_ref", "serialization", "config", "default", "expected", "members"}
)
_BY_NAME = frozenset({"fields", "choices"})


def change_schema(schema: CoreSchema, change: Change) -> CoreSchema:
    """A copy of a schema, in which `change` has changed each node, the inner ones first."""
    return cast("CoreSchema", _change(schema, change))


def replace(node: dict[str, Any], other: Any) -> None:
    """Put another schema in the place of a node."""
    node.clear()
    node.update(other)


def fields_of(node: dict[str, Any]) -> Iterable[tuple[str, dict[str, Any]]]:
    """The fields of a class, by name; none of other nodes."""
    fields = node.get("fields", {}) if node.get("type") in {"model-fields", "typed-dict", "dataclass-args"} else {}
    return fields.items() if isinstance(fields, dict) else [(one["name"], one) for one in fields]


def _change(node: Any, change: Change) -> Any:
    if isinstance(node, list | tuple):
        return type(node)(_change(item, change) for item in node)
    if not isinstance(node, dict):
        return node
    copy = {key: _change_part(key, value, change) for key, value in node.items()}
    change(copy)
    return copy


def _change_part(key: str, value: Any, change: Change) -> Any:
    if key in OPAQUE:
        return value
    if key in _BY_NAME and isinstance(value, dict):  # names are the user's: a field may be called config
        return {name: _change(item, change) for name, item in value.items()}
    return _change(value, change)
