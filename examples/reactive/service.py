"""A service on the network, as the examples beside this file talk to: a real HTTP server on this machine's loopback."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

Answer = Callable[[Request], Awaitable[Response]]


@asynccontextmanager
async def served(**answers: Answer) -> AsyncIterator[httpx.AsyncClient]:
    """Serve ``/name/{id}`` for each name, for the time of a block; a client of it."""
    routes = [Route(f"/{name}/{{id}}", answer, methods=["PUT", "POST"]) for name, answer in answers.items()]
    server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), log_level="error", lifespan="off"))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        running = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
                while not server.started:
                    await asyncio.sleep(0.01)
                yield client
        finally:
            server.should_exit = True
            await running
