"""``penstock crons``: the crons, their next times, and the outcomes of their last runs."""

from __future__ import annotations

from functools import partial

import click

from penstock.api.crons.crons import CronStatus
from penstock.cli.opening import with_backend
from penstock.cli.options import Options, listing, pass_options
from penstock.cli.output import print_list, readable_time, say
from penstock.cli.verbs import add_verb


@listing("crons")
def command(options: Options) -> None:
    """Show all crons: when each is due next, and how its last run ended."""
    crons = with_backend(options, lambda backend: backend.app.crons.list(backend))
    headers = ("cron", "schedule", "time zone", "next due", "last run", "state")
    print_list("crons", crons, headers, _row, as_json=options.json)


@command.command("run")
@click.argument("cron")
@pass_options
def run(options: Options, cron: str) -> None:
    """Run a cron now and print the job's id. Refused while a run is in progress."""
    click.echo(with_backend(options, lambda backend: backend.app.crons.run(backend, cron)))


_verb = partial(add_verb, command, "crons", "cron")
_verb("pause", "Pause a cron on all machines.", "{} is paused. A current run continues; no other one starts.")
_verb("resume", "Resume a paused cron, from its next planned time.", "{} runs again.")


@command.command("remove")
@click.argument("cron")
@pass_options
def remove(options: Options, cron: str) -> None:
    """Remove a cron that was created at run time, or that no program declares."""
    found = with_backend(options, lambda backend: backend.app.crons.remove(backend, cron))
    say(f"{cron} is removed." if found else f"The database knows no cron {cron!r}.")


def _row(cron: CronStatus) -> tuple[str, ...]:
    due = readable_time(cron.next_at) if cron.kept else "not of this program"
    last = "" if cron.planned_at is None else readable_time(cron.planned_at)
    return (
        cron.name,
        cron.schedule,
        cron.timezone,
        "paused" if cron.paused else due,
        last,
        "" if cron.state is None else cron.state.value,
    )
