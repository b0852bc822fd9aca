"""``penstock jobs``: lists jobs, and retries, cancels or waits for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import click

from penstock.app import Backend
from penstock.cli.opening import with_backend
from penstock.cli.operations import DURATION, add_commands, listing_of, takes
from penstock.cli.options import Options, json_option, whole_option
from penstock.cli.output import (
    MOST_LINES,
    plain,
    print_field,
    print_fields,
    print_json,
    print_table,
    readable_time,
    trace_of,
)
from penstock.cli.visible import first_line, visible_line
from penstock.clock import SystemClock
from penstock.jobs.job import Attempt, JobStatus
from penstock.jobs.states import FINISHED, JobState
from penstock.operations import jobs
from penstock.operations.jobs import data_of, find_job, options_of
from penstock.operations.operation import Given

_SHOWN = 60
NOT_RETRIED, FAILED, CANCELED, LATE = 1, 3, 4, 5
_FIRST_LOOK, _LAST_LOOK = 0.01, 0.5


@listing_of(jobs.every)
def command(options: Options, /, **given: Any) -> None:
    _list(options, given)


@command.command("list")
@takes(jobs.every)
@json_option()
def list_jobs(options: Options, /, **given: Any) -> None:
    """Show the number of jobs in each state, and the newest jobs that match."""
    _list(options, given)


@command.command("show", help=jobs.show.about)
@takes(jobs.show)
@whole_option
@json_option()
def show(options: Options, /, *, whole: bool, **given: Any) -> None:
    status: JobStatus = with_backend(options, lambda backend: jobs.show.run(backend, given))
    if options.json:
        print_json(data_of(status))
        return
    hidden = {"attempts", "options", "on_complete_attempts"}
    facts = {name: value for name, value in plain(data_of(status)).items() if name not in hidden}
    print_fields(facts | {"traceback": trace_of(status.traceback, whole=whole)})
    print_fields(options_of(status))
    for number, attempt in enumerate(status.attempts, 1):
        last = number == len(status.attempts) and status.traceback is not None  # its traceback stands above
        _show_attempt(attempt, "attempt", None if last else trace_of(attempt.traceback, whole=whole))
    for attempt in status.on_complete_attempts:
        _show_attempt(attempt, "on_complete", trace_of(attempt.traceback, whole=whole))


def _list(options: Options, given: Given) -> None:
    counts, found = with_backend(options, lambda backend: jobs.every.run(backend, given))
    if options.json:
        print_json({"counts": dict(counts), "jobs": [data_of(job) for job in found]})
        return
    click.echo(", ".join(f"{count:,} {place}" for place, count in counts.items()) or "no jobs")
    if found:
        headers = ("id", "function", "state", "attempt", "pool", "run at", "error or arguments")
        print_table(headers, [_row(job) for job in found], right=("attempt",), most_lines=MOST_LINES)


# ----- output


def _row(job: JobStatus) -> tuple[str, ...]:
    arguments = ", ".join(f"{name}={value!r}" for name, value in job.args.items())
    last = first_line(job.error or arguments)
    shown = last if len(last) <= _SHOWN else f"{last[:_SHOWN]}…"
    return (job.id, job.function, job.stage, str(job.attempt), job.pool, readable_time(job.run_at), shown)


def _show_attempt(attempt: Attempt, what: str, trace: str | None) -> None:
    took = (attempt.ended_at - attempt.started_at).total_seconds()
    print_field(f"{what} {attempt.number}", f"{attempt.what} {readable_time(attempt.ended_at)} after {took:,.3g} s")
    if attempt.error is not None:
        print_field("", attempt.error)
    if trace is not None:
        print_field("", trace)


# ----- to change, and to wait


def _check(verb: str, given: Given) -> None:
    """Refuse a command that names no jobs, or names them in two ways."""
    told = [f"--{name.replace('_', '-')}" for name in jobs.FILTER if given.get(name) is not None]
    if given["job"] and told:
        raise click.UsageError(f"{told[0]} and the ids of jobs exclude each other.")
    if not given["job"] and not told:
        raise click.UsageError(
            f"Say which jobs to {verb}: by id, or by --state, --pool, --function, --error and others."
        )


def _retry_code(found: Mapping[str, Any]) -> int:
    return 0 if all(won for _, won in found.get("jobs", ())) else NOT_RETRIED


_YES = "Do not ask before changing several jobs."
add_commands(command, jobs.retry, data=jobs.retry.answers, yes=_YES, check=partial(_check, "retry"), code=_retry_code)
add_commands(command, jobs.cancel, data=jobs.cancel.answers, yes=_YES, check=partial(_check, "cancel"))


@command.command("wait")
@click.argument("ids", nargs=-1, required=True, metavar="JOB...")
@click.option("--timeout", type=DURATION, metavar="DURATION", help="The longest wait, such as 90s or 5m.")
@json_option()
def wait(options: Options, ids: Sequence[str], timeout: float | None) -> int:
    """Wait until JOBs have ended, and print how.

    Exit status: 0 if all succeeded, 3 if one failed, 4 if one was canceled and none failed, 5 after the timeout.
    """
    found = with_backend(options, lambda backend: _wait(backend, options, ids, timeout))
    if options.json:
        ends = [{"id": one.id, "state": one.state.value, "result": one.result, "error": one.error} for one in found]
        print_json({"jobs": ends})
    states = {status.state for status in found}
    if not states <= FINISHED:
        return LATE
    return FAILED if JobState.FAILED in states else CANCELED if JobState.CANCELED in states else 0


async def _wait(backend: Backend, options: Options, ids: Sequence[str], seconds: float | None) -> list[JobStatus]:
    clock, pause = SystemClock(), _FIRST_LOOK
    deadline = None if seconds is None else clock.monotonic() + seconds
    found: dict[str, JobStatus] = {}
    while True:
        for job in ids:
            if job not in found or found[job].state not in FINISHED:
                found[job] = await find_job(backend, job)
                if found[job].state in FINISHED:
                    _tell(options, found[job])
        waiting = [status for status in found.values() if status.state not in FINISHED]
        left = None if deadline is None else deadline - clock.monotonic()
        if not waiting or (left is not None and left <= 0):
            break
        await clock.sleep(pause if left is None else min(pause, left))
        pause = min(pause * 1.5, _LAST_LOOK)
    for status in waiting:
        _tell(options, status)
    return list(found.values())


def _tell(options: Options, status: JobStatus) -> None:
    if not options.json:
        error = f": {first_line(status.error)}" if status.error and status.state is JobState.FAILED else ""
        click.echo(f"{status.id} {status.state.value}{visible_line(error)}")
