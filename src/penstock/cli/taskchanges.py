"""``penstock tasks retry``, ``cancel``, ``skip``, ``delete``, ``pause``, ``resume``, ``reconcile``: changing them."""

from __future__ import annotations

from typing import Any

import click

from penstock.app import Backend
from penstock.cli.asking import confirm_many
from penstock.cli.opening import open_app, with_backend
from penstock.cli.options import Options, json_option, pass_options
from penstock.cli.output import counted, print_json, say
from penstock.cli.taskfilter import read_task_filter, task_filter_options

_all = click.option("--all", "everything", is_flag=True, help="All rows of all tasks.")
_yes = click.option("--yes", "-y", is_flag=True, help="Do not ask before changing several rows.")


@click.command("retry")
@click.argument("task", required=False)
@task_filter_options
@_all
@_yes
@json_option()
@pass_options
def retry(options: Options, /, task: str | None, everything: bool, yes: bool, **given: Any) -> None:
    """Run rows of TASK, or of all tasks, again; successful ones too, unless --state excludes them.

    Their attempts count from one. Running rows run once more afterwards.
    """
    _change(options, "retry", task, given, everything=everything, sure=yes)


@click.command("cancel")
@click.argument("task", required=False)
@task_filter_options
@_all
@_yes
@json_option()
@pass_options
def cancel(options: Options, /, task: str | None, everything: bool, yes: bool, **given: Any) -> None:
    """Cancel runs of TASK, or of all tasks.

    Pending runs never start; running ones are asked to stop.
    """
    _change(options, "cancel", task, given, "pending", "running", everything=everything, sure=yes)


@click.command("skip")
@click.argument("task", required=False)
@task_filter_options
@_all
@_yes
@json_option()
@pass_options
def skip(options: Options, /, task: str | None, everything: bool, yes: bool, **given: Any) -> None:
    """End pending runs of TASK, or of all tasks, as skipped. A row's next change runs."""
    _change(options, "skip", task, given, "pending", everything=everything, sure=yes)


@click.command("delete")
@click.argument("task", required=False)
@task_filter_options
@_all
@_yes
@json_option()
@pass_options
def delete(options: Options, /, task: str | None, everything: bool, yes: bool, **given: Any) -> None:
    """Delete the records of TASK, or of all tasks. The rows of the table stay.

    Cancels pending runs and asks running ones to stop; repeat the command afterwards.
    """
    _change(options, "delete", task, given, everything=everything, sure=yes)


@click.command("pause")
@click.argument("task")
@pass_options
def pause(options: Options, task: str) -> None:
    """Pause TASK on all machines. Running runs continue."""
    app = open_app(options)
    with_backend(app, options, lambda backend: app.tasks.pause(backend, task))
    say(f"{task} is paused. Running ones continue; no other ones start.")


@click.command("resume")
@click.argument("task")
@pass_options
def resume(options: Options, task: str) -> None:
    """Resume a paused TASK."""
    app = open_app(options)
    count = with_backend(app, options, lambda backend: app.tasks.resume(backend, task))
    say(f"{task} runs again; {counted(count, 'run')} that had been deferred {'is' if count == 1 else 'are'} due now.")


@click.command("reconcile")
@click.argument("task")
@pass_options
def reconcile(options: Options, task: str) -> None:
    """Check all rows of TASK again. The planner does it; penstock tasks shows its progress."""
    app = open_app(options)
    with_backend(app, options, lambda backend: app.tasks.reconcile(backend, task))
    say(f"All rows of {task} will be checked by the planner.")


# ----- steps

_DONE = {"retry": "retried", "cancel": "asked to be canceled", "skip": "skipped", "delete": "forgotten"}


def _change(
    options: Options,
    verb: str,
    task: str | None,
    given: dict[str, Any],
    *states: str,
    everything: bool,
    sure: bool,
) -> None:
    if task is None and not everything and all(value is None for value in given.values()):
        options_of = "--state, --error, --has-error, --key, --table, --rows"
        raise click.UsageError(f"Say which rows to {verb}: a task, {options_of}; or --all.")
    app = open_app(options)
    where = read_task_filter(app, task, given)
    if states:
        where = where.in_states(*states, verb=_DONE[verb])

    async def change(backend: Backend) -> tuple[int, int]:
        counts = await app.tasks.count(backend, where)
        found = sum(number for state, number in counts.items() if state != "gone")
        confirm_many(found, verb, "row", sure=sure)
        act = {name: getattr(app.tasks, name) for name in _DONE}[verb]
        return found, await act(backend, where, everything=True) if found else 0

    found, changed = with_backend(app, options, change)
    if options.json:
        print_json({"found": found, "changed": changed})
    else:
        say(f"{counted(changed, 'row')} {_DONE[verb]}, of {found:,}." if found else "There are no such rows.")
