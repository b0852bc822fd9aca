"""`Int64`: integers that reach JavaScript as a `bigint`, wherever their type declares them.

Owns the annotation, and finding its places in a value by pydantic's schema. `wire.outgoing` owns their form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, SchemaValidator, core_schema

from penstock.wire.schemas import change_schema, replace

INT64 = "penstock.int64"  # in the metadata of a schema
Way = Callable[[Any], Any]
_DIGITS = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_INTEGER = core_schema.int_schema(strict=True)


class _Declared:
    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema: Any = handler(source)
        return {**schema, "metadata": {**schema.get("metadata", {}), INT64: True}}


Int64 = Annotated[int, _Declared()]
"""An integer of 64 bits, for values beyond ±2⁵³, which a `number` of JavaScript cannot hold.

It is an `int` in Python and in the database, always a `bigint` for Convex's clients, and always text in plain JSON."""


class BigInt(int):
    """An integer that reaches JavaScript as a `bigint` where no annotation says so: ``{"code": BigInt(123)}`` in `Any`.

    In `Any` a function also receives each `bigint` as one. It is an `int` of 64 bits, and results of sums are plain.
    """

    __slots__ = ()


def is_int64(schema: Any) -> bool:
    return schema.get("type") == "int" and INT64 in schema.get("metadata", ())


def of_text(value: Any) -> Any:
    """The integer of a text of digits, as plain JSON has it."""
    return int(value) if isinstance(value, str) and _DIGITS.fullmatch(value) else value


def marker(schema: CoreSchema, definitions: Iterable[CoreSchema] = ()) -> Way | None:
    """A function that marks the integers of a value as `BigInt` where its schema declares `Int64`; None if it has none.

    Objects of classes stay as they are, as each class has a marker of its own. Nothing is checked a second time.
    """
    whole = core_schema.definitions_schema(schema, [*definitions])
    if f"'{INT64}'" not in repr(whole):
        return None
    validator = SchemaValidator(change_schema(whole, _mark))

    def mark(value: Any) -> Any:
        try:
            return validator.validate_python(value)
        except ValidationError:  # it was made without its checks
            return value

    return mark


def _mark(node: dict[str, Any]) -> None:
    """Have a node take everything that it takes, and mark."""
    other: Any
    match node:
        case {"type": "json-or-python", "python_schema": other}:
            pass
        case {"type": "model" | "dataclass", "cls": cls}:
            other = core_schema.is_instance_schema(cls, ref=node.get("ref"))
        case {"serialization": written}:  # it leaves as its serializer says
            other = change_schema(written.get("return_schema", core_schema.any_schema()), _mark)
        case {"type": "function-plain"}:
            other = core_schema.any_schema()
        case {
            "type": "function-after" | "function-before" | "function-wrap" | "json" | "custom-error",
            "schema": other,
        }:
            pass
        case {"type": "typed-dict"}:
            other = node | {"extra_behavior": "allow", "total": False}
        case {"type": "typed-dict-field", "schema": inner}:
            other = core_schema.typed_dict_field(inner, required=False)
        case _ if is_int64(node):
            other = core_schema.no_info_after_validator_function(BigInt, _INTEGER)
        case _:
            return
    replace(node, other)
