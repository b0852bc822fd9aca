"""``penstock logs``: the log events of all processes on the database, the newest last; and new ones as they come.

Reads the logbook, which processes write every few seconds. Leaves writing and retention to `observe/logbook`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from penstock.app import Backend
from penstock.cli.opening import with_backend
from penstock.cli.options import Options, json_option
from penstock.cli.output import print_json, readable_time
from penstock.cli.visible import visible, visible_line
from penstock.observe.logbook import LEAST_LEVEL, LEVELS, LogEvent

_EVERY = 1.0
_WINDOW = 1_000  # events that a look compares with those of the look before


@click.command("logs")
@click.option("--function", default="", help="Only events of functions whose name contains this.")
@click.option("--event", default="", help="Only events whose name begins with this, such as job. or worker.")
@click.option("--job", default="", help="Only events of this job, trace or key.")
@click.option("--level", type=click.Choice(tuple(LEVELS)), help="The lowest level to show.")
@click.option("--limit", type=click.IntRange(1, _WINDOW), default=50, show_default=True, help="How many to list.")
@click.option("--follow", "-f", is_flag=True, help="Go on with new events until Ctrl-C.")
@json_option("Print each event as JSON, one a line.")
def command(
    options: Options, /, *, function: str, event: str, job: str, level: str | None, limit: int, follow: bool
) -> None:
    """Show the last log events of all processes, oldest first: those of penstock, and what functions log.

    Processes write them to the database every five seconds, and keep them for seven days at most.
    """
    where = {"function": function, "event": event, "words": [job], "level": LEVELS.get(level or "", LEAST_LEVEL)}

    async def show(backend: Backend) -> None:
        logbook, known = backend.engine.store.logbook, list[LogEvent]()
        found = await logbook.events(_WINDOW if follow else limit, **where)
        _print(found[:limit], as_json=options.json)
        while follow:
            known = found or known
            await backend.engine.machine.sleep(_EVERY)
            found = await logbook.events(_WINDOW, **where)
            _print(_find_new(found, known), as_json=options.json)

    with_backend(options, show)


def _find_new(found: Sequence[LogEvent], known: Sequence[LogEvent]) -> list[LogEvent]:
    """Find the events that have come since a look: a process may write one after newer ones of others."""
    seen = {one.id for one in known}
    is_whole = len(known) < _WINDOW  # then no event was older than those
    return [one for one in found if one.id not in seen and (is_whole or one.id > known[-1].id)]


def _print(events: Sequence[LogEvent], *, as_json: bool) -> None:
    for one in reversed(events):
        if as_json:
            print_json({"at": one.at, "level": one.level_name, "event": one.name, **one.facts})
            continue
        facts: dict[str, Any] = {name: fact for name, fact in one.facts.items() if name != "traceback"}
        said = visible_line(" ".join([one.name, *(f"{name}={fact}" for name, fact in facts.items())]))
        click.echo(f"{readable_time(one.at)} {one.level_name:7} {said}")
        if "traceback" in one.facts:
            click.echo(visible(str(one.facts["traceback"])))
