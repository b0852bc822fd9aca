"""``/admin/tasks``: reactive tasks and their rows, seen and changed over HTTP.

Owns the routes and their answers. Their words have the meaning they have in `app.tasks` and ``penstock tasks``. A
change of many rows is made in parts, one for each request.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from functools import partial
from typing import Any, cast

from penstock.api.tasks.selection import Part, Verb, change_rows, pause, reconcile, resume, rows_by_text, task_of
from penstock.api.tasks.tasks import Order
from penstock.app import Backend
from penstock.jobs.job import job_uuid
from penstock.reactive.filter import TaskFilter
from penstock.schema.table import Table
from penstock.server.adminwords import LISTED, MOST_LISTED, AdminRoute, Words, needed
from penstock.server.requests import Refused

_FILTER = ("task", "state", "error", "has_error", "key", "table", "rows")
_CHANGED, _MOST_CHANGED = 1000, 10_000
_PART_OF_TIMEOUT = 0.5  # of the setting `call_timeout`: when a change begins no further piece
_UNTOLD = {"args", "options", "on_complete", "on_complete_error", "on_complete_attempts"}  # captured; or not of tasks


async def _list(backend: Backend, _words: Words) -> Any:
    return {"tasks": await backend.app.tasks.list(backend)}


async def _records(backend: Backend, words: Words) -> Any:
    where, order = await _filter(backend, words), cast("Order", words.one_of("order", ("key", "due")))
    limit, after = words.number("limit", LISTED, MOST_LISTED), words.text("after")
    return await backend.app.tasks.records(backend, where, limit=limit, after=after, order=order)


async def _count(backend: Backend, words: Words) -> Any:
    return {"counts": await backend.app.tasks.count(backend, await _filter(backend, words))}


async def _show(backend: Backend, words: Words) -> Any:
    task, key = needed(words.text, "task"), needed(words.key, "key")
    record = await backend.app.tasks.find(backend, task, key)
    if record is None:
        raise Refused(404, "RecordNotFound", f"{task} has not heard of this row. Ask /admin/tasks/explain why.")
    job = await backend.job_calls.find(job_uuid(record.job))
    told = None if job is None else {one.name: getattr(job, one.name) for one in fields(job) if one.name not in _UNTOLD}
    return {"record": record, "job": told}


async def _explain(backend: Backend, words: Words) -> Any:
    found = await backend.app.tasks.explain(backend, needed(words.text, "task"), needed(words.key, "key"))
    return {**asdict(found), "job": None if found.record is None else found.record.job, "text": str(found)}


async def _change(verb: Verb, backend: Backend, words: Words) -> Any:
    where, everything = await _filter(backend, words), words.flag("everything") or False
    if where.is_empty and not everything:
        message = f"This would {verb} all rows of all reactive tasks. Say which, or send everything: true."
        raise Refused(400, "FilterEmpty", message)
    part = Part(
        limit=words.number("limit", _CHANGED, _MOST_CHANGED),
        after=words.text("after"),
        seconds=backend.config.call_timeout * _PART_OF_TIMEOUT,
    )
    own = [declared.task for declared in backend.app.tasks]
    done = await change_rows(backend.job_calls, own, verb, where, part)
    return {"found": done.found, "changed": done.changed, "more": done.next is not None, "next": done.next}


async def _pause(backend: Backend, words: Words) -> Any:
    return {"task": await pause(backend.job_calls, needed(words.text, "task")), "paused": True}


async def _resume(backend: Backend, words: Words) -> Any:
    done = await resume(backend.job_calls, needed(words.text, "task"), words.number("limit", _CHANGED, _MOST_CHANGED))
    return {"task": done.task, "paused": False, "changed": done.runs, "more": done.more}


async def _reconcile(backend: Backend, words: Words) -> Any:
    return {"task": await reconcile(backend.job_calls, needed(words.text, "task")), "reconciling": True}


_CHANGE = (*_FILTER, "everything", "limit", "after")

TASK_ROUTES = (
    AdminRoute("/tasks", (), _list),
    AdminRoute("/tasks/records", (*_FILTER, "limit", "after", "order"), _records),
    AdminRoute("/tasks/count", _FILTER, _count),
    AdminRoute("/tasks/show", ("task", "key"), _show),
    AdminRoute("/tasks/explain", ("task", "key"), _explain),
    AdminRoute("/tasks/retry", _CHANGE, partial(_change, "retry"), changes=True),
    AdminRoute("/tasks/cancel", _CHANGE, partial(_change, "cancel"), changes=True),
    AdminRoute("/tasks/skip", _CHANGE, partial(_change, "skip"), changes=True),
    AdminRoute("/tasks/delete", _CHANGE, partial(_change, "delete"), changes=True),
    AdminRoute("/tasks/pause", ("task",), _pause, changes=True),
    AdminRoute("/tasks/resume", ("task", "limit"), _resume, changes=True),
    AdminRoute("/tasks/reconcile", ("task",), _reconcile, changes=True),
)


# ----- steps


async def _filter(backend: Backend, words: Words) -> TaskFilter[Any]:
    tasks, table, text = words.texts("task"), _table(backend, words.text("table")), words.text("rows")
    rows = None
    if text is not None:
        known = await backend.engine.store.tasks.list()
        for name in tasks or ():
            task_of(known, name)  # an unknown task is not found, with any filter of its rows
        table, rows = rows_by_text([declared.task for declared in backend.app.tasks], tasks, table, text)
    return TaskFilter(
        task=tasks,
        state=words.texts("state", commas=True),
        error=words.text("error"),
        has_error=words.flag("has_error"),
        key=words.key("key"),
        table=table,
        rows=rows,
    )


def _table(backend: Backend, name: str | None) -> type[Table] | None:
    if name is None:
        return None
    for definition in backend.app.definitions():
        if definition.name == name:
            return definition.table
    raise Refused(404, "TableNotFound", f"This program declares no table {name[:100]!r}.")
