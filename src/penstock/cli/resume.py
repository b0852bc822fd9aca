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
    """Start jobs of a paused pool again."""
    complete(change_in_database(open_app(options), options, pool, paused=False))
    say(f"{pool} starts jobs again.")
