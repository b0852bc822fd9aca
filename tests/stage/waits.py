"""Waiting for what becomes true by itself, and fails the test if it does not."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

from penstock.clock import SystemClock
from penstock.testing import TestClock

SOON = 180.0  # for a machine that does other things as well; only what fails waits so long


async def until(true: Callable[[], Awaitable[bool] | bool]) -> float:
    """Wait until something is true, and say how many seconds that took; fail if it takes long."""
    clock, pause = SystemClock(), 0.01
    begun = clock.monotonic()
    async with asyncio.timeout(SOON):
        while not (await answer if inspect.isawaitable(answer := true()) else answer):
            await clock.sleep(pause)
            pause = min(1.5 * pause, 0.05)  # to ask takes time from what it waits for
    return clock.monotonic() - begun


@asynccontextmanager
async def passing(clock: TestClock) -> AsyncIterator[None]:
    """Let time pass in a block: live queries look at jobs at intervals."""

    async def let_pass() -> None:
        while True:
            clock.advance(timedelta(seconds=0.25))
            await SystemClock().sleep(0.01)

    task = asyncio.create_task(let_pass())
    try:
        yield
    finally:
        task.cancel()
