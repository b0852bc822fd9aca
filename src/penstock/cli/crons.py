"""``penstock crons``: the crons, their next times, and the outcomes of their last runs."""

from __future__ import annotations

import click

from penstock.api.crons.crons import CronStatus
from penstock.cli.opening import with_backend
from penstock.cli.operations import add_commands, listing_of
from penstock.cli.options import Options
from penstock.cli.output import print_list, readable_time
from penstock.operations import crons


@listing_of(crons.LIST)
def command(options: Options) -> None:
    found = with_backend(options, lambda backend: crons.LIST.run(backend, {}))["crons"]
    headers = ("cron", "schedule", "time zone", "next due", "last run", "state")
    print_list("crons", found, headers, _row, as_json=options.json)


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


add_commands(command, crons.RUN, show=lambda found: click.echo(found["job"]))
add_commands(command, crons.PAUSE, crons.RESUME, crons.REMOVE)
