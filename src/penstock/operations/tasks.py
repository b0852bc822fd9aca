"""The operations on reactive tasks and their rows: see `app.tasks` for what each verb does.

Owns how a filter of rows is read. A request changes many rows in parts, a command all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, fields
from functools import partial
from typing import Any

from penstock.api.tasks import selection
from penstock.api.tasks.selection import WHOLE, Part, Verb, rows_by_text, task_of
from penstock.api.tasks.views import TaskExplanation, TaskPage, TaskRecord
from penstock.app import App, Backend
from penstock.errors import DataError, UsageError, ValueInvalid
from penstock.jobs.job import JobStatus, job_uuid
from penstock.observe.readable import amount
from penstock.operations.operation import (
    BY_NAME,
    Given,
    Noun,
    Operation,
    Parameter,
    Question,
    Refusal,
    Refusals,
    Run,
    ask_of,
    select,
)
from penstock.reactive.filter import GONE, STATES, TaskFilter
from penstock.schema.table import Table

_PART_OF_TIMEOUT = 0.5  # of the setting `call_timeout`: when a change begins no further piece
_UNTOLD = {"args", "options", "on_complete", "on_complete_error", "on_complete_attempts"}  # captured; or not of tasks

noun = Noun("tasks")
_TASK, _KEY = Parameter("task", needed=True), Parameter("key", "key", needed=True)
_FILTER = (
    Parameter("task", "texts"),
    Parameter("state", "states", f"Only these: {', '.join(STATES)}.", metavar="STATE[,…]", choices=STATES),
    Parameter("error", about="Only rows whose last error contains this text; case-sensitive.", metavar="TEXT"),
    Parameter("has_error", "flag", "Only rows with, or without, a last error.", spelled="--has-error/--no-error"),
    Parameter("key", "key", "Only the row with this id or key; several columns as a JSON array.", metavar="KEY"),
    Parameter("table", about="Only rows of this table's tasks.", metavar="TABLE"),
    Parameter(
        "rows",
        about="Only rows that match now, such as 'status == \"paid\" and amount > 100'. Needs TASK or --table.",
        metavar="TEXT",
    ),
)
_CHANGE = (
    *_FILTER,
    Parameter("everything", "flag", "All rows of all tasks.", spelled="--all"),
    Parameter("limit", "part"),
    Parameter("after", of_requests=True),
)


class TableUnknown(ValueInvalid):
    """This program declares no such table."""


def filter_of(app: App, given: Given) -> TaskFilter[Any]:
    """Read the filter that parameters name. Raises `ValueInvalid` if its table or its `rows` cannot be used."""
    task, table, rows, text = given.get("task"), None, None, given.get("rows")
    if (name := given.get("table")) is not None:
        table = _table(app, name)
    if text is not None:
        tasks = (task,) if isinstance(task, str) else task
        table, rows = rows_by_text([declared.task for declared in app.tasks], tasks, table, text)
    words = {word: given.get(word) for word in ("state", "error", "has_error", "key")}
    return TaskFilter(task=task, table=table, rows=rows, **words)


def _table(app: App, name: str) -> type[Table]:
    for definition in app.definitions():
        if definition.name == name:
            return definition.table
    raise TableUnknown(f"This program declares no table {name[:100]!r}.", fix="See penstock data.")


async def _filter(backend: Backend, given: Given) -> TaskFilter[Any]:
    """Read the filter, after a look for its tasks: an unknown one is not found, with any `rows`."""
    task = given.get("task")
    if task is not None and given.get("rows") is not None:
        known = await backend.engine.store.tasks.list()
        for name in (task,) if isinstance(task, str) else task:
            task_of(known, name)
    return filter_of(backend.app, given)


# ----- to see


_TABLE_UNKNOWN: Refusals = {TableUnknown: Refusal(404, "TableNotFound", "{what}")}
_NO_RECORD = Refusal(404, "RecordNotFound", "{task} has not heard of this row. Ask /admin/tasks/explain why.")
_PAGE = (
    Parameter("limit", "page", "How many rows to list.", default=50, most=10_000),
    Parameter("after", about="Continue after this place, from the last list.", metavar="PLACE"),
    Parameter(
        "order",
        "choice",
        "Order by due time, or by task and key, which is faster. Default: due; with --rows only key.",
        choices=("key", "due"),
        metavar="[due|key]",
    ),
)


@noun.lists(*BY_NAME)
async def every(backend: Backend, given: Given) -> Any:
    """Show reactive tasks by name, and their backlogs.

    Counts up to 100,000 runs of each kind.
    """
    return {"tasks": select(await backend.app.tasks.list(backend), given)}


@noun.shows(*_FILTER, *_PAGE, refusals=_TABLE_UNKNOWN)
async def records(backend: Backend, given: Given) -> TaskPage:
    """Show rows of TASK, or of all tasks, and the state of their runs."""
    where, limit, after = await _filter(backend, given), given["limit"], given.get("after")
    return await backend.app.tasks.records(backend, where, limit=limit, after=after, order=given.get("order") or "key")


@noun.shows(*_FILTER, refusals=_TABLE_UNKNOWN)
async def count(backend: Backend, given: Given) -> Any:
    """Count rows of TASK, or of all tasks, by state."""
    return {"counts": await backend.app.tasks.count(backend, await _filter(backend, given))}


def _describe_record(found: tuple[TaskRecord, JobStatus | None]) -> Any:
    record, job = found
    told = None if job is None else {one.name: getattr(job, one.name) for one in fields(job) if one.name not in _UNTOLD}
    return {"record": record, "job": told}


@noun.shows(_TASK, _KEY, answers=_describe_record, refusals={DataError: _NO_RECORD})
async def show(backend: Backend, given: Given) -> tuple[TaskRecord, JobStatus | None]:
    """Show the record of the row with this KEY; for its runs see penstock jobs show.

    Write a KEY of several columns as a JSON array: '[7, "a"]'.
    """
    task, key = given["task"], given["key"]
    record = await backend.app.tasks.find(backend, task, key)
    if record is None:
        raise DataError(f"{task} has no record of a row {key}.", fix=f"See penstock tasks explain {task} {key}.")
    return record, await backend.job_calls.find(job_uuid(record.job))


def _describe_explanation(found: TaskExplanation) -> Any:
    return {**asdict(found), "job": None if found.record is None else found.record.job, "text": str(found)}


@noun.shows(_TASK, _KEY, answers=_describe_explanation)
async def explain(backend: Backend, given: Given) -> TaskExplanation:
    """Say why TASK has run, or not, for the row with this KEY; several columns as a JSON array."""
    return await backend.app.tasks.explain(backend, given["task"], given["key"])


# ----- to change rows


async def _change(verb: Verb, backend: Backend, given: Given) -> Any:
    where, part = await _filter(backend, given), WHOLE
    where.check_meant(verb, everything=bool(given.get("everything")))
    if (limit := given.get("limit")) is not None:
        part = Part(limit, given.get("after"), backend.config.call_timeout * _PART_OF_TIMEOUT)
    own = [declared.task for declared in backend.app.tasks]
    done = await selection.change_rows(backend.job_calls, own, verb, where, part)
    rest = {} if part is WHOLE else {"more": done.next is not None, "next": done.next}
    return {"found": done.found, "changed": done.changed, **rest}


async def _ask(verb: Verb, backend: Backend, given: Given) -> Question:
    counts = await backend.app.tasks.count(backend, selection.changeable(verb, await _filter(backend, given)))
    return ask_of(verb, sum(number for state, number in counts.items() if state != GONE), "row")


def _changing(verb: Verb, done: str) -> Callable[[Run], Operation]:
    def tell(_given: Given, found: Any) -> str:
        count = found["found"]
        return f"{amount(found['changed'], 'row')} {done}, of {count:,}." if count else "There are no such rows."

    meant = Refusal(400, "FilterEmpty", "{what} Say which, or send everything: true.")
    refusals = {**_TABLE_UNKNOWN, UsageError: meant}
    return noun.changes(*_CHANGE, asks=partial(_ask, verb), tells=tell, refusals=refusals)


@_changing("retry", "retried")
async def retry(backend: Backend, given: Given) -> Any:
    """Run rows of TASK, or of all tasks, again; successful ones too, unless --state excludes them.

    Their attempts count from one. Running rows run once more afterwards.
    """
    return await _change("retry", backend, given)


@_changing("cancel", "asked to be canceled")
async def cancel(backend: Backend, given: Given) -> Any:
    """Cancel runs of TASK, or of all tasks.

    Pending runs never start; running ones are asked to stop.
    """
    return await _change("cancel", backend, given)


@_changing("skip", "skipped")
async def skip(backend: Backend, given: Given) -> Any:
    """End pending runs of TASK, or of all tasks, as skipped. A row's next change runs."""
    return await _change("skip", backend, given)


