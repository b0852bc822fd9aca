"""``penstock doctor``: what is wrong with a running system, how bad it is, and the next step.

Owns how findings look, and the exit status. Leaves the findings to `api/health`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import click

from penstock.api.health import SEVERITIES, HealthFinding
from penstock.cli.failure import style
from penstock.cli.opening import with_backend
from penstock.cli.options import Options, json_option
from penstock.cli.output import print_json, wrapper
from penstock.cli.visible import visible_line
from penstock.errors import DatabaseUnavailable
from penstock.observe.readable import amount

_WIDTH, _INDENT = 80, 10
_COLOURS = {"critical": "red", "warning": "yellow", "notice": "blue"}
_EXIT_STATUS = {"critical": 2, "warning": 1, "notice": 0}


@click.command("doctor")
@json_option()
def command(options: Options) -> int:
    """Find what needs a person: stuck leases, a full feed, halted outboxes, missing indexes, and more.

    Each finding says what is wrong, where, and the next step. Exit status 2 if one is critical, 1 if one is a warning,
    else 0.
    """
    try:
        found = with_backend(options, lambda backend: backend.health())
    except DatabaseUnavailable as error:
        found = [HealthFinding("database-away", "critical", "database", error.what, error.fix)]
    if options.json:
        print_json({"findings": found})
    else:
        _show(found)
    return max((_EXIT_STATUS[one.severity] for one in found), default=0)


def _show(found: Sequence[HealthFinding]) -> None:
    indent = " " * _INDENT
    fill = wrapper(_WIDTH, initial_indent=indent, subsequent_indent=indent).fill
    for one in found:
        severity = style(f"{one.severity:{_INDENT}}", fg=_COLOURS[one.severity], bold=True)
        click.echo(f"{severity}{visible_line(one.where)}  ({one.code})")
        for text in (one.what, one.fix):
            click.echo(fill(visible_line(text)))
        if one.command:
            click.echo(f"{'':{_INDENT}}$ {visible_line(one.command)}")
        click.echo()
    numbers = Counter(one.severity for one in found)
    click.echo(", ".join(amount(numbers[one], one, one) for one in SEVERITIES if numbers[one]) or "nothing found")
