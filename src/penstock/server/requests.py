"""Reads requests: a body within its limits, and the calls in it.

Refuses unreadable requests before any call. Leaves errors of the functions to `answers`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from pydantic_core import from_json
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Receive

from penstock.calls.run.threads import offload
from penstock.config import Config
from penstock.errors import InputError, LimitExceeded
from penstock.wire.incoming import BYTES_PER_BRACKET, Message, check_keys, count_brackets
from penstock.wire.outgoing import Format, encoded_for, format_of
from penstock.wire.tags import read_u64

T = TypeVar("T")

_PATH = re.compile(r"[^\W\d]\w*(?:[./][^\W\d]\w*)*(?::[^\W\d]\w*)?")
_LONGEST_PATH = 512
_MOST_QUERIES = 1000
_LINGER = 32 * 1024 * 1024  # bytes over the limit that are read and thrown away, so that the sender sees the answer


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
        return for_client(request, _call_in_url(request, config))
    path = path_in_url(request) if "function" in request.path_params else None
    return for_client(request, await read_body(request, config, partial(_call_in, path=path)))


def for_client(request: Request, call: Call) -> Call:
    """The call with its result in the form for the client that sends the request."""
    if call.form is not Format.ENCODED:
        return call
    call = replace(call, form=encoded_for(request.headers.get("convex-client", "")))
    if call.form is Format.ENCODED:
        try:
            check_keys(call.args)
        except InputError as error:
            raise Refused(400, "BadRequest", str(error)) from error
    return call


def call_in(path: str, arguments: bytes) -> Call:
    message = _object_in(arguments or b"{}")
    return _call_of(message, {"path": path, "args": message.value})


def path_in_url(request: Request) -> str:
    """The function that a URL names: ``a/b/fn`` is the function ``fn`` of the module ``a.b``."""
    module, _, name = request.path_params["function"].rpartition("/")
    if not module:
        what = f"{name[:100]!r} is not the path of a function. Write module/function, such as messages/send."
        raise Refused(400, "BadConvexFunctionIdentifier", what)
    return f"{module}:{name}"


async def read_body(request: Request, config: Config, read: Callable[[bytes], T]) -> T:
    """What is read from a body; away from the event loop if it is large."""
    body = await _read_body(request, config)
    return await offload(len(body), lambda: read(body))


async def read_object(request: Request, config: Config, limit: int) -> dict[str, Any]:
    """A JSON object of `limit` bytes at most, with its tags resolved."""
    body = await _read_body(request, config, limit)
    message = _object_in(body)
    found: dict[str, Any] = from_json(_arguments(message, message.value))
    return found


# ----- bodies


def _call_in_url(request: Request, config: Config) -> Call:
    given = request.query_params
    args = given.get("args") or "{}"
    if len(args) > config.max_argument_bytes:
        raise _too_large(config.max_argument_bytes)
    message = _parse(args.encode())
    return _call_of(message, {"path": given.get("path"), "args": message.value, "format": given.get("format")})


def _call_in(body: bytes, path: str | None) -> Call:
    message = _object_in(body)
    return _call_of(message, message.value if path is None else {**message.value, "path": path})


def queries_in(body: bytes) -> list[Call]:
    """The calls of a batch: ``{queries: [{path, args, format}]}``."""
    message = _object_in(body)
    queries = message.value.get("queries")
    if not isinstance(queries, list) or not all(isinstance(query, dict) for query in queries):
        raise Refused(400, "BadRequest", "queries must be an array of objects.")
    if len(queries) > _MOST_QUERIES:
        raise Refused(400, "TooManyQueries", f"A batch may have {_MOST_QUERIES} queries, not {len(queries)}.")
    return [_call_of(message, query) for query in queries]


def query_at_in(body: bytes) -> tuple[int, Call]:
    """The call of a query at a snapshot, and its number: ``{path, args, ts, format}``."""
    message = _object_in(body)
    try:
        number = read_u64(message.value.get("ts"))
    except InputError as error:
        raise Refused(400, "BadRequest", f"ts is not what /api/query_ts answered: {error}") from error
    return number, _call_of(message, message.value)


def ending_in(body: bytes) -> Ending:
    """The end of work: ``{"result": …}``, or ``{"error": "…", "retryable": true}``."""
    message = _object_in(body)
    if message.value.keys() == {"result"}:
        return Ending(result=from_json(_arguments(message, message.value))["result"])
    error, retryable = message.value.get("error"), message.value.get("retryable", True)
    known = message.value.keys() <= {"error", "retryable"}
    if known and isinstance(error, str) and error and isinstance(retryable, bool):
        return Ending(error=error, retryable=retryable)
    raise Refused(400, "BadRequest", 'Send {"result": …}, or {"error": "…", "retryable": true or false}.')


def _object_in(body: bytes) -> Message:
    message = _parse(body)
    if not isinstance(message.value, dict):
        raise Refused(400, "BadRequest", "The body must be a JSON object.")
    return message


async def _read_body(request: Request, config: Config, limit: int | None = None) -> bytes:
    _check_headers(request.headers)
    limit = limit or config.max_argument_bytes
    try:
        async with asyncio.timeout(config.call_timeout):
            body = await _receive_body(request.headers, request.receive, limit)
    except TimeoutError as error:
        raise Refused(408, "RequestTimeout", "The body did not arrive in time.", {"connection": "close"}) from error
    brackets = limit // BYTES_PER_BRACKET
    if count_brackets(body) > brackets:
        raise Refused(413, "RequestTooLarge", f"A request may have {brackets} opening brackets.")
    return body


def _check_headers(headers: Headers) -> None:
    """Refuse bodies that are not JSON.

    Without a content type JSON is assumed, except from web pages: those may send text, or a body without a type, to any
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


