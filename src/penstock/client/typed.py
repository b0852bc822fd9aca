"""The base of clients that ``penstock codegen`` writes: calls whose results are read as their types.

Loads pydantic, unlike the rest of the client: texts of the wire become datetimes, decimals and the like.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter

from penstock.client.client import AsyncClient, Client

OMITTED: Any = object()  # an argument that is not sent, so that the function's default counts

R = TypeVar("R")

_Kind = Literal["query", "mutation", "action"]


class Module:
    """The functions of a module. `returns` reads a result as its type."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def _call(self, kind: _Kind, path: str, args: Mapping[str, Any], returns: TypeAdapter[R]) -> R:
        return returns.validate_python(getattr(self._client, kind)(path, _without_omitted(args)))

    @contextmanager
    def _live(self, path: str, args: Mapping[str, Any], returns: TypeAdapter[R]) -> Iterator[Iterator[R]]:
        with self._client.live(path, _without_omitted(args)) as answers:
            yield map(returns.validate_python, answers)


class AsyncModule:
    """The functions of a module, for `AsyncClient`."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def _call(self, kind: _Kind, path: str, args: Mapping[str, Any], returns: TypeAdapter[R]) -> R:
        return returns.validate_python(await getattr(self._client, kind)(path, _without_omitted(args)))

    @asynccontextmanager
    async def _live(
        self, path: str, args: Mapping[str, Any], returns: TypeAdapter[R]
    ) -> AsyncIterator[AsyncIterator[R]]:
        async with self._client.live(path, _without_omitted(args)) as answers:
            yield (returns.validate_python(answer) async for answer in answers)


def _without_omitted(args: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in args.items() if value is not OMITTED}
