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
from penstock.cli.operations import add_commands, list_command, takes
from penstock.cli.options import Options, json_option
from penstock.cli.output import MOST_LINES, plain, print_fields, print_json, print_table, readable_time, say
from penstock.cli.visible import first_line, visible
from penstock.errors import ValueInvalid
from penstock.observe.readable import amount
from penstock.operations import tasks
from penstock.operations.operation import Given, Operation


def _row(task: TaskStatus) -> tuple[str, ...]:
    numbers = (task.ready, task.scheduled, task.running, task.failed)
    oldest = "" if task.oldest is None else readable_time(task.oldest)
    return (task.name, task.table, *(f"{number:,}" for number in numbers), oldest, str(task.version), _state(task))


def _state(task: TaskStatus) -> str:
    said = ["paused"] if task.paused else []
    if task.held_until is not None:
        said.append(f"held until {readable_time(task.held_until)}")
    if task.reconciling is not None:
        said.append(f"looking at all rows: {amount(task.reconciling.looked, 'row')} so far")
    if not task.declared:
        said.append("not of this program")
    return ", ".join(said)


def _record_row(record: TaskRecord) -> tuple[str, ...]:
    state = "lost" if record.state is None else record.state.value
    run_at = "" if record.run_at is None else readable_time(record.run_at)
    change = record.change if record.gone is None else f"{record.change}, {record.gone}"
    error = first_line(record.error or "")
    return (record.task, key_text(record.key), state, str(record.attempt or 0), run_at, change, error)


_HEADERS = ("task", "table", "ready", "scheduled", "running", "failed", "oldest due", "version", "state")
command = list_command(tasks.every, _HEADERS, _row, right=_HEADERS[2:6])


@command.command("records", help=tasks.records.about)
@takes(tasks.records)
@click.option("--count", is_flag=True, help="Only count the rows by state; reads them all.")
@json_option()
def records(options: Options, /, *, count: bool, **given: Any) -> None:
    asked = tasks.count if count else tasks.records
    given["order"] = given["order"] or ("due" if given["rows"] is None else "key")

    async def look(backend: Backend) -> Any:
        _judge(backend, given)
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


def _show(found: tuple[TaskRecord, Any]) -> None:
    record, _ = found
    print_fields(plain(replace(record, key=key_text(record.key))))


def _explain(found: TaskExplanation) -> None:
    click.echo(visible(str(found)))


def _check(one: Operation, given: Given) -> None:
    if not given["everything"] and all(value is None for name, value in given.items() if name != "everything"):
        options = "--state, --error, --has-error, --key, --table, --rows"
        raise click.UsageError(f"Say which rows to {one.verb}: a task, {options}; or --all.")


def _judge(backend: Backend, given: Given) -> None:
    """Refuse a filter that this program cannot read."""
    try:
        tasks.filter_of(backend.app, given)
    except ValueInvalid as error:
        raise click.UsageError(str(error)) from error


def _as_data(found: TaskExplanation) -> Any:
    return plain(found) | {"job": None if found.record is None else found.record.job}


add_commands(command, tasks.show, show=_show, data=lambda found: found[0])
add_commands(command, tasks.explain, show=_explain, data=_as_data)
_YES = "Do not ask before changing several rows."
for _one in tasks.OF_ROWS:
    add_commands(command, _one, data=_one.answers, yes=_YES, check=partial(_check, _one), judge=_judge)
add_commands(command, tasks.pause, tasks.resume, tasks.reconcile)
