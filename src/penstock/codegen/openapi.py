"""OpenAPI 3.1: the public functions of an app as ``POST /api/run/module/function``."""

from __future__ import annotations

from typing import Any

from penstock.codegen.description import TYPES, Description, FunctionDescription, Schema

_FAILED: Schema = {
    "description": "The function failed, or refused its arguments.",
    "type": "object",
    "properties": {
        "status": {"const": "error"},
        "errorMessage": {"type": "string"},
        "errorData": {"description": "What the function raised for its callers."},
    },
    "required": ["status", "errorMessage"],
}
_REFUSED: Schema = {
    "type": "object",
    "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
    "required": ["code", "message"],
}


def openapi(description: Description, root: str = "/") -> dict[str, Any]:
    """The OpenAPI document of functions, which a server has below a path."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Functions", "version": "1"},
        "servers": [{"url": root}],
        "paths": {
            f"/api/run/{function.module.replace('.', '/')}/{function.name}": {"post": _operation(function)}
            for function in description.functions
        },
        "security": [{}, {"bearer": []}],  # whether a function needs a token is said by the function alone
        "components": {
            "schemas": {**description.types, "penstock.Failed": _FAILED, "penstock.Refused": _REFUSED},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(function: FunctionDescription) -> dict[str, Any]:
    first, _break, more = function.about.partition("\n")
    succeeded = {
        "type": "object",
        "properties": {"status": {"const": "success"}, "value": function.returns},
        "required": ["status", "value"],
    }
    return {
        "operationId": f"{function.module}.{function.name}",
        "tags": [function.module],
        "summary": first or function.name,
        "description": f"A {function.kind}. {more}".strip(),
        "requestBody": _body({"type": "object", "properties": {"args": function.arguments}, "required": ["args"]}),
        "responses": {
            "200": {
                "description": "The function was called.",
                **_body({"oneOf": [succeeded, {"$ref": f"{TYPES}penstock.Failed"}]}),
            },
            "default": {
                "description": "The call did not reach the function, or may be sent again.",
                **_body({"$ref": f"{TYPES}penstock.Refused"}),
            },
        },
    }


def _body(schema: Schema) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}}
