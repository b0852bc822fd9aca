"""The ctx of reactive tasks whose handlers take many rows at once; each row is a run with an end of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from penstock.calls.handlers.taskctx import SyncTaskCtx, TaskCtx
from penstock.calls.handlers.taskrows import get_documents
from penstock.calls.handlers.taskrun import TaskRun
from penstock.calls.run.bridge import Bridge
from penstock.calls.run.context import ActionCtx
from penstock.calls.run.syncctx import SyncActionCtx
from penstock.errors import PenstockError
from penstock.jobs.job import Outcome
from penstock.observe import points
from penstock.reactive.task import Change, ReactiveTask
from penstock.schema.table import Table

if TYPE_CHECKING:
    from penstock.calls.run.running import Running

T = TypeVar("T", bound=Table)


@dataclass(frozen=True, slots=True)
class TaskCall:
    """The arguments of one job of a task, as `api/tasks/tasks` names them."""

    generation: int
    key: str
    change: Change
    before: str | None
    after: str | None
    version: int = -1


class TaskBatchRun(TaskCtx[T]):
    """One run of a batch: what `TaskCtx` has, and a word for its failure."""

    failure: Exception | None = None

    def fail(self, error: Exception) -> None:
        """Let this run fail, and no other: it is tried again as its policy says.

        Args:
            error: Why; with a `TaskConditionFailed` it ends as skipped, with a `NonRetryableError` at once.
        """
        self.failure = error


class SyncTaskBatchRun(SyncTaskCtx[T]):
    """One run of a batch in a handler written with def; see `TaskBatchRun`."""

    def fail(self, error: Exception) -> None:
        """See `TaskBatchRun.fail`."""
        cast("TaskBatchRun[T]", self._task).fail(error)


class TaskBatchCtx(ActionCtx, Generic[T]):
    """The ctx of a reactive task with ``batch=``; for what else it can, see `ActionCtx`.

    Runs that the handler says nothing of end as it ends: if it raises, all of them have failed.

    Attributes:
        runs: The runs, of one row each. Those with `defer_current`, `fail` or `mark_completed` have ends of their own.
    """

    def __init__(self, ctx: ActionCtx, runs: list[TaskBatchRun[T]]) -> None:
        self.__dict__.update(ctx.__dict__)
        self.runs = runs

    def get_documents(self, fields: Sequence[str] | None = None) -> Coroutine[Any, Any, dict[TaskBatchRun[T], T]]:
        """The rows of those runs that are as they were planned for, as with `TaskCtx.get_document`, asked for at once.

        The other runs end as skipped, or failed if their rows cannot be read, unless the handler says otherwise.

        Args:
            fields: Which of their fields; all by default.

        Raises:
            ValueInvalid: A field is none of the table.
        """
        return self._calls.track(self._get_documents(fields))

    def log(self, message: str, **facts: Any) -> None:
        """Tell something of this batch, in a log event that names the task.

        Args:
            message: What.
            **facts: The same as data.
        """
        self.runs[0]._run.log(message, facts, of_row=False)  # noqa: SLF001 - its own

    def throttle_all(
        self, delay: timedelta | None = None, *, until: datetime | None = None, local: bool = False
    ) -> None:
        """See `TaskCtx.throttle_all`."""
        self.runs[0].throttle_all(delay, until=until, local=local)

    async def _get_documents(self, fields: Sequence[str] | None) -> dict[TaskBatchRun[T], T]:
        found: dict[TaskBatchRun[T], T] = {}
        states = [run._run for run in self.runs]  # noqa: SLF001 - its own
        for run, row in zip(self.runs, await get_documents(self._runner, states, fields), strict=True):
            if isinstance(row, PenstockError):
                run.fail(row)
            else:
                found[run] = cast("T", row)
        return found


class SyncTaskBatchCtx(SyncActionCtx, Generic[T]):
    """The ctx of a reactive task with ``batch=``, written with def; see `TaskBatchCtx`.

    Attributes:
        runs: The runs, of one row each.
    """

    def __init__(self, ctx: SyncActionCtx, batch: TaskBatchCtx[T], wait: Bridge) -> None:
        self.__dict__.update(ctx.__dict__)
        self._batch, self._waiter = batch, wait
        loop = wait._loop  # noqa: SLF001 - each run has a bridge of its own
        self.runs: list[SyncTaskBatchRun[T]] = [
            SyncTaskBatchRun(SyncActionCtx(run, loop), run, wait) for run in batch.runs
        ]

    def get_documents(self, fields: Sequence[str] | None = None) -> dict[SyncTaskBatchRun[T], T]:
        """See `TaskBatchCtx.get_documents`."""
        found = self._waiter(self._batch.get_documents(fields))
        twins = dict(zip(self._batch.runs, self.runs, strict=True))
        return {twins[run]: row for run, row in found.items()}

    def log(self, message: str, **facts: Any) -> None:
        """See `TaskBatchCtx.log`."""
        self._batch.log(message, **facts)

    def throttle_all(
        self, delay: timedelta | None = None, *, until: datetime | None = None, local: bool = False
    ) -> None:
        """See `TaskCtx.throttle_all`."""
        self._batch.throttle_all(delay, until=until, local=local)


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
        batch, held = _batch(task, ctx._ctx, calls)  # noqa: SLF001 - its own ctx
        error = None
        if batch.runs:
            try:
                ctx._wait(_reach(task, batch))  # noqa: SLF001 - its own ctx
                handler(SyncTaskBatchCtx(ctx, batch, ctx._wait))  # noqa: SLF001 - its own ctx
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
    """The ctx of those runs that may begin; and of all what becomes of those that may not."""
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
    """What becomes of each run, in order."""
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
