"""Reactive tasks of an app: declare them, list them and their rows, and change rows that a filter picks.

Owns the options of a declaration and their checks. `reactive/planning` decides what a change calls for, and
`services/planner/planner` writes it. Methods that look after tasks change jobs and records at rest, which a transaction
of a function never does. `selection` decides which rows a filter picks.
"""

from __future__ import annotations

import builtins
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict, TypeVar, Unpack

from penstock.api.callers import for_programs
from penstock.api.declaring import TaskDecorator, check_options
from penstock.api.pools.workpool import Workpool
from penstock.api.tasks import selection
from penstock.api.tasks.explaining import explain
from penstock.api.tasks.views import TaskExplanation, TaskPage, TaskRecord, TaskStatus, look_at
from penstock.api.use import Use
from penstock.calls.enqueue.jobs import JobCalls
from penstock.calls.handlers.taskhandlers import task_function
from penstock.calls.handlers.taskrun import TaskCall
from penstock.calls.run.ctxkinds import refuse_bare, task_ctx_of
from penstock.calls.run.engine import Engine
from penstock.changes.interest import Interest
from penstock.config import FOR_EVER
from penstock.dataclass import dataclass
from penstock.errors import DeclarationError, ValueInvalid
from penstock.functions.batch import LARGEST_BATCH, LONGEST_LINGER, Batch
from penstock.functions.component import Component
from penstock.functions.function import ActionFunction, AnyFunction, MutationFunction, name_of
from penstock.functions.registry import Registry
from penstock.jobs.filter import check_limit
from penstock.jobs.job import DEFAULT_POOL, Options
from penstock.jobs.retry import Retry
from penstock.reactive.filter import ANYTHING, GONE, STATES, TaskFilter
from penstock.reactive.task import (
    DEFAULT_ON,
    LONGEST_WAIT,
    Cause,
    CircuitBreaker,
    Cleanup,
    OnVersionChange,
    ReactiveTask,
    interest_name,
    spec_of,
)
from penstock.reactive.tracing import RowFilter, RowWatch, trace_filter, trace_watch
from penstock.schema.table import Table, TableDefinition, definition_of
from penstock.store.nouns.tasks import TaskPlan, TaskRow, from_the_beginning
from penstock.store.session import Session
from penstock.store.sql.conditions import condition_sql, watch_sql
from penstock.store.sql.dialect import Dialect
from penstock.store.store import Store

T = TypeVar("T", bound=Table)

_ROW = "{row}"
READER = "tasks"
Order = Literal["key", "due"]
MOST_COUNTED = 100_000
_ADMIN = "Reactive tasks are looked after"
_Where = TaskFilter[Any]
RETRY = Retry(max_attempts=5, initial_backoff=10.0, base=2.0, max_backoff=86_400.0)
_OF_TASK = (
    "debounce", "max_wait", "run_at", "key", "priority", "history", "cleanup", "keep_for", "version",
    "on_version_change",
)  # fmt: skip


class TaskOptions(TypedDict, total=False):
    """The options of a reactive task; see `ReactiveTasks.reactive_task`."""

    on: Sequence[Cause]
    name: str | None
    debounce: timedelta
    max_wait: timedelta | None
    retry: Retry | None
    reset_retries_on_data_change: bool
    timeout: timedelta | None
    pool: Workpool | None
    priority: int
    key: str | None
    run_at: str | None
    history: int
    cleanup: Cleanup
    keep_for: timedelta
    version: int
    on_version_change: OnVersionChange
    reconcile_on_trigger_change: bool
    batch: int | None
    linger: timedelta
    breaker: CircuitBreaker | None


@dataclass(frozen=True, slots=True)
class DeclaredTask:
    """A task with the function that its jobs run, and the options of these jobs."""

    task: ReactiveTask
    function: AnyFunction
    options: Options
    handler: Any
    asked: TaskOptions
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


