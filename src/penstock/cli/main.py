"""The command ``penstock``: its list of commands, and the door through which their errors leave.

Owns which command is in which file. Leaves each command to its file, which is imported when the command is called, so
that ``penstock --help`` is quick.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from penstock.cli.failure import show_failure
from penstock.cli.options import Options, global_options
from penstock.distribution import __version__

_COMMANDS = {
    "init": ("penstock.cli.init", "Write a small project that runs at once."),
    "dev": ("penstock.cli.dev", "Run server and services, and restart when the source changes."),
    "serve": ("penstock.cli.serve", "Run the server."),
    "worker": ("penstock.cli.worker", "Run the services: jobs, crons, reactive tasks, outboxes."),
    "run": ("penstock.cli.functions:run_command", "Run a function."),
    "functions": ("penstock.cli.functions", "List the functions of the app."),
    "codegen": ("penstock.cli.codegen", "Write typed clients: TypeScript, Python, OpenAPI."),
    "function-spec": ("penstock.cli.codegen:function_spec_command", "Print the functions for Convex's tools."),
    "migrate": ("penstock.cli.migrate", "Make the database fit the app."),
    "migration": ("penstock.cli.migration", "Write and run migration files: rename, split, retype, require, drop."),
    "hold": ("penstock.cli.migration:hold", "Stop the triggers of a table while its schema is changed."),
    "release": ("penstock.cli.migration:release", "Capture the changes of a held table again."),
    "forget": ("penstock.cli.migration:forget", "Forget what a renamed program has declared."),
    "data": ("penstock.cli.data", "Show tables and their rows."),
    "export": ("penstock.cli.transfer:export_tables", "Write tables to files as JSON lines."),
    "import": ("penstock.cli.transfer:import_rows", "Read rows into a table from JSON lines."),
    "jobs": ("penstock.cli.jobs", "Show jobs; retry, cancel, wait."),
    "workflows": (
        "penstock.cli.workflows",
        "Show runs of workflows and their steps; send events, cancel, retry, fork, export.",
    ),
    "top": ("penstock.cli.top", "Watch pools and workers, live."),
    "pools": ("penstock.cli.pools", "Show pools; change a limit."),
    "crons": ("penstock.cli.crons", "Show crons; run, pause, resume, remove."),
    "tasks": ("penstock.cli.tasks", "Show reactive tasks; explain, retry, cancel, skip, delete, pause, reconcile."),
    "outbox": ("penstock.cli.outbox", "Show outboxes; retry, skip, pause, move, resend, rebuild, drop."),
    "changes": ("penstock.cli.changes", "Show the change feed; drop a reader."),
    "live": ("penstock.cli.live", "Show the watched queries of a server."),
    "locks": ("penstock.cli.locks", "Show locks; release one."),
    "keys": ("penstock.cli.keys", "Show API keys; create one, revoke one; rotate the keys of own tokens."),
    "pause": ("penstock.cli.pools:pause", "Pause a pool."),
    "resume": ("penstock.cli.pools:resume", "Resume a paused pool."),
    "logs": ("penstock.cli.logs", "Show the log events of all processes; follow them."),
    "doctor": ("penstock.cli.doctor", "Find what needs a person, with the next step."),
    "monitoring": ("penstock.cli.monitoring", "Print a Grafana board, Prometheus alerts, Axiom monitors."),
    "check": ("penstock.cli.check", "Check a program against best practices, without running it."),
    "config": ("penstock.cli.settings", "Show the settings in force and their origin."),
}


class Commands(click.Group):
    """A group that imports a command's file when the command is called."""

    def list_commands(self, _context: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        module, _colon, attribute = _COMMANDS[name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute or "command")
        _share_options(command)
        return command

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Answer a name that comes close to a command with that command."""
        name = arguments[0]
        if name not in _COMMANDS and not name.startswith("-"):
            near = difflib.get_close_matches(name, _COMMANDS, 1)
            meant = f" Did you mean {near[0]!r}?" if near else ""
            context.fail(f"There is no command {name!r}.{meant}")
        return super().resolve_command(context, arguments)

    def format_commands(self, _context: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, what) for name, (_module, what) in _COMMANDS.items()])


@click.command(
    cls=Commands, params=global_options(hidden=False), context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, message="penstock %(version)s", help="Show the version.")
def commands() -> None:
    """penstock: a transactional backend in your own database."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    sys.exit(run(sys.argv[1:] if arguments is None else list(arguments)))


def run(arguments: list[str]) -> int:
    """Run the command line; its exit code. Every error is shown, none is raised."""
    options = Options(json="--json" in arguments)
    try:
        code = commands.main(arguments, "penstock", standalone_mode=False, obj=options)
        if sys.stdout is not None:  # it may have been closed before
            sys.stdout.flush()
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1
    except BaseException as error:  # noqa: BLE001 - this is the door through which every error leaves
        with contextlib.suppress(BrokenPipeError):
            return show_failure(error, as_json=options.json, debug=options.debug)
    else:
        return code if isinstance(code, int) else 0
    return 1


def _share_options(command: click.Command) -> None:
    known = {parameter.name for parameter in command.params}
    command.params += [option for option in global_options(hidden=True) if option.name not in known]
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            _share_options(inner)


if __name__ == "__main__":
    main()
