"""``penstock tasks``: how reactive tasks and their rows stand, and why a row has run or has not."""

from __future__ import annotations

from dataclasses import replace
from shlex import quote
from typing import Any

import click

from penstock.api.tasks.views import TaskPage, TaskRecord, TaskStatus, key_text
from penstock.app import Backend
from penstock.cli.opening import open_app, with_backend
from penstock.cli.options import Options, json_option, pass_options
from penstock.cli.output import counted, plain, print_fields, print_json, print_list, print_rows, readable_time, say
from penstock.cli.taskchanges import cancel, delete, pause, reconcile, resume, retry, skip
from penstock.cli.taskfilter import read_task_filter, task_filter_options
from penstock.cli.visible import first_line, visible
from penstock.errors import DataError


@click.group("tasks", invoke_without_command=True)
@json_option()
@pass_options
@click.pass_context
def command(context: click.Context, options: Options) -> None:
    """Show all reactive tasks and their backlogs.

    Counts up to 100,000 runs of each kind.
    """
    if context.invoked_subcommand is not None:
        return
    app = open_app(options)
    tasks = with_backend(app, options, app.tasks.list)
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
@pass_options
def records(
    options: Options, /, task: str | None, limit: int, after: str | None, order: Any, count: bool, **given: Any
) -> None:
    """Show rows of TASK, or of all tasks, and the state of their runs."""
    app = open_app(options)
    where = read_task_filter(app, task, given)
    order = order or ("due" if where.rows is None else "key")
    if count:
        counts = with_backend(app, options, lambda backend: app.tasks.count(backend, where))
        if options.json:
            print_json({"counts": dict(counts)})
        else:
            click.echo(", ".join(f"{number:,} {state}" for state, number in counts.items()) or "no rows")
        return

    async def look(backend: Backend) -> TaskPage:
        return await app.tasks.records(backend, where, limit=limit, after=after, order=order)

    page = with_backend(app, options, look)
    if options.json:
        print_json(page)
        return
    if not page.records:
        click.echo("no rows")
        return
    headers = ("task", "key", "state", "attempt", "run at", "change", "error")
    print_rows(headers, [_record_row(record) for record in page.records], right=("attempt",), needed=headers[-1])
    if page.next is not None:
        say(f"There are more: --after {quote(page.next)}")


@command.command("show")
@click.argument("task")
@click.argument("key")
@json_option()
@pass_options
def show(options: Options, task: str, key: str) -> None:
    """Show the record of the row with this KEY; for its runs see penstock jobs show.

    Write a KEY of several columns as a JSON array: '[7, "a"]'.
    """
    app = open_app(options)
    record = with_backend(app, options, lambda backend: app.tasks.find(backend, task, key))
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
@pass_options
def explain(options: Options, task: str, key: str) -> None:
    """Say why TASK has run, or not, for the row with this KEY; several columns as a JSON array."""
    app = open_app(options)
    found = with_backend(app, options, lambda backend: app.tasks.explain(backend, task, key))
    if options.json:
        print_json(plain(found) | {"job": None if found.record is None else found.record.job})
    else:
        click.echo(visible(str(found)))


for _command in (retry, cancel, skip, delete, pause, resume, reconcile):
    command.add_command(_command)


# ----- what is shown


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