class ReactiveTasks:
    """Declares the reactive tasks of an app; lists and changes the tasks of a database, and their rows.

    Methods that look after tasks take the ctx of an action, or the backend of a program. With that of a mutation or a
    query each of them raises `ContextError`. A task is named with or without its module; each of them raises
    `TaskNotFound` if the database knows none of this name. A method that changes rows returns their number. It raises
    `UsageError` if its filter is empty and `everything` is not said.
    """

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
                ``reset_retries_on_data_change``: whether attempts are counted from zero when the row has changed.
                ``timeout``: how long an attempt may take, up to a year; as long as it takes by default.
                ``pool``: the workpool whose limits it shares; none by default.
                ``priority``: those with a higher one start first; from -32,000 to 32,000, 0 by default.
                ``key``: a column: rows with the same value in it are run one at a time, in the order of their changes.
                One that is to be tried again keeps the next ones waiting. It takes a pool with ``key_parallelism=1``.
                ``run_at``: a column of points in time, at which rows are run, and which may change until then; a row
                without one is not run.
                ``history``: how many runs before the last one are kept with each row, five by default. Of the last one
                the attempts that failed are always kept.
                ``cleanup``: when the record of a row is forgotten: ``"source_deleted"``, once the row is gone;
                ``"source_deleted_or_no_longer_matching"``, also if it matches no more; or ``"never"``.
                ``keep_for``: how long after that; a day by default.
                ``version``: of the handler.
                ``on_version_change``: the rows to run again when a higher version is declared: ``"none"``,
                ``"reprocess_failed"`` or ``"reprocess_all"``.
                ``reconcile_on_trigger_change``: whether all rows are looked at again when filter or watch have changed.
                ``batch``: how many rows one call of the handler takes at most, with a `TaskBatchCtx`; one by default.
                ``linger``: how long the first row of a batch waits for more; not at all by default.
                ``breaker``: a `CircuitBreaker`, which holds the task when too many of its runs fail; none by default.

        Raises:
            DeclarationError: At import: the filter, the watch or an option is invalid, the name is taken, or the
                handler's ctx is none of a reactive task.
        """
        refuse_bare("reactive_task", table, "Order")

        def decorate(handler: Any) -> Any:
            given, definition = _arguments_of(options, name_of(handler)), _definition(table, handler)
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

    def adopt(self, tasks: ReactiveTasks, use: Use) -> None:
        """Declare the tasks of a component."""
        for one in tasks:
            definition, pool = use.definition(one.task.definition), use.pool_name(one.task.pool)
            name = use.name("task", one.task.name, self._declared)
            task = replace(one.task, name=name, definition=definition, pool=pool)
            self._add(task, one.handler, one.asked, use.components[one.function.component])

    # ----- look after

    @for_programs(_ADMIN)
    async def list(self, calls: JobCalls) -> builtins.list[TaskStatus]:
        """All reactive tasks that the database knows, by name."""
        return await look_at(calls.store, calls.now(), self._declared, MOST_COUNTED)

    @for_programs(_ADMIN)
    async def records(
        self,
        calls: JobCalls,
        where: _Where = ANYTHING,
        *,
        limit: int = 50,
        after: str | None = None,
        order: Order = "key",
    ) -> TaskPage:
        """Rows of tasks that a filter picks, with the state of their runs; a page of them.

        Args:
            where: The filter; all rows by default.
            limit: How many at once. If the filter has `rows`, the page looks at so many of them.
            after: `next` of the page before.
            order: ``"key"``, by task and key; or ``"due"``, the run that is due first comes first, and rows without a
                run last. That sorts all rows of the filter.

        Raises:
            CursorInvalid: `after` comes from no page.
            DeclarationError: The filter has a function of rows that cannot be translated.
        """
        _check_filter(where)
        check_limit(limit)
        if order not in {"key", "due"}:
            raise ValueInvalid(f"order is 'key' or 'due', not {order!r}.")
        picked = await selection.select(calls, self._own_tasks(), where)
        return await picked.page(limit, after, by_due=order == "due")

    @for_programs(_ADMIN)
    async def count(self, calls: JobCalls, where: _Where = ANYTHING) -> Mapping[str, int]:
        """How many rows of tasks a filter picks, by state; under ``"gone"`` how many of these are gone.

        It reads all records of the tasks. `list` tells how much is to be done, without that.
        """
        _check_filter(where)
        picked, found = await selection.select(calls, self._own_tasks(), where), Counter[str]()

        async def count(session: Session) -> None:
            for one in await calls.store.records.count(session, picked.query):
                found.update({one.state: one.number, GONE: one.gone})

        if picked.is_plain:
            await calls.read(count)
        else:
            async for piece in picked.each():
                found.update(one.state or "lost" for one in piece)
                found[GONE] += sum(one.gone is not None for one in piece)
        states = (*STATES, *sorted(found.keys() - {*STATES}))
        return {state: found[state] for state in states if found[state]}

    @for_programs(_ADMIN)
    async def find(self, calls: JobCalls, task: str, key: Any) -> TaskRecord | None:
        """The record of a row; None if the task has not heard of the row.

        Args:
            task: The name of the task.
            key: The id of the row, or its key in a table that another program owns; also as text. A key of several
                columns is a tuple, or as text a JSON array.

        Raises:
            IdInvalid: It is no id of the task's table.
        """
        picked = await selection.select(calls, self._own_tasks(), TaskFilter(task=task, key=key))
        async for piece in picked.each():
            return picked.name_record(piece[0])
        return None

    @for_programs(_ADMIN)
    async def explain(self, calls: JobCalls, task: str, key: Any) -> TaskExplanation:
        """Why a task has run for a row, or has not; print it. Arguments and errors: `find`."""
        return await explain(calls, self._own_tasks(), task, key)

    @for_programs(_ADMIN)
    async def retry(self, calls: JobCalls, where: _Where, *, everything: bool = False) -> int:
        """Run rows of tasks again, whatever the outcome of their last runs.

        They are due now, and their attempts are counted from zero. Their ctx says ``change == "manual"``, unless they
        were to be run as rows that had left or were deleted. Waiting runs start at once; running rows are run once more
        afterwards.
        """
        return await self._change(calls, "retry", where, everything=everything)

    @for_programs(_ADMIN)
    async def cancel(self, calls: JobCalls, where: _Where, *, everything: bool = False) -> int:
        """Ask for the runs of rows to be canceled that have not ended.

        Pending ones never start, and running ones are asked to stop. A later change of the row is run, and so is one
        that came during the run.

        Raises:
            ValueInvalid: The filter is one of runs that have ended.
        """
        return await self._change(calls, "cancel", where, everything=everything)

    @for_programs(_ADMIN)
    async def skip(self, calls: JobCalls, where: _Where, *, everything: bool = False) -> int:
        """End pending runs of rows as skipped, at once. The next change of a row is run.

        Raises:
            ValueInvalid: The filter is one of runs that are not pending.
        """
        return await self._change(calls, "skip", where, everything=everything)

    @for_programs(_ADMIN)
    async def delete(self, calls: JobCalls, where: _Where, *, everything: bool = False) -> int:
        """Delete the records of rows with their runs. The rows themselves are left alone.

        Pending runs are canceled first. Running ones are asked to stop, and their records stay: delete again when they
        have ended. A row without a record is new for its task. It is run at its next change, or when all rows are
        looked at.
        """
        return await self._change(calls, "delete", where, everything=everything)

    @for_programs(_ADMIN)
    async def pause(self, calls: JobCalls, task: str) -> None:
        """Start no runs of a task any more, on all machines and over restarts, until `resume`.

        Running ones go on, and changes meanwhile are remembered.
        """
        await selection.pause(calls, task)

    @for_programs(_ADMIN)
    async def resume(self, calls: JobCalls, task: str) -> int:
        """Start runs of a task again; how many that were put off are due now."""
        return (await selection.resume(calls, task)).runs

    @for_programs(_ADMIN)
    async def reconcile(self, calls: JobCalls, task: str) -> None:
        """Have planners look at all rows of a task from the beginning, as for a new task; `list` shows the progress.

        They begin within some seconds, and work piece by piece. They run rows that match and were not run as they are
        now, and note rows that are gone. Do it after rows were written while triggers were off.
        """
        await selection.reconcile(calls, task)

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

    def _add(self, task: ReactiveTask, handler: Any, options: TaskOptions, component: Component | None = None) -> Any:
        word, name = task_ctx_of(handler, task.definition.row_type), name_of(handler)
        size = options.get("batch")
        if (size is not None) is not word.endswith("BatchCtx"):
            raise DeclarationError(
                f"Reactive task {task.name!r}: {name} takes a {word}, and batch={size}.",
                fix="A task with batch= takes a TaskBatchCtx or a SyncTaskBatchCtx, and no other task does. Mutations "
                "share transactions by themselves.",
            )
        run, batch = task_function(task, handler, batched=size is not None), None
        if size is not None:
            batch = Batch(run, size, TaskCall, options.get("linger", timedelta(0)), with_attempts=True)
        elif "linger" in options:
            raise DeclarationError(f"Reactive task {task.name!r}: linger needs batch=.")
        kind: type[AnyFunction] = MutationFunction if "Mutation" in word else ActionFunction
        function = kind(run, public=False, name=name, batch=batch)
        function.version = task.version
        if component is not None:
            function = function.within(component, component.prefix(name), None, public=False)
        self._registry.add(function)
        timeout = options.get("timeout")
        asked = Options(
            retry=options.get("retry", RETRY),
            timeout=None if timeout is None else timeout.total_seconds(),
            keep=FOR_EVER.total_seconds(),
            program=self._registry.program or None,
        )
        self._declared[task.name] = DeclaredTask(task, function, asked, handler, options, options.get("breaker"))
        return handler

    async def _change(self, calls: JobCalls, verb: selection.Verb, where: _Where, *, everything: bool) -> int:
        _check_filter(where)
        where.check_meant(verb, everything=everything)
        return (await selection.change_rows(calls, self._own_tasks(), verb, where)).changed


def _arguments_of(options: TaskOptions, handler: str) -> dict[str, Any]:
    """The options as `ReactiveTask` takes them; the name of the handler is that of the task by default."""
    check_options("@app.reactive_task", options, TaskOptions)
    given: dict[str, Any] = {word: options[word] for word in _OF_TASK if word in options}  # type: ignore[literal-required]
    name = options.get("name")
    given["name"] = handler if name is None else name
    for word, (allowed, words) in _OTHERS.items():
        value: Any = options.get(word)
        if word in options and not (allowed(value) or (value is None and "None" in words)):
            raise DeclarationError(f"Reactive task {given['name']!r}: {word} is {words}, not {value!r}.")
    on: Any = options.get("on", DEFAULT_ON)
    if isinstance(on, (set, frozenset)):
        on = sorted(on, key=str)
    given["on"] = tuple(on) if isinstance(on, list) else on
    pool = options.get("pool")
    given["pool"] = DEFAULT_POOL if pool is None else pool.name
    given["resets"] = options.get("reset_retries_on_data_change", True)
    given["reconciles"] = options.get("reconcile_on_trigger_change", True)
    return given


def _is_time(value: Any, longest: timedelta) -> bool:
    return isinstance(value, timedelta) and timedelta(0) <= value <= longest


_OTHERS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "retry": (lambda value: isinstance(value, Retry), "a Retry or None"),
    "timeout": (
        lambda value: _is_time(value, LONGEST_WAIT) and bool(value),
        "None or a timedelta greater than 0, up to a year",
    ),
    "pool": (lambda value: isinstance(value, Workpool), "a workpool of the app or None"),
    "batch": (
        lambda value: type(value) is int and 1 <= value <= LARGEST_BATCH,
        f"None or an integer from 1 to {LARGEST_BATCH:,}",
    ),
    "linger": (lambda value: _is_time(value, LONGEST_LINGER), "a timedelta from 0 to a minute"),
    "breaker": (lambda value: isinstance(value, CircuitBreaker), "a CircuitBreaker or None"),
}


def _check_filter(given: object) -> None:
    if not isinstance(given, TaskFilter):
        raise ValueInvalid(f"Rows of tasks are picked by a TaskFilter, not {given!r}.", fix="Write TaskFilter(task=…).")


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
    engine.journal.tables = {one.function.name: one.task.definition.name for one in declared}
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
