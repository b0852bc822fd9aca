"""Looking after reactive tasks: list them and their rows, and change those that a filter picks.

These methods change jobs and records at rest, which a transaction of a function never does. Actions and programs call
them; they take effect at once, many rows in small steps. `selection` decides which rows a filter picks.
"""

from __future__ import annotations

import builtins
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from penstock.api.callers import for_programs
from penstock.api.tasks.explaining import explain
from penstock.api.tasks.selection import WHOLE, Act, Changed, Part, Selection, task_of
from penstock.api.tasks.views import TaskExplanation, TaskPage, TaskRecord, TaskStatus
from penstock.calls.enqueue.jobs import JobCalls
from penstock.errors import ValueInvalid
from penstock.observe.logs import event as log_event
from penstock.reactive.filter import ANYTHING, GONE, STATES, TaskFilter
from penstock.reactive.task import ReactiveTask
from penstock.store.contract.records import RecordState, RowKey
from penstock.store.contract.session import Session
from penstock.store.contract.tasks import from_the_beginning

Order = Literal["key", "due"]
Verb = Literal["retry", "cancel", "skip", "delete"]

MOST_COUNTED = 100_000
_MOST_LISTED = 10_000
_RELEASED_AT_ONCE = 1000
_ADMIN = "Reactive tasks are looked after"
_Where = TaskFilter[Any]


