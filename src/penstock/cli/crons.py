"""``penstock crons``: the crons, their next times, and the outcomes of their last runs."""

from __future__ import annotations

import click

from penstock.api.crons.crons import CronStatus
from penstock.cli.operations import add_commands, list_command
from penstock.cli.output import readable_time
from penstock.operations import crons


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


command = list_command(crons.every, ("cron", "schedule", "time zone", "next due", "last run", "state"), _row)
add_commands(command, crons.run, show=lambda found: click.echo(found["job"]))
add_commands(command, crons.pause, crons.resume, crons.remove)