async def _receive_body(headers: Headers, receive: Receive, limit: int) -> bytes:
    declared = headers.get("content-length", "")
    too_large = declared.isdecimal() and int(declared) > limit
    if too_large and (headers.get("expect") or int(declared) > limit + _LINGER):
        raise _too_large(limit)
    parts: list[bytes] = []
    size, more = 0, True
    while more and size <= limit + _LINGER:
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
        raise _too_large(limit)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(limit: int) -> Refused:
    return Refused(413, "RequestTooLarge", f"A request may have {limit} bytes.", {"connection": "close"})


def _parse(text: bytes) -> Message:
    try:
        return Message(text)
    except InputError as error:
        raise Refused(400, "BadJson", str(error)) from error


# ----- calls


def _call_of(message: Message, fields: dict[str, Any]) -> Call:
    if fields.get("componentPath"):
        raise Refused(400, "BadRequest", "There are no components here. Leave componentPath out.")
    path, args = function_path(fields.get("path")), _arguments(message, fields.get("args"))
    try:
        return Call(path, args, format_of(fields.get("format")))
    except InputError as error:
        raise Refused(400, "BadRequest", str(error)) from error


def _arguments(message: Message, given: Any) -> bytes:
    try:
        return message.arguments(given)
    except LimitExceeded as error:
        raise Refused(400, "NestedTooDeeply", str(error)) from error
    except InputError as error:
        raise Refused(400, "BadRequest", str(error)) from error


def function_path(path: Any) -> str:
    """The name of a function, ``dir/module:function``; a module alone names its function ``default``."""
    if not isinstance(path, str):
        raise Refused(400, "BadRequest", 'path must be the name of a function, such as "messages:send".')
    if len(path) > _LONGEST_PATH or not _PATH.fullmatch(path):
        raise Refused(400, "BadConvexFunctionIdentifier", f"{path[:100]!r} is not the name of a function.")
    module, _, name = path.partition(":")
    return f"{module.removesuffix('.js')}:{name or 'default'}"  # clients that come back add the suffix
