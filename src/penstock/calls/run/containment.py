"""Contains exceptions that would end more than their call, such as SystemExit. Other errors stay as they are."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.errors import UsageError


@contextmanager
def containing(name: str) -> Iterator[None]:
    """Let no exception of a call, or of a part of it, end the task or the process around it; also in a thread.

    Raises:
        UsageError: It raised a BaseException, or CancelledError though nobody has cancelled this task.
    """
    task = _task()
    try:
        with refuse_cancel(name):
            yield
    except (Exception, asyncio.CancelledError, KeyboardInterrupt):  # the last is not of its making
        raise
    except GeneratorExit as error:
        if task is not _task():  # nor this: the call was left by a loop that has ended
            raise
        raise _no_exception(name, error) from error
    except BaseException as error:
        raise _no_exception(name, error) from error


@contextmanager
def refuse_cancel(name: str) -> Iterator[None]:
    """Turn a CancelledError into a UsageError if nobody has cancelled this task."""
    try:
        yield
    except (asyncio.CancelledError, concurrent.futures.CancelledError) as error:
        if _is_cancelled():  # it took too long, was asked to stop, or the process stops
            raise
        raise UsageError(
            f"{name} raised CancelledError, and was not cancelled: a task that it awaited was.",
            fix="Catch CancelledError where the function awaits a task that may be cancelled.",
        ) from error


def _no_exception(name: str, error: BaseException) -> UsageError:
    return UsageError(f"{name} raised {type(error).__name__}.", fix="Return, or raise an Exception.")


def _is_cancelled() -> bool:
    task = _task()
    return task is None or task.cancelling() > 0  # nobody can tell of a thread


def _task() -> asyncio.Task[Any] | None:
    """The task that runs here; None in a thread."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
