"""Reads requests: a body within its limits, and the calls in it.

Refuses unreadable requests before any call. Leaves errors of the functions to `answers`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from pydantic_core import from_json, to_json
from starlette.requests import Request
from starlette.types import Receive

from penstock.calls.run.dispatch import Dispatch
from penstock.calls.run.threads import offload
from penstock.config import Config
from penstock.dataclass import dataclass
from penstock.errors import ArgumentsInvalid, InputError, LimitExceeded, at_the_door
from penstock.functions.function import FunctionKind
from penstock.functions.registry import LONGEST_PATH
from penstock.schema.ids import WRONG_ID
from penstock.wire.incoming import BYTES_PER_BRACKET, Message, check_keys, count_brackets
from penstock.wire.outgoing import Format, encode_result, format_of
from penstock.wire.tags import read_u64

T = TypeVar("T")

_PATH = re.compile(r"[^\W\d]\w*(?:[./][^\W\d]\w*)*(?::[^\W\d]\w*)?")
_MOST_QUERIES = 1000
LINGER = 32 * 1024 * 1024  # bytes over the limit that are read and thrown away, so that the sender sees the answer


class Refused(Exception):
    """A request that cannot be read, or cannot be served at all, with its HTTP status and a stable code."""

    def __init__(self, status: int, code: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = headers or {}


@dataclass(frozen=True, slots=True)
class Call:
    """One call; `args` are JSON text, not yet checked."""

    path: str
    args: bytes
    form: Format

    def encode(self, result: Any) -> bytes:
        """A result in the form that the caller asks for."""
        return encode_result(result, self.form)


@dataclass(frozen=True, slots=True)
class Body:
    """A JSON text that was sent, and what its client says of itself."""

    message: Message
    client: str

    @property
    def fields(self) -> Any:
        """Its value; tags are not resolved."""
        return self.message.value

    def values(self) -> dict[str, Any]:
        """Its value, an object, with tags resolved."""
        found: dict[str, Any] = from_json(self.arguments(self.fields))
        return found

    def call(self, fields: dict[str, Any]) -> Call:
        """The call that an object in it describes, its result in the form for this client."""
        if fields.get("componentPath"):
            raise Refused(400, "BadRequest", "There are no components here. Leave componentPath out.")
        path, args = function_path(fields.get("path")), self.arguments(fields.get("args"))
        try:
            form = format_of(fields.get("format"), self.client)
            if form is Format.ENCODED:
                check_keys(args)
        except InputError as error:
            raise Refused(400, "BadRequest", str(error)) from error
        return Call(path, args, form)

    def arguments(self, given: Any) -> bytes:
        """The arguments of a call as JSON text, with tags resolved."""
        try:
            return self.message.arguments(given)
        except LimitExceeded as error:
            raise Refused(400, "NestedTooDeeply", str(error)) from error
        except InputError as error:
            raise Refused(400, "BadRequest", str(error)) from error


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of work, as an outside system reports it."""

    result: Any = None
    error: str | None = None
    retryable: bool = True


async def read_call(request: Request, config: Config) -> Call:
    """The call of a request: ``{path, args, format}`` in its body, or in the URL of a GET.

    The path of the URL may name the function: ``a/b/fn`` is the function ``fn`` of the module ``a.b``.
    """
    if request.method != "POST":
        return _call_in_url(request, config)
    named = {"path": path_in_url(request)} if "function" in request.path_params else {}
    return await read_body(request, config, lambda body: body.call({**body.fields, **named}))


async def read_plain_call(
    request: Request, config: Config, dispatch: Dispatch, path: str
) -> tuple[FunctionKind | None, Call]:
    """The call of a function as REST has it: arguments as the body, or each by its name in the URL of a GET.

    With the kind that the function must have.
    """

    def read(body: Body) -> Call:
        return Call(path, body.arguments(body.fields), Format.JSON)

    if request.method == "POST":
        return None, await read_body(request, config, read, empty=b"{}")
    return FunctionKind.QUERY, read(object_in(_arguments_in_url(request, dispatch, path), request))


def path_in_url(request: Request) -> str:
    """The function that a URL names: ``a/b/fn`` is the function ``fn`` of the module ``a.b``."""
    module, _, name = request.path_params["function"].rpartition("/")
    if not module:
        what = f"{name[:100]!r} is not the path of a function. Write module/function, such as messages/send."
        raise Refused(400, "BadConvexFunctionIdentifier", what)
    return f"{module}:{name}"


async def read_body(
    request: Request, config: Config, read: Callable[[Body], T], *, limit: int | None = None, empty: bytes = b""
) -> T:
    """The values read from the JSON object in a body; away from the event loop if it is large.

    Args:
        request: The request.
        config: The settings.
        read: Reads the object.
        limit: The most bytes of the body; by default the most bytes of arguments.
        empty: The text that is read in place of an empty body.
    """
    text = await _read_text(request, config, limit or config.max_argument_bytes)
    return await offload(len(text), lambda: read(object_in(text or empty, request)))


# ----- bodies


def _call_in_url(request: Request, config: Config) -> Call:
    given = request.query_params
    args = given.get("args") or "{}"
    if len(args) > config.max_argument_bytes:
        raise body_too_large(config.max_argument_bytes)
    body = Body(_parse(args.encode()), _client_of(request))
    return body.call({"path": given.get("path"), "args": body.fields, "format": given.get("format")})


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


