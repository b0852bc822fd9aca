"""Which rows of reactive tasks a command means: a task, and what options tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from penstock.api.tasks.selection import rows_by_text
from penstock.app import App
from penstock.errors import ValueInvalid
from penstock.reactive.filter import STATES, TaskFilter
from penstock.schema.table import Table

F = TypeVar("F", bound=Callable[..., Any])


class States(click.ParamType[tuple[str, ...]]):
    """States, with commas between them."""

    name = "states"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> tuple[str, ...]:
        """The states."""
        found = tuple(word.strip() for word in value.split(","))
        if unknown := [word for word in found if word not in STATES]:
            self.fail(f"there is no state {unknown[0]!r}; they are {', '.join(STATES)}.", parameter, context)
        return found


def task_filter_options(command: F) -> F:
    """The options that tell rows of tasks apart; the command takes them as keyword arguments."""
    options = (
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
    for option in reversed(options):
        command = option(command)
    return command


def read_task_filter(app: App, task: str | None, given: dict[str, Any]) -> TaskFilter[Any]:
    """The filter that the task and the options name.

    Raises:
        UsageError: The program declares no such table, or the text of --rows cannot be a condition on its rows.
    """
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
