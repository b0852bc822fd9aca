"""Reactive tasks as programs declare them: a table, a filter, a watch, and a handler.

Owns the options and their checks, and the function that a task's jobs run. `reactive/planning` decides what a change
calls for, and `services/planner/planner` writes it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar, Unpack

from penstock.api.declaring import TaskDecorator
from penstock.api.pools.workpool import Workpool
from penstock.api.tasks.admin import TaskAdmin
from penstock.api.tasks.options import TaskOptions, given_of, job_options
from penstock.calls.handlers.synctasks import SyncMutationTaskCtx, SyncTaskCtx
from penstock.calls.handlers.taskbatch import TaskCall, batch_handler
from penstock.calls.handlers.taskctx import MutationTaskCtx, TaskCtx
from penstock.calls.handlers.taskrun import TaskRun
from penstock.calls.run.context import ActionCtx, MutationCtx
from penstock.calls.run.ctxkinds import refuse_bare, task_ctx_of
from penstock.calls.run.engine import Engine
from penstock.calls.run.syncctx import SyncActionCtx, SyncMutationCtx
from penstock.changes.interest import Interest
from penstock.errors import DeclarationError
from penstock.functions.batch import Batch
from penstock.functions.function import ActionFunction, AnyFunction, MutationFunction, name_of
from penstock.functions.registry import Registry
from penstock.jobs.job import Options
from penstock.observe import points
from penstock.reactive.task import Change, CircuitBreaker, ReactiveTask, interest_name, spec_of
from penstock.reactive.tracing import RowFilter, RowWatch, trace_filter, trace_watch
from penstock.schema.table import Table, TableDefinition, definition_of
from penstock.store.contract.store import Store
from penstock.store.contract.tasks import TaskPlan, TaskRow, from_the_beginning
from penstock.store.sql.conditions import condition_sql, watch_sql
from penstock.store.sql.dialect import Dialect

T = TypeVar("T", bound=Table)

_ROW = "{row}"
READER = "tasks"


@dataclass(frozen=True, slots=True)
class DeclaredTask:
    """A task with the function that its jobs run, and the options of these jobs."""

    task: ReactiveTask
    function: AnyFunction
    options: Options
    breaker: CircuitBreaker | None = None

    def interest(self, dialect: Dialect) -> Interest:
        """The capture of its table."""
        task, definition = self.task, self.task.definition
        assert task.watch is not None  # noqa: S101 - a declared task has one
        asked = None if task.condition is None else condition_sql(task.condition, definition, dialect, _ROW)
        told = watch_sql(task.watch, definition, dialect, _ROW)
        exact = (asked is None or asked.exact) and told.exact
        again = () if exact or asked is None else asked.columns
        own = tuple(column for column in (task.run_at, task.key) if column is not None)
        after = tuple(dict.fromkeys((*told.columns, *again, *own)))
        before = () if exact else after
        if task.wants_row:  # after a change, too: a row may vanish unnoticed, and then this is its last known state
            before = after = tuple(column.name for column in definition.columns)
        watches = told.expressions if "change" in task.on else ()
        if task.run_at is not None:
            watches += (f"{_ROW}.{dialect.quote(task.run_at)}",)
        return Interest(
            name=interest_name(task.name),
            table=definition.name,
            key=definition.key,
            matches=None if asked is None else asked.sql,
            watches=watches,
            before=before,
            after=after,
            exact=exact,
        )

    def plan(self, dialect: Dialect) -> TaskPlan:
        """The plan that is stored of it."""
        task, interest = self.task, self.interest(dialect)
        return TaskPlan(
            name=task.name,
            function=self.function.name,
            kind=self.function.kind.value,
            pool=task.pool,
            priority=task.priority,
            options=self.options,
            resets=task.resets,
            history=task.history,
            version=task.version,
            signature=task.signature,
            spec=spec_of(task, exact=interest.exact, interest=interest.digest),
            on_version_change=task.on_version_change,
            reconciles=task.reconciles,
        )


class ReactiveTasks(TaskAdmin):
    """The reactive tasks of an app, and the administration of those that its database knows."""

    def __init__(self, registry: Registry, pools: dict[str, Workpool]) -> None:
        self._registry = registry
        self._pools = pools
        self._declared: dict[str, DeclaredTask] = {}

    def __iter__(self) -> Any:
        return iter(self._declared.values())

    def __len__(self) -> int:
        return len(self._declared)

    def tables(self) -> Sequence[type[Table]]:
        """The tables that they are about."""
        return [one.task.definition.table for one in self._declared.values()]

    def reactive_task(
        self,
        table: type[T],
        /,
        *,
        filter: RowFilter[T] | None = None,  # noqa: A002 - the word of the field
        watch: Sequence[RowWatch[T]] | None = None,
        **options: Unpack[TaskOptions],
    ) -> TaskDecorator[T]:
        """Declare the handler below as a reactive task: it is run for the rows of a table, whenever they call for it.

        The latest state of each matching row is handled at least once, no matter which program wrote it. A handler
        that takes a `MutationTaskCtx` handles each state exactly once. Of one row only one run is under way
        at a time, and changes that come meanwhile are one more run. Rows that are older than the task are run as well.

        Args:
            table: The table.
            filter: Its rows: a function of a row that compares and computes with its fields, such as
                ``lambda order: order.status == "paid"``; all by default.
            watch: The values of a row whose change runs it again: names of fields, paths such as
                ``"address.city"``, or functions of a row; anything by default. A row that begins to match is always
                run.
            **options: Any of these.
                ``on``: which changes call for a run, by default the first two: ``"enter"``, a row begins to match;
                ``"change"``, something watched has changed; ``"leave"``, it matches no more; ``"delete"``, it is gone,
                having matched.
                ``name``: by which it is kept; the name of its function by default. Another name is another task.
                ``debounce``: for how long a row has to be left alone before it is run.
                ``max_wait``: for how long at most further changes put a run off by that, from the first one since the
                last run of the row began; for ever by default.
                ``retry``: when it is run again after it raised: five attempts by default, None for one.
                ``reset_retries_on_data_change``: whether attempts are counted anew when the row has changed.
                ``timeout``: how long an attempt may take, up to a year; as long as it takes by default.
                ``pool``: the workpool whose limits it shares; none by default.
                ``priority``: those with a higher one start first; from -32,000 to 32,000, 0 by default.
                ``key``: a column: rows with the same value in it are run one at a time, in the order of their changes.
                One that is to be tried again keeps the next ones waiting. It takes a pool with ``key_parallelism=1``.
                ``run_at``: a column of points in time, at which rows are run, and which may change until then; a row
                without one is not run.
                ``history``: how many runs before the last one are kept with each row, five by default; of the last one
                the attempts that failed are always kept.
                ``cleanup``: when the record of a row is forgotten: ``"source_deleted"``, once the row is gone;
                ``"source_deleted_or_no_longer_matching"``, also if it matches no more; or ``"never"``.
                ``keep_for``: how long after that; a day by default.
                ``version``: of the handler.
                ``on_version_change``: the rows to run again when a higher version is declared: ``"none"``,
                ``"reprocess_failed"`` or ``"reprocess_all"``.
                ``reconcile_on_trigger_change``: whether all rows are looked at anew when filter or watch have changed.
                ``batch``: how many rows one call of the handler takes at most, with a `TaskBatchCtx`; one by default.
                ``linger``: how long the first row of a batch waits for more; not at all by default.
                ``breaker``: a `CircuitBreaker`, which holds the task when too many of its runs fail; none by default.

        Raises:
            DeclarationError: At import: the filter or the watch cannot be translated, an option cannot be, there is
                a task of this name, or the handler's ctx is none of a reactive task.
        """
        refuse_bare("reactive_task", table, "Order")

        def decorate(handler: Any) -> Any:
            given, definition = given_of(options, name_of(handler)), _definition(table, handler)
            what = f"Reactive task {given['name']}"
            task = ReactiveTask(
                definition=definition,
                condition=None if filter is None else trace_filter(definition, filter, f"{what}: filter"),
                watch=trace_watch(definition, watch, f"{what}: watch"),
                **given,
            )
            self._check(task, options.get("pool"))
            return self._add(task, handler, options)

        return decorate

    # ----- steps

    def _own_tasks(self) -> Sequence[ReactiveTask]:
        return [one.task for one in self._declared.values()]

    def _check(self, task: ReactiveTask, pool: Workpool | None) -> None:
        if task.name in self._declared:
            raise DeclarationError(f"There are two reactive tasks called {task.name!r}.", fix="Rename one of them.")
        if pool is not None and self._pools.get(pool.name) is not pool:
            raise DeclarationError(f"Reactive task {task.name!r}: pool {pool.name!r} is not one of this app.")
        if task.key is not None and (pool is None or pool.definition.key_parallelism != 1):
            raise DeclarationError(
                f"Reactive task {task.name!r}: key= takes a pool that runs one job of a key at a time.",
                fix="Declare app.workpool(…, key_parallelism=1), and pass it as pool=.",
            )

    def _add(self, task: ReactiveTask, handler: Any, options: TaskOptions) -> Any:
        word, name = task_ctx_of(handler, task.definition.table), name_of(handler)
        size = options.get("batch")
        if (size is not None) is not word.endswith("BatchCtx"):
            raise DeclarationError(
                f"Reactive task {task.name!r}: {name} takes a {word}, and batch={size}.",
                fix="A task with batch= takes a TaskBatchCtx or a SyncTaskBatchCtx, and no other task does. Mutations "
                "share transactions by themselves.",
            )
        run, batch = _runs(task, handler, batched=size is not None), None
        if size is not None:
            batch = Batch(run, size, TaskCall, options.get("linger", timedelta(0)), with_attempts=True)
        elif "linger" in options:
            raise DeclarationError(f"Reactive task {task.name!r}: linger needs batch=.")
        kind: type[AnyFunction] = MutationFunction if "Mutation" in word else ActionFunction
        function = kind(run, public=False, name=name, batch=batch)
        function.version = task.version
        self._registry.add(function)
        self._declared[task.name] = DeclaredTask(task, function, job_options(options), options.get("breaker"))
        return handler


def _runs(task: ReactiveTask, handler: Any, *, batched: bool) -> Callable[..., Any]:
    """The handler of the jobs of a task: it makes the ctx that the task's own handler takes."""
    make = batch_handler if batched else _awaited if inspect.iscoroutinefunction(handler) else _in_thread
    chosen: Callable[..., Any] = make(task, handler)
    chosen.__name__, chosen.__qualname__ = handler.__name__, handler.__qualname__
    chosen.__module__, chosen.__doc__ = handler.__module__, handler.__doc__
    return chosen