@_changing("delete", "forgotten")
async def delete(backend: Backend, given: Given) -> Any:
    """Delete the records of TASK, or of all tasks. The rows of the table stay.

    Cancels pending runs and asks running ones to stop; repeat the command afterwards.
    """
    return await _change("delete", backend, given)


# ----- to change whole tasks


@noun.changes(_TASK, tells="{task} is paused. Running ones continue; no other ones start.")
async def pause(backend: Backend, given: Given) -> Any:
    """Pause TASK on all machines. Running runs continue."""
    return {"task": await selection.pause(backend.job_calls, given["task"]), "paused": True}


_RESUMED = "{task} runs again. Deferred runs that are due now: {changed:,}."


@noun.changes(_TASK, Parameter("limit", "part"), tells=_RESUMED)
async def resume(backend: Backend, given: Given) -> Any:
    """Resume a paused TASK."""
    done = await selection.resume(backend.job_calls, given["task"], given.get("limit"))
    return {"task": done.task, "paused": False, "changed": done.runs, "more": done.more}


@noun.changes(_TASK, tells="All rows of {task} will be checked by the planner.")
async def reconcile(backend: Backend, given: Given) -> Any:
    """Check all rows of TASK again. The planner does it; see its progress with penstock tasks."""
    return {"task": await selection.reconcile(backend.job_calls, given["task"]), "reconciling": True}


OF_ROWS = (retry, cancel, skip, delete)
