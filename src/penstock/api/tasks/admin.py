"""Looking after reactive tasks: listing them and their rows, and what may be done about these.

Owns the words. They change jobs and records at rest, which a transaction of a function never does: they are used in
actions and by programs, and take effect at once, many rows in small steps.
"""

from __future__ import annotations

import builtins
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from penstock.api.tasks.changes import Verb, change_rows, meant, pause, pieces_of, reconcile, resume
from penstock.api.tasks.explaining import explain
from penstock.api.tasks.selection import Pieces
from penstock.api.tasks.views import TaskExplanation, TaskPage, TaskRecord, TaskStatus
from penstock.calls.enqueue.jobs import JobCalls, calls_of
from penstock.errors import ValueInvalid
from penstock.reactive.filter import ANYTHING, GONE, STATES, TaskFilter
from penstock.reactive.task import ReactiveTask
from penstock.store.contract.session import Session

if TYPE_CHECKING:
    from penstock.api.callers import AsyncWaiter, SyncWaiter

Order = Literal["key", "due"]

MOST_COUNTED = 100_000
_MOST_LISTED = 10_000
_Where = TaskFilter[Any]


class TaskCare:
    """What may be done about the tasks that a database knows, and about their rows."""

    def _own_tasks(self) -> Sequence[ReactiveTask]:
        """Those that this program declares."""
        raise NotImplementedError

    @overload
    def list(self, ctx: AsyncWaiter) -> Coroutine[Any, Any, builtins.list[TaskStatus]]: ...
    @overload
    def list(self, ctx: SyncWaiter) -> builtins.list[TaskStatus]: ...
    def list(self, ctx: Any) -> Any:
        """All reactive tasks that the database knows, by name.

        Args:
            ctx: The ctx of an action, or the backend of a program.

        Raises:
            ContextError: The ctx is one of a mutation or a query.
        """
        calls = _calls(ctx)
        return calls.answer(self._list(calls))

    @overload
    def records(
        self, ctx: AsyncWaiter, where: _Where = ..., *, limit: int = ..., after: str | None = ..., order: Order = ...
    ) -> Coroutine[Any, Any, TaskPage]: ...
    @overload
    def records(
        self, ctx: SyncWaiter, where: _Where = ..., *, limit: int = ..., after: str | None = ..., order: Order = ...
    ) -> TaskPage: ...
    def records(
        self,
        ctx: Any,
        where: _Where = ANYTHING,
        *,
        limit: int = 50,
        after: str | None = None,
        order: Order = "key",
    ) -> Any:
        """Rows of tasks that meet a filter, and how their runs stand; some at a time.

        Args:
            ctx: As for `list`.
            where: The filter; all rows by default.
            limit: How many at once. With a filter that has `rows`, a page holds what is kept of so many of them.
            after: `next` of the page before.
            order: ``"key"``, by task and key; or ``"due"``, those first whose run is due first, and those last that
                have none, which sorts all that meet the filter.

        Raises:
            TaskNotFound: The database knows no task of this name.
            CursorInvalid: `after` is not what a page has given.
            DeclarationError: The filter has a function of rows that cannot be translated.
        """
        _check_filter(where)
        calls = _calls(ctx)
        return calls.answer(self._records(calls, where, limit, after, order))

    @overload
    def count(self, ctx: AsyncWaiter, where: _Where = ...) -> Coroutine[Any, Any, Mapping[str, int]]: ...
    @overload
    def count(self, ctx: SyncWaiter, where: _Where = ...) -> Mapping[str, int]: ...
    def count(self, ctx: Any, where: _Where = ANYTHING) -> Any:
        """How many rows of tasks meet a filter, by state; under ``"gone"`` how many of these are gone.

        It reads all records of the tasks; `list` tells of what is to be done without that.
        """
        _check_filter(where)
        calls = _calls(ctx)
        return calls.answer(self._count(calls, where))

    @overload
    def find(self, ctx: AsyncWaiter, task: str, key: Any) -> Coroutine[Any, Any, TaskRecord | None]: ...
    @overload
    def find(self, ctx: SyncWaiter, task: str, key: Any) -> TaskRecord | None: ...
    def find(self, ctx: Any, task: str, key: Any) -> Any:
        """How a row of a task stands; None if the task has not heard of it.

        Args:
            ctx: As for `list`.
            task: The name of the task, with or without its module.
            key: The id of the row, or its key in a table that another program owns; as text, too. A key of several
                columns is a tuple, and as text an array of JSON.

        Raises:
            TaskNotFound: The database knows no task of this name.
            IdInvalid: It is no id of the task's table.
        """
        calls = _calls(ctx)
        return calls.answer(self._find(calls, task, key))

    @overload
    def explain(self, ctx: AsyncWaiter, task: str, key: Any) -> Coroutine[Any, Any, TaskExplanation]: ...
    @overload
    def explain(self, ctx: SyncWaiter, task: str, key: Any) -> TaskExplanation: ...
    def explain(self, ctx: Any, task: str, key: Any) -> Any:
        """Why a task has run for a row, or has not. Print it to read it.

        Args:
            ctx: As for `list`.
            task: The name of the task.
            key: As for `find`.

        Raises:
            TaskNotFound: The database knows no task of this name.
            IdInvalid: It is no id of the task's table.
        """
        calls = _calls(ctx)
        return calls.answer(explain(calls, self._own_tasks(), task, key))

    @overload
    def retry(self, ctx: AsyncWaiter, where: _Where, *, everything: bool = ...) -> Coroutine[Any, Any, int]: ...
    @overload
    def retry(self, ctx: SyncWaiter, where: _Where, *, everything: bool = ...) -> int: ...
    def retry(self, ctx: Any, where: _Where, *, everything: bool = False) -> Any:
        """Run rows of tasks again, whatever became of their last runs; how many.

        They are due now, their attempts are counted anew, and their ctx says ``change == "manual"``, unless they were
        to be run as rows that had left or were deleted. Of those whose last runs wait, these are run at once; those
        that are being run are run once more afterwards.

        Args:
            ctx: As for `list`.
            where: Which.
            everything: Whether an empty filter is meant so: all rows of all tasks.

        Raises:
            UsageError: The filter is empty, and that is not meant.
            TaskNotFound: The database knows no task of this name.
        """
        return self._change(ctx, "retry", where, everything=everything)

    @overload
    def cancel(self, ctx: AsyncWaiter, where: _Where, *, everything: bool = ...) -> Coroutine[Any, Any, int]: ...
    @overload
    def cancel(self, ctx: SyncWaiter, where: _Where, *, everything: bool = ...) -> int: ...
    def cancel(self, ctx: Any, where: _Where, *, everything: bool = False) -> Any:
        """Ask for the runs of rows to be canceled that have not ended; how many.

        Pending ones never start, and running ones are asked to stop. A change of the row that comes later, or that came
        while one ran, is run.

        Raises:
            UsageError: The filter is empty, and `everything` is not said.
            ValueInvalid: It is one of runs that have ended.
        """
        return self._change(ctx, "cancel", where, everything=everything)

    @overload
    def skip(self, ctx: AsyncWaiter, where: _Where, *, everything: bool = ...) -> Coroutine[Any, Any, int]: ...
    @overload
    def skip(self, ctx: SyncWaiter, where: _Where, *, everything: bool = ...) -> int: ...
    def skip(self, ctx: Any, where: _Where, *, everything: bool = False) -> Any:
        """End pending runs of rows as skipped, at once; how many. The next change of a row is run.

        Raises:
            UsageError: The filter is empty, and `everything` is not said.
            ValueInvalid: It is one of runs that are not pending.
        """
        return self._change(ctx, "skip", where, everything=everything)

    @overload
    def delete(self, ctx: AsyncWaiter, where: _Where, *, everything: bool = ...) -> Coroutine[Any, Any, int]: ...
    @overload
    def delete(self, ctx: SyncWaiter, where: _Where, *, everything: bool = ...) -> int: ...
    def delete(self, ctx: Any, where: _Where, *, everything: bool = False) -> Any:
        """Forget what is kept of rows, with their runs; of how many. The rows themselves are left alone.

        Pending runs are canceled first. Those that are under way are asked to stop, and what is kept of these rows is
        not forgotten yet: do it again when they have ended. A row of which nothing is kept is a new one for its task,
        which runs it at its next change, or when all rows are looked at.

        Raises:
            UsageError: The filter is empty, and `everything` is not said.
        """
        return self._change(ctx, "delete", where, everything=everything)

    @overload
    def pause(self, ctx: AsyncWaiter, task: str) -> Coroutine[Any, Any, None]: ...
    @overload
    def pause(self, ctx: SyncWaiter, task: str) -> None: ...
    def pause(self, ctx: Any, task: str) -> Any:
        """Start no runs of a task any more, on all machines and over restarts, until `resume`.

        Those under way go on, and what changes meanwhile is remembered.

        Raises:
            TaskNotFound: The database knows no task of this name.
        """
        calls = _calls(ctx)
        return calls.answer(_nothing(pause(calls, task)))

    @overload
    def resume(self, ctx: AsyncWaiter, task: str) -> Coroutine[Any, Any, int]: ...
    @overload
    def resume(self, ctx: SyncWaiter, task: str) -> int: ...
    def resume(self, ctx: Any, task: str) -> Any:
        """Start runs of a task again; how many that were put off are due now.

        Raises:
            TaskNotFound: The database knows no task of this name.
        """
        calls = _calls(ctx)
        return calls.answer(self._resume(calls, task))

    @overload
    def reconcile(self, ctx: AsyncWaiter, task: str) -> Coroutine[Any, Any, None]: ...
    @overload
    def reconcile(self, ctx: SyncWaiter, task: str) -> None: ...
    def reconcile(self, ctx: Any, task: str) -> Any:
        """Have all rows of a task looked at, from the beginning, as for a new task; `list` tells how far that has come.

        Planners do it, piece by piece, and begin within some seconds. Rows that match and were not run as they are now
        are run, and rows that are gone are noted. Do it after rows were written while triggers were off.

        Raises:
            TaskNotFound: The database knows no task of this name.
        """
        calls = _calls(ctx)
        return calls.answer(_nothing(reconcile(calls, task)))

    # ----- steps

    async def _pieces(self, calls: JobCalls, where: _Where) -> Pieces:
        return await pieces_of(calls, self._own_tasks(), where)

    def _change(self, ctx: Any, verb: Verb, where: _Where, *, everything: bool) -> Any:
        _check_filter(where)
        where.check_meant(verb, everything=everything)
        where, calls = meant(verb, where), _calls(ctx)

        async def change() -> int:
            return (await change_rows(calls, self._own_tasks(), verb, where)).changed

        return calls.answer(change())

    async def _list(self, calls: JobCalls) -> builtins.list[TaskStatus]:
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

    async def _records(self, calls: JobCalls, where: _Where, limit: int, after: str | None, order: Order) -> TaskPage:
        if type(limit) is not int or not 1 <= limit <= _MOST_LISTED:
            raise ValueInvalid(f"limit is an integer from 1 to {_MOST_LISTED}, not {limit!r}.")
        if order not in {"key", "due"}:
            raise ValueInvalid(f"order is 'key' or 'due', not {order!r}.")
        pieces = await self._pieces(calls, where)
        return await pieces.page(limit, after, by_due=order == "due")

    async def _count(self, calls: JobCalls, where: _Where) -> Mapping[str, int]:
        pieces, found = await self._pieces(calls, where), Counter[str]()

        async def count(session: Any) -> None:
            reading: Session = session
            for one in await calls.store.records.count(reading, pieces.query):
                found.update({one.state: one.number, GONE: one.gone})

        if pieces.is_plain:
            await calls.read(count)
        else:
            async for piece in pieces.each():
                found.update(one.state or "lost" for one in piece)
                found[GONE] += sum(one.gone is not None for one in piece)
        states = (*STATES, *sorted(found.keys() - {*STATES}))
        return {state: found[state] for state in states if found[state]}

    async def _find(self, calls: JobCalls, task: str, key: Any) -> TaskRecord | None:
        pieces = await self._pieces(calls, TaskFilter(task=task, key=key))
        async for piece in pieces.each():
            return pieces.named(piece[0])
        return None

    async def _resume(self, calls: JobCalls, name: str) -> int:
        return (await resume(calls, name)).runs


def _check_filter(given: object) -> None:
    if not isinstance(given, TaskFilter):
        raise ValueInvalid(f"Rows of tasks are picked by a TaskFilter, not {given!r}.", fix="Write TaskFilter(task=…).")


async def _nothing(done: Coroutine[Any, Any, str]) -> None:
    await done


def _calls(ctx: Any) -> JobCalls:
    calls = calls_of(ctx)
    calls.check_outside("Reactive tasks are looked after")
    return calls
