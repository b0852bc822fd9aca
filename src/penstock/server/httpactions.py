"""HTTP actions at their own paths: from a request to the handler, and from its response to the client.

Owns their limits: the size of a body, the time that a client may take to read, and the end of a stream whose client
has left. Leaves the choice of the action to `functions/httpaction`, and its run to `calls/run/dispatch`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Match, NoMatchFound
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.app import Backend
from penstock.calls.run.bridge import Bridge
from penstock.calls.run.syncrequest import SyncRequest
from penstock.clock import SystemClock
from penstock.errors import ResultInvalid, TryAgain, Unauthenticated
from penstock.functions.httpaction import HttpAction
from penstock.identity.caller import Caller
from penstock.server.access import exchange_of
from penstock.server.answers import action_answer
from penstock.server.callers import anonymous, credentials_of
from penstock.server.http import not_routed, open_backend, send_answer
from penstock.server.opening import ABORT, Opening
from penstock.server.requests import LINGER, Refused, body_too_large, refuse_declared

_PATIENCE = 60.0  # seconds that a client may take for one part of a response
_LAST_WORD = 1.0  # seconds for the end of a stream
_DIRECT = {"spec_version": "2.4"}  # has Starlette's responses leave the request alone: its handler may still read it
_HEADER_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_UNSAFE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_FIRST_STATUS, _LAST_STATUS = 200, 599
_TURN = SystemClock()


class ActionDoor:
    """Answers requests for the HTTP actions of an app.

    Args:
        opening: The backend.
        for_pages: Lets web pages of the setting ``cors_origins`` call an ASGI app.
    """

    def __init__(self, opening: Opening, for_pages: Callable[[ASGIApp], ASGIApp]) -> None:
        self._opening = opening
        self._for_pages = for_pages(self._serve)

    def methods(self, scope: Scope) -> list[str]:
        """The methods that have an action at the path of a request."""
        return self._opening.app.registry.http.methods(_path_of(scope))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        own = scope["method"] == "OPTIONS" and "OPTIONS" in self.methods(scope)
        await (self._serve if own else self._for_pages)(scope, receive, send)

    # ----- steps

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, sending = Request(scope, receive), Sending(send, is_head=scope["method"] == "HEAD")
        try:
            await self._handle(request, receive, sending)
        except Exception as error:  # noqa: BLE001 - user code may raise anything
            answer = await _answer(request, error)  # which logs it
            if not sending.started:
                await answer(scope, receive, send)
        if sending.started and not sending.complete:
            await self._cut(scope, receive, sending)

    async def _handle(self, request: Request, receive: Receive, sending: Sending) -> None:
        action = self._find(request)
        exchange_of(request).function = action.name
        backend = await open_backend(self._opening)
        limit = backend.config.max_argument_bytes if action.max_body is None else action.max_body
        await refuse_declared(request.headers, receive, limit, action.seconds(backend.config.call_timeout))
        caller, body = await self._caller(request, backend), Body(receive, limit)
        rest = {action.place.rest: _path_of(request.scope)[len(action.place.fixed) :]} if action.place.rest else {}
        scope = {**request.scope, "path_params": rest, "asgi": {**request.scope.get("asgi", {}), **_DIRECT}}
        given = Request(scope, body.receive)

        async def respond(response: Any) -> None:
            if not isinstance(response, Response):
                raise ResultInvalid(
                    f"{action.name} returned {type(response).__name__}.", fix="Return a Response of Starlette's."
                )
            try:
                with suppress(_HeadSent):
                    await response(scope, body.receive, sending)
            finally:  # so that a stream that ends early frees what it holds
                if (close := getattr(getattr(response, "body_iterator", None), "aclose", None)) is not None:
                    await close()

        with self._opening.trace(request.headers):
            taken = given if action.is_async else SyncRequest(given, Bridge(asyncio.get_running_loop()))
            work = backend.dispatch.call_http(action, taken, caller, respond)
            try:
                await self._run_while_connected(work, body, sending)
            finally:
                await given.close()  # the files of a form

    def _find(self, request: Request) -> HttpAction[Any, ..., Any, Any]:
        found = self._opening.app.registry.http.find(request.method, _path_of(request.scope))
        if found is not None:
            return found
        methods = self.methods(request.scope)
        raise _NotRouted(405, headers={"Allow": ", ".join(methods)}) if methods else _NotRouted(404)

    async def _caller(self, request: Request, backend: Backend) -> Caller:
        """The caller. The handler judges a header ``authorization`` that names nobody: it may be of its own making."""
        exchange, admin_token = exchange_of(request), backend.config.admin_token
        request_id = exchange.request_id
        try:
            found = await credentials_of(request, backend.tokens, admin_token, request_id)
            caller, exchange.dev = found.caller, exchange.dev or found.is_admin
        except Unauthenticated as error:
            caller, refusal = anonymous(request, request_id).caller, error
        else:
            if caller.identity is not None or caller.is_system or "authorization" not in request.headers:
                return caller
            refusal = Unauthenticated(
                "The header authorization names no user.", fix="Write authorization: Bearer TOKEN."
            )
        refusal.at_the_door = True
        return replace(caller, refusal=refusal)

    async def _run_while_connected(self, work: Coroutine[Any, Any, None], body: Body, sending: Sending) -> None:
        """Run a handler. If its client leaves, a response under way is cut off; a handler without one goes on."""
        running, watching = asyncio.create_task(work), asyncio.create_task(body.watch())
        stream = sending.stream = ActionStream(running, self._opening)
        try:
            await asyncio.wait((running, watching), return_when=asyncio.FIRST_COMPLETED)
            sending.unheard = not running.done() and not sending.started
            if sending.complete or sending.unheard:  # it may have a background task
                await asyncio.wait((running,))
        finally:
            watching.cancel()
            sending.closed = not sending.complete
            if not running.done():
                running.cancel()
                await asyncio.wait((running,))
            sending.closed = False
            stream.end()
        if not running.cancelled():
            running.result()
        if sending.unheard or (running.cancelled() and not stream.is_over):
            raise ClientDisconnect

    async def _cut(self, scope: Scope, receive: Receive, sending: Sending) -> None:
        """End a response that is not complete, so that its client does not take it for complete.

        A stream of events has no such end. It ends as usual when the server stops, and its client comes back.
        """
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(_LAST_WORD):
                if sending.stream is not None and sending.stream.is_over:
                    await sending({"type": "http.response.body"})
                elif abort := scope.get("state", {}).get(ABORT):
                    abort()
                    while (await receive())["type"] != "http.disconnect":
                        pass


class ActionRoute(BaseRoute):
    """The route of all paths that HTTP actions have, also when an action is declared later."""

    def __init__(self, door: ActionDoor) -> None:
        self._door = door

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether an HTTP action answers at the path."""
        found = scope["type"] == "http" and self._door.methods(scope)
        return (Match.FULL if found else Match.NONE), {}

    def url_path_for(self, name: str, /, **path_params: Any) -> Any:
        """Refuse: HTTP actions have no names for URLs."""
        raise NoMatchFound(name, path_params)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        await self._door(scope, receive, send)


