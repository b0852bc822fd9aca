"""The HTTP API: calls of public functions as JSON.

Owns the endpoints and the order of their steps: read, call, answer. An error of a function is an answer of status 200;
other statuses mean that the call did not reach one, or may be repeated.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.app import Backend
from penstock.calls.workflows.events import Event
from penstock.calls.workflows.token import make_unknown_token, read_token
from penstock.distribution import __version__
from penstock.errors import (
    InputError,
    LimitExceeded,
    Overloaded,
    ResultInvalid,
    TokenExpired,
    TokenInvalid,
    TryAgain,
    Unauthenticated,
    ValueInvalid,
)
from penstock.functions.function import FunctionKind
from penstock.observe.loglines import log_lines
from penstock.observe.logs import event
from penstock.server.access import admit, exchange_of
from penstock.server.answers import (
    Answer,
    answer_error,
    function_error,
    name_of,
    plain_answer,
    refusal,
    success,
    with_lines,
)
from penstock.server.callers import Credentials, credentials_of
from penstock.server.files import FileDoor
from penstock.server.opening import Opening
from penstock.server.requests import (
    Call,
    Refused,
    ending_in,
    function_path,
    path_in_url,
    payload_in,
    queries_in,
    query_at_in,
    read_body,
    read_call,
    read_plain_call,
)
from penstock.server.subscribe import EventStream, WrittenAnswers, answer_events
from penstock.wire.tags import u64_text

HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
_RAW_HEADERS = [
    (name.encode(), value.encode()) for name, value in (*HEADERS.items(), ("content-type", "application/json"))
]
_CALLED = {f"/api/{kind.value}": kind for kind in FunctionKind}
_PROBE_SECONDS = 5.0

_Endpoint = Callable[[Request], Awaitable[Response]]


class Api:
    def __init__(self, opening: Opening, written: WrittenAnswers) -> None:
        self._opening = opening
        self._config = opening.config
        self._written = written
        self._files = FileDoor()

    def routes(self) -> list[Route]:
        return [
            self._route("/query", partial(self._call, FunctionKind.QUERY), "GET", "POST"),
            self._route("/mutation", partial(self._call, FunctionKind.MUTATION)),
            self._route("/action", partial(self._call, FunctionKind.ACTION)),
            self._route("/query_batch", self._call_batch),
            self._route("/query_ts", self._take_snapshot),
            self._route("/query_at_ts", self._query_at),
            self._route("/function", self._call_any),
            self._route("/subscribe", self._subscribe, "GET"),
            self._route("/run/{function:path}", partial(self._call, None)),
            self._route("/work/{token}", self._end_work),
            self._route("/event/{token}", self._send_event),
            self._route("/storage/upload", self._upload),
            self._route("/storage/{name}", self._download, "GET"),
            self._route("/update_environment_variables", _refuse_variables),
        ]

    def rest_routes(self) -> list[Route]:
        return [self._route("/{function:path}", self._call_plainly, "GET", "POST")]

    # ----- endpoints

    async def _call(self, kind: FunctionKind | None, request: Request, *, internal: bool = False) -> Response:
        return send_answer(await self.call(kind, request, internal=internal))

    async def call(self, kind: FunctionKind | None, request: Request, *, internal: bool = False) -> Answer:
        """Call the function that a request names.

        Raises:
            Refused, TryAgain: It cannot be called.
        """
        call = await read_call(request, self._config)
        exchange, (backend, credentials) = exchange_of(request, call), await self._caller(request)
        with log_lines(told=exchange.dev) as lines:
            try:
                result = await backend.dispatch.call(
                    call.path, kind, call.args, internal=internal, caller=credentials.caller, finish=call.encode
                )
                answer = Answer(200, success(result))
            except Exception as error:  # noqa: BLE001 - user code may raise anything
                answer = answer_error(error, exchange)
        return with_lines(answer, lines)

    async def _call_any(self, request: Request) -> Response:
        """Call a function of any kind, also an internal one, with the admin token."""
        admit(request, self._config.admin_token)
        return await self._call(None, request, internal=True)

    async def _call_plainly(self, request: Request) -> Response:
        """Call a function as REST has it: the bare result, and a real status for errors."""
        dispatch = (await open_backend(self._opening)).dispatch
        path = exchange_of(request).function = function_path(path_in_url(request))
        kind, call = await read_plain_call(request, self._config, dispatch, path)
        _, credentials = await self._caller(request)
        return send_json(await dispatch.call(path, kind, call.args, caller=credentials.caller, finish=call.encode))

    async def _take_snapshot(self, _request: Request) -> Response:
        number = await (await open_backend(self._opening)).dispatch.snapshots.take()
        return send_json(to_json({"ts": u64_text(number)}))

    async def _query_at(self, request: Request) -> Response:
        number, call = await read_body(request, self._config, query_at_in)
        exchange = exchange_of(request, call)
        (result,) = await self._run_queries(request, [call], number)
        if isinstance(result, Exception):
            return send_answer(answer_error(result, exchange))
        return send_json(success(result))

    async def _call_batch(self, request: Request) -> Response:
        calls = await read_body(request, self._config, queries_in)
        results = []
        for call, result in zip(calls, await self._run_queries(request, calls), strict=True):
            if isinstance(result, Exception):
                results.append(function_error(result, exchange_of(request, call)))
            else:
                results.append(success(result))
        return send_json(b'{"results":[' + b",".join(results) + b"]}")

    async def _subscribe(self, request: Request) -> Response:
        """Watch a query; its answers as server-sent events."""
        call = await read_call(request, self._config)
        exchange, (backend, credentials) = exchange_of(request, call), await self._caller(request)
        check_room(backend)
        view = backend.live_queries.view(credentials.caller)
        try:
            function, arguments = backend.dispatch.prepare_query(call.path, call.args)
            view.add(0, function, arguments)
        except InputError as error:
            view.close()
            return send_answer(answer_error(error, exchange))
        if request.method == "HEAD":
            view.close()  # and so the stream
        encode = partial(self._written.write, exchange=exchange, function=function)
        check = partial(credentials.check, backend.tokens)
        events = answer_events(view, encode, backend.engine.clock, check)
        return EventStream(events, self._opening, view.close)

    async def _end_work(self, request: Request) -> Response:
        """End work that waits for an outside system; the caller has its token."""
        ending, token = await read_body(request, self._config, ending_in), request.path_params["token"]
        jobs = (await open_backend(self._opening)).scheduler
        try:
            if ending.error is None:
                told = await jobs.complete(token, ending.result)
            else:
                told = await jobs.fail(token, ending.error, retryable=ending.retryable)
        except TokenInvalid as error:
            raise Refused(404, "TokenInvalid", "There is no such token.") from error
        except TokenExpired as error:
            raise Refused(410, "TokenExpired", str(error)) from error
        except LimitExceeded as error:
            raise Refused(413, "ResultTooLarge", str(error)) from error
        except ResultInvalid as error:
            raise Refused(400, "ResultInvalid", str(error)) from error
        return send_json(to_json({"accepted": told.accepted, "kind": told.kind}))

    async def _send_event(self, request: Request) -> Response:
        """Send an event to a run of a workflow; the caller has its token."""
        payload, token = await read_body(request, self._config, payload_in), request.path_params["token"]
        backend = await open_backend(self._opening)
        events: Mapping[str, Event[Any]] = backend.engine.registry.events
        try:
            known = events.get(read_token(token).event)
            if known is None:
                raise make_unknown_token()
            accepted = await known.redeem(backend, token, known.decode(to_json(payload).decode()))
        except TokenInvalid as error:
            raise Refused(404, "TokenInvalid", "There is no such token.") from error
        except TokenExpired as error:
            raise Refused(410, "TokenExpired", str(error)) from error
        except LimitExceeded as error:
            raise Refused(413, "EventTooLarge", str(error)) from error
        except (ValidationError, ValueInvalid) as error:
            raise Refused(400, "EventInvalid", str(error)) from error
        return send_json(to_json({"accepted": accepted}))

    async def _upload(self, request: Request) -> Response:
        return send_json(await self._files.upload(request, await open_backend(self._opening)))

    async def _download(self, request: Request) -> Response:
        return await self._files.download(request, await open_backend(self._opening))

    # ----- steps

    async def _run_queries(
        self, request: Request, calls: Sequence[Call], at: int | None = None
    ) -> list[bytes | Exception]:
        """Run queries in one snapshot; for each its answer or its error."""
        backend, credentials = await self._caller(request)
        queries = [(call.path, call.args, call.encode) for call in calls]
        return await backend.dispatch.call_queries(queries, at, credentials.caller)

    async def _caller(self, request: Request) -> tuple[Backend, Credentials]:
        """The backend that answers calls, and the caller of one."""
        backend, exchange = self._opening.ready or await open_backend(self._opening), exchange_of(request)
        try:
            found = await credentials_of(request, backend.tokens, self._config.admin_token, exchange.request_id)
        except Unauthenticated as error:
            raise Refused(401, name_of(error), str(error), {"www-authenticate": "Bearer"}) from error
        exchange.dev |= found.is_admin
        return backend, found

    def _route(self, path: str, endpoint: _Endpoint, *methods: str) -> Route:
        async def trace(request: Request) -> Response:
            with self._opening.trace(request.headers):
                return await endpoint(request)

        return Route(path, trace, methods=methods or ["POST"])


class CallDoor:
    """Answers the calls of functions. It stands before the router, which takes as long as a call.

    Calls of web pages with an origin of their own go on to it, as do all other requests.
    """

    def __init__(self, app: ASGIApp, api: Api, opening: Opening, origins: Collection[str]) -> None:
        self._app = app
        self._api = api
        self._opening = opening
        self._has_origins = bool(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = None
        if scope["type"] == "http" and scope["method"] == "POST":
            kind = _CALLED.get(scope["path"].removeprefix(scope.get("root_path", "")))
        if kind is None:
            await self._app(scope, receive, send)
            return
        request = _Request(scope, receive)
        if self._has_origins and "origin" in request.headers:
            await self._app(scope, receive, send)
            return
        try:
            with self._opening.trace(request.headers):
                answer = await self._api.call(kind, request)
        except (Refused, TryAgain) as error:
            answer = answer_error(error, exchange_of(request))
        headers = [*_RAW_HEADERS, (b"content-length", str(len(answer.body)).encode())]
        headers += [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers.items()]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})


class _Request(Request):
    """A request whose headers are looked up in the dictionary that `Access` has made of them."""

    @property
    def headers(self) -> Mapping[str, str]:  # type: ignore[override]  # Starlette's own reads them all for each name
        return exchange_of(self).headers


async def refuse(request: Request, error: Exception) -> Response:
    """Answer a request that cannot be read, or cannot be served now."""
    return send_answer(answer_error(error, exchange_of(request)))


async def refuse_plainly(request: Request, error: Exception) -> Response:
    """Answer any error as REST has it."""
    return send_answer(plain_answer(error, exchange_of(request)))


async def _refuse_variables(_request: Request) -> Response:
    """Refuse to set variables, as ``npx convex env set`` asks for."""
    what = "There are no environment variables here: a program reads those of its process. Set them where that starts."
    raise Refused(400, "NoEnvironmentVariables", what)


def health_routes(opening: Opening) -> list[Route]:
    async def healthz(_request: Request) -> Response:
        return send_json(b'{"status":"alive"}')

    async def readyz(_request: Request) -> Response:
        if opening.draining:
            return send_answer(refusal(503, "ShuttingDown", "This server is shutting down."))
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                await (await open_backend(opening)).engine.store.ping()
        except Exception as error:  # noqa: BLE001 - whatever it is, this server cannot serve
            event("server.not_ready", logging.WARNING, error=f"{type(error).__name__}: {error}")
            return send_answer(refusal(503, "NotReady", "The database does not answer."))
        return send_json(b'{"status":"ready"}')

    async def version_(_request: Request) -> Response:
        return Response(__version__, media_type="text/plain")

    return [Route("/healthz", healthz), Route("/readyz", readyz), Route("/version", version_)]


async def not_routed(request: Request, error: Exception) -> Response:
    status, headers = getattr(error, "status_code", 404), getattr(error, "headers", None) or {}
    if status == 405:  # noqa: PLR2004 - HTTP's number
        if request.method == "OPTIONS":
            return Response(status_code=204, headers=headers)
        return send_answer(refusal(405, "MethodNotAllowed", f"This path takes {headers.get('Allow', '')}.", headers))
    if status == 401:  # noqa: PLR2004 - HTTP's number
        what = "The bearer token is wrong." if "authorization" in request.headers else "The bearer token is missing."
        fix = "Send the header authorization: Bearer TOKEN, with the token of this server's settings."
        return send_answer(refusal(401, "Unauthenticated", f"{what} {fix}", headers))
    if status == 404:  # noqa: PLR2004 - HTTP's number
        return send_answer(refusal(404, "NotFound", "There is nothing at this path."))
    return send_answer(refusal(status, "BadRequest", "This request cannot be served.", headers))


async def open_backend(opening: Opening) -> Backend:
    """The backend; an error that opens none is logged and refused."""
    try:
        return await opening.backend()
    except (Refused, TryAgain):
        raise
    except Exception as error:
        event("server.open_failed", logging.ERROR, exc_info=error, error=type(error).__name__)
        raise Refused(500, "NotOpened", "This server cannot open its database.") from error


def check_room(backend: Backend) -> None:
    """Refuse a new client while this process watches as many queries as it may.

    Raises:
        Overloaded: It does.
    """
    if not backend.live_queries.has_room:
        raise Overloaded("This server watches as many queries as it may.", fix="Try again in a moment.")


def send_answer(answer: Answer) -> Response:
    return Response(answer.body, answer.status, {**HEADERS, **answer.headers}, "application/json")


def send_json(body: bytes) -> Response:
    return Response(body, 200, HEADERS, "application/json")
