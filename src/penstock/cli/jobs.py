"""``penstock jobs``: how jobs stand: all of them, and one with all that is known of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from penstock.app import Backend
from penstock.cli.jobchanges import cancel, known_job, retry, wait
from penstock.cli.jobfilter import check_pool, filter_options, read_filter
from penstock.cli.opening import open_app, with_backend
from penstock.cli.options import Options, json_option, pass_options
from penstock.cli.output import plain, print_field, print_fields, print_json, print_rows, readable_time
from penstock.cli.visible import first_line
from penstock.jobs.job import Attempt, JobStatus
from penstock.jobs.states import JobState
from penstock.store.rows.retries import retry_parts
from penstock.values import decode_json

_STATES = [state.value for state in JobState]
_SHOWN = 60
_limit = click.option(
    "--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="How many jobs to list."
)


@click.group("jobs", invoke_without_command=True)
@filter_options(_STATES)
@_limit
@json_option()
@pass_options
@click.pass_context
def command(context: click.Context, options: Options, /, limit: int, **given: Any) -> None:
    """Show the number of jobs in each state, and the newest jobs, like penstock jobs list."""
    if context.invoked_subcommand is None:
        _list(options, limit, given)


@command.command("list")
@filter_options(_STATES)
@_limit
@json_option()
@pass_options
def list_jobs(options: Options, /, limit: int, **given: Any) -> None:
    """Show the number of jobs in each state, and the newest jobs that match."""
    _list(options, limit, given)


@command.command("show")
@click.argument("job")
@json_option()
@pass_options
def show(options: Options, job: str) -> None:
    """Show a job: its options, its result, and the traceback of each failed attempt."""
    status = with_backend(open_app(options), options, lambda backend: known_job(backend, job))
    if options.json:
        print_json(_as_data(status))
        return
    hidden = {"attempts", "options", "on_complete_attempts"}
    print_fields({name: value for name, value in _as_data(status).items() if name not in hidden})
    print_fields(_options_of(status))
    for number, attempt in enumerate(status.attempts, 1):
        _show_attempt(attempt, last=number == len(status.attempts) and status.traceback is not None)
    for attempt in status.on_complete_attempts:
        _show_attempt(attempt, "on_complete", last=False)


for _command in (retry, cancel, wait):
    command.add_command(_command)


def _list(options: Options, limit: int, given: dict[str, Any]) -> None:
    app = open_app(options)
    where = read_filter(app, given)

    async def look(backend: Backend) -> tuple[Mapping[str, int], list[JobStatus]]:
        await check_pool(backend, where)
        return await backend.job_counts(), await backend.jobs(None, limit, where=where)

    counts, jobs = with_backend(app, options, look)
    if options.json:
        print_json({"counts": dict(counts), "jobs": [_as_data(job) for job in jobs]})
        return
    click.echo(", ".join(f"{count:,} {place}" for place, count in counts.items()) or "no jobs")
    if jobs:
        headers = ("id", "function", "state", "attempt", "pool", "run at", "error or arguments")
        print_rows(headers, [_row(job) for job in jobs], right=("attempt",), needed=headers[-1])


# ----- what is shown


def _row(job: JobStatus) -> tuple[str, ...]:
    arguments = ", ".join(f"{name}={value!r}" for name, value in job.args.items())
    last = first_line(job.error or arguments)
    shown = last if len(last) <= _SHOWN else f"{last[:_SHOWN]}…"
    return (job.id, job.function, job.state.value, str(job.attempt), job.pool, readable_time(job.run_at), shown)


def _show_attempt(attempt: Attempt, what: str = "attempt", *, last: bool) -> None:
    took = (attempt.ended_at - attempt.started_at).total_seconds()
    print_field(f"{what} {attempt.number}", f"{attempt.what} {readable_time(attempt.ended_at)} after {took:,.3g} s")
    if attempt.error is not None:
        print_field("", attempt.error)
    if attempt.traceback is not None and not last:  # that of the last one stands above, whole
        print_field("", attempt.traceback)


def _options_of(job: JobStatus) -> dict[str, Any]:
    """What a job was asked for, in words."""
    options = job.options
    context = None if options.context is None else decode_json(options.context)
    retries = {"retry": options.retry, "on_complete_retry": options.on_complete_retry}
    found: dict[str, Any] = {"name": options.name, "timeout": options.timeout, "context": context}
    found |= {name: None if policy is None else retry_parts(policy) for name, policy in retries.items()}
    found |= {name: getattr(options, name) for name in ("key", "concurrency_key", "keep")}
    kept = {"unread": options.unread, "broken": options.broken}
    found |= {name: None if text is None else json.loads(text) for name, text in kept.items()}
    return {name: value for name, value in found.items() if value is not None}


def _as_data(job: JobStatus) -> dict[str, Any]:
    found: dict[str, Any] = plain(job)
    return found | {"options": _options_of(job)}
