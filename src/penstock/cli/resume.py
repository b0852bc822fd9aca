"""``penstock resume``: begin to start jobs of a pool again."""

from __future__ import annotations

import click

from penstock.cli.opening import complete, open_app
from penstock.cli.options import Options, pass_options
from penstock.cli.output import say
from penstock.cli.pools import change_in_database


@click.command("resume")
@click.argument("pool")
@pass_options
def command(options: Options, pool: str) -> None:
    """Resume a paused pool."""
    row = complete(change_in_database(open_app(options), options, pool, paused=False))
    if row.max_parallelism:
        say(f"{pool} starts jobs again.")
    else:
        say(f"{pool} is resumed, but its limit is 0. Raise it with: penstock pools set {pool} --max-parallelism NUMBER")
