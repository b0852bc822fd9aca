"""Reactive tasks: their backlogs, their rows, and why one row ran or did not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from penstock.api.pools.activity import MOST_COUNTED
from penstock.api.tasks.selection import Verb, changeable, rows_by_text, task_of
from penstock.api.tasks.views import TaskStatus, key_text, look_at
from penstock.dashboard.page import Act, Page, View, act_on, sure_of
from penstock.jobs.states import JobState
from penstock.observe.readable import counted
from penstock.reactive.filter import GONE, STATES, TaskFilter

_LISTED = 50
_WORDS = ("state", "error", "key", "rows")


async def tasks_now(view: View) -> list[TaskStatus]:
    """The status of all tasks, with up to `MOST_COUNTED` jobs counted."""
    calls, declared = view.backend.job_calls, [one.task.name for one in view.backend.app.tasks]
    return await look_at(calls.store, calls.now(), declared, MOST_COUNTED)


async def _load(view: View) -> Mapping[str, Any]:
    return {"tasks": await tasks_now(view), "most": MOST_COUNTED}


async def _load_task(view: View) -> Mapping[str, Any]:
    backend, given = view.backend, {word: view.word(word) for word in _WORDS}
    row = task_of(await backend.engine.store.tasks.list(), view.needed("task"))
    name, condition, watch = row.plan.name, row.plan.spec.condition(), row.plan.spec.expressions()
    page = await backend.app.tasks.records(backend, _filter(view), limit=_LISTED, after=view.word("after"))
    asked = {"task": name} | {word: value for word, value in given.items() if value is not None}
    return {
        "task": next(one for one in await tasks_now(view) if one.name == name),
        "most": MOST_COUNTED,
        "plan": row.plan,
        "filter": None if condition is None else str(condition),
        "watch": None if watch is None else ", ".join(map(str, watch)),
        "records": [(key_text(one.key), one) for one in page.records],
        "more": None if page.next is None else urlencode(asked | {"after": page.next}),
        "given": given,
        "filtered": len(asked) > 1,
        "states": STATES,
    }


def _filter(view: View) -> TaskFilter[Any]:
    task, text, app = view.needed("task"), view.word("rows"), view.backend.app
    of_rows: dict[str, Any] = {}
    if text is not None:
        table, rows = rows_by_text([one.task for one in app.tasks], (task,), None, text)
        of_rows = {"table": table, "rows": rows}
    return TaskFilter(task=task, state=view.word("state"), error=view.word("error"), key=view.word("key"), **of_rows)


async def _load_row(view: View) -> Mapping[str, Any]:
    task, key = view.needed("task"), view.needed("key")
    found = await view.backend.app.tasks.explain(view.backend, task, key)
    table = next((one.task.definition.name for one in view.backend.app.tasks if one.task.name == found.task), "")
    return {
        "found": found,
        "table": table,
        "key": key,
        "may_skip": found.record is not None and found.record.state is JobState.PENDING,
    }


def _asking(verb: Verb) -> Callable[[View], Awaitable[str]]:
    async def ask(view: View) -> str:
        counts = await view.backend.app.tasks.count(view.backend, changeable(verb, _filter(view)))
        found = sum(number for state, number in counts.items() if state != GONE)
        return sure_of(verb.capitalize(), found, "row")

    return ask


def _changing(verb: Verb, done: str) -> Callable[[View], Awaitable[str]]:
    async def change(view: View) -> str:
        found = await getattr(view.backend.app.tasks, verb)(view.backend, _filter(view))
        return f"{counted(found, 'row')} {done}."

    return change


_DONE: Mapping[Verb, str] = {"retry": "retried", "cancel": "asked to be canceled", "skip": "skipped"}
_PAUSE = {
    "pause": act_on("tasks", "task", "pause", "{} is paused. Running runs continue."),
    "resume": act_on("tasks", "task", "resume", "{} runs again. Deferred runs that are due now: {:,}."),
}
_RECONCILE = act_on("tasks", "task", "reconcile", "The planner looks at all rows of {}.")
_OF_ROWS: Mapping[str, Act] = {verb: Act(_changing(verb, done), sure=_asking(verb)) for verb, done in _DONE.items()}

PAGES = (
    Page("/tasks", "Reactive tasks", "tasks.html", _load, _PAUSE),
    Page(
        "/tasks/task",
        "Reactive task",
        "task.html",
        _load_task,
        {**_PAUSE, "reconcile": _RECONCILE, **_OF_ROWS},
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
