"""Functions as REST has them: arguments in a plain body or in the URL, the bare result, and a real status for errors.

Owns the reading of arguments in a URL. Leaves the statuses to `answers`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from pydantic_core import from_json, to_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.app import Backend
from penstock.errors import ArgumentsInvalid, at_the_door
from penstock.functions.function import FunctionKind
from penstock.schema.ids import WRONG_ID
from penstock.server.access import exchange_of
from penstock.server.answers import plain_answer
from penstock.server.callers import credentials_of
from penstock.server.http import opened, send_answer, send_json
from penstock.server.opening import Opening
from penstock.server.requests import Refused, call_in, function_path, path_in_url, read_body
from penstock.wire.outgoing import Format, encode_result


class Rest:
    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._config = opening.config

    def routes(self) -> list[Route]:
        return [Route("/{function:path}", self._answer, methods=["GET", "POST"])]

    async def _answer(self, request: Request) -> Response:
        try:
            with self._opening.traced(request.headers):
                return send_json(await self._call(request))
        except Exception as error:  # noqa: BLE001 - user code may raise anything
            return send_answer(plain_answer(error, exchange_of(request), dev=self._config.dev))

    async def _call(self, request: Request) -> bytes:
        backend, path = await opened(self._opening), function_path(path_in_url(request))
        exchange_of(request).function = path
        if request.method == "POST":
            kind, call = None, await read_body(request, self._config, partial(call_in, path))
        else:
            kind, call = FunctionKind.QUERY, call_in(path, self._arguments_in_url(request, backend, path))
        with at_the_door():
            credentials = await credentials_of(request, backend.tokens, self._config.admin_token)
        encode = partial(encode_result, form=Format.JSON)
        result: bytes = await backend.dispatch.call(path, kind, call.args, caller=credentials.caller, finish=encode)
        return result

    @staticmethod
    def _arguments_in_url(request: Request, backend: Backend, path: str) -> bytes:
        """Each is text where the function takes text, else JSON: ``limit=5``. A name that comes twice has a list."""
        given = {name: request.query_params.getlist(name) for name in request.query_params}
        found: dict[str, Any] = {name: texts[0] if len(texts) == 1 else texts for name, texts in given.items()}
        with at_the_door():
            kind = backend.dispatch.find(path, None).kind
        if kind is not FunctionKind.QUERY:
            what = f"{path} is a {kind.value}; only queries take {request.method}. Use POST."
            raise Refused(405, "MethodNotAllowed", what, {"allow": "POST"})
        try:
            backend.dispatch.prepare_query(path, to_json(found))
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
