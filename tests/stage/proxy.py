"""A proxy before PostgreSQL that loses connections at the worst moment, or lets them go silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qs, urlsplit

from penstock.clock import SystemClock

LISTEN = b"LISTEN "
COMMIT = b"commit and chain\0"  # the end of a statement
Moment = Literal["before", "after"]


class Proxy:
    """Passes bytes on, until it is told to cut.

    Attributes:
        url: Where clients connect.
        cuts: How many connections it has cut.
        gone: Set it to have nothing pass any more, as if the server had stopped, or did not answer.
        in_vain: Set once somebody has connected since then.
        delay: Seconds that each answer of the server takes longer.
    """

    def __init__(self, server: str) -> None:
        self._server = urlsplit(server)
        self._cut: Moment | None = None
        self._left = 0
        self._word = COMMIT
        self._listening: set[asyncio.StreamWriter] = set()  # to the server
        self._silent: set[asyncio.StreamWriter] = set()
        self._open: set[asyncio.StreamWriter] = set()
        self.url = ""
        self.cuts = 0
        self.gone: Literal["stopped", "silent"] | None = None
        self.in_vain = asyncio.Event()
        self.delay = 0.0

    def cut(self, moment: Moment, times: int = 1, word: bytes = COMMIT) -> None:
        """Cut the connections of the next commits, before the server gets them or after it has carried them out.

        With another word: those of the next messages that contain it.
        """
        self._cut, self._left, self._word = moment, times, word

    def silence_listeners(self) -> None:
        """Pass nothing on any more of the connections that listen, and tell neither side."""
        self._silent |= self._listening
        self._listening.clear()

    def reset(self) -> None:
        """End all connections, as a network does that comes back and does not know them."""
        for server in self._open:
            server.transport.abort()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Proxy]:
        """Listen for the time of a block."""
        listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        self.url = self._server._replace(netloc=f"postgres@127.0.0.1:{port}", query="").geturl()
        try:
            yield self
        finally:
            listener.close()

    async def _serve(self, client_reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        if self.gone is not None:
            self.in_vain.set()
            try:
                if self.gone == "silent":
                    await client_reader.read()
            finally:
                client.transport.abort()
            return
        try:
            server_reader, server = await self._connect()
        except OSError:  # the server is down
            client.transport.abort()
            return
        self._open.add(server)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(client_reader, server))
                group.create_task(self._pass_back(server_reader, client, server))
        except* (ConnectionError, EOFError):
            pass
        finally:
            self._open.discard(server)
            for writer in (client, server):
                writer.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host = parse_qs(self._server.query).get("host", [self._server.hostname or "127.0.0.1"])[0]
        port = self._server.port or 5432
        if host.startswith("/"):
            return await asyncio.open_unix_connection(Path(host) / f".s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)

    async def _pass_on(self, reader: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            if self.gone == "stopped":
                break
            if self.gone == "silent" or server in self._silent:
                continue
            if LISTEN in data:
                self._listening.add(server)
            if self._word in data and self._left:
                if self._cut == "before":
                    self._lose()
                server.write(data)
                self._awaited = server
                continue
            server.write(data)
            await server.drain()
        raise EOFError

    _awaited: asyncio.StreamWriter | None = None

    async def _pass_back(
        self, reader: asyncio.StreamReader, client: asyncio.StreamWriter, server: asyncio.StreamWriter
    ) -> None:
        while data := await reader.read(1 << 16):
            if self.gone == "stopped":
                break
            if self.gone == "silent" or server in self._silent:
                continue
            if self._awaited is server:
                self._awaited = None
                self._lose()
            if self.delay:
                await SystemClock().sleep(self.delay)
            client.write(data)
            await client.drain()
        raise EOFError

    def _lose(self) -> None:
        self._left -= 1
        self.cuts += 1
        raise ConnectionError
