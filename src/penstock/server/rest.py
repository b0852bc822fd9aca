"""Reads calls as REST has them: arguments in a plain body, or each by its name in the URL."""

from __future__ import annotations

from typing import Any

from pydantic_core import from_json, to_json
from starlette.requests import Request

from penstock.calls.run.dispatch import Dispatch
from penstock.config import Config
from penstock.errors import ArgumentsInvalid, at_the_door
from penstock.functions.function import FunctionKind
from penstock.schema.ids import WRONG_ID
from penstock.server.requests import Body, Call, Refused, object_in, read_body
from penstock.wire.outgoing import Format


async def read_plain_call(
    request: Request, config: Config, dispatch: Dispatch, path: str
) -> tuple[FunctionKind | None, Call]:
    """The call of a function that a request names, and the kind that it must have."""

    def read(body: Body) -> Call:
        return Call(path, body.arguments(body.fields), Format.JSON)

    if request.method == "POST":
        return None, await read_body(request, config, read, empty=b"{}")
    return FunctionKind.QUERY, read(object_in(_arguments_in_url(request, dispatch, path), request))


def _arguments_in_url(request: Request, dispatch: Dispatch, path: str) -> bytes:
    """Each is text where the function takes text, else JSON: ``limit=5``. A name that comes twice has a list."""
    given = {name: request.query_params.getlist(name) for name in request.query_params}
    found: dict[str, Any] = {name: texts[0] if len(texts) == 1 else texts for name, texts in given.items()}
    with at_the_door():
        kind = dispatch.find(path, None).kind
    if kind is not FunctionKind.QUERY:
        what = f"{path} is a {kind.value}; only queries take {request.method}. Use POST."
        raise Refused(405, "MethodNotAllowed", what, {"allow": "POST"})
    try:
        dispatch.prepare_query(path, to_json(found))
    except ArgumentsInvalid as error:
        wrong = {one["loc"][0] for one in error.facts["errors"] if one["loc"] and one["type"] != WRONG_ID}
        for name in wrong & found.keys():
            found[name] = _value(found[name])
    return to_json(found)


def _value(given: str | list[str]) -> Any:
    if isinstance(given, list):
        return [_value(text) for text in given]
    try:
        return from_json(given)
    except ValueError:
        return given
