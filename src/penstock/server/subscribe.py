"""The stream of ``GET /api/subscribe``: the answers of a watched query as server-sent events.

Owns the time that a reader may take, and the end of streams. A reader gets the newest answer each time that it has
taken the one before, so nothing is queued for slow ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from weakref import WeakKeyDictionary

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock.clock import Clock
from penstock.errors import ResultInvalid, TryAgain, Unauthenticated
from penstock.functions.function import AnyFunction
from penstock.live.entry import Answer
from penstock.live.view import View
from penstock.server.answers import Exchange, function_error, success
from penstock.server.opening import ABORT, Opening
from penstock.wire.outgoing import Format, encode_result

HEARTBEAT = 15.0  # seconds; proxies cut connections that are silent for longer
_PATIENCE = 60.0  # seconds that a reader may take for one event
_LAST_WORD = 1.0  # seconds for the end of the stream
_HEADERS = {"cache-control": "no-store, no-transform", "x-content-type-options": "nosniff", "x-accel-buffering": "no"}

Encode = Callable[[Answer], bytes]


class WrittenAnswers:
    """Answers as JSON, each written once for all who watch its query."""

    def __init__(self) -> None:
        self._written: WeakKeyDictionary[Answer, dict[tuple[Format, bool], bytes]] = WeakKeyDictionary()

    def write(self, answer: Answer, exchange: Exchange, function: AnyFunction, *, alone: bool = False) -> bytes:
        """The answer as a call of the query gives it. A mistake is logged with the first request that has it.

        Args:
            answer: The answer.
            exchange: The request.
            function: The query.
            alone: Whether nobody else watches the query, so that a value need not be kept.
        """
        form = exchange.form, exchange.dev
        forms = {} if alone and answer.error is None else self._written.setdefault(answer, {})
        if form not in forms:
            error, written = answer.error, b""
            if error is None:
                try:
                    written = success(encode_result(function.signature.mark(answer.result), exchange.form))
                except ResultInvalid as unsayable:
                    error = unsayable
            forms[form] = written if error is None else function_error(error, exchange)
        return forms[form]


class EventStream(Response):
    """Events, until there are no more, the reader leaves or the server stops."""

    def __init__(
        self, events: AsyncGenerator[bytes, None], opening: Opening, leave: Callable[[], None] | None = None
    ) -> None:
        super().__init__(headers=_HEADERS, media_type="text/event-stream")
        del self.headers["content-length"]
        self._events = events
        self._leave = leave
        self._opening = opening
        self._sending: asyncio.Task[None]
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def hang_up(self) -> None:
        self._sending.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._stream(scope, receive, send)
        finally:
            if self._leave is not None:
                self._leave()

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending, leaving = asyncio.create_task(self._send_events(send)), asyncio.create_task(_wait_until_left(receive))
        self._sending = sending
        self._opening.add(self)
        try:
            with suppress(asyncio.CancelledError):  # a server that stops cancels what does not end
                await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not leaving.done():
                await _end(scope, send, leaving)
        finally:
            self._opening.endless.discard(self)
            self.closed.set_result(None)
            sending.cancel()
            leaving.cancel()
        # It was too slow, has left, was told to end, or its token holds no more.
        with suppress(OSError, asyncio.CancelledError, Unauthenticated, TryAgain):
            await sending

    async def _send_events(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            async for text in events:
                async with asyncio.timeout(_PATIENCE):
                    await send({"type": "http.response.body", "body": text, "more_body": True})


async def answer_events(
    view: View, encode: Encode, clock: Clock, check: Callable[[], Awaitable[None]]
) -> AsyncGenerator[bytes, None]:
    while not view.closed:
        step = view.step()
        if step is not None and step.answers:
            await check()
            yield b"id: %d\ndata: %b\n\n" % (step.tick.clock, encode(step.answers[0]))
        elif not await clock.wait(view.moved, HEARTBEAT):
            yield b":\n\n"


async def _wait_until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(scope: Scope, send: Send, leaving: asyncio.Task[None]) -> None:
    """End the stream. The connection of a reader that takes nothing is cut, as stopping waits for it."""
    try:
        async with asyncio.timeout(_LAST_WORD):
            await send({"type": "http.response.body"})
    except TimeoutError:
        if abort := scope.get("state", {}).get(ABORT):
            abort()
            await leaving
