"""Makes pydantic's schemas as strict as a database is: aware datetimes, 64-bit integers.

Owns this one change of a core schema; used for tables and for the arguments of functions.
"""

from __future__ import annotations

from typing import Any, cast

from pydantic_core import CoreSchema

from penstock.values import INT64_MAX, INT64_MIN

_OPAQUE = frozenset(
    {"cls", "metadata", "ref", "schema_ref", "serialization", "config", "default", "expected", "members"}
)
_BY_NAME = frozenset({"fields", "choices"})


def tighten(schema: CoreSchema) -> CoreSchema:
    """The same schema, refusing naive datetimes and integers over 64 bits where it does not say otherwise."""
    return cast("CoreSchema", _tighten(schema))


def _part(key: str, value: Any) -> Any:
    if key in _OPAQUE:
        return value
    if key in _BY_NAME and isinstance(value, dict):  # names are the user's: a field may be called config
        return {name: _tighten(item) for name, item in value.items()}
    return _tighten(value)


def _tighten(node: Any) -> Any:
    if isinstance(node, list | tuple):
        return type(node)(map(_tighten, node))
    if not isinstance(node, dict):
        return node
    copy = {key: _part(key, value) for key, value in node.items()}
    if copy.get("type") == "datetime":
        copy.setdefault("tz_constraint", "aware")
    elif copy.get("type") == "int":
        if not copy.keys() & {"ge", "gt"}:
            copy["ge"] = INT64_MIN
        if not copy.keys() & {"le", "lt"}:
            copy["le"] = INT64_MAX
    return copy
