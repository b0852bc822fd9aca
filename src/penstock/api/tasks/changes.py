"""What is done about reactive tasks and their rows: to all rows that a filter picks, or to some of them at a time.

Owns each verb: what it does to a piece of rows, and how that is told. Leaves the words to `admin`, and which rows
are meant to `selection`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from penstock.api.tasks.selection import WHOLE, Act, Changed, Part, Pieces, states_to_check, task_of
from penstock.calls.enqueue.jobs import JobCalls
from penstock.calls.run.attempts import Attempts
from penstock.observe.logs import event as log_event
from penstock.reactive.filter import TaskFilter
from penstock.reactive.task import ReactiveTask
from penstock.store.contract.records import RecordState, RowKey
from penstock.store.contract.tasks import from_the_beginning

Verb = Literal["retry", "cancel", "skip", "delete"]

_RELEASED_AT_ONCE = 1000
_Where = TaskFilter[Any]


@dataclass(frozen=True, slots=True)
class Resumed:
    """What became of a task that runs again.

    Attributes:
        task: Its name.
        runs: How many runs that were put off are due now.
        more: Whether there may be more that were put off.
    """

    task: str
    runs: int
    more: bool


def meant(verb: Verb, where: _Where) -> _Where:
    """A filter without the rows about which a verb can do nothing.

    Raises:
        ValueInvalid: It asks for these.
    """
    match verb:
        case "cancel":
            return where.in_states("pending", "running", verb="canceled")
        case "skip":
            return where.in_states("pending", verb="skipped")
    return where


async def change_rows(
    calls: JobCalls, own: Sequence[ReactiveTask], verb: Verb, where: _Where, part: Part = WHOLE
) -> Changed:
    """Do something about the rows that a filter picks: about all of them, or a part.

    Args:
        calls: By whom it is asked for.
        own: The tasks that this program declares.
        verb: What is done.
        where: The filter.
        part: Which part, and where it begins.

    Raises:
        DataError: The database knows no task of this name.
        CursorInvalid: The part begins at no place in such a list.
        ValueInvalid: The filter asks for rows about which the verb can do nothing.
    """
    where = meant(verb, where)
    found = await (await pieces_of(calls, own, where)).act(_act(calls, verb, where), part)
    _tell(verb, where, found.changed)
    return found


async def pieces_of(calls: JobCalls, own: Sequence[ReactiveTask], where: _Where) -> Pieces:
    """The rows that a filter picks."""
    definitions = {task.definition.name: task.definition for task in own}
    return Pieces(calls, where, await calls.store.tasks.list(), definitions)


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


# ----- pieces


def _act(calls: JobCalls, verb: Verb, where: _Where) -> Act:
    match verb:
        case "retry":
            return partial(_rerun, calls, states_to_check(where))
        case "cancel":
            return partial(_cancel, calls)
        case "skip":
            return partial(_skip, calls)
        case "delete":
            return partial(_delete, calls)


async def _rerun(calls: JobCalls, states: Collection[str] | None, piece: Sequence[RecordState]) -> int:
    return await _write(calls, lambda: calls.store.records.rerun(_rows(piece), calls.now(), states))


async def _cancel(calls: JobCalls, piece: Sequence[RecordState]) -> int:
    await calls.cancel([one.job for one in piece])
    return len(piece)


async def _skip(calls: JobCalls, piece: Sequence[RecordState]) -> int:
    return await _write(calls, lambda: calls.store.records.skip(_rows(piece), calls.now()))


async def _delete(calls: JobCalls, piece: Sequence[RecordState]) -> int:
    return await _write(calls, lambda: calls.store.records.delete(_rows(piece), calls.now()))


async def _write(calls: JobCalls, once: Callable[[], Awaitable[Sequence[RowKey]]]) -> int:
    return len(await Attempts(calls.engine).run(once, "Looking after reactive tasks"))


def _rows(piece: Sequence[RecordState]) -> list[RowKey]:
    return [(one.task, one.key) for one in piece]


def _tell(verb: Verb, where: _Where, rows: int) -> None:
    task = ",".join(where.tasks or ())
    match verb:
        case "retry":
            log_event("task.retried", task=task, rows=rows)
        case "cancel":
            log_event("task.canceled", task=task, rows=rows)
        case "skip":
            log_event("task.skipped", task=task, rows=rows)
        case "delete":
            log_event("task.deleted", task=task, rows=rows)
