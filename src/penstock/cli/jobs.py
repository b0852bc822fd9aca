"""``penstock jobs``: lists jobs, and retries, cancels or waits for them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import click

from penstock.app import Backend
from penstock.cli.confirm import confirm, confirm_many
from penstock.cli.opening import with_backend
from penstock.cli.options import Command, Options, combined, json_option, listing, whole_option
from penstock.cli.output import (
    MOST_LINES,
    plain,
    print_field,
    print_fields,
    print_json,
    print_table,
    readable_time,
    say,
    trace_of,
)
from penstock.cli.visible import first_line, visible_line
from penstock.clock import SystemClock
from penstock.errors import DataError
from penstock.jobs.filter import JobFilter, cancelable, recallable, retriable
from penstock.jobs.job import DEFAULT_POOL, Attempt, JobId, JobStatus, job_id, job_uuid
from penstock.jobs.states import FINISHED, RETRIABLE, JobState
from penstock.observe.readable import counted
from penstock.store.nouns.jobtext import retry_parts
from penstock.values import decode_json

_AGO = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_LONGEST = 100 * 366 * 86400


class Duration(click.ParamType[float]):
    """A number of seconds, or a number with s, m, h, d or w."""

    name = "duration"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> float:
        found = _AGO.fullmatch(value if value[-1:].isalpha() else f"{value}s")
        seconds = float(found[1]) * _SECONDS[found[2]] if found else -1.0
        if not 0 <= seconds <= _LONGEST:
            self.fail(f"{value!r} is no duration; write 90s, 15m, 2h or 7d.", parameter, context)
        return seconds


class Moment(click.ParamType[datetime]):
    """A time in ISO form, a date, or how long ago; in UTC, unless it names another zone."""

    name = "when"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> datetime:
        if _AGO.fullmatch(value):
            return SystemClock().now() - timedelta(seconds=Duration().convert(value, parameter, context))
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is no time; write 15m, 2h or 7d for so long ago, or 2026-12-24T18:00.")
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def filter_options(
    states: Sequence[str], of_state: str = "Only jobs in this state.", *, ended: bool = True
) -> Callable[[Command], Command]:
    """The options that tell jobs apart; the command takes them as keyword arguments."""
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
    return combined(*options)


async def read_filter(backend: Backend, given: dict[str, Any]) -> JobFilter:
    """The filter that the options name. A pool that neither the database nor the program knows is refused."""
    function, pool = given["function"], given["pool"]
    if pool not in {None, DEFAULT_POOL}:
        known = sorted({row.name for row in await backend.pools()} | set(backend.app.pools))
        if pool not in known:
            names = f"Name one of {', '.join(known)}." if known else "Declare it with app.workpool."
            raise DataError(f"The database knows no pool {pool!r}.", fix=names)
    return JobFilter(**{**given, "function": None if function is None else backend.app.registry.full_name(function)})


def check_meant(jobs: Sequence[str], given: dict[str, Any], verb: str) -> None:
    """Refuse a command that names no jobs, or names them in two ways."""
    told = [f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None]
    if jobs and told:
        raise click.UsageError(f"{told[0]} and the ids of jobs exclude each other.")
    if not jobs and not told:
        raise click.UsageError(
            f"Say which jobs to {verb}: by id, or by --state, --pool, --function, --error and others."
        )


_STATES = [state.value for state in JobState]
_SHOWN = 60
_limit = click.option(
    "--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="How many jobs to list."
)


@listing("jobs")
@filter_options(_STATES)
@_limit
def command(options: Options, /, limit: int, **given: Any) -> None:
    """Show the number of jobs in each state, and the newest jobs, like penstock jobs list."""
    _list(options, limit, given)


@command.command("list")
@filter_options(_STATES)
@_limit
@json_option()
def list_jobs(options: Options, /, limit: int, **given: Any) -> None:
    """Show the number of jobs in each state, and the newest jobs that match."""
    _list(options, limit, given)


@command.command("show")
@click.argument("job")
@whole_option
@json_option()
def show(options: Options, job: str, whole: bool) -> None:
    """Show a job: its options, its result, and the traceback of each failed attempt."""
    status = with_backend(options, lambda backend: known_job(backend, job))
    if options.json:
        print_json(_as_data(status))
        return
    hidden = {"attempts", "options", "on_complete_attempts"}
    facts = {name: value for name, value in _as_data(status).items() if name not in hidden}
    print_fields(facts | {"traceback": trace_of(status.traceback, whole=whole)})
    print_fields(_options_of(status))
    for number, attempt in enumerate(status.attempts, 1):
        last = number == len(status.attempts) and status.traceback is not None  # its traceback stands above
        _show_attempt(attempt, "attempt", None if last else trace_of(attempt.traceback, whole=whole))
    for attempt in status.on_complete_attempts:
        _show_attempt(attempt, "on_complete", trace_of(attempt.traceback, whole=whole))


def _list(options: Options, limit: int, given: dict[str, Any]) -> None:
    async def look(backend: Backend) -> tuple[Mapping[str, int], list[JobStatus]]:
        where = await read_filter(backend, given)
        return await backend.job_counts(), await backend.jobs(None, limit, where=where)

    counts, jobs = with_backend(options, look)
    if options.json:
        print_json({"counts": dict(counts), "jobs": [_as_data(job) for job in jobs]})
        return
    click.echo(", ".join(f"{count:,} {place}" for place, count in counts.items()) or "no jobs")
    if jobs:
        headers = ("id", "function", "state", "attempt", "pool", "run at", "error or arguments")
        print_table(headers, [_row(job) for job in jobs], right=("attempt",), most_lines=MOST_LINES)


# ----- output


def _row(job: JobStatus) -> tuple[str, ...]:
    arguments = ", ".join(f"{name}={value!r}" for name, value in job.args.items())
    last = first_line(job.error or arguments)
    shown = last if len(last) <= _SHOWN else f"{last[:_SHOWN]}…"
    return (job.id, job.function, job.state.value, str(job.attempt), job.pool, readable_time(job.run_at), shown)


def _show_attempt(attempt: Attempt, what: str, trace: str | None) -> None:
    took = (attempt.ended_at - attempt.started_at).total_seconds()
    print_field(f"{what} {attempt.number}", f"{attempt.what} {readable_time(attempt.ended_at)} after {took:,.3g} s")
    if attempt.error is not None:
        print_field("", attempt.error)
    if trace is not None:
        print_field("", trace)


def _options_of(job: JobStatus) -> dict[str, Any]:
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


NOT_RETRIED, FAILED, CANCELED, LATE = 1, 3, 4, 5
_ENDED = [state.value for state in JobState if state in FINISHED]
_NOT_RUN_AGAIN = [state for state in _ENDED if JobState(state) not in RETRIABLE]
_CANCELABLE = ["pending", "running"]
_FIRST_LOOK, _LAST_LOOK = 0.01, 0.5
_yes = click.option("--yes", "-y", is_flag=True, help="Do not ask before changing several jobs.")


@command.command("retry")
@click.argument("jobs", nargs=-1, metavar="[JOB]...")
@filter_options(_ENDED, f"Only jobs in this state; {' and '.join(_NOT_RUN_AGAIN)} go with --on-complete only.")
@click.option("--on-complete", is_flag=True, help="Only call a permanently failed on_complete again; in any state.")
@_yes
@json_option()
def retry(options: Options, /, jobs: Sequence[str], yes: bool, on_complete: bool, **given: Any) -> int:
    """Run failed or canceled JOBs again, or all failed jobs that match.

    Their attempts count from one. Their on_complete runs again at the end.
    """
    check_meant(jobs, given, "retry")
    if not jobs:
        matching = partial(_retry_matching, given=given, sure=yes, on_complete=on_complete)
        count, ids = with_backend(options, matching)
        if options.json:
            print_json({"found": count, "retried": ids})
        else:
            retried = counted(len(ids), "job")
            done = f"The on_complete of {retried} is called again" if on_complete else f"{retried} retried"
            say(f"{done}, of {count:,}." if count else _NONE)
        return 0
    found = with_backend(options, lambda backend: _retry_named(backend, jobs, on_complete=on_complete))
    if options.json:
        print_json({"jobs": [{"id": status.id, "state": status.state.value, "retried": won} for status, won in found]})
    else:
        for status, won in found:
            done = f"The on_complete of {status.id} is called again." if on_complete else f"{status.id} is retried."
            say(done if won else _why_not(status, on_complete=on_complete))
    return 0 if all(won for _, won in found) else NOT_RETRIED


@command.command("cancel")
@click.argument("jobs", nargs=-1, metavar="[JOB]...")
@filter_options(_CANCELABLE, ended=False)
@_yes
@json_option()
def cancel(options: Options, /, jobs: Sequence[str], yes: bool, **given: Any) -> None:
    """Cancel JOBs, or all unfinished jobs that match.

    Pending jobs never start; running ones are asked to stop. Jobs that only wait for their on_complete go on.
    """
    check_meant(jobs, given, "cancel")
    if not jobs:
        count = with_backend(options, lambda backend: _cancel_matching(backend, given, sure=yes))
        if options.json:
            print_json({"requested": count})
        else:
            say(f"Asked for {counted(count, 'job')} to be canceled." if count else _NONE)
        return
    found = with_backend(options, lambda backend: _cancel_named(backend, jobs))
    if options.json:
        requested = [{"id": one.id, "state": one.state.value, "requested": _may_stop(one)} for one in found]
        print_json({"jobs": requested})
        return
    for status in found:
        if status.state in FINISHED:
            say(f"{status.id} has ended already: {status.state.value}.")
        elif status.state is JobState.COMPLETING:
            say(f"{status.id} is not canceled. Only its on_complete is left, and that still runs.")
        else:
            say(f"Asked for {status.id} to be canceled; it was {status.state.value}.")


@command.command("wait")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@click.option("--timeout", type=Duration(), metavar="DURATION", help="The longest wait, such as 90s or 5m.")
@json_option()
def wait(options: Options, jobs: Sequence[str], timeout: float | None) -> int:
    """Wait until JOBs have ended, and print how.

    Exit status: 0 if all succeeded, 3 if one failed, 4 if one was canceled and none failed, 5 after the timeout.
    """
    found = with_backend(options, lambda backend: _wait(backend, options, jobs, timeout))
    if options.json:
        ends = [{"id": one.id, "state": one.state.value, "result": one.result, "error": one.error} for one in found]
        print_json({"jobs": ends})
    states = {status.state for status in found}
    if not states <= FINISHED:
        return LATE
    return FAILED if JobState.FAILED in states else CANCELED if JobState.CANCELED in states else 0


async def known_job(backend: Backend, job: str) -> JobStatus:
    status = await backend.job(JobId(job))
    if status is None:
        raise DataError(f"There is no job {job}.", fix="Its status may have expired; see penstock jobs.")
    return status


# ----- steps

_NONE = "There are no such jobs."


def _may_stop(status: JobStatus) -> bool:
    return status.state not in {*FINISHED, JobState.COMPLETING}


def _why_not(status: JobStatus, *, on_complete: bool) -> str:
    state = status.state.value
    if on_complete:
        return f"The on_complete of {status.id} is not called again: it has not failed for good; the job is {state}."
    text = f"{status.id} is not retried: only what has failed or was canceled is; it is {state}."
    return text if status.on_complete_error is None else f"{text} Its on_complete has failed: see --on-complete."


async def _retry_named(backend: Backend, jobs: Sequence[str], *, on_complete: bool) -> list[tuple[JobStatus, bool]]:
    for job in jobs:
        await known_job(backend, job)
    retried = await backend.job_calls.retry([job_uuid(job) for job in jobs], on_complete=on_complete)
    return [(await known_job(backend, job), job_uuid(job) in retried) for job in dict.fromkeys(jobs)]


async def _retry_matching(
    backend: Backend, given: dict[str, Any], *, sure: bool, on_complete: bool
) -> tuple[int, list[JobId]]:
    """Retry the jobs that the filter finds before it asks, and none that fail while somebody is asked."""
    where = await read_filter(backend, given)
    where = recallable(where) if on_complete else retriable(where)
    found = await backend.job_calls.matching(where)
    if on_complete:
        confirm(f"Call the on_complete of {counted(len(found), 'job')} again?", sure=sure or len(found) <= 1)
    else:
        confirm_many(len(found), "retry", "job", sure=sure)
    return len(found), [job_id(uuid) for uuid in await backend.job_calls.retry(found, on_complete=on_complete)]


async def _cancel_named(backend: Backend, jobs: Sequence[str]) -> list[JobStatus]:
    found = [await known_job(backend, job) for job in dict.fromkeys(jobs)]
    await backend.job_calls.cancel([job_uuid(status.id) for status in found if _may_stop(status)])
    return found


async def _cancel_matching(backend: Backend, given: dict[str, Any], *, sure: bool) -> int:
    where = cancelable(await read_filter(backend, given))
    count = await backend.job_calls.count_cancelable(where)
    confirm_many(count, "cancel", "job", sure=sure)
    return await backend.job_calls.cancel_all(where) if count else 0


async def _wait(backend: Backend, options: Options, jobs: Sequence[str], seconds: float | None) -> list[JobStatus]:
    clock, pause = SystemClock(), _FIRST_LOOK
    deadline = None if seconds is None else clock.monotonic() + seconds
    found: dict[str, JobStatus] = {}
    while True:
        for job in jobs:
            if job not in found or found[job].state not in FINISHED:
                found[job] = await known_job(backend, job)
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