class TaskAdmin:
    """Lists and changes the tasks that a database knows, and their rows.

    The ctx is one of an action, or the backend of a program. With that of a mutation or a query each method raises
    `ContextError`. A task is named with or without its module; each method raises `TaskNotFound` if the database knows
    none of this name. A method that changes rows returns their number. It raises `UsageError` if its filter is empty
    and `everything` is not said.
    """

    def _own_tasks(self) -> Sequence[ReactiveTask]:
        """The tasks that this program declares."""
        raise NotImplementedError

    @for_programs(_ADMIN)
    async def list(self, calls: JobCalls) -> builtins.list[TaskStatus]:
        """All reactive tasks that the database knows, by name."""
        ours = {task.name for task in self._own_tasks()}
        backlog = {one.task: one for one in await calls.store.records.backlog(MOST_COUNTED)}
        now, found = calls.now(), []
        for row in await calls.store.tasks.list():
            work = backlog.get(row.id)
            found.append(
                TaskStatus(
                    name=row.plan.name,
                    table=row.plan.spec.table,
                    declared=row.plan.name in ours,
                    version=row.plan.version,
                    pool=row.plan.pool,
                    paused=row.paused,
                    held_until=row.held_until if row.held_until is not None and row.held_until > now else None,
                    reconciling=row.reconciling,
                    reconciled_at=row.reconciled_at,
                    ready=0 if work is None else work.ready,
                    scheduled=0 if work is None else work.scheduled,
                    running=0 if work is None else work.running,
                    failed=0 if work is None else work.failed,
                    oldest=None if work is None else work.oldest,
                )
            )
        return found

    @for_programs(_ADMIN)
    def records(
        self,
        calls: JobCalls,
        where: _Where = ANYTHING,
        *,
        limit: int = 50,
        after: str | None = None,
        order: Order = "key",
    ) -> Coroutine[Any, Any, TaskPage]:
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
        return self._records(calls, where, limit, after, order)

    @for_programs(_ADMIN)
    def count(self, calls: JobCalls, where: _Where = ANYTHING) -> Coroutine[Any, Any, Mapping[str, int]]:
        """How many rows of tasks a filter picks, by state; under ``"gone"`` how many of these are gone.

        It reads all records of the tasks. `list` tells how much is to be done, without that.
        """
        _check_filter(where)
        return self._count(calls, where)

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
        selection = await _select(calls, self._own_tasks(), TaskFilter(task=task, key=key))
        async for piece in selection.each():
            return selection.named(piece[0])
        return None

    @for_programs(_ADMIN)
    async def explain(self, calls: JobCalls, task: str, key: Any) -> TaskExplanation:
        """Why a task has run for a row, or has not. Print it to read it. Takes and raises what `find` does."""
        return await explain(calls, self._own_tasks(), task, key)

    @for_programs(_ADMIN)
    def retry(self, calls: JobCalls, where: _Where, *, everything: bool = False) -> Coroutine[Any, Any, int]:
        """Run rows of tasks again, whatever the outcome of their last runs.

        They are due now, and their attempts are counted anew. Their ctx says ``change == "manual"``, unless they were
        to be run as rows that had left or were deleted. Waiting runs start at once; running rows are run once more
        afterwards.
        """
        return self._change(calls, "retry", where, everything=everything)

    @for_programs(_ADMIN)
    def cancel(self, calls: JobCalls, where: _Where, *, everything: bool = False) -> Coroutine[Any, Any, int]:
        """Ask for the runs of rows to be canceled that have not ended.

        Pending ones never start, and running ones are asked to stop. A later change of the row is run, and so is one
        that came during the run.

        Raises:
            ValueInvalid: The filter is one of runs that have ended.
        """
        return self._change(calls, "cancel", where, everything=everything)

    @for_programs(_ADMIN)
    def skip(self, calls: JobCalls, where: _Where, *, everything: bool = False) -> Coroutine[Any, Any, int]:
        """End pending runs of rows as skipped, at once. The next change of a row is run.

        Raises:
            ValueInvalid: The filter is one of runs that are not pending.
        """
        return self._change(calls, "skip", where, everything=everything)

    @for_programs(_ADMIN)
    def delete(self, calls: JobCalls, where: _Where, *, everything: bool = False) -> Coroutine[Any, Any, int]:
        """Delete the records of rows with their runs. The rows themselves are left alone.

        Pending runs are canceled first. Running ones are asked to stop, and their records stay: delete again when they
        have ended. A row without a record is new for its task. It is run at its next change, or when all rows are
        looked at.
        """
        return self._change(calls, "delete", where, everything=everything)

    @for_programs(_ADMIN)
    async def pause(self, calls: JobCalls, task: str) -> None:
        """Start no runs of a task any more, on all machines and over restarts, until `resume`.

        Running ones go on, and changes meanwhile are remembered.
        """
        await pause(calls, task)

    @for_programs(_ADMIN)
    async def resume(self, calls: JobCalls, task: str) -> int:
        """Start runs of a task again; how many that were put off are due now."""
        return (await resume(calls, task)).runs

    @for_programs(_ADMIN)
    async def reconcile(self, calls: JobCalls, task: str) -> None:
        """Have planners look at all rows of a task from the beginning, as for a new task; `list` tells how far it is.

        They begin within some seconds, and work piece by piece. They run rows that match and were not run as they are
        now, and note rows that are gone. Do it after rows were written while triggers were off.
        """
        await reconcile(calls, task)

    # ----- steps; a filter is checked before anybody awaits

    async def _records(self, calls: JobCalls, where: _Where, limit: int, after: str | None, order: Order) -> TaskPage:
        if type(limit) is not int or not 1 <= limit <= _MOST_LISTED:
            raise ValueInvalid(f"limit is an integer from 1 to {_MOST_LISTED}, not {limit!r}.")
        if order not in {"key", "due"}:
            raise ValueInvalid(f"order is 'key' or 'due', not {order!r}.")
        selection = await _select(calls, self._own_tasks(), where)
        return await selection.page(limit, after, by_due=order == "due")

    async def _count(self, calls: JobCalls, where: _Where) -> Mapping[str, int]:
        selection, found = await _select(calls, self._own_tasks(), where), Counter[str]()

        async def count(session: Session) -> None:
            for one in await calls.store.records.count(session, selection.query):
                found.update({one.state: one.number, GONE: one.gone})

        if selection.is_plain:
            await calls.read(count)
        else:
            async for piece in selection.each():
                found.update(one.state or "lost" for one in piece)
                found[GONE] += sum(one.gone is not None for one in piece)
        states = (*STATES, *sorted(found.keys() - {*STATES}))
        return {state: found[state] for state in states if found[state]}

    def _change(self, calls: JobCalls, verb: Verb, where: _Where, *, everything: bool) -> Coroutine[Any, Any, int]:
        _check_filter(where)
        where.check_meant(verb, everything=everything)
        where = _changeable(verb, where)

        async def change() -> int:
            return (await change_rows(calls, self._own_tasks(), verb, where)).changed

        return change()


