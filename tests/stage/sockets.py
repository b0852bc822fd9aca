"""A client of the sync protocol, bare: it sends what a test says, and checks that the versions follow on each other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from websockets.asyncio.client import ClientConnection, connect

from penstock.clock import SystemClock
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
        """The next message, which is a transition; its modifications by query."""
        message = await self.receive()
        assert message["type"] == "Transition", message
        return {one["queryId"]: one for one in message["modifications"]}

    async def until(self, number: int, value: Any) -> None:
        """Wait until a query has an answer."""
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
