"""A bank as they are: an HTTP service that knows balances, and nothing of transactions.

Who wants to change an account reads its balance, and writes a new one. It keeps one number for each account beside the
balance, the highest that a writer has shown, and refuses whoever shows a lower one. ``python bank.py`` serves it alone.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

SLOW = 0.002  # seconds: long enough for two who take no lock to write over each other


@dataclass
class Bank:
    """What the bank remembers: balances, and the highest number that it has seen for each."""

    balances: Counter[str] = field(default_factory=Counter)
    fences: Counter[str] = field(default_factory=Counter)

    async def show(self, request: Request) -> Response:
        """``GET /accounts/{name}``: its balance."""
        await asyncio.sleep(SLOW)
        return JSONResponse({"balance": self.balances[request.path_params["name"]]})

    async def change(self, request: Request) -> Response:
        """``PUT /accounts/{name}``: a new balance, from who shows a number that is not over."""
        account, wanted = request.path_params["name"], await request.json()
        await asyncio.sleep(SLOW)
        if wanted["fence"] < self.fences[account]:
            return JSONResponse({"error": f"{wanted['fence']} is over: {self.fences[account]} was here"}, 409)
        self.fences[account], self.balances[account] = wanted["fence"], wanted["balance"]
        return JSONResponse({"balance": wanted["balance"]})


def make_app() -> Starlette:
    bank = Bank()
    routes = [
        Route("/accounts/{name}", bank.show, methods=["GET"]),
        Route("/accounts/{name}", bank.change, methods=["PUT"]),
    ]
    return Starlette(routes=routes)


@asynccontextmanager
async def served() -> AsyncIterator[httpx.AsyncClient]:
    """Serve a bank on this machine's loopback, for the time of a block; a client of it."""
    server = uvicorn.Server(uvicorn.Config(make_app(), log_level="error", lifespan="off"))
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


if __name__ == "__main__":
    uvicorn.run(make_app(), host="127.0.0.1", port=8026, log_level="warning")
