"""Limits the time of an attempt at a job, or at a step of a workflow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

from penstock.errors import CallTimeout

_NO_LIMIT: AbstractAsyncContextManager[None] = nullcontext()


def time_limit(function: str, seconds: float | None) -> AbstractAsyncContextManager[None]:
    """Raise CallTimeout in a block that takes longer."""
    return _NO_LIMIT if seconds is None else _time_limit(function, seconds)


@asynccontextmanager
async def _time_limit(function: str, seconds: float) -> AsyncIterator[None]:
    timer = asyncio.timeout(seconds)
    try:
        async with timer:
            yield
    except TimeoutError as error:
        if not timer.expired():
            raise
        raise CallTimeout(
            f"{function} took longer than the {seconds:g} seconds that this job may take.",
            fix="Raise its timeout, or do less in one job.",
        ) from error
