"""Between threads and event loops: calls from a thread that are run on a loop, and a thread that runs its own loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, Protocol, TypeVar

from penstock.errors import ContextError

R = TypeVar("R")


class Wait(Protocol):
    """Waits in a thread for a call."""

    def __call__(self, call: Coroutine[Any, Any, R], /) -> R:
        """Its result."""


class Bridge:
    """Waits in a thread for a call that runs on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def __call__(self, call: Coroutine[Any, Any, R]) -> R:
        if asyncio._get_running_loop() is not None:  # noqa: SLF001 - the only way to ask without an exception
            call.close()
            raise ContextError(
                "A synchronous ctx was used on an event loop, which it would block.",
                fix="Use an async def function there.",
            )
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()


def run_loop(loop: asyncio.AbstractEventLoop, main: Awaitable[Any]) -> None:
    """Run on a new event loop, like `asyncio.run`, but start no thread to end it: Python 3.12 refuses one at exit."""
    try:
        loop.run_until_complete(main)
    finally:
        loop.run_until_complete(_cancel_others())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _cancel_others() -> None:
    """Cancel all other tasks, and the tasks that these start as they end, such as to close a connection."""
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
