"""The request of an HTTP action written with def: its body is read by plain calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from starlette.datastructures import FormData
from starlette.requests import HTTPConnection, Request

from penstock.calls.run.bridge import Wait


class SyncRequest(HTTPConnection):
    """The request of an HTTP action written with def: Starlette's, whose body is read by plain calls."""

    def __init__(self, request: Request, wait: Wait) -> None:
        super().__init__(request.scope)
        self._request = request
        self._wait = wait

    @property
    def method(self) -> str:
        """The method, such as ``POST``."""
        return self._request.method

    def body(self) -> bytes:
        """Read the whole body, as it was sent."""
        return self._wait(self._request.body())

    def json(self) -> Any:
        """Read the whole body as JSON; ValueError if it is none."""
        return self._wait(self._request.json())

    def form(self) -> FormData:
        """Read the whole body as a form."""

        async def read() -> FormData:
            return await self._request.form()

        return self._wait(read())

    def stream(self) -> Iterator[bytes]:
        """Read the body part by part; the last one is empty."""
        parts: AsyncIterator[bytes] = aiter(self._request.stream())

        async def read() -> bytes | None:
            return await anext(parts, None)

        while (part := self._wait(read())) is not None:
            yield part
