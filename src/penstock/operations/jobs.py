"""The operations on jobs: they are seen, run again and canceled, by their ids or by a filter.

Owns how a filter of jobs is read, and the JSON of a job. A request retries a part of what matches, a command all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from penstock.app import Backend
from penstock.errors import DataError, ResultInvalid, UsageError, ValueInvalid
from penstock.jobs.filter import ENDED, JobFilter, cancelable, recallable, retriable
from penstock.jobs.job import DEFAULT_POOL, JobId, JobStatus, Options, job_id, job_uuid
from penstock.jobs.states import CANCELABLE, FINISHED, RETRIABLE, STAGES, JobState
from penstock.observe.readable import amount
from penstock.operations.moments import read_moment
from penstock.operations.operation import Given, Noun, Parameter, Question, Refusal, Refusals, ask_of
from penstock.store.nouns.jobtext import retry_parts
from penstock.values import decode_json
from penstock.wire.outgoing import Format, encode_result

noun = Noun("jobs")
_NOT_RUN_AGAIN = [state for state in ENDED if JobState(state) not in RETRIABLE]
_NONE = "There are no such jobs."
_TIMES = ("since", "before")
_INNER = ("until_start", "trace", "task", "program")  # options that users do not give
_SHOWN = [field.name for field in fields(Options) if field.name not in _INNER]


TIMES = (
    Parameter("since", "moment", "Only ones that ended since; of unfinished ones, enqueued since.", metavar="WHEN"),
    Parameter("before", "moment", "The same, before this time.", metavar="WHEN"),
)


def _filter(states: Sequence[str], of_state: str = "Only jobs in this state.") -> tuple[Parameter, ...]:
    return (
        Parameter("state", "choice", of_state, choices=tuple(states)),
        Parameter("pool", about="Only jobs of this pool; the scheduler's is named default."),
        Parameter("function", about="Only jobs of this function; the module is optional."),
        Parameter("name", about="Only jobs of this name."),
        Parameter("key", about="Only jobs with this key."),
        Parameter("concurrency_key", about="Only jobs with this concurrency key."),
        Parameter("error", about="Only jobs whose last error contains this text.", metavar="TEXT"),
        *TIMES,
    )


_ON_COMPLETE_ERROR = Parameter(
    "on_complete_error",
    "any text",
    "Only jobs whose on_complete failed for good with this text; '' for any.",
    metavar="TEXT",
)
FILTER = tuple(one.name for one in (*_filter(STAGES), _ON_COMPLETE_ERROR))


class PoolUnknown(DataError):
    """Neither the database nor the program knows the pool of a filter."""


class JobUnknown(DataError):
    """There is no such job."""


def build_filter(backend: Backend, given: Given) -> JobFilter:
    """Build the filter that parameters name; a function may go without its module."""
    words: dict[str, Any] = {name: given.get(name) for name in FILTER}
    function = words["function"]
    words["function"] = None if function is None else backend.app.registry.full_name(function)
    words |= {name: read_moment(words[name]) for name in _TIMES if isinstance(words[name], str)}
    return JobFilter(**words)


async def filter_of(backend: Backend, given: Given) -> JobFilter:
    """Build the filter that parameters name, after a look for its pool. Raises `PoolUnknown`."""
    pool = given.get("pool")
    if pool not in {None, DEFAULT_POOL}:
        known = sorted({row.name for row in await backend.pools()} | set(backend.app.pools))
        if pool not in known:
            names = f"Name one of {', '.join(known)}." if known else "Declare it with app.workpool."
            raise PoolUnknown(f"The database knows no pool {pool!r}.", fix=names)
    return build_filter(backend, given)


async def find_job(backend: Backend, job: str) -> JobStatus:
    """Find the status of a job. Raises `JobUnknown`."""
    status = await backend.job(JobId(job))
    if status is None:
        raise JobUnknown(f"There is no job {job}.", fix="Its status may have expired; see penstock jobs.")
    return status


# ----- to see


def options_of(job: JobStatus) -> dict[str, Any]:
    """Collect the options of a job that are not the default ones."""
    options = job.options
    context = None if options.context is None else decode_json(options.context)
    retries = {"retry": options.retry, "on_complete_retry": options.on_complete_retry}
    found: dict[str, Any] = {name: getattr(options, name) for name in _SHOWN} | {"context": context}
    found |= {name: None if policy is None else retry_parts(policy) for name, policy in retries.items()}
    kept = {"unread": options.unread, "broken": options.broken}
    found |= {name: None if text is None else json.loads(text) for name, text in kept.items()}
    return {name: value for name, value in found.items() if value is not None}


def data_of(job: JobStatus) -> dict[str, Any]:
    """Make JSON of a job."""
    return {one.name: getattr(job, one.name) for one in fields(job)} | {"options": options_of(job)}


def sayable(job: JobStatus) -> dict[str, Any]:
    """Make JSON of a job for HTTP; values that cannot be sent, such as integers over 64 bits, are JSON as text."""
    found = data_of(job)
    for name in ("args", "result", "options", "progress"):
        try:
            encode_result(found[name], Format.CLEAN)
        except ResultInvalid:
            found[name] = json.dumps(found[name], default=str)
    return found


_LIMIT = Parameter("limit", "page", "How many jobs to list.", default=20, most=10_000)
_POOL_UNKNOWN: Refusals = {PoolUnknown: Refusal(404, "PoolNotFound")}
_JOB_UNKNOWN: Refusals = {JobUnknown: Refusal(404, "JobNotFound")}


@noun.lists(
    *_filter(STAGES),
    _ON_COMPLETE_ERROR,
    _LIMIT,
    answers=lambda found: {"counts": found[0], "jobs": [sayable(job) for job in found[1]]},
    refusals=_POOL_UNKNOWN,
)
async def every(backend: Backend, given: Given) -> tuple[Mapping[str, int], list[JobStatus]]:
    """Show the number of jobs in each state, and the newest jobs, like penstock jobs list."""
    where = await filter_of(backend, given)
    return await backend.job_counts(), await backend.jobs(None, given["limit"], where=where)


@noun.shows(Parameter("job", needed=True), answers=sayable, refusals=_JOB_UNKNOWN)
async def show(backend: Backend, given: Given) -> JobStatus:
    """Show a job: its options, its result, and the traceback of each failed attempt."""
    return await find_job(backend, given["job"])


# ----- to change


def _refuse_unclear(verb: str, given: Given) -> None:
    """Refuse a request that names no jobs, or names them in two ways."""
    words = [name for name in FILTER if given.get(name) is not None]
    if given["job"] and words:
        raise ValueInvalid(f"{words[0]} and the ids of jobs exclude each other.")
    if not given["job"] and not words:
        raise UsageError(f"This would {verb} all jobs.")


async def _find_jobs(backend: Backend, given: Given) -> list[JobStatus]:
    return [await find_job(backend, job) for job in dict.fromkeys(given["job"])]


async def _filter_of_retry(backend: Backend, given: Given) -> JobFilter:
    where = await filter_of(backend, given)
    return recallable(where) if given.get("on_complete") else retriable(where)


async def _ask_to_retry(backend: Backend, given: Given) -> Question:
    """Find the jobs that are retried then, and none that fail while somebody is asked."""
    if given["job"]:
        return Question("", count=1)
    found = await backend.job_calls.matching(await _filter_of_retry(backend, given))
    if not given.get("on_complete"):
        return ask_of("retry", len(found), "job", found=found)
    text = f"Call the on_complete of {amount(len(found), 'job')} again?"
    return Question(text, count=len(found), none=_NONE, found={"found": found})


def _tell_of_retry(given: Given, found: Mapping[str, Any]) -> str:
    on_complete = given["on_complete"]
    if "jobs" in found:
        return "\n".join(_tell_of_one_retry(*one, on_complete=on_complete) for one in found["jobs"])
    retried = amount(len(found["retried"]), "job")
    done = f"The on_complete of {retried} is called again" if on_complete else f"{retried} retried"
    return f"{done}, of {found['found']:,}." if found["found"] else _NONE


def _tell_of_one_retry(status: JobStatus, won: bool, *, on_complete: bool) -> str:
    job, state = status.id, status.state.value
    if on_complete:
        not_done = f"is not called again: it has not failed for good; the job is {state}."
        return f"The on_complete of {job} {'is called again.' if won else not_done}"
    if won:
        return f"{job} is retried."
    text = f"{job} is not retried: only what has failed or was canceled is; it is {state}."
    return text if status.on_complete_error is None else f"{text} Its on_complete has failed: see --on-complete."


def _describe_retry(found: Mapping[str, Any]) -> Any:
    if "jobs" not in found:
        return found
    return {"jobs": [{"id": one.id, "state": one.state.value, "retried": won} for one, won in found["jobs"]]}


_JOBS = Parameter("job", "texts", metavar="[JOB]...")
_ON_COMPLETE = "Only call a permanently failed on_complete again; in any state."
_MEANT = Refusal(400, "FilterEmpty", "{what} Say which, by ids or by a filter.")
_REFUSALS: Refusals = {**_POOL_UNKNOWN, **_JOB_UNKNOWN, UsageError: _MEANT}


@noun.changes(
    _JOBS,
    *_filter(ENDED, f"Only jobs in this state; {' and '.join(_NOT_RUN_AGAIN)} go with --on-complete only."),
    _ON_COMPLETE_ERROR,
    Parameter("on_complete", "flag", _ON_COMPLETE),
    Parameter("limit", "part"),
    asks=_ask_to_retry,
    tells=_tell_of_retry,
    answers=_describe_retry,
    refusals=_REFUSALS,
)
async def retry(backend: Backend, given: Given) -> Mapping[str, Any]:
    """Run failed or canceled JOBs again, or all failed jobs that match.

    Their attempts count from one. Their on_complete runs again at the end.
    """
    _refuse_unclear("retry", given)
    calls, on_complete = backend.job_calls, bool(given.get("on_complete"))
    if given["job"]:
        jobs = [one.id for one in await _find_jobs(backend, given)]
        retried = await calls.retry([job_uuid(job) for job in jobs], on_complete=on_complete)
        return {"jobs": [(await find_job(backend, job), job_uuid(job) in retried) for job in jobs]}
    found = given.get("found")
    if found is None:
        found = await calls.matching(await _filter_of_retry(backend, given))
    some = found if given.get("limit") is None else found[: given["limit"]]
    retried = await calls.retry(some, on_complete=on_complete)
    return {"found": len(found), "retried": [job_id(uuid) for uuid in retried]}


async def _ask_to_cancel(backend: Backend, given: Given) -> Question:
    if given["job"]:
        return Question("", count=1)
    where = cancelable(await filter_of(backend, given))
    return ask_of("cancel", await backend.job_calls.count_cancelable(where), "job")


def _may_stop(status: JobStatus) -> bool:
    return status.state not in {*FINISHED, JobState.COMPLETING}


def _tell_of_cancel(_given: Given, found: Mapping[str, Any]) -> str:
    if "jobs" in found:
        return "\n".join(map(_tell_of_one_cancel, found["jobs"]))
    return f"Asked for {amount(found['requested'], 'job')} to be canceled." if found["requested"] else _NONE


def _tell_of_one_cancel(status: JobStatus) -> str:
    if status.state in FINISHED:
        return f"{status.id} has ended already: {status.state.value}."
    if status.state is JobState.COMPLETING:
        return f"{status.id} is not canceled. Only its on_complete is left, and that still runs."
    return f"Asked for {status.id} to be canceled; it was {status.state.value}."


def _describe_cancel(found: Mapping[str, Any]) -> Any:
    if "jobs" not in found:
        return found
    requested = [{"id": one.id, "state": one.state.value, "requested": _may_stop(one)} for one in found["jobs"]]
    return {"jobs": requested}


@noun.changes(
    _JOBS,
    *_filter(CANCELABLE),
    asks=_ask_to_cancel,
    tells=_tell_of_cancel,
    answers=_describe_cancel,
    refusals=_REFUSALS,
)
async def cancel(backend: Backend, given: Given) -> Mapping[str, Any]:
    """Cancel JOBs, or all unfinished jobs that match.

    Pending jobs never start; running ones are asked to stop. Jobs that only wait for their on_complete go on.
    """
    _refuse_unclear("cancel", given)
    if not given["job"]:
        return {"requested": await backend.job_calls.cancel_all(cancelable(await filter_of(backend, given)))}
    found = await _find_jobs(backend, given)
    await backend.job_calls.cancel([job_uuid(status.id) for status in found if _may_stop(status)])
    return {"jobs": found}
