"""Waiting for what becomes true by itself, and fails the test if it does not."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable

from penstock.clock import SystemClock

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
