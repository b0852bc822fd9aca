"""Reactive tasks: their backlogs, their rows, and why one row ran or did not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import unquote, urlencode

from penstock.api.pools.activity import MOST_COUNTED
from penstock.api.tasks.selection import task_of
from penstock.api.tasks.views import TaskPage, TaskStatus, key_text, look_at
from penstock.dashboard.charts import charts_of
from penstock.dashboard.page import Act, Page, View, act_of, page_of, parameters_of
from penstock.jobs.states import JobState
from penstock.observe.readable import amount
from penstock.operations import tasks
from penstock.operations.operation import Given, Operation
from penstock.reactive.filter import STATES

_LISTED = 50
_WORDS = ("state", "error", "key", "rows")


async def tasks_now(view: View) -> list[TaskStatus]:
    """The status of all tasks, with up to `MOST_COUNTED` jobs counted."""
    calls, declared = view.backend.job_calls, [one.task.name for one in view.backend.app.tasks]
    return await look_at(calls.store, calls.now(), declared, MOST_COUNTED)


async def _load(view: View) -> Mapping[str, Any]:
    shown, names = page_of(await tasks_now(view), parameters_of(view, tasks.every))
    return {"tasks": shown, "most": MOST_COUNTED, **names}


async def _load_task(view: View) -> Mapping[str, Any]:
    backend, given = view.backend, {word: view.word(word) for word in _WORDS}
    row = task_of(await backend.engine.store.tasks.list(), view.require("task"))
    name, condition, watch = row.plan.name, row.plan.spec.condition(), row.plan.spec.expressions()
    page: TaskPage = await tasks.records.run(backend, {**parameters_of(view, tasks.records), "limit": _LISTED})
    asked = {"task": name} | {word: value for word, value in given.items() if value is not None}
    return {
        "task": next(one for one in await tasks_now(view) if one.name == name),
        "most": MOST_COUNTED,
        "charts": await charts_of(view, (f"task {name}", "job"), **asked),
        "plan": row.plan,
        "filter": None if condition is None else str(condition),
        "watch": None if watch is None else ", ".join(map(str, watch)),
        "records": [(key_text(one.key), one) for one in page.records],
        "more": None if page.next is None else urlencode(asked | {"after": page.next}),
        "given": given,
        "filtered": len(asked) > 1,
        "states": STATES,
    }


async def _load_row(view: View) -> Mapping[str, Any]:
    task, key = view.require("task"), view.require("key")
    found = await view.backend.app.tasks.explain(view.backend, task, key)
    table = next((one.task.definition.name for one in view.backend.app.tasks if one.task.name == found.task), "")
    return {
        "found": found,
        "table": table,
        "key": key,
        "may_skip": found.record is not None and found.record.state is JobState.PENDING,
    }


def _tell_of_rows(done: str) -> Callable[[Given, Any], str]:
    return lambda _given, found: f"{amount(found['changed'], 'row')} {done}."


def _read_boxes(view: View) -> list[str]:
    """The keys of the rows whose boxes are checked."""
    return [unquote(one) for one in view.require("chosen").split()]


def _of_chosen(operation: Operation, done: str) -> Act:
    async def run(view: View) -> str:
        task, keys = view.require("task"), _read_boxes(view)
        found = [await operation.run(view.backend, {"task": task, "key": key}) for key in keys]
        return f"{amount(sum(one['changed'] for one in found), 'row')} {done}, of {len(keys):,}."

    async def ask(view: View) -> str:
        return f"{operation.verb.capitalize()} {amount(len(_read_boxes(view)), 'row')}?"

    return Act(run, sure="" if operation is tasks.retry else ask, operation=operation)


_DONE = ((tasks.retry, "retried"), (tasks.cancel, "asked to be canceled"), (tasks.skip, "skipped"))
_PAUSE = {
    "pause": act_of(tasks.pause, "{task} is paused. Running runs continue."),
    "resume": act_of(tasks.resume, "{task} runs again. Deferred runs that are due now: {changed:,}."),
}
_RECONCILE = act_of(tasks.reconcile, "The planner looks at all rows of {task}.")
_OF_ROWS: Mapping[str, Act] = {one.verb: act_of(one, _tell_of_rows(done)) for one, done in _DONE}
_OF_CHOSEN = {f"{one.verb} chosen": _of_chosen(one, done) for one, done in _DONE}

PAGES = (
    Page("/tasks", "Reactive tasks", "tasks.html", _load, _PAUSE),
    Page(
        "/tasks/task",
        "Reactive task",
        "task.html",
        _load_task,
        {**_PAUSE, "reconcile": _RECONCILE, **_OF_ROWS, **_OF_CHOSEN},
        above="/tasks",
    ),
    Page(
        "/tasks/row",
        "Row of a task",
        "taskrow.html",
        _load_row,
        {verb: replace(act, sure="") for verb, act in _OF_ROWS.items()},
        above="/tasks",
    ),
)
