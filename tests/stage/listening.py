"""An ASGI app on a socket of this machine's loopback, for the time of a block."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import uvicorn
from starlette.applications import Starlette

from penstock.server.frames import WebSocketFrames


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
    """The URL of a server on a free port, for the time of a block."""
    server = Uvicorn(asgi)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        task = asyncio.create_task(server.serve(sockets=[listener]))
        await server.ready.wait()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task
