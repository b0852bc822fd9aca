"""Says how many ends of jobs a body awaits before code of it runs, so that a run that fans out is not woken for each.

It looks at the tasks that asyncio's own `gather` and `TaskGroup` have made of calls of the ctx. Of anything else, one
end is enough.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable
from typing import Any

from penstock.calls.workflows.body import OpenCall

_OF_GATHER = "gather.<locals>._done_callback"
_OF_CTX = "WorkflowCtx."


def count_awaited(calls: Iterable[OpenCall]) -> int:
    """The fewest ends of these calls after which code of the body runs, if all of them end well."""
    return min((_count_awaited_with(call) for call in calls if not call.is_abandoned), default=1)


def _count_awaited_with(call: OpenCall) -> int:
    """How many calls must end before code of the body runs that awaits this one."""
    task: Any = call.task
    if task is None or not getattr(task.get_coro(), "__qualname__", "").startswith(_OF_CTX):
        return 1  # code of the body runs as soon as it ends
    waiting = [_count_unfinished_with(callback) for callback, _ in task._callbacks or ()]  # noqa: SLF001 - nothing else knows
    return min(waiting, default=1)


def _count_unfinished_with(callback: Any) -> int:
    """How many tasks have to end before this callback of one of them does anything."""
    group = getattr(callback, "__self__", None)
    if isinstance(group, asyncio.TaskGroup):
        return len(group._tasks)  # noqa: SLF001 - see above
    if getattr(callback, "__qualname__", "") == _OF_GATHER:
        known = inspect.getclosurevars(callback).nonlocals
        return int(known.get("nfuts", 1) - known.get("nfinished", 0))  # one, if a Python calls them otherwise
    return 1
