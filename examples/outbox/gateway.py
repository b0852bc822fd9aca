"""An SMS gateway on the network, for the example beside this file: a real HTTP server on this machine's loopback."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


class Gateway:
    """Sends each SMS once, by its idempotency key; while it is down it refuses."""

    def __init__(self, *, down_after: int, refuses: int) -> None:
        self.texts: dict[str, str] = {}
        self.refused = 0
        self._down_after = down_after
        self._refuses = refuses

    async def send(self, request: Request) -> Response:
        if len(self.texts) == self._down_after and self.refused < self._refuses:
            self.refused += 1
            return Response(status_code=503)
        self.texts.setdefault(request.headers["idempotency-key"], (await request.json())["text"])
        return Response(status_code=204)

    @asynccontextmanager
    async def served(self) -> AsyncIterator[httpx.AsyncClient]:
        """Serve ``POST /sms`` for the time of a block; a client of it."""
        routes = [Route("/sms", self.send, methods=["POST"])]
        server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), log_level="error", lifespan="off"))
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            host, port = listening.getsockname()
            running = asyncio.create_task(server.serve(sockets=[listening]))
            try:
                async with httpx.AsyncClient(base_url=f"http://{host}:{port}") as client:
                    while not server.started:
                        await asyncio.sleep(0.01)
                    yield client
            finally:
                server.should_exit = True
                await running
