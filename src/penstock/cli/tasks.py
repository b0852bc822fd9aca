"""``penstock tasks``: lists reactive tasks and their rows, explains why a row has run or not, and changes them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from shlex import quote
from typing import Any

import click

from penstock.api.tasks.views import TaskExplanation, TaskPage, TaskRecord, TaskStatus, key_text
from penstock.app import Backend
from penstock.cli.opening import with_backend
from penstock.cli.operations import add_commands, listing_of, takes, yes_option
from penstock.cli.options import Options, json_option
from penstock.cli.output import MOST_LINES, plain, print_fields, print_json, print_list, print_table, readable_time, say
from penstock.cli.visible import first_line, visible
from penstock.errors import ValueInvalid
from penstock.observe.readable import counted
from penstock.operations import tasks
from penstock.operations.operation import Given, Operation


@listing_of(tasks.LIST)
def command(options: Options) -> None:
    found = with_backend(options, lambda backend: tasks.LIST.run(backend, {}))["tasks"]
    headers = ("task", "table", "ready", "scheduled", "running", "failed", "oldest due", "version", "state")
    print_list("tasks", found, headers, _row, as_json=options.json, right=headers[2:6])


@command.command("records", help=tasks.RECORDS.about)
@takes(tasks.RECORDS)
@click.option("--count", is_flag=True, help="Only count the rows by state; reads them all.")
@json_option()
def records(options: Options, /, *, count: bool, **given: Any) -> None:
    asked = tasks.COUNT if count else tasks.RECORDS
    given["order"] = given["order"] or ("due" if given["rows"] is None else "key")

    async def look(backend: Backend) -> Any:
        _look(backend, given)
        return await asked.run(backend, given)

    found = with_backend(options, look)
    if options.json:
        print_json(found)
    elif count:
        click.echo(", ".join(f"{number:,} {state}" for state, number in found["counts"].items()) or "no rows")
    else:
        _show_page(found)


def _show_page(page: TaskPage) -> None:
    if not page.records:
        click.echo("no rows")
        return
    headers = ("task", "key", "state", "attempt", "run at", "change", "error")
    print_table(headers, [_record_row(record) for record in page.records], right=("attempt",), most_lines=MOST_LINES)
    if page.next is not None:
        say(f"There are more: --after {quote(page.next)}")


@command.command("show", help=tasks.SHOW.about)
@takes(tasks.SHOW)
@json_option()
def show(options: Options, /, **given: Any) -> None:
    record, _ = with_backend(options, lambda backend: tasks.SHOW.run(backend, given))
    if options.json:
        print_json(record)
    else:
        print_fields(plain(replace(record, key=key_text(record.key))))


@command.command("explain", help=tasks.EXPLAIN.about)
@takes(tasks.EXPLAIN)
@json_option()
def explain(options: Options, /, **given: Any) -> None:
    found: TaskExplanation = with_backend(options, lambda backend: tasks.EXPLAIN.run(backend, given))
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


def _check(one: Operation, given: Given) -> None:
    if not given["everything"] and all(value is None for name, value in given.items() if name != "everything"):
        options = "--state, --error, --has-error, --key, --table, --rows"
        raise click.UsageError(f"Say which rows to {one.verb}: a task, {options}; or --all.")


def _look(backend: Backend, given: Given) -> None:
    """Refuse a filter that this program cannot read."""
    try:
        tasks.filter_of(backend.app, given)
    except ValueInvalid as error:
        raise click.UsageError(str(error)) from error


_yes = yes_option("Do not ask before changing several rows.")
for _one in tasks.OF_ROWS:
    add_commands(command, _one, json=True, yes=_yes, check=partial(_check, _one), look=_look)
add_commands(command, *tasks.OF_TASKS)
