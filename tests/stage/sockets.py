"""Servers on the loopback, a bare client of the sync protocol, and a proxy between them that cuts or holds messages."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal, NamedTuple
from uuid import UUID

import uvicorn
from starlette.applications import Starlette
from websockets.asyncio.client import ClientConnection, connect

from penstock.clock import SystemClock
from penstock.server.frames import WebSocketFrames
from penstock.wire.tags import read_u64

PATIENCE = 60.0  # seconds, on a machine that has much else to do
START = {"querySet": 0, "identity": 0, "ts": "AAAAAAAAAAA="}


class SocketClient:
    """One connection; `session` and `seen`, the last time it saw, are for the next one."""

    def __init__(self, socket: ClientConnection, module: str) -> None:
        self.socket = socket
        self.module = module
        self.version: dict[str, Any] = START
        self.answers: dict[int, Any] = {}  # of its queries: values, or errors as they came
        self._request = 0
        self._query_set = 0
        self.identity = 0  # the version of the last identity that it sent

    async def send(self, message: dict[str, Any] | str | bytes) -> None:
        """Send a message; bytes as they are, in a frame that says that it is text."""
        await self.socket.send(json.dumps(message) if isinstance(message, dict) else message, text=True)

    async def connect(self, session: str | None = None, count: int = 0, seen: str | None = None) -> None:
        more = {} if seen is None else {"maxObservedTimestamp": seen}
        named = session or str(UUID(int=SystemClock().uuid7()))
        await self.send(
            {"type": "Connect", "sessionId": named, "connectionCount": count, "lastCloseReason": None, **more}
        )

    async def watch(self, number: int, function: str, /, **args: Any) -> None:
        await self.modify([self.added(number, function, **args)])

    def added(self, number: int, function: str, /, **args: Any) -> dict[str, Any]:
        return {"type": "Add", "queryId": number, "udfPath": f"{self.module}:{function}", "args": [args]}

    async def modify(self, modifications: list[dict[str, Any]]) -> None:
        base, self._query_set = self._query_set, self._query_set + 1
        message = {"baseVersion": base, "newVersion": base + 1, "modifications": modifications}
        await self.send({"type": "ModifyQuerySet", **message})

    async def call(self, kind: str, function: str, request: int | None = None, /, **args: Any) -> int:
        number = self._request if request is None else request
        self._request = number + 1
        path = f"{self.module}:{function}"
        await self.send({"type": kind, "requestId": number, "udfPath": path, "args": [args]})
        return number

    async def receive(self) -> dict[str, Any]:
        """The next message, but for pings."""
        async with asyncio.timeout(PATIENCE):
            while True:
                message: dict[str, Any] = json.loads(await self.socket.recv())
                if message["type"] != "Ping":
                    break
        if message["type"] == "Transition":
            self._move(message)
        return message

    async def transition(self) -> dict[int, Any]:
        message = await self.receive()
        assert message["type"] == "Transition", message
        return {one["queryId"]: one for one in message["modifications"]}

    async def until(self, number: int, value: Any) -> None:
        while self.answers.get(number, ...) != value:
            await self.transition()

    def _move(self, message: dict[str, Any]) -> None:
        assert message["startVersion"] == self.version
        end = message["endVersion"]
        for part in ("querySet", "identity"):
            assert end[part] >= self.version[part]
        assert read_u64(end["ts"]) >= read_u64(self.version["ts"])
        self.version = end
        for one in message["modifications"]:
            if one["type"] == "QueryRemoved":
                self.answers.pop(one["queryId"], None)
            else:
                self.answers[one["queryId"]] = one.get("value", one)


@asynccontextmanager
async def socket_client(
    url: str, module: str, *, client: str = "", forwarded_for: str = "", path: str = "/api/1.48.0/sync", **options: Any
) -> AsyncIterator[SocketClient]:
    """A connection to a server; `client` is what it says of itself in a header, `forwarded_for` what a proxy says."""
    said = {"Convex-Client": client, "X-Forwarded-For": forwarded_for}
    headers = {name: value for name, value in said.items() if value}
    address = url.replace("http", "ws", 1) + path
    patient: dict[str, Any] = {"open_timeout": PATIENCE, "ping_interval": None, "compression": None, "max_size": None}
    async with connect(address, additional_headers=headers, **patient, **options) as socket:
        yield SocketClient(socket, module)


Side = Literal["client", "server"]
_HEAD_END = b"\r\n\r\n"
_COMPRESSED = re.compile(rb"\r\nsec-websocket-extensions:[^\r]*", re.IGNORECASE)  # is not asked for: it is to be read
_TEXT, _CONTINUED = 1, 0


class Passed(NamedTuple):
    """A message that somebody sent: over which connection, of those since the beginning, and who sent it."""

    connection: int
    side: Side
    body: dict[str, Any]

    @property
    def type(self) -> str:
        return str(self.body["type"])


class Wire:
    """A proxy on a port of its own.

    Attributes:
        port: That of the server; a new one holds for connections to come.
        url: Where clients connect.
        passed: Messages, in the order in which they came.
        moved: Told of each.
        refuses: Whether new connections are cut at once.
        flowing: Clear it to keep all that is sent, on both sides, until it is set again.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = ""
        self.passed: list[Passed] = []
        self.moved = asyncio.Condition()
        self.refuses = False
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.connections = 0
        self._open: set[asyncio.StreamWriter] = set()
        self._cut_at: tuple[Side, str, bool] | None = None

    def cut(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()

    def cut_at(self, side: Side, kind: str, *, half: bool = False) -> None:
        """Lose the connection at the next message of this type, which does not arrive; or only half of it does."""
        self._cut_at = side, kind, half

    @property
    def has_cut(self) -> bool:
        return self._cut_at is None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Wire]:
        listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        try:
            yield self
            self.check()
        finally:
            listener.close()
            self.cut()

    def check(self) -> None:
        """Each transition begins where the one before ended, time does not run back, and answers come in time."""
        for number in range(1, self.connections + 1):
            sent = [one for one in self.passed if one.connection == number and one.side == "server"]
            version: dict[str, Any] = {"querySet": 0, "identity": 0, "ts": "AAAAAAAAAAA="}
            answered = 0
            for one in sent:
                assert one.type not in {"FatalError", "AuthError"}, one.body
                if one.type == "MutationResponse" and one.body["success"]:
                    answered = _time(one.body["ts"])
                    assert answered >= _time(version["ts"]), one.body
                if one.type != "Transition":
                    continue
                end = one.body["endVersion"]
                assert one.body["startVersion"] == version, one.body
                assert all(end[part] >= version[part] for part in ("querySet", "identity"))
                assert _time(end["ts"]) >= max(_time(version["ts"]), answered)
                version = end

    async def _serve(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        self.connections += 1
        number, writers = self.connections, [client]
        self._open.add(client)
        try:
            if self.refuses:
                return
            server_reader, server = await asyncio.open_connection("127.0.0.1", self.port)
            writers.append(server)
            self._open.add(server)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass(reader, server, _Frames(number, "client")))
                group.create_task(self._pass(server_reader, client, _Frames(number, "server")))
        except* (OSError, EOFError):
            pass
        finally:
            for writer in writers:
                self._open.discard(writer)
                writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frames: _Frames) -> None:
        while data := await reader.read(1 << 16):
            for piece, message in frames.read(data):
                await self.flowing.wait()
                if message is not None:
                    self.passed.append(message)
                    async with self.moved:
                        self.moved.notify_all()
                    self._lose_at(message, writer, piece)
                writer.write(piece)
            await writer.drain()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()  # what is left arrives
        raise EOFError

    def _lose_at(self, message: Passed, writer: asyncio.StreamWriter, piece: bytes) -> None:
        if self._cut_at is None or self._cut_at[:2] != (message.side, message.type):
            return
        half, self._cut_at = self._cut_at[2], None
        if half:
            writer.write(piece[: len(piece) // 2])
        raise EOFError


class _Frames:
    """Cuts what one side sends into frames; what comes before the first one passes as it is."""

    def __init__(self, connection: int, side: Side) -> None:
        self._connection, self._side = connection, side
        self._buffer, self._text = b"", b""
        self._upgraded: bool | None = None  # until the first head is here

    def read(self, data: bytes) -> Iterator[tuple[bytes, Passed | None]]:
        """Pieces of what came, with the message that each completes."""
        self._buffer += data
        if self._upgraded is None:
            head, end, rest = self._buffer.partition(_HEAD_END)
            if not end:
                return
            self._upgraded, self._buffer = b"upgrade: websocket" in head.lower(), rest
            yield _COMPRESSED.sub(b"", head) + end, None
        if not self._upgraded:  # plain HTTP
            passed, self._buffer = self._buffer, b""
            yield passed, None
            return
        while (size := _frame_size(self._buffer)) <= len(self._buffer):
            frame, self._buffer = self._buffer[:size], self._buffer[size:]
            yield frame, self._message(frame)

    def _message(self, frame: bytes) -> Passed | None:
        kind = frame[0] & 0x0F
        if kind not in {_TEXT, _CONTINUED}:
            return None
        self._text += _payload(frame)
        if not frame[0] & 0x80:
            return None
        text, self._text = self._text, b""
        return Passed(self._connection, self._side, json.loads(text))


def _frame_size(data: bytes) -> int:
    """How many bytes the first frame has; more than there are, if that cannot be told yet."""
    if len(data) < 2:
        return len(data) + 1
    length, extra = data[1] & 0x7F, {126: 2, 127: 8}.get(data[1] & 0x7F, 0)
    if len(data) < 2 + extra:
        return len(data) + 1
    if extra:
        length = int.from_bytes(data[2 : 2 + extra])
    return 2 + extra + (4 if data[1] & 0x80 else 0) + length


def _payload(frame: bytes) -> bytes:
    start = 2 + {126: 2, 127: 8}.get(frame[1] & 0x7F, 0)
    if not frame[1] & 0x80:
        return frame[start:]
    mask, body = frame[start : start + 4], frame[start + 4 :]
    return bytes(byte ^ mask[place % 4] for place, byte in enumerate(body))


def _time(ts: str) -> int:
    return int.from_bytes(base64.b64decode(ts), "little")


class Uvicorn(uvicorn.Server):
    """A server that tells when it takes connections."""

    def __init__(self, asgi: Starlette, lifespan: Literal["on", "off"] = "on") -> None:
        super().__init__(
            uvicorn.Config(
                asgi,
                log_config=None,
                access_log=False,
                lifespan=lifespan,
                timeout_keep_alive=75,  # as penstock serve has it: no client sends into a connection that just closes
                ws=WebSocketFrames,  # as penstock serve has it
                ws_ping_interval=None,  # a client that is kept from the processor for long is not gone
            )
        )
        self.ready = asyncio.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets=sockets)
        self.ready.set()


@asynccontextmanager
async def listening(asgi: Starlette) -> AsyncIterator[str]:
    server = Uvicorn(asgi)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        task = asyncio.create_task(server.serve(sockets=[listener]))
        await server.ready.wait()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task
            for _ in range(3):  # a transport that was closed last lets go of its socket in the loop's next turn
                await SystemClock().sleep(0)
