"""Passwords that a program gives for each connection, asked for by a server that records them."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from stage.waits import until

from penstock import App, ConfigError, DeclarationError
from penstock.clock import SystemClock
from penstock.config import Config
from penstock.errors import DatabaseUnavailable
from penstock.store.open import make_store
from penstock.testing import TestApp

CLEARTEXT = b"R" + struct.pack("!II", 8, 3)  # asks for the password as it is


@asynccontextmanager
async def server() -> AsyncIterator[tuple[str, list[str]]]:
    """A server that refuses everybody; its URL, and the passwords that it was told."""
    told: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (size := struct.unpack("!I", await reader.readexactly(4))[0]) == 8:  # asks for encryption
            await reader.readexactly(4)
            writer.write(b"N")
        await reader.readexactly(size - 4)
        writer.write(CLEARTEXT)
        (length,) = struct.unpack("!xI", await reader.readexactly(5))
        told.append((await reader.readexactly(length - 4)).rstrip(b"\0").decode())
        text = b"SFATAL\0C28P01\0Mpassword authentication failed\0\0"
        writer.write(b"E" + struct.pack("!I", len(text) + 4) + text)
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        yield f"postgresql://penstock:in-the-url@127.0.0.1:{port}/x", told


@pytest.mark.parametrize("is_async", [False, True])
async def test_each_connection_asks_for_its_password(is_async: bool) -> None:
    given = 0

    def take() -> Any:
        nonlocal given
        given += 1
        return later(f"token {given}") if is_async else f"token {given}"

    async def later(text: str) -> str:
        return text

    async with server() as (url, told):
        store = make_store(Config(database=url, direct_database=url, read_url=url), SystemClock(), password=take)
        for _ in range(2):
            with pytest.raises(DatabaseUnavailable, match="password authentication failed"):
                await store.synchronize()
        app = App(password=take)
        with pytest.raises(DatabaseUnavailable):
            async with app.open(url):
                pass
        assert told == ["token 1", "token 2", "token 3"]
        with pytest.raises(DatabaseUnavailable):
            async with App().open(url):
                pass
        assert told[3:] == ["in-the-url"]
        await store.close()


async def test_a_password_that_cannot_be_had_is_a_database_that_cannot_be_reached() -> None:
    def fail() -> str:
        raise OSError("the vault is sealed")

    async with server() as (url, told):
        for password, error, words in (
            (fail, DatabaseUnavailable, "OSError: the vault is sealed"),
            (lambda: b"x", ConfigError, "gave a bytes"),
        ):
            with pytest.raises(error, match=words):
                async with App(password=password).open(url):  # type: ignore[arg-type]
                    pass
        assert told == []
    with pytest.raises(DeclarationError, match="takes a function"):
        App(password="fixed")  # type: ignore[arg-type]


async def test_all_connections_of_a_program_ask(postgres_url: str) -> None:
    asked = 0

    async def token() -> str:
        nonlocal asked
        asked += 1
        return "any"  # this server trusts everybody

    async with TestApp(App(password=token), postgres_url) as backend:
        await backend.worker.tick()
        assert asked >= 2, "calls and services have connections of their own"


async def test_the_thread_of_renewals_and_the_replica_ask_too(postgres_url: str) -> None:
    asked = set[str]()

    def token() -> str:
        asked.add(threading.current_thread().name)
        return "any"

    async with App(password=token).open(postgres_url, services=["worker"]):
        await until(lambda: {threading.main_thread().name, "penstock-leases"} <= asked)
    async with server() as (url, told):
        app = App(password=lambda: "of the replica")
        async with app.open(postgres_url, read_url=url):
            await until(lambda: "of the replica" in told)
