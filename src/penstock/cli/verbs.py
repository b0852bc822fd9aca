"""Commands that do one thing to what they name, and say so: pause, resume and the like."""

from __future__ import annotations

import click

from penstock.cli.opening import with_backend
from penstock.cli.options import Options, pass_options
from penstock.cli.output import say


def add_verb(group: click.Group, nouns: str, noun: str, verb: str, about: str, told: str) -> None:
    """Add the command for a verb of the API; `told` has places for the name and for what the API returns."""

    @group.command(verb, help=about)
    @click.argument(noun)
    @pass_options
    def command(options: Options, /, **named: str) -> None:
        name = named[noun]
        found = with_backend(options, lambda backend: getattr(getattr(backend.app, nouns), verb)(backend, name))
        say(told.format(name, found))
