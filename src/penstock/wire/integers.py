"""`Int64`: integers that reach JavaScript as a `bigint`, wherever their type declares them.

Owns the annotation, and finding its places in a value by pydantic's schema. `wire.outgoing` owns their form.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, SchemaValidator, core_schema

INT64 = "penstock.int64"  # in the metadata of a schema
Way = Callable[[Any], Any]
_DIGITS = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_CHECKS = frozenset({"function-after", "function-before", "function-wrap", "json", "custom-error"})
_INTEGER = core_schema.int_schema(strict=True)
_BY_NAME = frozenset({"fields", "choices"})
_OPAQUE = frozenset(
    {"cls", "metadata", "serialization", "config", "default", "expected", "members", "ref", "schema_ref"}
)


class _Declared:
    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema: Any = handler(source)
        return {**schema, "metadata": {**schema.get("metadata", {}), INT64: True}}


Int64 = Annotated[int, _Declared()]
"""An integer of 64 bits, for values beyond ±2⁵³, which a `number` of JavaScript cannot hold.

It is an `int` in Python and in the database, always a `bigint` for Convex's clients, and always text in plain JSON."""


class Large(int):
    """An integer where `Int64` is declared, on its way out."""


def is_int64(schema: Any) -> bool:
    return schema.get("type") == "int" and INT64 in schema.get("metadata", ())


def of_text(value: Any) -> Any:
    """The integer of a text of digits, as plain JSON has it."""
    return int(value) if isinstance(value, str) and _DIGITS.fullmatch(value) else value


def marker(schema: CoreSchema) -> Way | None:
    """A function that marks the integers of a value as `Large` where its schema declares `Int64`; None if it has none.

    Objects of classes stay as they are, as each class has a marker of its own. Nothing is checked a second time.
    """
    if f"'{INT64}'" not in repr(schema):
        return None
    validator = SchemaValidator(_marking(schema))

    def mark(value: Any) -> Any:
        try:
            return validator.validate_python(value)
        except ValidationError:  # it was made without its checks
            return value

    return mark


def _marking(node: Any) -> Any:
    """A schema that takes everything that a schema takes, and marks."""
    if isinstance(node, list | tuple):
        return type(node)(map(_marking, node))
    if not isinstance(node, dict):
        return node
    if (other := _stand_in(node)) is not None:
        return other
    found = {key: value if key in _OPAQUE else _marking_part(key, value) for key, value in node.items()}
    if node.get("type") == "typed-dict":
        found["extra_behavior"], found["total"] = "allow", False
    elif node.get("type") == "typed-dict-field":
        found["required"] = False
        found.pop("validation_alias", None)
    return found


def _stand_in(node: dict[str, Any]) -> Any:
    """The schema that marks in place of one that checks, or that is an object's; None for the others."""
    match node:
        case {"type": "json-or-python", "python_schema": inner}:
            return _marking(inner)
        case {"type": "model" | "dataclass", "cls": cls}:
            return core_schema.is_instance_schema(cls, ref=node.get("ref"))
        case {"serialization": written}:  # it leaves as its serializer says
            return _marking(written.get("return_schema", core_schema.any_schema()))
        case {"type": "function-plain"}:
            return core_schema.any_schema()
        case {
            "type": "function-after" | "function-before" | "function-wrap" | "json" | "custom-error",
            "schema": inner,
        }:
            return _marking(inner)
    return core_schema.no_info_after_validator_function(Large, _INTEGER) if is_int64(node) else None


def _marking_part(key: str, value: Any) -> Any:
    if key in _BY_NAME and isinstance(value, dict):
        return {name: _marking(item) for name, item in value.items()}
    return _marking(value)