class Body:
    """The body of a request on its way to a handler, within a limit. It also sees the client leave.

    It reads at most two parts ahead of the handler, so that slow handlers slow down their clients.
    """

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._limit = limit
        self._parts: asyncio.Queue[Message | None] = asyncio.Queue(1)  # None if it is too large
        self._left: Message | None = None  # the message that the client has left

    async def receive(self) -> Message:
        """Give the handler the next part, or tell that the client has left.

        Raises:
            Refused: The body is too large.
        """
        if self._left is not None and self._parts.empty():
            return self._left
        part = await self._parts.get()
        if part is None:
            self._parts.put_nowait(None)
            raise body_too_large(self._limit)
        return part

    async def watch(self) -> None:
        """Read until the client has left."""
        size = 0
        while (part := await self._receive())["type"] != "http.disconnect":
            size, more = size + len(part.get("body", b"")), part.get("more_body", False)
            if size <= self._limit:
                await self._parts.put(part)
            elif not more or size > self._limit + LINGER:
                await self._parts.put(None)
                if more:
                    await asyncio.Event().wait()  # the handler fails, as it cannot read on
        self._left = part
        with suppress(asyncio.QueueFull):  # then nobody waits for it
            self._parts.put_nowait(part)


class Sending:
    """Sends the response of a handler: checks its head, and gives up on a client that takes nothing."""

    def __init__(self, send: Send, *, is_head: bool) -> None:
        self._send = send
        self._is_head = is_head
        self.started = False
        self.complete = False
        self.closed = False  # whether nobody is to send any more
        self.unheard = False  # whether the client had left before the response began
        self.stream: ActionStream | None = None

    async def __call__(self, message: Message) -> None:
        if self.closed or self.complete or (self.unheard and message.get("more_body", False)):
            raise ClientDisconnect  # which ends a stream
        if self.unheard:
            self.complete = message["type"] == "http.response.body"
            return
        is_stopped = False
        if message["type"] == "http.response.start":
            _check_head(message)
            self.started = True
            kind = Headers(raw=list(message.get("headers", []))).get("content-type", "")
            if self.stream is not None and kind.startswith("text/event-stream"):
                self.stream.begin()
        elif message["type"] == "http.response.body":
            is_stopped = self._is_head and message.get("more_body", False)
            if self._is_head:
                message = {"type": "http.response.body"}
            self.complete = not message.get("more_body", False)
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._send(message)
                if not self.complete:
                    await _TURN.sleep(0)  # a server drops what is sent to a client that has left, and never waits
        except TimeoutError as error:
            self.complete = False
            raise ClientDisconnect from error
        if is_stopped:
            raise _HeadSent


