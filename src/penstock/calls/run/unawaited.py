"""Helpers that got a ctx and were not awaited: calls that never began, and tasks that outlive the function.

Owns finding them. The calls of a ctx itself are tracked in `transaction/tracking`.
"""

from __future__ import annotations

import asyncio
import functools
import warnings
from collections.abc import Callable, Iterator
from types import CoroutineType
from typing import Any

from penstock.observe.places import place_of
from penstock.transaction.tracking import Calls, OfCall, not_awaited


@functools.cache
def watch_dropped_coroutines() -> None:
    """Note helpers that are destroyed before they began; once in a process."""
    # CPython calls this attribute of `warnings` for each coroutine that is destroyed before it began. Nothing else
    # tells in time, and it costs nothing otherwise. Where it is missing, Python's own warning is all there is.
    warn: Callable[[Any], None] | None = getattr(warnings, "_warn_unawaited_coroutine", None)
    if warn is None:
        return

    def note(coroutine: Any) -> None:
        run = next((run for run in _runs_of(coroutine) if not run.ended), None)
        if run is not None:
            run.dropped = (*run.dropped, _name(coroutine))
        elif coroutine.cr_origin is not None:  # Python tells where it was made
            warn(coroutine)
        else:  # as `warn` does, which would take this for the place where it was dropped
            text = f"coroutine '{coroutine.__qualname__}' was never awaited"
            warnings.warn(text, RuntimeWarning, stacklevel=2, source=coroutine)

    warnings._warn_unawaited_coroutine = note  # type: ignore[attr-defined]  # noqa: SLF001 - as said above


def refuse_tasks_of(run: Calls) -> None:
    """Refuse tasks that have the ctx of a run that has ended, unless somebody has cancelled them."""
    current = asyncio.current_task()
    tasks = [task for task in asyncio.all_tasks() if task is not current and not task.cancelling()]
    left = [_name(task.get_coro()) for task in tasks if any(found is run for found in _runs_of(task.get_coro()))]
    if left:
        raise not_awaited(run.function, left, "Await the task, or use asyncio.TaskGroup.")


def _runs_of(coroutine: Any) -> Iterator[Calls]:
    """The runs whose ctx a coroutine has, or one that it awaits: in a variable, or directly inside of one."""
    while getattr(coroutine, "cr_frame", None) is not None:
        for value in _parts(coroutine):
            for held in (value, *_parts(value)):
                kind = type(held)  # not isinstance, which asks objects of users what they are
                if issubclass(kind, OfCall):
                    yield held._calls  # noqa: SLF001 - its own
        coroutine = coroutine.cr_await


def _parts(value: Any) -> list[Any]:
    """The variables of a coroutine, the items of a tuple, or the attributes of an object."""
    if type(value) is CoroutineType:
        return [] if value.cr_frame is None else list(value.cr_frame.f_locals.values())
    if type(value) is tuple:
        return list(value)
    try:
        return list(object.__getattribute__(value, "__dict__").values())
    except AttributeError:
        return []


def _name(coroutine: Any) -> str:
    name = coroutine.__qualname__.rpartition("<locals>.")[2]
    return f"{name} ({place_of(coroutine.cr_code)})"
