"""OpenAPI 3.1: the public functions of an app as ``POST /rest/module/function``."""

from __future__ import annotations

from typing import Any

from penstock.codegen.description import TYPES, Description, FunctionDescription, Schema

_ERROR: Schema = {
    "type": "object",
    "properties": {
        "code": {"type": "string"},
        "message": {"type": "string"},
        "data": {"description": "What the function raised for its callers."},
    },
    "required": ["code", "message"],
}
_ERRORS = (
    "400: what the function raised for its callers. 401: not signed in. 403: no access. 404: no such row. "
    "409: a conflict with other rows. 422: no such arguments. 429 and 503: send it again later."
)


def openapi(description: Description, root: str = "/") -> dict[str, Any]:
    """The OpenAPI document of functions, which a server has below a path."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Functions", "version": "1"},
        "servers": [{"url": root}],
        "security": [{}, {"bearer": []}],
        "paths": {
            f"/rest/{function.module.replace('.', '/')}/{function.name}": {"post": _operation(function)}
            for function in description.functions
        },
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "schemas": {**description.types, "penstock.Error": _ERROR},
        },
    }


def _operation(function: FunctionDescription) -> dict[str, Any]:
    first, _break, more = function.about.partition("\n")
    kind = f"A {function.kind}." + (f" Access: {function.access}." if function.access else "")
    return {
        "operationId": f"{function.module}.{function.name}",
        "tags": [function.module],
        "summary": first or function.name,
        "description": f"{kind} {more}".strip(),
        "requestBody": _body(function.arguments),
        "responses": {
            "200": {"description": "The result.", **_body(function.returns)},
            "default": {"description": _ERRORS, **_body({"$ref": f"{TYPES}penstock.Error"})},
        },
    }


def _body(schema: Schema) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}}
