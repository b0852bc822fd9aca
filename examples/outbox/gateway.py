"""An SMS gateway on the network, for the example beside this file: a real HTTP server on this machine's loopback."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from loopback import served
from starlette.requests import Request
from starlette.responses import Response


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
        async with served("/sms", self.send) as url, httpx.AsyncClient(base_url=url.removesuffix("/sms")) as client:
            yield client