def _awaited(task: ReactiveTask, handler: Any) -> Callable[..., Any]:
    async def run(
        ctx: ActionCtx | MutationCtx,
        generation: int,
        key: str,
        change: Change,
        before: str | None,
        after: str | None,
        version: int = -1,
    ) -> Any:
        state = _begun(task, ctx._runner.engine, generation, key, change, before, after, version)  # noqa: SLF001 - its own ctx
        if (held := state.held()) is not None:
            return held
        made: Any = MutationTaskCtx(ctx, state) if isinstance(ctx, MutationCtx) else TaskCtx(ctx, state)
        try:
            if points.armed:
                await points.reach("task.begun", task=task.name, doc_id=state.doc_id, change=change)
            await handler(made)
        except Exception as error:
            if (meant := state.raised(error)) is error:
                raise
            raise meant from error
        return state.ended()

    return run


def _in_thread(task: ReactiveTask, handler: Any) -> Callable[..., Any]:
    def run(
        ctx: SyncActionCtx | SyncMutationCtx,
        generation: int,
        key: str,
        change: Change,
        before: str | None,
        after: str | None,
        version: int = -1,
    ) -> Any:
        state = _begun(task, ctx._twin._runner.engine, generation, key, change, before, after, version)  # noqa: SLF001 - as above
        if (held := state.held()) is not None:
            return held
        try:
            if points.armed:
                ctx._wait(points.reach("task.begun", task=task.name, doc_id=state.doc_id, change=change))  # noqa: SLF001
            handler(_sync_ctx(ctx, state))
        except Exception as error:
            if (meant := state.raised(error)) is error:
                raise
            raise meant from error
        return state.ended()

    return run


