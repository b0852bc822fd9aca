"""The options that all commands share, wherever on the line they stand: before the command, or after it.

Owns their names and parsed values. Leaves their meaning to the commands.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from penstock.dataclass import dataclass

Command = Callable[..., Any]


@dataclass
class Options:
    """The shared options. None means: not given."""

    app: str | None = None
    database: str | None = None
    schema: str | None = None
    log_level: str | None = None
    log_format: str = "text"
    json: bool = False

    @property
    def place(self) -> dict[str, str | None]:
        """The settings that say where the program's tables are."""
        return {"database": self.database, "schema": self.schema}

    @property
    def debug(self) -> bool:
        return self.log_level == "debug"


pass_options = click.make_pass_decorator(Options, ensure=True)

_SHARED: dict[str, dict[str, Any]] = {
    "--app": {"metavar": "MODULE[:NAME]", "help": "The app: a module or a file.", "envvar": "PENSTOCK_APP"},
    # DATABASE_URL and PENSTOCK_DATABASE are read as settings, so that they rank as such
    "--database": {"metavar": "URL", "help": "The database: sqlite:///file.db or postgresql://…"},
    "--schema": {"metavar": "NAME", "help": "The schema of penstock's own tables."},
    "--log-level": {
        "type": click.Choice(("debug", "info", "warning", "error")),
        "help": "The lowest level of logs to show.",
        "envvar": "PENSTOCK_LOG_LEVEL",
    },
    "--log-format": {
        "type": click.Choice(("text", "json")),
        "help": "The format of logs.",
        "envvar": "PENSTOCK_LOG_FORMAT",
    },
}


def global_options(*, hidden: bool) -> list[click.Parameter]:
    """The shared options: in full for the group, hidden for each command, where they may stand as well."""
    told: dict[str, Any] = {"hidden": True, "envvar": None} if hidden else {"show_envvar": True}
    return [
        click.Option([name], expose_value=False, callback=_remember, **{**how, **told}) for name, how in _SHARED.items()
    ]


def json_option(help_text: str = "Print JSON.") -> Callable[[Command], Command]:
    """``--json``, for commands whose output programs read; errors are then JSON too. Passes the shared options."""
    option = click.option("--json", is_flag=True, expose_value=False, callback=_remember, help=help_text)
    return lambda command: option(pass_options(command))


def combine(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several decorators as one, in the order in which they would stand above the command."""
    return lambda command: functools.reduce(lambda made, option: option(made), reversed(options), command)


metrics_port_option = click.option(
    "--metrics-port", type=click.IntRange(1, 65535), help="Show metrics on this port; default: metrics_port."
)
whole_option = click.option("--all", "whole", is_flag=True, help="Show whole tracebacks, with penstock's own frames.")


class Listing(click.Group):
    """A group of commands that names its commands when it is given another one."""

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Fail with the commands of the group, or with the penstock command of this name."""
        name = arguments[0]
        if name not in self.commands and not name.startswith("-"):
            above = context.parent and context.parent.command
            is_above = isinstance(above, click.Group) and name in above.list_commands(context)
            meant = f"Did you mean penstock {name}?" if is_above else f"It has {', '.join(sorted(self.commands))}."
            context.fail(f"{context.command_path} has no command {name!r}. {meant}")
        return super().resolve_command(context, arguments)


def listing(name: str, about: str | None = None) -> Callable[[Callable[..., None]], click.Group]:
    """A group of commands that lists what there is, unless one of them is named."""

    def make(show: Callable[..., None]) -> click.Group:
        @functools.wraps(show)
        def unless_named(context: click.Context, options: Options, /, **given: Any) -> None:
            if context.invoked_subcommand is None:
                show(options, **given)

        made = click.group(name, invoke_without_command=True, help=about)
        return made(json_option()(click.pass_context(unless_named)))

    return make


def _remember(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value is not None and parameter.name:
        setattr(context.ensure_object(Options), parameter.name, value)
