"""OpenAPI 3.1: the public functions of an app as ``POST /rest/module/function``, and its HTTP actions."""

from __future__ import annotations

import inspect
from typing import Any

from penstock.codegen.description import TYPES, Description, FunctionDescription, Schema
from penstock.functions.httpaction import HttpAction

_ERROR: Schema = {
    "type": "object",
    "properties": {
        "code": {"type": "string"},
        "message": {"type": "string"},
        "data": {"description": "What the function raised for its callers."},
    },
    "required": ["code", "message"],
}
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
_ERRORS = (
    "400: what the function raised for its callers. 401: not signed in. 403: no access. 404: no such row. "
    "409: a conflict with other rows. 422: no such arguments. 429 and 503: send it again later."
)


def openapi(description: Description, root: str = "/") -> dict[str, Any]:
    """The OpenAPI document of functions, which a server has below a path."""
    paths: dict[str, Schema] = {
        f"/rest/{function.module.replace('.', '/')}/{function.name}": {"post": _operation(function)}
        for function in description.functions
    }
    for action in description.http:
        place = action.place
        path = f"{place.fixed}{{{place.rest}}}" if place.rest else place.fixed
        paths.setdefault(path, {})[place.method.lower()] = _http_operation(action)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Functions", "version": "1"},
        "servers": [{"url": root}],
        "security": [{}, {"bearer": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "schemas": {**description.types, "penstock.Error": _ERROR},
        },
    }


def _http_operation(action: HttpAction[Any, ..., Any, Any]) -> dict[str, Any]:
    """The operation of an HTTP action, whose request and response nothing declares."""
    module, _colon, name = action.name.rpartition(":")
    first, _break, more = (inspect.getdoc(action.declared) or "").partition("\n")
    rest = {"name": action.place.rest, "in": "path", "required": True, "schema": {"type": "string"}}
    return {
        "operationId": f"{module}.{name}",
        "tags": [module],
        "summary": first or name,
        "description": f"An HTTP action. Access: {action.access_text}. {more}".strip(),
        **({"parameters": [rest]} if action.place.rest else {}),
        **({"requestBody": {"content": {"*/*": {}}}} if action.place.method in _WITH_BODY else {}),
        "responses": {"default": {"description": "What the program answers."}},
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