def _begun(task: ReactiveTask, engine: Engine, generation: int, key: str, *call: Any) -> TaskRun:
    return TaskRun(task, engine, engine.tasks[task.name].id, key, generation, *call)


def _sync_ctx(ctx: SyncActionCtx | SyncMutationCtx, run: TaskRun) -> Any:
    if isinstance(ctx, SyncMutationCtx):
        return SyncMutationTaskCtx(MutationTaskCtx(ctx._twin, run), ctx._wait)  # noqa: SLF001 - its own ctx
    return SyncTaskCtx(TaskCtx(ctx._twin, run), ctx._wait)  # noqa: SLF001 - its own ctx


def _definition(table: Any, handler: Any) -> TableDefinition:
    if not isinstance(table, type) or not issubclass(table, Table) or table is Table:
        raise DeclarationError(f"@app.reactive_task: {name_of(handler)}: {table!r} is not a table.")
    return definition_of(table)


async def check_tasks(engine: Engine, tasks: ReactiveTasks, besides: Collection[str] = ()) -> None:
    """Refuse tasks whose changes cannot be captured, before anything is written; tables in `besides` are left out."""
    if len(tasks):
        known = {row.plan.name: row for row in await engine.store.tasks.list()}
        ours = [one for one in tasks if _may_declare(one, known.get(one.task.name))]
        wanted = [one.interest(engine.store.dialect) for one in ours if one.task.definition.name not in besides]
        await engine.store.interests.check(wanted, engine.clock.now())


