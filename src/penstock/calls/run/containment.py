"""Contains exceptions that would end more than their call, such as SystemExit. Other errors stay as they are."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from penstock.errors import UsageError


def containing(name: str) -> AbstractContextManager[None]:
    """Let no exception of a call, or of a part of it, end the task or the process around it; also in a thread.

    Raises:
        UsageError: It raised a BaseException, or CancelledError though nobody has cancelled this task.
    """
    return _Contained(name)


class _Contained(AbstractContextManager[None]):
    __slots__ = ("_name", "_task")

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        self._task = _task()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            return
        _refuse_cancel(self._name, error)
        if isinstance(error, (Exception, asyncio.CancelledError, KeyboardInterrupt)):
            return  # the last is not of its making
        if isinstance(error, GeneratorExit) and self._task is not _task():
            return  # nor this: the call was left by a loop that has ended
        raise _no_exception(self._name, error) from error


@contextmanager
def refuse_cancel(name: str) -> Iterator[None]:
    """Turn a CancelledError into a UsageError if nobody has cancelled this task."""
    try:
        yield
    except BaseException as error:
        _refuse_cancel(name, error)
        raise


def _refuse_cancel(name: str, error: BaseException | None) -> None:
    if not isinstance(error, (asyncio.CancelledError, concurrent.futures.CancelledError)) or _is_cancelled():
        return  # it took too long, was asked to stop, or the process stops
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