class ActionStream:
    """A response of events: stopping hangs it up, and does not wait for it."""

    def __init__(self, running: asyncio.Task[None], opening: Opening) -> None:
        self._running = running
        self._opening = opening
        self.is_over = False  # whether the server has ended it
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def begin(self) -> None:
        self._opening.add(self)

    def end(self) -> None:
        self._opening.endless.discard(self)
        if not self.closed.done():
            self.closed.set_result(None)

    def hang_up(self) -> None:
        """End it, as the server stops."""
        self.is_over = not self._running.done()
        self._running.cancel()


class _NotRouted(HTTPException):
    """No HTTP action has this path and method."""


class _HeadSent(Exception):
    """HEAD has its answer, and the rest of a stream is not needed."""


async def _answer(request: Request, error: Exception) -> Response:
    """Log an error of a handler, and give the answer to it: as REST has it, or as an `HTTPException` says."""
    if isinstance(error, _NotRouted):
        return await not_routed(request, error)
    if isinstance(error, ClientDisconnect):
        error = Refused(499, "ClientDisconnected", "The caller went away.")
    if isinstance(error, HTTPException) and not isinstance(error, TryAgain):
        if error.status_code in {204, 304}:
            return Response(status_code=error.status_code, headers=error.headers)
        return PlainTextResponse(error.detail, error.status_code, error.headers)
    return send_answer(action_answer(error, exchange_of(request)))


def _check_head(message: Message) -> None:
    """Refuse a head that would let its values add headers, or begin another response."""
    if not _FIRST_STATUS <= message["status"] <= _LAST_STATUS:
        raise ResultInvalid(f"A response has the status {message['status']}.", fix="Use one of 200 to 599.")
    for name, value in message.get("headers", ()):
        if not _HEADER_NAME.fullmatch(name) or _UNSAFE.search(value):
            raise ResultInvalid(
                f"A response has the header {name[:100]!r}, with characters that no header may have.",
                fix="Check or encode text of others before it becomes a header.",
            )


def _path_of(scope: Scope) -> str:
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))
