"""The function spec: an app's functions in the JSON of Convex's tools, such as ``convex-helpers ts-api-spec``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.codegen.description import SAME, Description, FunctionDescription, Schema, literals, options, plain_type
from penstock.functions.httpaction import Place

_PLAIN = {"integer": "number", "int64": "bigint", "base64": "bytes"} | {same: same for same in SAME}


def function_spec(description: Description, url: str) -> dict[str, Any]:
    """The spec of the functions of a server at an URL, with its HTTP actions."""
    functions = [_function(description, function) for function in description.functions]
    places = [action.place for action in description.http]
    http = [{"functionType": "HttpAction", "method": one.method, "path": _path(one)} for one in places]
    return {"url": url, "functions": functions + http}


def _path(place: Place) -> str:
    """The path as Convex writes it, which has a star for the rest of a path."""
    return f"{place.fixed}*" if place.rest else place.fixed


def _function(description: Description, function: FunctionDescription) -> dict[str, Any]:
    return {
        "identifier": f"{function.module.replace('.', '/')}.js:{function.name}",
        "functionType": function.kind.capitalize(),
        "args": _validator(description, function.arguments),
        "returns": _validator(description, function.returns),
        "visibility": {"kind": "public" if function.public else "internal"},
    }


def _validator(description: Description, schema: Schema, within: tuple[str, ...] = ()) -> dict[str, Any]:
    """Convex's validator for a schema. It has no names for types, so a type within itself may be anything."""
    named = description.resolve(schema)
    if named is not None:
        name, found = named
        return {"type": "any"} if name in within else _validator(description, found, (*within, name))

    def inner(part: Schema) -> dict[str, Any]:
        return _validator(description, part, within)

    union = [{"type": "literal", "value": value} for value in literals(schema)] or [*map(inner, options(schema))]
    if union:
        return union[0] if len(union) == 1 else {"type": "union", "value": union}
    match schema:
        case {"type": "array"}:
            parts = schema.get("prefixItems")
            return {"type": "array", "value": inner({"anyOf": parts} if parts else schema.get("items", {}))}
        case {"type": "object"}:
            return _object(schema, inner)
        case {"type": "string", "x-id": table}:
            return {"type": "id", "tableName": table}
    return {"type": plain_type(schema, _PLAIN)}


def _object(schema: Schema, inner: Callable[[Schema], dict[str, Any]]) -> dict[str, Any]:
    more, fields = schema.get("additionalProperties"), schema.get("properties", {})
    if not fields and more is not False:
        values = inner(more) if isinstance(more, dict) else {"type": "any"}
        return {"type": "record", "keys": {"type": "string"}, "values": {"fieldType": values, "optional": False}}
    if more or not all(map(str.isidentifier, fields)):  # Convex's fields have names that programs can write
        return {"type": "any"}
    required = schema.get("required", ())
    value = {name: {"fieldType": inner(one), "optional": name not in required} for name, one in fields.items()}
    return {"type": "object", "value": value}
