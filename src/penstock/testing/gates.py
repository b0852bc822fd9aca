"""Gates: hold an execution at a named moment of the engine, and let it go on, to stage a race."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from penstock.observe import points


class Gate:
    """A closed gate at a named moment. Executions that reach it wait until `open`."""

    def __init__(self, most: int | None) -> None:
        self.arrivals: list[dict[str, Any]] = []
        self._most = most
        self._arrived = asyncio.Condition()
        self._open = asyncio.Event()

    async def arrived(self, count: int = 1) -> None:
        """Wait until so many have come."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.arrivals) >= count)

    def open(self) -> None:
        """Open the gate."""
        self._open.set()

    def let_pass(self) -> None:
        """Let the executions go on that wait here; later ones are held again."""
        here, self._open = self._open, asyncio.Event()
        here.set()

    async def pass_through(self, **facts: Any) -> None:
        """Come to the gate."""
        if self._open.is_set() or (self._most is not None and len(self.arrivals) >= self._most):
            return
        async with self._arrived:
            self.arrivals.append(facts)
            self._arrived.notify_all()
        await self._open.wait()


@contextmanager
def gate(name: str, *, most: int | None = None, when: Callable[..., bool] | None = None) -> Iterator[Gate]:
    """Close a gate at a named moment for the time of a block.

    Args:
        name: One of `observe.points.POINTS`.
        most: The number that it holds; later ones pass. None for all.
        when: Holds only those for whose facts this is true.
    """
    held, home = Gate(most), None
    with suppress(RuntimeError):  # no loop runs yet
        home = asyncio.get_running_loop()

    async def hold(**facts: Any) -> None:
        if when is not None and not when(**facts):
            return
        if home is None or asyncio.get_running_loop() is home:
            await held.pass_through(**facts)
        else:  # in the thread that renews leases
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(held.pass_through(**facts), home))

    points.arm(name, hold)
    try:
        yield held
    finally:
        points.disarm(name)
        held.open()


@contextmanager
def raising(
    name: str, error: BaseException, *, times: int = 1, when: Callable[..., bool] | None = None
) -> Iterator[None]:
    """Raise an error at a named moment, so many times.

    Args:
        name: One of `observe.points.POINTS`.
        error: The error.
        times: The number of times.
        when: Only for those for whose facts this is true.
    """
    left = times

    async def fail(**facts: Any) -> None:
        nonlocal left
        if left > 0 and (when is None or when(**facts)):
            left -= 1
            raise error

    points.arm(name, fail)
    try:
        yield
    finally:
        points.disarm(name)
