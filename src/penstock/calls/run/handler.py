"""Runs the handler of a function with its ctx, and sees to it that none of its calls is left when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import ref

from penstock.calls.run.bridge import Bridge
from penstock.calls.run.context import ActionCtx, MutationCtx, QueryCtx
from penstock.calls.run.engine import Engine
from penstock.calls.run.syncctx import SyncActionCtx, SyncMutationCtx, SyncQueryCtx
from penstock.calls.run.threads import Place
from penstock.calls.run.unawaited import refuse_tasks_of
from penstock.functions.function import AnyFunction

Ctx = QueryCtx | MutationCtx | ActionCtx
R = TypeVar("R")

_TWINS: dict[type[Ctx], Any] = {QueryCtx: SyncQueryCtx, MutationCtx: SyncMutationCtx, ActionCtx: SyncActionCtx}


async def run_handler(
    engine: Engine,
    function: AnyFunction,
    handler: Callable[..., Any],
    ctx: Ctx,
    arguments: dict[str, Any],
    depth: int,
    thread: Place | None,
) -> Any:
    """Run a handler; its result.

    Args:
        engine: Gives it a thread.
        function: The function that it is of.
        handler: The handler.
        ctx: Its ctx; the caller holds it no more.
        arguments: Its arguments.
        depth: How many calls it is nested in.
        thread: The place of one written with def; None to take one.

    Raises:
        UnawaitedCall: Calls, helpers or tasks that have the ctx are left.
    """
    calls = ctx._calls if isinstance(ctx, ActionCtx) else ctx._scope  # noqa: SLF001 - it is run here
    try:
        if function.is_async:
            result = await handler(ctx, **arguments)
        else:
            twin = _TWINS[type(ctx)](ctx, Bridge(asyncio.get_running_loop()))
            result = await _in_thread(engine, function, lambda: handler(twin, **arguments), depth, thread)
        calls.end()
    except BaseException:
        calls.abandon()
        raise
    if function.is_async:  # the thread of another function may hold the ctx for a moment longer
        ended = ref(calls)
        del ctx, calls
        if (held := ended()) is not None:  # by a task, say
            refuse_tasks_of(held)
    return result if handler is not function.handler else function.signature.check_result(result)


async def _in_thread(
    engine: Engine, function: AnyFunction, work: Callable[[], R], depth: int, thread: Place | None
) -> R:
    if thread is not None:
        return await thread.run(work)
    async with engine.thread(function, depth, nested=True) as own:
        return await _in_thread(engine, function, work, depth, own)
