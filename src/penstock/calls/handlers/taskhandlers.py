"""The functions that jobs of reactive tasks run: they make the ctx that a task's own handler takes, and call it.

A handler takes one row, or many rows at once; then each row is a run with an end of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_type_hints

from penstock.calls.call import Call
from penstock.calls.handlers.synctasks import SyncMutationTaskCtx, SyncTaskBatchCtx, SyncTaskCtx
from penstock.calls.handlers.taskctx import MutationTaskCtx, TaskBatchCtx, TaskBatchRun, TaskCtx
from penstock.calls.handlers.taskrun import TaskAttempt, TaskCall
from penstock.calls.run.context import ActionCtx, MutationCtx
from penstock.calls.run.engine import Engine
from penstock.calls.run.jobrun import JobRun
from penstock.calls.run.syncctx import SyncActionCtx, SyncMutationCtx
from penstock.jobs.job import Outcome
from penstock.observe import points
from penstock.reactive.task import ReactiveTask


def task_function(task: ReactiveTask, handler: Any, *, batched: bool) -> Callable[..., Any]:
    """Make the function that the jobs of a task run, under the name of the task's own handler."""
    if inspect.iscoroutinefunction(handler):
        run = (_batch_awaited if batched else _async_handler)(task, handler)
    else:
        run = (_batch_in_thread if batched else _in_thread)(task, handler)
    if not batched:  # it takes the fields of a call
        (ctx, _), taken = inspect.signature(run).parameters.values(), inspect.signature(TaskCall).parameters.values()
        run.__signature__ = inspect.Signature([ctx, *taken])  # type: ignore[attr-defined]
        run.__annotations__ = get_type_hints(TaskCall)
    run.__name__, run.__qualname__ = handler.__name__, handler.__qualname__
    run.__module__, run.__doc__ = handler.__module__, handler.__doc__
    return run


# ----- one row


def _async_handler(task: ReactiveTask, handler: Any) -> Callable[..., Any]:
    async def run(ctx: ActionCtx | MutationCtx, **given: Any) -> Any:
        state = _begin(task, ctx._runner.engine, given)  # noqa: SLF001 - its own ctx
        if (held := state.outcome_if_held()) is not None:
            return held
        made: Any = MutationTaskCtx(ctx, state) if isinstance(ctx, MutationCtx) else TaskCtx(ctx, state)
        with state:
            if points.armed:
                await _reach(task, [state])
            await handler(made)
        return state.outcome_if_deferred()

    return run


def _in_thread(task: ReactiveTask, handler: Any) -> Callable[..., Any]:
    def run(ctx: SyncActionCtx | SyncMutationCtx, **given: Any) -> Any:
        wait = ctx._wait  # noqa: SLF001 - its own ctx
        state = _begin(task, ctx._twin._runner.engine, given)  # noqa: SLF001 - as above
        if (held := state.outcome_if_held()) is not None:
            return held
        made: Any = (
            SyncMutationTaskCtx(MutationTaskCtx(ctx._twin, state), wait)  # noqa: SLF001 - as above
            if isinstance(ctx, SyncMutationCtx)
            else SyncTaskCtx(TaskCtx(ctx._twin, state), wait)  # noqa: SLF001 - as above
        )
        with state:
            if points.armed:
                wait(_reach(task, [state]))
            handler(made)
        return state.outcome_if_deferred()

    return run


# ----- many rows


def _batch_awaited(task: ReactiveTask, handler: Any) -> Callable[..., Any]:
    async def run(ctx: ActionCtx, calls: list[Any]) -> list[Any]:
        batch, held = _batch(task, ctx, calls)
        error = None
        if batch.runs:
            try:
                await _reach(task, batch.runs)
                await handler(batch)
            except Exception as raised:  # noqa: BLE001 - it is the outcome of each run that has none of its own
                error = raised
        return _ends(batch, held, error)

    return run


def _batch_in_thread(task: ReactiveTask, handler: Any) -> Callable[..., Any]:
    def run(ctx: SyncActionCtx, calls: list[Any]) -> list[Any]:
        batch, held = _batch(task, ctx._twin, calls)  # noqa: SLF001 - its own ctx
        error = None
        if batch.runs:
            try:
                ctx._wait(_reach(task, batch.runs))  # noqa: SLF001 - its own ctx
                handler(SyncTaskBatchCtx(batch, ctx._wait))  # noqa: SLF001 - its own ctx
            except Exception as raised:  # noqa: BLE001 - as above
                error = raised
        return _ends(batch, held, error)

    return run


def _batch(
    task: ReactiveTask, ctx: ActionCtx, calls: Sequence[tuple[TaskCall, JobRun]]
) -> tuple[TaskBatchCtx[Any], list[Outcome | None]]:
    """One ctx for the runs that may begin, and the outcomes of the runs that may not."""
    runner, runs, held = ctx._runner, [], []  # noqa: SLF001 - its own ctx
    for call, attempt in calls:
        state = _begin(task, runner.engine, vars(call))
        held.append(state.outcome_if_held())
        if held[-1] is None:
            own = ActionCtx(runner, Call(ctx._call.function, {}, job=attempt), ctx._calls)  # noqa: SLF001 - its own ctx
            runs.append(TaskBatchRun[Any](own, state))
    return TaskBatchCtx(ctx, runs), held


def _ends(batch: TaskBatchCtx[Any], held: list[Outcome | None], error: Exception | None) -> list[Any]:
    ends = iter([_end(run, run.failure or error) for run in batch.runs])
    return [next(ends) if one is None else one for one in held]


def _end(run: TaskBatchRun[Any], error: Exception | None) -> Any:
    state = run._run  # noqa: SLF001 - its own
    if error is None:
        return state.outcome_if_deferred()
    meant = state.error_of_run(error)
    if meant is not error:
        meant.__cause__ = error
    return meant


# ----- both


def _begin(task: ReactiveTask, engine: Engine, given: Mapping[str, Any]) -> TaskAttempt:
    return TaskAttempt(**given, task=task, engine=engine, number=engine.tasks[task.name].id)


async def _reach(task: ReactiveTask, runs: Sequence[TaskAttempt | TaskBatchRun[Any]]) -> None:
    """Come to the moment before the handler is called, with each run."""
    for run in runs if points.armed else ():
        await points.reach("task.begun", task=task.name, doc_id=run.doc_id, change=run.change)
