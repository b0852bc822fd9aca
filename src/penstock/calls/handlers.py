"""Runs the handler of a function with its ctx, and sees to it that none of its calls is left when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from weakref import ref

from penstock.calls.context import ActionCtx, MutationCtx, QueryCtx
from penstock.calls.syncctx import SyncActionCtx, SyncMutationCtx, SyncQueryCtx
from penstock.calls.unawaited import refuse_tasks_of
from penstock.functions.function import AnyFunction

Ctx = QueryCtx | MutationCtx | ActionCtx
InThread = Callable[[Callable[[], Any]], Awaitable[Any]]

_TWINS: dict[type[Ctx], Any] = {QueryCtx: SyncQueryCtx, MutationCtx: SyncMutationCtx, ActionCtx: SyncActionCtx}


async def run_handler(function: AnyFunction, ctx: Ctx, call: Callable[[Any], Any], in_thread: InThread) -> Any:
    """Run a handler; what it returns.

    Args:
        function: Its function.
        ctx: Its ctx; the caller holds it no more.
        call: Calls it, with this ctx or its twin.
        in_thread: Does blocking work, for a function written with def.

    Raises:
        UnawaitedCall: Calls, helpers or tasks that have the ctx are left.
    """
    calls = ctx._calls if isinstance(ctx, ActionCtx) else ctx._scope  # noqa: SLF001 - it is run here
    try:
        if function.is_async:
            result = await call(ctx)
        else:
            twin = _TWINS[type(ctx)](ctx, asyncio.get_running_loop())
            result = await in_thread(lambda: call(twin))
        calls.end()
    except BaseException:
        calls.abandon()
        raise
    if function.is_async:  # the thread of another function may hold the ctx for a moment longer
        ended = ref(calls)
        del ctx, calls
        if (held := ended()) is not None:  # by a task, say
            refuse_tasks_of(held)
    return result
