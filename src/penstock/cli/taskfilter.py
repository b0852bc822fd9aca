"""Which rows of reactive tasks a command means: a task, and what options tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from penstock.reactive.filter import STATES, TaskFilter

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
        click.option("--error", metavar="TEXT", help="Only rows whose last error contains this."),
        click.option("--has-error/--no-error", default=None, help="Only rows with a last error, or without one."),
        click.option(
            "--key", metavar="KEY", help="Only the row with this id, or key; a JSON array if that has several columns."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def read_task_filter(task: str | None, given: dict[str, Any]) -> TaskFilter[Any]:
    """The filter that the task and the options name."""
    return TaskFilter(task=task, **{name: given[name] for name in ("state", "error", "has_error", "key")})
