"""``penstock jobs``: how jobs stand, and asking for one to be canceled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

import click

from penstock.app import App
from penstock.cli.opening import complete, open_app, open_backend
from penstock.cli.options import Options, json_option, pass_options
from penstock.cli.output import print_json, print_table, readable_time, say
from penstock.errors import DataError
from penstock.jobs.job import JobId, JobStatus
from penstock.jobs.states import FINISHED, JobState

_STATES = [state.value for state in JobState]
_ARGUMENTS_SHOWN = 60


@click.group("jobs", invoke_without_command=True)
@click.option("--state", type=click.Choice(_STATES), help="Only jobs in this state.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="How many to list.")
@json_option()
@pass_options
@click.pass_context
def command(context: click.Context, options: Options, state: str | None, limit: int) -> None:
    """Show how jobs stand: how many are in each state, and the newest ones."""
    if context.invoked_subcommand is not None:
        return
    counts, jobs = complete(_look(open_app(options), options, state, limit))
    if options.json:
        print_json({"counts": dict(counts), "jobs": [_as_data(job) for job in jobs]})
        return
    click.echo(", ".join(f"{count:,} {place}" for place, count in counts.items()) or "no jobs")
    if jobs:
        headers = ("id", "function", "state", "attempt", "run at", "arguments")
        print_table(headers, [_row(job) for job in jobs], right=("attempt",), whole=False)


@command.command("show")
@click.argument("job")
@json_option()
@pass_options
def show(options: Options, job: str) -> None:
    """Show all that is known of a job."""
    status = complete(_find(open_app(options), options, job))
    if options.json:
        print_json(_as_data(status))
        return
    for name, value in _as_data(status).items():
        if value is not None:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            click.echo(f"{name.replace('_', ' '):12} {text.rstrip()}")


@command.command("cancel")
@click.argument("job")
@json_option()
@pass_options
def cancel(options: Options, job: str) -> None:
    """Ask for a job to be canceled: pending it never starts, running it is asked to stop."""
    status = complete(_cancel(open_app(options), options, job))
    finished = status.state in FINISHED
    if options.json:
        print_json({"id": status.id, "state": status.state.value, "requested": not finished})
    elif finished:
        say(f"{status.id} has ended already: {status.state.value}.")
    else:
        say(f"Asked for {status.id} to be canceled; it was {status.state.value}.")


async def _look(app: App, options: Options, state: str | None, limit: int) -> tuple[Mapping[str, int], list[JobStatus]]:
    async with open_backend(app, options) as backend:
        return await backend.job_counts(), await backend.jobs(state, limit)


async def _find(app: App, options: Options, job: str) -> JobStatus:
    async with open_backend(app, options) as backend:
        return _known(await backend.job(JobId(job)), job)


async def _cancel(app: App, options: Options, job: str) -> JobStatus:
    async with open_backend(app, options) as backend:
        status = _known(await backend.job(JobId(job)), job)
        if status.state not in FINISHED:
            await backend.scheduler.cancel(status.id)
        return status


def _known(status: JobStatus | None, job: str) -> JobStatus:
    if status is None:
        raise DataError(f"There is no job {job}.", fix="Its status may have expired; see penstock jobs.")
    return status


def _row(job: JobStatus) -> tuple[str, ...]:
    arguments = ", ".join(f"{name}={value!r}" for name, value in job.args.items())
    when = readable_time(job.run_at)
    shown = arguments if len(arguments) <= _ARGUMENTS_SHOWN else f"{arguments[:_ARGUMENTS_SHOWN]}…"
    return (job.id, job.function, job.state.value, str(job.attempt), when, shown)


def _as_data(job: JobStatus) -> dict[str, Any]:
    found = asdict(job) | {"state": job.state.value}
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in found.items()}
