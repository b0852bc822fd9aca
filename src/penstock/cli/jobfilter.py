"""Which jobs a command means: named one by one, or told by options.

Owns the options, and how times and names of functions are read. Leaves what a filter finds to the store.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import click

from penstock.app import App, Backend
from penstock.clock import SystemClock
from penstock.errors import DataError
from penstock.functions.registry import Registry
from penstock.jobs.filter import JobFilter
from penstock.jobs.job import DEFAULT_POOL

F = TypeVar("F", bound=Callable[..., Any])

_AGO = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_LONGEST = 100 * 366 * 86400


class Duration(click.ParamType[float]):
    """A number of seconds, or a number with s, m, h, d or w."""

    name = "duration"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> float:
        """Seconds."""
        found = _AGO.fullmatch(value if value[-1:].isalpha() else f"{value}s")
        seconds = float(found[1]) * _SECONDS[found[2]] if found else -1.0
        if not 0 <= seconds <= _LONGEST:
            self.fail(f"{value!r} is no duration; write 90s, 15m, 2h or 7d.", parameter, context)
        return seconds


class Moment(click.ParamType[datetime]):
    """A time: so long ago, or a date, or a time in ISO form; in UTC, unless it names another zone."""

    name = "when"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> datetime:
        """The time."""
        if _AGO.fullmatch(value):
            return SystemClock().now() - timedelta(seconds=Duration().convert(value, parameter, context))
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is no time; write 15m, 2h or 7d for so long ago, or 2026-12-24T18:00.")
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def filter_options(
    states: Sequence[str], of_state: str = "Only jobs in this state.", *, ended: bool = True
) -> Callable[[F], F]:
    """The options that tell jobs apart; the command takes them as keyword arguments.

    Args:
        states: The states there are to choose from.
        of_state: What is said of that option.
        ended: Whether there are options that only jobs meet that have ended.
    """
    options = [
        click.option("--state", type=click.Choice(states), help=of_state),
        click.option("--pool", help="Only jobs of this pool; the scheduler's is named default."),
        click.option("--function", help="Only jobs of this function; the module is optional."),
        click.option("--name", help="Only jobs of this name."),
        click.option("--key", help="Only jobs with this key."),
        click.option("--concurrency-key", help="Only jobs with this concurrency key."),
        click.option("--error", metavar="TEXT", help="Only jobs whose last error contains this text."),
        click.option(
            "--since",
            type=Moment(),
            metavar="WHEN",
            help="Only jobs that ended since; for unfinished ones, enqueued since.",
        ),
        click.option("--before", type=Moment(), metavar="WHEN", help="The same, before this time."),
    ]
    if ended:
        told = "Only jobs whose on_complete failed for good with this text; '' for any."
        options.append(click.option("--on-complete-error", metavar="TEXT", help=told))

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def read_filter(app: App, given: dict[str, Any]) -> JobFilter:
    """The filter that the options name."""
    function = given["function"]
    return JobFilter(**{**given, "function": None if function is None else function_name(app.registry, function)})


async def check_pool(backend: Backend, where: JobFilter) -> None:
    """Refuse a pool that neither the database nor the program knows: nothing will ever be found in it.

    Raises:
        DataError: It is one.
    """
    if where.pool in {None, DEFAULT_POOL}:
        return
    known = sorted({row.name for row in await backend.pools()} | set(backend.app.pools))
    if where.pool not in known:
        names = f"Name one of {', '.join(known)}." if known else "Declare it with app.workpool."
        raise DataError(f"The database knows no pool {where.pool!r}.", fix=names)


def function_name(registry: Registry, name: str) -> str:
    """The name of a function in full; as it is if no function is called so, or several are: jobs may outlive theirs."""
    found = [function.name for function in registry if function.name.endswith((f":{name}", f".{name}"))]
    return found[0] if len(found) == 1 and ":" not in name else name


def check_meant(jobs: Sequence[str], given: dict[str, Any], verb: str) -> None:
    """Refuse a command that names no jobs, or names them in two ways.

    Raises:
        UsageError: It does.
    """
    told = [f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None]
    if jobs and told:
        raise click.UsageError(f"{told[0]} and the ids of jobs exclude each other.")
    if not jobs and not told:
        raise click.UsageError(
            f"Say which jobs to {verb}: by id, or by --state, --pool, --function, --error and others."
        )
