"""Reads the frames of web sockets for `penstock serve`: with bounded memory, and past messages that are too large.

Owns when a connection is read. A message is handed on as bytes, since a text that is not UTF-8 is a matter of its call.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Generator
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.server import ServerProtocol
from websockets.streams import StreamReader

from penstock.observe.logs import event
from penstock.server.opening import SIZE, TAKEN
from penstock.wire.sockets import ENDS, MOST_BYTES

_SMALL = 256 * 1024  # bytes that each connection may hold in any case
_ALL_LARGE = 128 * 1024 * 1024  # bytes that those with more may hold together
_PATIENCE = 60.0  # seconds that others wait for one


class _Reader(StreamReader):
    """Throws away the middle of a frame that is too large.

    Attributes:
        lost: The bytes that were thrown away since the last frame.
    """

    lost = 0

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


class _Room:
    """The memory for large messages of all connections.

    Once it is full only the first of those who wait is read, to the end of its message. So no two wait for each other.
    """

    def __init__(self, size: int) -> None:
        self._left = size
        self._waiting: deque[WebSocketFrames] = deque()

    def hold(self, one: WebSocketFrames, size: int) -> None:
        """A connection holds so many bytes now."""
        size = size if size > _SMALL else 0
        self._left -= size - one.held
        one.held = size
        if not size and one in self._waiting:
            self._waiting.remove(one)
            one.go_on()
        elif size and self._left < 0 and one not in self._waiting:
            self._waiting.append(one)
            one.wait()
        while self._waiting and self._left >= 0:
            self._waiting.popleft().go_on()
        if self._waiting:
            self._waiting[0].go_on(_PATIENCE)


class WebSocketFrames(WebSocketsSansIOProtocol):
    """Cuts a connection whose client does not read: what is unsent for it would be kept until the system gives up."""

    room = _Room(_ALL_LARGE)

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self.conn: _Frames = _Frames()
        self.held = 0  # bytes of large messages; of `room`
        self._message: bytes | bytearray = b""
        self._lost = self._untaken = 0
        self._waits = False  # for room
        self._patience: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._hold()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.conn.reader.buffer.clear()
        self._message, self._untaken = b"", 0
        self.room.hold(self, 0)

    def _hold(self) -> None:
        size = len(self.conn.reader.buffer) + len(self._message) + self._untaken
        if size > _SMALL or self.held:
            self.room.hold(self, size)

    # ----- messages

    def handle_text(self, event: Frame) -> None:
        self._message, self._lost = b"", 0
        self.handle_cont(event)

    handle_bytes = handle_text

    def handle_cont(self, event: Frame) -> None:
        self._lost += event.lost  # type: ignore[attr-defined]  # see `_Frames`
        if self._message or not event.fin:
            self._message = bytearray(self._message) if isinstance(self._message, bytes) else self._message
            self._message += event.data
        else:
            self._message = bytes(event.data)
        if (size := len(self._message)) > MOST_BYTES or (self._lost and size > 2 * ENDS):
            self._message = self._message[:ENDS] + self._message[-ENDS:]
            self._lost += size - len(self._message)
        if event.fin:
            self._hand_on()

    def _hand_on(self) -> None:
        message, self._message = self._message, b""
        if self.close_sent:
            return
        handed: Any = {"type": "websocket.receive", "bytes": message, TAKEN: self._take}
        if self._lost:
            handed[SIZE] = len(message) + self._lost
        self._untaken += len(message)
        self.queue.put_nowait(handed)
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    def _take(self) -> None:
        self._untaken = 0
        self._hold()

    # ----- when it is read

    async def receive(self) -> Any:
        message = await super().receive()
        if self._waits and not self.transport.is_closing():
            self.transport.pause_reading()
        return message

    def wait(self) -> None:
        """Read no more for now."""
        self._waits = True
        self.transport.pause_reading()

    def go_on(self, patience: float | None = None) -> None:
        """Read again; with `patience`, for at most so many seconds while others wait."""
        if patience is None and self._patience is not None:
            self._patience.cancel()
            self._patience = None
        elif patience is not None and self._patience is None:
            self._patience = self.loop.call_later(patience, self._give_up)
        if self._waits:
            self._waits = False
            if not self.read_paused and not self.transport.is_closing():
                self.transport.resume_reading()

    def _give_up(self) -> None:
        event("socket.overloaded", logging.WARNING, error="A large message took too long while others waited.")
        self.transport.abort()

    # ----- clients that are gone

    def start_keepalive(self) -> None:
        super().start_keepalive()
        self.request.headers.clear()  # the handshake has ended; cookies may take some KB
        del self.request, self.response

    def keepalive_timeout(self) -> None:
        if not self.transport.is_reading() and not self.transport.get_write_buffer_size():
            self.pong_timer = self.pending_ping_payload = None  # its answer is not read
            self.schedule_ping()
            return
        super().keepalive_timeout()
        self.transport.abort()
