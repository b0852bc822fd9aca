"""``penstock tasks``: lists reactive tasks and their rows, explains why a row has run or not, and changes them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from shlex import quote
from typing import Any

import click

from penstock.api.tasks.selection import Verb, changeable, rows_by_text
from penstock.api.tasks.views import TaskPage, TaskRecord, TaskStatus, key_text
from penstock.app import App, Backend
from penstock.cli.confirm import confirm_many
from penstock.cli.opening import with_backend
from penstock.cli.options import Options, combined, json_option, listing
from penstock.cli.output import MOST_LINES, plain, print_fields, print_json, print_list, print_table, readable_time, say
from penstock.cli.verbs import add_verb
from penstock.cli.visible import first_line, visible
from penstock.errors import DataError, ValueInvalid
from penstock.observe.readable import counted
from penstock.reactive.filter import GONE, STATES, TaskFilter
from penstock.schema.table import Table


class States(click.ParamType[tuple[str, ...]]):
    name = "states"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> tuple[str, ...]:
        found = tuple(word.strip() for word in value.split(","))
        if unknown := [word for word in found if word not in STATES]:
            self.fail(f"there is no state {unknown[0]!r}; they are {', '.join(STATES)}.", parameter, context)
        return found


task_filter_options = combined(
    click.option("--state", type=States(), metavar="STATE[,…]", help=f"Only these: {', '.join(STATES)}."),
    click.option("--error", metavar="TEXT", help="Only rows whose last error contains this text; case-sensitive."),
    click.option("--has-error/--no-error", default=None, help="Only rows with, or without, a last error."),
    click.option("--key", metavar="KEY", help="Only the row with this id or key; several columns as a JSON array."),
    click.option("--table", metavar="TABLE", help="Only rows of this table's tasks."),
    click.option(
        "--rows",
        metavar="TEXT",
        help="Only rows that match now, such as 'status == \"paid\" and amount > 100'. Needs TASK or --table.",
    ),
)


def read_task_filter(app: App, task: str | None, given: dict[str, Any]) -> TaskFilter[Any]:
    table, rows = _table(app, given["table"]), None
    if given["rows"] is not None:
        try:
            own = [declared.task for declared in app.tasks]
            table, rows = rows_by_text(own, None if task is None else (task,), table, given["rows"])
        except ValueInvalid as error:
            raise click.UsageError(str(error)) from error
    known = {name: given[name] for name in ("state", "error", "has_error", "key")}
    return TaskFilter(task=task, table=table, rows=rows, **known)


def _table(app: App, name: str | None) -> type[Table] | None:
    if name is None:
        return None
    for definition in app.definitions():
        if definition.name == name:
            return definition.table
    raise click.UsageError(f"This program declares no table {name!r}. See penstock data.")


@listing("tasks")
def command(options: Options) -> None:
    """Show all reactive tasks and their backlogs.

    Counts up to 100,000 runs of each kind.
    """
    tasks = with_backend(options, lambda backend: backend.app.tasks.list(backend))
    headers = ("task", "table", "ready", "scheduled", "running", "failed", "oldest due", "version", "state")
    print_list("tasks", tasks, headers, _row, as_json=options.json, right=headers[2:6])


@command.command("records")
@click.argument("task", required=False)
@task_filter_options
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many rows to list.")
@click.option("--after", metavar="PLACE", help="Continue after this place, from the last list.")
@click.option(
    "--order",
    type=click.Choice(["due", "key"]),
    help="Order by due time, or by task and key, which is faster. Default: due; with --rows only key.",
)
@click.option("--count", is_flag=True, help="Only count the rows by state; reads them all.")
@json_option()
def records(
    options: Options, /, task: str | None, limit: int, after: str | None, order: Any, count: bool, **given: Any
) -> None:
    """Show rows of TASK, or of all tasks, and the state of their runs."""
    if count:
        counts = with_backend(
            options, lambda backend: backend.app.tasks.count(backend, read_task_filter(backend.app, task, given))
        )
        if options.json:
            print_json({"counts": dict(counts)})
        else:
            click.echo(", ".join(f"{number:,} {state}" for state, number in counts.items()) or "no rows")
        return

    async def look(backend: Backend) -> TaskPage:
        where = read_task_filter(backend.app, task, given)
        by: Any = order or ("due" if where.rows is None else "key")
        return await backend.app.tasks.records(backend, where, limit=limit, after=after, order=by)

    page = with_backend(options, look)
    if options.json:
        print_json(page)
        return
    if not page.records:
        click.echo("no rows")
        return
    headers = ("task", "key", "state", "attempt", "run at", "change", "error")
    print_table(headers, [_record_row(record) for record in page.records], right=("attempt",), most_lines=MOST_LINES)
    if page.next is not None:
        say(f"There are more: --after {quote(page.next)}")


@command.command("show")
@click.argument("task")
@click.argument("key")
@json_option()
def show(options: Options, task: str, key: str) -> None:
    """Show the record of the row with this KEY; for its runs see penstock jobs show.

    Write a KEY of several columns as a JSON array: '[7, "a"]'.
    """
    record = with_backend(options, lambda backend: backend.app.tasks.find(backend, task, key))
    if record is None:
        raise DataError(f"{task} has no record of a row {key}.", fix=f"See penstock tasks explain {task} {key}.")
    if options.json:
        print_json(record)
        return
    print_fields(plain(replace(record, key=key_text(record.key))))


@command.command("explain")
@click.argument("task")
@click.argument("key")
@json_option()
def explain(options: Options, task: str, key: str) -> None:
    """Say why TASK has run, or not, for the row with this KEY; several columns as a JSON array."""
    found = with_backend(options, lambda backend: backend.app.tasks.explain(backend, task, key))
    if options.json:
        print_json(plain(found) | {"job": None if found.record is None else found.record.job})
    else:
        click.echo(visible(str(found)))


# ----- output


def _row(task: TaskStatus) -> tuple[str, ...]:
    numbers = (task.ready, task.scheduled, task.running, task.failed)
    oldest = "" if task.oldest is None else readable_time(task.oldest)
    return (task.name, task.table, *(f"{number:,}" for number in numbers), oldest, str(task.version), _state(task))


def _state(task: TaskStatus) -> str:
    said = ["paused"] if task.paused else []
    if task.held_until is not None:
        said.append(f"held until {readable_time(task.held_until)}")
    if task.reconciling is not None:
        said.append(f"looking at all rows: {counted(task.reconciling.looked, 'row')} so far")
    if not task.declared:
        said.append("not of this program")
    return ", ".join(said)


def _record_row(record: TaskRecord) -> tuple[str, ...]:
    state = "lost" if record.state is None else record.state.value
    run_at = "" if record.run_at is None else readable_time(record.run_at)
    change = record.change if record.gone is None else f"{record.change}, {record.gone}"
    error = first_line(record.error or "")
    return (record.task, key_text(record.key), state, str(record.attempt or 0), run_at, change, error)


# What is told of changed rows, and what the command is about.
_CHANGES: dict[Verb, tuple[str, str]] = {
    "retry": (
        "retried",
        """Run rows of TASK, or of all tasks, again; successful ones too, unless --state excludes them.

        Their attempts count from one. Running rows run once more afterwards.
        """,
    ),
    "cancel": (
        "asked to be canceled",
        """Cancel runs of TASK, or of all tasks.

        Pending runs never start; running ones are asked to stop.
        """,
    ),
    "skip": ("skipped", "End pending runs of TASK, or of all tasks, as skipped. A row's next change runs."),
    "delete": (
        "forgotten",
        """Delete the records of TASK, or of all tasks. The rows of the table stay.

        Cancels pending runs and asks running ones to stop; repeat the command afterwards.
        """,
    ),
}


def _add_change(verb: Verb, done: str, about: str) -> None:
    @command.command(verb, help=about)
    @click.argument("task", required=False)
    @task_filter_options
    @click.option("--all", "everything", is_flag=True, help="All rows of all tasks.")
    @click.option("--yes", "-y", is_flag=True, help="Do not ask before changing several rows.")
    @json_option()
    def change(options: Options, /, task: str | None, everything: bool, yes: bool, **given: Any) -> None:
        if task is None and not everything and all(value is None for value in given.values()):
            options_of = "--state, --error, --has-error, --key, --table, --rows"
            raise click.UsageError(f"Say which rows to {verb}: a task, {options_of}; or --all.")
        found, changed = with_backend(options, lambda backend: _change(backend, verb, task, given, sure=yes))
        if options.json:
            print_json({"found": found, "changed": changed})
        else:
            say(f"{counted(changed, 'row')} {done}, of {found:,}." if found else "There are no such rows.")


async def _change(
    backend: Backend, verb: Verb, task: str | None, given: dict[str, Any], *, sure: bool
) -> tuple[int, int]:
    where = changeable(verb, read_task_filter(backend.app, task, given))
    counts = await backend.app.tasks.count(backend, where)
    found = sum(number for state, number in counts.items() if state != GONE)
    confirm_many(found, verb, "row", sure=sure)
    return found, await getattr(backend.app.tasks, verb)(backend, where, everything=True) if found else 0


for _name, _texts in _CHANGES.items():
    _add_change(_name, *_texts)
_verb = partial(add_verb, command, "tasks", "task")
_PAUSED = "{} is paused. Running ones continue; no other ones start."
_verb("pause", "Pause TASK on all machines. Running runs continue.", _PAUSED)
_verb("resume", "Resume a paused TASK.", "{} runs again. Deferred runs that are due now: {:,}.")
_RECONCILES = "Check all rows of TASK again. The planner does it; see its progress with penstock tasks."
_verb("reconcile", _RECONCILES, "All rows of {} will be checked by the planner.")
