"""Runs the handlers of reactive tasks that take many rows at once; each row is a run with an end of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.calls.handlers.synctasks import SyncTaskBatchCtx
from penstock.calls.handlers.taskctx import TaskBatchCtx, TaskBatchRun
from penstock.calls.handlers.taskrun import TaskRun
from penstock.calls.run.context import ActionCtx
from penstock.calls.run.syncctx import SyncActionCtx
from penstock.jobs.job import Outcome
from penstock.observe import points
from penstock.reactive.task import Change, ReactiveTask

if TYPE_CHECKING:
    from penstock.calls.run.running import Running


@dataclass(frozen=True, slots=True)
class TaskCall:
    """The arguments of one job of a task, as `api/tasks/tasks` names them."""

    generation: int
    key: str
    change: Change
    before: str | None
    after: str | None
    version: int = -1


def batch_handler(task: ReactiveTask, handler: Any) -> Callable[..., Any]:
    """The handler of a batch function, which makes the ctx that a task's own handler takes."""
    return (_awaited if inspect.iscoroutinefunction(handler) else _in_thread)(task, handler)


def _awaited(task: ReactiveTask, handler: Any) -> Callable[..., Any]:
    async def run(ctx: ActionCtx, calls: list[Any]) -> list[Any]:
        batch, held = _batch(task, ctx, calls)
        error = None
        if batch.runs:
            try:
                await _reach(task, batch)
                await handler(batch)
            except Exception as raised:  # noqa: BLE001 - it is the outcome of each run that has none of its own
                error = raised
        return _ends(batch, held, error)

    return run


def _in_thread(task: ReactiveTask, handler: Any) -> Callable[..., Any]:
    def run(ctx: SyncActionCtx, calls: list[Any]) -> list[Any]:
        batch, held = _batch(task, ctx._twin, calls)  # noqa: SLF001 - its own ctx
        error = None
        if batch.runs:
            try:
                ctx._wait(_reach(task, batch))  # noqa: SLF001 - its own ctx
                handler(SyncTaskBatchCtx(batch, ctx._wait))  # noqa: SLF001 - its own ctx
            except Exception as raised:  # noqa: BLE001 - as above
                error = raised
        return _ends(batch, held, error)

    return run


async def _reach(task: ReactiveTask, batch: TaskBatchCtx[Any]) -> None:
    """Come to the moment before the handler is called, with each run."""
    for run in batch.runs if points.armed else ():
        await points.reach("task.begun", task=task.name, doc_id=run.doc_id, change=run.change)


def _batch(
    task: ReactiveTask, ctx: ActionCtx, calls: Sequence[tuple[TaskCall, Running]]
) -> tuple[TaskBatchCtx[Any], list[Outcome | None]]:
    """One ctx for the runs that may begin, and the outcomes of the runs that may not."""
    runner, runs, held = ctx._runner, [], []  # noqa: SLF001 - its own ctx
    number = runner.engine.tasks[task.name].id
    for call, attempt in calls:
        about = call.key, call.generation, call.change, call.before, call.after, call.version
        state = TaskRun(task, runner.engine, number, *about)
        held.append(state.held())
        if held[-1] is None:
            own = ActionCtx(runner, ctx._calls, 0, attempt)  # noqa: SLF001 - its own ctx
            runs.append(TaskBatchRun[Any](own, state))
    return TaskBatchCtx(ctx, runs), held


def _ends(batch: TaskBatchCtx[Any], held: list[Outcome | None], error: Exception | None) -> list[Any]:
    """The outcome of each run, in order."""
    ends = iter([_end(run, run.failure or error) for run in batch.runs])
    return [next(ends) if one is None else one for one in held]


def _end(run: TaskBatchRun[Any], error: Exception | None) -> Any:
    state = run._run  # noqa: SLF001 - its own
    if error is None:
        return state.ended()
    meant = state.raised(error)
    if meant is not error:
        meant.__cause__ = error
    return meant
