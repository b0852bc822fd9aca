"""``penstock jobs retry``, ``cancel`` and ``wait``: what may be done about jobs, one or many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click

from penstock.app import Backend
from penstock.cli.asking import confirm, confirm_many
from penstock.cli.jobfilter import Duration, check_meant, check_pool, filter_options, read_filter
from penstock.cli.opening import open_app, with_backend
from penstock.cli.options import Options, json_option, pass_options
from penstock.cli.output import counted, print_json, say
from penstock.cli.visible import first_line, visible_line
from penstock.clock import SystemClock
from penstock.errors import DataError
from penstock.jobs.filter import JobFilter, cancelable, recallable, retriable
from penstock.jobs.job import JobId, JobStatus, job_id, job_uuid
from penstock.jobs.states import FINISHED, RETRIABLE, JobState

NOT_RETRIED, FAILED, CANCELED, LATE = 1, 3, 4, 5
_ENDED = [state.value for state in JobState if state in FINISHED]
_NOT_RUN_AGAIN = [state for state in _ENDED if JobState(state) not in RETRIABLE]
_CANCELABLE = ["pending", "running"]
_FIRST_LOOK, _LAST_LOOK = 0.01, 0.5
_yes = click.option("--yes", "-y", is_flag=True, help="Do not ask before changing several jobs.")


@click.command("retry")
@click.argument("jobs", nargs=-1, metavar="[JOB]...")
@filter_options(_ENDED, f"Only jobs in this state; {' and '.join(_NOT_RUN_AGAIN)} go with --on-complete only.")
@click.option("--on-complete", is_flag=True, help="Only call a permanently failed on_complete again; in any state.")
@_yes
@json_option()
@pass_options
def retry(options: Options, /, jobs: Sequence[str], yes: bool, on_complete: bool, **given: Any) -> int:
    """Run failed or canceled JOBs again, or all failed jobs that match.

    Their attempts count from one. Their on_complete runs again at the end.
    """
    check_meant(jobs, given, "retry")
    app = open_app(options)
    if not jobs:
        where = read_filter(app, given)
        where = recallable(where) if on_complete else retriable(where)
        count, ids = with_backend(
            app, options, lambda backend: _retry_matching(backend, where, sure=yes, on_complete=on_complete)
        )
        if options.json:
            print_json({"found": count, "retried": ids})
        else:
            say(_retried_of(len(ids), count, on_complete=on_complete) if count else _NONE)
        return 0
    found = with_backend(app, options, lambda backend: _retry_named(backend, jobs, on_complete=on_complete))
    if options.json:
        print_json({"jobs": [{"id": status.id, "state": status.state.value, "retried": won} for status, won in found]})
    else:
        for status, won in found:
            say(_retried(status.id, on_complete=on_complete) if won else _why_not(status, on_complete=on_complete))
    return 0 if all(won for _, won in found) else NOT_RETRIED


@click.command("cancel")
@click.argument("jobs", nargs=-1, metavar="[JOB]...")
@filter_options(_CANCELABLE, ended=False)
@_yes
@json_option()
@pass_options
def cancel(options: Options, /, jobs: Sequence[str], yes: bool, **given: Any) -> None:
    """Cancel JOBs, or all unfinished jobs that match.

    Pending jobs never start; running ones are asked to stop. Jobs that only wait for their on_complete go on.
    """
    check_meant(jobs, given, "cancel")
    app = open_app(options)
    if not jobs:
        where = cancelable(read_filter(app, given))
        count = with_backend(app, options, lambda backend: _cancel_matching(backend, where, sure=yes))
        if options.json:
            print_json({"requested": count})
        else:
            say(f"Asked for {counted(count, 'job')} to be canceled." if count else _NONE)
        return
    found = with_backend(app, options, lambda backend: _cancel_named(backend, jobs))
    if options.json:
        print_json({"jobs": [_as_request(status) for status in found]})
        return
    for status in found:
        if status.state in FINISHED:
            say(f"{status.id} has ended already: {status.state.value}.")
        elif status.state is JobState.COMPLETING:
            say(f"{status.id} is not canceled. Only its on_complete is left, and that still runs.")
        else:
            say(f"Asked for {status.id} to be canceled; it was {status.state.value}.")


@click.command("wait")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@click.option("--timeout", type=Duration(), metavar="DURATION", help="The longest wait, such as 90s or 5m.")
@json_option()
@pass_options
def wait(options: Options, jobs: Sequence[str], timeout: float | None) -> int:
    """Wait until JOBs have ended, and print how.

    Exit status: 0 if all succeeded, 3 if one failed, 4 if one was canceled and none failed, 5 after the timeout.
    """
    found = with_backend(open_app(options), options, lambda backend: _wait(backend, options, jobs, timeout))
    if options.json:
        print_json({"jobs": [_as_end(status) for status in found]})
    states = {status.state for status in found}
    if not states <= FINISHED:
        return LATE
    return FAILED if JobState.FAILED in states else CANCELED if JobState.CANCELED in states else 0


async def known_job(backend: Backend, job: str) -> JobStatus:
    """A job that is named on the command line.

    Raises:
        DataError: There is none.
        IdInvalid: It is no id of a job.
    """
    status = await backend.job(JobId(job))
    if status is None:
        raise DataError(f"There is no job {job}.", fix="Its status may have expired; see penstock jobs.")
    return status


# ----- steps

_NONE = "There are no such jobs."


def _retried(job: str, *, on_complete: bool) -> str:
    return f"The on_complete of {job} is called again." if on_complete else f"{job} is retried."


def _retried_of(retried: int, found: int, *, on_complete: bool) -> str:
    jobs = counted(retried, "job")
    return (
        f"The on_complete of {jobs} is called again, of {found:,}." if on_complete else f"{jobs} retried, of {found:,}."
    )


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
    backend: Backend, where: JobFilter, *, sure: bool, on_complete: bool
) -> tuple[int, list[JobId]]:
    """What the filter finds now is retried, and nothing that fails while somebody is asked."""
    await check_pool(backend, where)
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


async def _cancel_matching(backend: Backend, where: JobFilter, *, sure: bool) -> int:
    await check_pool(backend, where)
    count = 0
    for state in _CANCELABLE if where.state is None else [where.state]:
        count += len(await backend.job_calls.matching(replace(where, state=state)))
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


def _as_request(status: JobStatus) -> dict[str, Any]:
    return {"id": status.id, "state": status.state.value, "requested": _may_stop(status)}


def _as_end(status: JobStatus) -> dict[str, Any]:
    return {"id": status.id, "state": status.state.value, "result": status.result, "error": status.error}