# ----- what the admin interface calls as well


@dataclass(frozen=True, slots=True)
class Resumed:
    """A resumed task: its whole name, how many postponed runs are due now, and whether there may be more."""

    task: str
    runs: int
    more: bool


async def change_rows(
    calls: JobCalls, own: Sequence[ReactiveTask], verb: Verb, where: _Where, part: Part = WHOLE
) -> Changed:
    """Change the rows that a filter picks among the tasks of the database: all of them, or a part."""
    where = _changeable(verb, where)
    done = await (await _select(calls, own, where)).act(_act(calls, verb, where), part)
    task, rows = ",".join(where.tasks or ()), done.changed
    match verb:
        case "retry":
            log_event("task.retried", task=task, rows=rows)
        case "cancel":
            log_event("task.canceled", task=task, rows=rows)
        case "skip":
            log_event("task.skipped", task=task, rows=rows)
        case "delete":
            log_event("task.deleted", task=task, rows=rows)
    return done


async def pause(calls: JobCalls, name: str) -> str:
    """Let none of a task's runs start; its whole name."""
    task = task_of(await calls.store.tasks.list(), name).plan.name
    await calls.store.tasks.pause(task, paused=True)
    calls.store.signals.notify()
    log_event("task.paused", task=task)
    return task


async def resume(calls: JobCalls, name: str, limit: int | None = None) -> Resumed:
    """Let a task's runs start again; of those that were put off all are due now, or some."""
    task, runs = task_of(await calls.store.tasks.list(), name), 0
    await calls.store.tasks.pause(task.plan.name, paused=False)
    more = True
    while more and (limit is None or runs < limit):
        at_once = _RELEASED_AT_ONCE if limit is None else min(limit - runs, _RELEASED_AT_ONCE)
        released = await calls.store.tasks.release(task.id, calls.now(), at_once)
        runs, more = runs + released, released == at_once
        calls.store.signals.notify()
    log_event("task.resumed", task=task.plan.name, runs=runs)
    return Resumed(task.plan.name, runs, more)


async def reconcile(calls: JobCalls, name: str) -> str:
    """Have planners look at all rows of a task from the beginning; its whole name."""
    while True:
        task = task_of(await calls.store.tasks.list(), name)
        if await calls.store.tasks.plan([], None, calls.now(), from_the_beginning([task])) is not None:
            break
    calls.engine.look.set()
    calls.store.signals.notify()
    log_event("task.reconcile_asked", task=task.plan.name)
    return task.plan.name


# ----- steps


def _check_filter(given: object) -> None:
    if not isinstance(given, TaskFilter):
        raise ValueInvalid(f"Rows of tasks are picked by a TaskFilter, not {given!r}.", fix="Write TaskFilter(task=…).")


async def _select(calls: JobCalls, own: Sequence[ReactiveTask], where: _Where) -> Selection:
    definitions = {task.definition.name: task.definition for task in own}
    return Selection(calls, where, await calls.store.tasks.list(), definitions)


def _changeable(verb: Verb, where: _Where) -> _Where:
    """A filter without the rows about which a verb can do nothing; `ValueInvalid` if it asks for these."""
    match verb:
        case "cancel":
            return where.in_states("pending", "running", verb="canceled")
        case "skip":
            return where.in_states("pending", verb="skipped")
    return where


def _act(calls: JobCalls, verb: Verb, where: _Where) -> Act:
    """The change of a verb to a piece of rows."""
    records = calls.store.records
    states = None if where.states is None or GONE in where.states else where.states  # they must still be in

    async def write(once: Callable[[], Awaitable[Sequence[RowKey]]]) -> int:
        return len(await calls.runner.attempt(once, "Looking after reactive tasks"))

    async def act(piece: Sequence[RecordState]) -> int:
        rows = [(one.task, one.key) for one in piece]
        match verb:
            case "retry":
                return await write(lambda: records.rerun(rows, calls.now(), states))
            case "cancel":
                await calls.cancel([one.job for one in piece])
                return len(piece)
            case "skip":
                return await write(lambda: records.skip(rows, calls.now()))
            case "delete":
                return await write(lambda: records.delete(rows, calls.now()))

    return act
