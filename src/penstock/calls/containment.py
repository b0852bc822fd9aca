"""What functions raise that would end more than their call. Leaves errors of penstock and its users as they are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from penstock.errors import UsageError
from penstock.functions.function import AnyFunction


async def contained(function: AnyFunction, run: Awaitable[Any]) -> Any:
    """What a call from outside returns; what its function raises does not end the task or the process around it.

    Raises:
        UsageError: It raised SystemExit, or CancelledError though nobody has cancelled this task.
    """
    try:
        return await run
    except SystemExit as error:
        raise UsageError(f"{function.name} raised SystemExit.", fix="Return, or raise an Exception.") from error
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():  # it took too long, was asked to stop, or the process stops
            raise
        raise UsageError(
            f"{function.name} raised CancelledError, and was not cancelled: a task that it awaited was.",
            fix="Catch CancelledError where it awaits a task that may be cancelled.",
        ) from error