async def declare_tasks(engine: Engine, tasks: ReactiveTasks) -> None:
    """Make the tasks of a program known: the reader of planners first, then their capture, then the tasks.

    The former capture stays until the tasks are stored as declared here. If two releases start at once, the capture of
    the one that stored its tasks last stays.
    """
    store, now = engine.store, engine.clock.now()
    if not len(tasks):
        return
    declared: list[DeclaredTask] = list(tasks)
    is_new = await store.changes.register(READER, now)
    known = {row.plan.name: row for row in await store.tasks.list()}
    if is_new and known:  # somebody dropped the reader, and the changes since then are lost
        await look_at_all_rows(store, now)
    ours = [one for one in declared if _may_declare(one, known.get(one.task.name))]
    interests = [one.interest(store.dialect) for one in ours]
    await store.interests.declare(interests, now)
    rows = await store.tasks.declare([one.plan(store.dialect) for one in declared], now)
    engine.tasks = {row.plan.name: row for row in rows}
    engine.reactive = {one.function.name: one.task for one in declared}
    engine.journal.tasks = {row.id: row.plan.name for row in rows}
    for one in declared:
        if one.breaker is not None:
            engine.pauses.watch(engine.tasks[one.task.name].id, one.task.name, one.breaker)
    await store.interests.keep_declared(interests, now)


async def look_at_all_rows(store: Store, now: datetime) -> None:
    """Have all rows of all tasks looked at, also of tasks that are declared meanwhile."""
    while await store.tasks.plan([], None, now, from_the_beginning(await store.tasks.list())) is None:
        pass


def _may_declare(declared: DeclaredTask, known: TaskRow | None) -> bool:
    return known is None or known.plan.version <= declared.task.version
