"""What functions raise that would end more than their call. Leaves errors of penstock and its users as they are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock.errors import UsageError
from penstock.functions.function import AnyFunction


async def contained(function: AnyFunction, run: Awaitable[Any]) -> Any:
    """What a call from outside returns; what its function raises does not end the task or the process around it.

    Raises:
        UsageError: It raised what is no Exception, or CancelledError though nobody has cancelled this task.
    """
    with containing(function.name):
        return await run


@contextmanager
def containing(name: str) -> Iterator[None]:
    """The same for a part of a call, on the event loop or in a thread."""
    try:
        with uncanceled(name):
            yield
    except (Exception, asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):  # the last two are not of its making
        raise
    except BaseException as error:
        raise UsageError(f"{name} raised {type(error).__name__}.", fix="Return, or raise an Exception.") from error


@contextmanager
def uncanceled(name: str) -> Iterator[None]:
    """The same for CancelledError only."""
    try:
        yield
    except asyncio.CancelledError as error:
        if _is_cancelled():  # it took too long, was asked to stop, or the process stops
            raise
        raise UsageError(
            f"{name} raised CancelledError, and was not cancelled: a task that it awaited was.",
            fix="Catch CancelledError where it awaits a task that may be cancelled.",
        ) from error


def _is_cancelled() -> bool:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # in a thread, of which nobody can tell
        return True
    return task is None or task.cancelling() > 0
