"""``penstock pause``: stop to start jobs of a pool."""

from __future__ import annotations

import click

from penstock.cli.opening import complete, open_app
from penstock.cli.options import Options, pass_options
from penstock.cli.output import say
from penstock.cli.pools import change_in_database


@click.command("pause")
@click.argument("pool")
@pass_options
def command(options: Options, pool: str) -> None:
    """Pause a pool on all machines: start none of its jobs."""
    complete(change_in_database(open_app(options), options, pool, paused=True))
    say(f"{pool} is paused. Running jobs continue; no other ones start.")
