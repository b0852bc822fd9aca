"""Around every request: its id, its line in the log, and the last resort for uncaught errors.

Owns these three, for HTTP only; other kinds of connections pass.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.clock import SystemClock, profile_timer
from penstock.observe.following import current_trace, trace_id
from penstock.observe.logs import event
from penstock.server.answers import Answer, Exchange, refusal
from penstock.server.callers import is_admin
from penstock.server.opening import Opening
from penstock.server.requests import Call

REQUEST_ID = "x-request-id"
_KEY = "penstock.exchange"
_GIVEN_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_PROBES = ("/healthz", "/readyz", "/metrics")
_LONGEST_PATH = 200
# Of a token all but the job and the attempt, and of the secret URL of a file the beginning.
_SECRET = re.compile(r"(/(?:work|event)/(?:job_[0-9a-z]+(?:\.[0-9]{1,9})?)?|/storage/(?!upload$)[^/]{0,8})[^/]+")


def exchange_of(request: Request, call: Call | None = None) -> Exchange:
    """The exchange of a request, which calls this function from now on."""
    found: Exchange = request.scope[_KEY]
    if call is not None:
        found.function, found.form = call.path, call.form
    return found


class Access:
    def __init__(self, app: ASGIApp, opening: Opening) -> None:
        self._app = app
        self._opening = opening
        self._clock = SystemClock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}
        given = headers.get(REQUEST_ID, "")
        request_id = given if given and _GIVEN_ID.fullmatch(given) else f"{self._clock.seed():016x}"
        exchange = scope[_KEY] = Exchange(request_id, self._opening.config.dev, headers=headers)
        self._opening.begin_request()
        try:
            with self._opening.follow():
                await self._answer(scope, exchange, receive, send)
        finally:
            self._opening.end_request()

    async def _answer(self, scope: Scope, exchange: Exchange, receive: Receive, send: Send) -> None:
        began, answered = profile_timer(), _Answered(send, exchange.request_id)
        try:
            await self._app(scope, receive, answered)
        except asyncio.CancelledError:
            if not self._opening.draining:
                raise
            await answered.instead(
                refusal(503, "ShuttingDown", "The server stopped; nobody knows whether the call took effect.")
            )
        except Exception as error:  # noqa: BLE001 - the last resort
            exchange.error = type(error).__name__
            event("http.failed", logging.ERROR, exc_info=error, request_id=exchange.request_id)
            text = f"[Request ID: {exchange.request_id}] Server Error"
            await answered.instead(refusal(500, "InternalServerError", text))
        finally:
            _tell(scope, exchange, answered.status, profile_timer() - began)


class _Answered:
    """Sends an answer with the request's id, and remembers its status."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._header = (REQUEST_ID.encode(), request_id.encode())
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": [*message.get("headers", ()), self._header]}
        await self._send(message)

    async def instead(self, answer: Answer) -> None:
        if self.status:
            return
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer.body)).encode())]
        await self({"type": "http.response.start", "status": answer.status, "headers": headers})
        await self({"type": "http.response.body", "body": answer.body})


def _tell(scope: Scope, exchange: Exchange, status: int, seconds: float) -> None:
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    path = raw.decode("latin-1")
    if "/work/" in path or "/event/" in path or "/storage/" in path:
        path = _SECRET.sub(r"\1…", path)
    path, trace = path[:_LONGEST_PATH], current_trace()
    facts: dict[str, Any] = {"function": exchange.function, "error": exchange.error, "trace": trace and trace_id(trace)}
    event(
        "http.request",
        logging.DEBUG if path.endswith(_PROBES) else logging.INFO,
        method=scope["method"],
        path=path,
        status=status,
        ms=round(seconds * 1000, 1),
        request_id=exchange.request_id,
        **{name: value for name, value in facts.items() if value},
    )


def admit(request: Request, token: str) -> None:
    """Refuse with 404 if there is no token, with 401 if the request brings another. Compares in constant time.

    The scheme is Bearer; Convex's clients name their admin keys ``Convex``.
    """
    if not token:
        raise HTTPException(404)
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() not in {"bearer", "convex"} or not is_admin(given.encode("latin-1"), token):
        exchange_of(request).error = "Unauthenticated"
        raise HTTPException(401, headers={"www-authenticate": "Bearer"})
