"""The calls of one client that wait or run: mutations in the order in which they came, actions all at once.

Owns how many there may be. Leaves running one to the socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from penstock.server.callers import Credentials
from penstock.server.sockets.watched import size_of
from penstock.wire import sockets

_MOST = 1000  # that wait or run; no further message is read then
_MOST_BYTES = sockets.MOST_BYTES

Run = Callable[[sockets.Call, Credentials], Awaitable[None]]


class Calls:
    """See the module. `run` runs a call, and raises nothing."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._mutations: list[tuple[sockets.Call, Credentials]] = []
        self._mutating: asyncio.Task[None] | None = None
        self._actions = set[asyncio.Task[None]]()
        self._number = self._bytes = 0
        self._ended = asyncio.Event()

    @property
    def are_many(self) -> bool:
        """Whether there are as many as there may be."""
        return self._number >= _MOST or self._bytes > _MOST_BYTES

    @property
    def is_mutating(self) -> bool:
        """Whether a mutation waits or runs."""
        return self._mutating is not None

    async def wait_for_place(self) -> None:
        """Wait until there are fewer than there may be."""
        while self.are_many:
            self._ended.clear()
            await self._ended.wait()

    def add(self, call: sockets.Call, credentials: Credentials) -> None:
        """Run a call for a caller, if it is a mutation after those before."""
        self._number += 1
        self._bytes += size_of(call)
        if call.type == "Mutation":
            self._mutations.append((call, credentials))
            if self._mutating is None:
                self._mutating = asyncio.create_task(self._mutate(), name="penstock-socket-mutations")
        else:
            task = asyncio.create_task(self._answer(call, credentials), name="penstock-socket-action")
            self._actions.add(task)
            task.add_done_callback(self._actions.discard)

    def clear(self) -> None:
        """Forget the mutations that wait."""
        self._mutations.clear()

    async def finish(self) -> None:
        """Wait for the running calls to end."""
        await asyncio.gather(*self._actions, *([self._mutating] if self._mutating else []))

    async def _mutate(self) -> None:
        while self._mutations:
            await self._answer(*self._mutations.pop(0))
        self._mutating = None

    async def _answer(self, call: sockets.Call, credentials: Credentials) -> None:
        await self._run(call, credentials)
        self._number -= 1
        self._bytes -= size_of(call)
        self._ended.set()
