"""Networks that fail: a proxy before PostgreSQL that loses connections, and a second machine with a cable to pull."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qs, urlsplit

from stage.needs import program

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
        self._silent |= self._listening
        self._listening.clear()

    def reset(self) -> None:
        """End all connections, as a network does that comes back and does not know them."""
        for server in self._open:
            server.transport.abort()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Proxy]:
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


_RANGE = 2**15  # of pairs of addresses in 198.18.0.0/15, which is for tests of networks


class RefusedError(Exception):
    """`ip` has not done what it was told to do."""


class Machine:
    """A namespace, linked to the one of this process.

    Attributes:
        here: The address of this side.
        there: That of the other one.
        name: Of the namespace.
        cable: How the names of both ends of its cable begin.
    """

    def __init__(self, number: int) -> None:
        self.name, self.cable = f"penstock-{number}", f"pst{number}"
        place = number % _RANGE * 4
        net = f"198.{18 + place // 2**16}.{place // 2**8 % 2**8}."
        self.here, self.there = f"{net}{place % 2**8 + 1}", f"{net}{place % 2**8 + 2}"

    @property
    def command(self) -> list[str]:
        """What runs a program there, if it stands before it."""
        return [program("ip", "iproute2"), "netns", "exec", self.name]

    def plug(self) -> None:
        run("link", "set", f"{self.cable}a", "up")

    def unplug(self) -> None:
        """Lose all packets, in both directions, and tell nobody."""
        run("link", "set", f"{self.cable}a", "down")

    def open(self) -> None:
        here, there = f"{self.cable}a", f"{self.cable}b"
        run("netns", "add", self.name)
        run("link", "add", here, "type", "veth", "peer", "name", there, "netns", self.name)
        run("address", "add", f"{self.here}/30", "dev", here)
        run("link", "set", here, "up")
        run("-n", self.name, "address", "add", f"{self.there}/30", "dev", there)
        run("-n", self.name, "link", "set", there, "up")

    def close(self) -> None:
        for thing in (("link", "delete", f"{self.cable}a"), ("netns", "delete", self.name)):
            tried(*thing)


@contextmanager
def machine(number: int | None = None) -> Iterator[Machine]:
    made = Machine(os.getpid() if number is None else number)
    try:
        made.open()
        yield made
    finally:
        made.close()


def refusal() -> str:
    """Why this process may make no second machine; empty if it may."""
    try:
        with machine():
            return ""
    except RefusedError as error:
        return f"This process may make no network of its own: {error}"


def run(*arguments: str) -> None:
    if refusal := tried(*arguments):
        raise RefusedError(refusal)


def tried(*arguments: str) -> str:
    """Run `ip`; why it did not do so, or nothing."""
    done = subprocess.run([program("ip", "iproute2"), *arguments], capture_output=True, text=True, check=False)
    return f"ip {' '.join(arguments)}: {done.stderr.strip()}" if done.returncode else ""
