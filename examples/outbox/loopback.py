"""An HTTP server on this machine's loopback, for the examples beside this file."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


@asynccontextmanager
async def served(path: str, answer: Callable[[Request], Awaitable[Response]]) -> AsyncIterator[str]:
    """Serve ``POST path`` for the time of a block; where that is."""
    site = Starlette(routes=[Route(path, answer, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(site, log_level="error", lifespan="off"))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        host, port = listening.getsockname()
        running = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            while not server.started:
                await asyncio.sleep(0.01)
            yield f"http://{host}:{port}{path}"
        finally:
            server.should_exit = True
            await running
