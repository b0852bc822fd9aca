"""Reads the frames of web sockets for `penstock serve`: with bounded memory, and past messages that are too large.

Owns when a connection is read. A message is handed on as bytes, since a text that is not UTF-8 is a matter of its call.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from itertools import islice
from typing import Any, ClassVar

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.server import ServerProtocol
from websockets.streams import StreamReader

from penstock.server.opening import SIZE, TAKEN
from penstock.wire.sockets import ENDS, MOST_BYTES

_SMALL = 256 * 1024  # bytes that each connection may hold in any case
_AT_ONCE = 4  # connections that read a message with more; the others wait for their turns


class _Reader(StreamReader):
    """Throws away the middle of a frame that is too large."""

    lost = 0  # the bytes that were thrown away since the last frame

    def read_exact(self, n: int) -> Generator[None, None, bytearray]:
        if n <= MOST_BYTES:
            return (yield from super().read_exact(n))
        head = yield from super().read_exact(ENDS)
        kept = ENDS + n % 4  # so that the mask, of four bytes, fits the end as it fits the head
        self.lost = n - ENDS - kept
        left = self.lost
        while left:
            while not self.buffer and not self.eof:
                yield
            if self.eof:
                raise EOFError("the stream ends inside of a frame")
            cut = min(left, len(self.buffer))
            del self.buffer[:cut]
            left -= cut
        return head + (yield from super().read_exact(kept))


class _Frames(ServerProtocol):
    def __init__(self) -> None:
        super().__init__(max_size=None, logger=logging.getLogger("uvicorn.error"))
        self.reader: _Reader = _Reader()
        self.parser = self.parse()
        next(self.parser)

    def recv_frame(self, frame: Frame) -> None:
        frame.lost, self.reader.lost = self.reader.lost, 0  # type: ignore[attr-defined]  # it has no place for it
        super().recv_frame(frame)


class WebSocketFrames(WebSocketsSansIOProtocol):
    """Cuts a connection whose client does not read: what is unsent for it would be kept until the system gives up."""

    # the connections that hold a large message, in their order. The first few of these are read
    turns: ClassVar[dict[WebSocketFrames, None]] = {}

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self.conn: _Frames = _Frames()
        self._message = bytearray()
        self._size = 0  # of the message, with what was thrown away
        self._untaken = 0  # bytes that were handed on, and are not decoded yet
        self._heard_at = 0.0

    def data_received(self, data: bytes) -> None:
        self._heard_at = self.loop.time()
        super().data_received(data)
        self._take_turn()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.conn.reader.buffer.clear()
        self._message.clear()
        self._after_take()

    # ----- messages

    def handle_text(self, event: Frame) -> None:
        self._message, self._size = bytearray(), 0
        self.handle_cont(event)

    handle_bytes = handle_text

    def handle_cont(self, event: Frame) -> None:
        self._message += event.data
        self._size += len(event.data) + event.lost  # type: ignore[attr-defined]  # see `_Frames`
        if self._size > MOST_BYTES:
            self._message = self._message[:ENDS] + self._message[-ENDS:]
        if event.fin:
            self._hand_on()

    def _hand_on(self) -> None:
        message, self._message = bytes(self._message), bytearray()
        if self.close_sent:
            return
        self._untaken += len(message)
        handed: Any = {"type": "websocket.receive", "bytes": message, SIZE: self._size, TAKEN: self._after_take}
        self.queue.put_nowait(handed)
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    # ----- turns

    def _after_take(self) -> None:
        self._untaken = 0
        self._take_turn()

    def _take_turn(self) -> None:
        size = len(self.conn.reader.buffer) + len(self._message) + self._untaken
        if size > _SMALL:
            self.turns.setdefault(self)
            self.read_in_turn()
        elif self in self.turns:
            del self.turns[self]
            for one in (self, *self.turns):
                one.read_in_turn()

    def read_in_turn(self) -> None:
        """Read if it has its turn, or holds no large message."""
        if self.transport.is_closing():
            return
        if self.read_paused or self in islice(self.turns, _AT_ONCE, None):
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    async def receive(self) -> Any:
        message = await super().receive()
        self.read_in_turn()
        return message

    # ----- clients that are gone

    def start_keepalive(self) -> None:
        super().start_keepalive()
        self.request.headers.clear()  # the handshake has ended; cookies may take some KB
        del self.request, self.response

    def keepalive_timeout(self) -> None:
        holds_up = self in self.turns and len(self.turns) > _AT_ONCE
        is_sending = self._heard_at > self.ping_sent_at and not holds_up  # a pong waits for the end of its message
        if (is_sending or not self.transport.is_reading()) and not self.transport.get_write_buffer_size():
            self.pong_timer = self.pending_ping_payload = None
            self.schedule_ping()
            return
        super().keepalive_timeout()
        self.transport.abort()