def queries_in(body: Body) -> list[Call]:
    """The calls of a batch: ``{queries: [{path, args, format}]}``."""
    queries = body.fields.get("queries")
    if not isinstance(queries, list) or not all(isinstance(query, dict) for query in queries):
        raise Refused(400, "BadRequest", "queries must be an array of objects.")
    if len(queries) > _MOST_QUERIES:
        raise Refused(400, "TooManyQueries", f"A batch may have {_MOST_QUERIES} queries, not {len(queries)}.")
    return [body.call(query) for query in queries]


def query_at_in(body: Body) -> tuple[int, Call]:
    """The call of a query at a snapshot, and its number: ``{path, args, ts, format}``."""
    try:
        number = read_u64(body.fields.get("ts"))
    except InputError as error:
        raise Refused(400, "BadRequest", f"ts is not what /api/query_ts answered: {error}") from error
    return number, body.call(body.fields)


def ending_in(body: Body) -> Ending:
    """The end of work: ``{"result": …}``, or ``{"error": "…", "retryable": true}``."""
    if body.fields.keys() == {"result"}:
        return Ending(result=body.values()["result"])
    error, retryable = body.fields.get("error"), body.fields.get("retryable", True)
    known = body.fields.keys() <= {"error", "retryable"}
    if known and isinstance(error, str) and error and isinstance(retryable, bool):
        return Ending(error=error, retryable=retryable)
    raise Refused(400, "BadRequest", 'Send {"result": …}, or {"error": "…", "retryable": true or false}.')


def payload_in(body: Body) -> Any:
    """The payload of an event: ``{"payload": …}``."""
    if body.fields.keys() != {"payload"}:
        raise Refused(400, "BadRequest", 'Send {"payload": …}.')
    return body.values()["payload"]


def object_in(text: bytes, request: Request) -> Body:
    """The JSON object in a text that a client has sent."""
    body = Body(_parse(text), _client_of(request))
    if not isinstance(body.fields, dict):
        raise Refused(400, "BadRequest", "The body must be a JSON object.")
    return body


def _client_of(request: Request) -> str:
    return request.headers.get("convex-client", "")


async def _read_text(request: Request, config: Config, limit: int) -> bytes:
    _check_headers(request.headers)
    try:
        async with asyncio.timeout(config.call_timeout):
            body = await _receive_body(request.headers, request.receive, limit)
    except TimeoutError as error:
        raise Refused(408, "RequestTimeout", "The body did not arrive in time.", {"connection": "close"}) from error
    brackets = limit // BYTES_PER_BRACKET
    if count_brackets(body) > brackets:
        raise Refused(413, "RequestTooLarge", f"A request may have {brackets} opening brackets.")
    return body


def _check_headers(headers: Mapping[str, str]) -> None:
    """Refuse bodies that are not JSON.

    Without a content type JSON is assumed, except from web pages. Those may send text, or a body without a type, to any
    server without asking, also to one that listens on the user's machine only.
    """
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if not kind and "origin" not in headers:
        return
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        found = f"the content type {kind[:100]}" if kind else "no content type"
        raise Refused(415, "UnsupportedMediaType", f"The body has {found}. Send JSON as application/json.")
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused(415, "UnsupportedEncoding", "Send the body as it is, not compressed.")


async def refuse_declared(headers: Mapping[str, str], receive: Receive, limit: int, seconds: float) -> None:
    """Refuse a body whose declared length is over a limit, once it is read, so that its sender sees the answer."""
    declared = headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await _receive_body(headers, receive, limit)
        raise body_too_large(limit)


async def _receive_body(headers: Mapping[str, str], receive: Receive, limit: int) -> bytes:
    declared = headers.get("content-length", "")
    too_large = declared.isdecimal() and int(declared) > limit
    if too_large and (headers.get("expect") or int(declared) > limit + LINGER):
        raise body_too_large(limit)
    parts: list[bytes] = []
    size, more = 0, True
    while more and size <= limit + LINGER:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused(499, "ClientDisconnected", "The caller went away.")
        part = message.get("body", b"")
        size, more = size + len(part), message.get("more_body", False)
        too_large |= size > limit
        if too_large:
            parts.clear()
        else:
            parts.append(part)
    if too_large:
        raise body_too_large(limit)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def body_too_large(limit: int) -> Refused:
    return Refused(413, "RequestTooLarge", f"A request may have {limit} bytes.", {"connection": "close"})


def _parse(text: bytes) -> Message:
    try:
        return Message(text)
    except InputError as error:
        raise Refused(400, "BadJson", str(error)) from error


def function_path(path: Any) -> str:
    """The name of a function, ``dir/module:function``; a module alone names its function ``default``."""
    if not isinstance(path, str):
        raise Refused(400, "BadRequest", 'path must be the name of a function, such as "messages:send".')
    if len(path) > LONGEST_PATH or not _PATH.fullmatch(path):
        raise Refused(400, "BadConvexFunctionIdentifier", f"{path[:100]!r} is not the name of a function.")
    module, _, name = path.partition(":")
    return f"{module.removesuffix('.js')}:{name or 'default'}"  # clients that come back add the suffix
