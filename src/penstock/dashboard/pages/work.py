"""Work: pools with their limits and queues, jobs, and one job with its attempts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from penstock.api.pools.workpool import change_pool
from penstock.dashboard.page import Act, Page, View
from penstock.jobs.filter import JobFilter
from penstock.jobs.job import JobId, job_uuid
from penstock.jobs.states import FINISHED, RETRIABLE, JobState
from penstock.pools.pool import MOST_PARALLEL
from penstock.server.requests import Refused
from penstock.store.contract.jobs import ABOVE_ALL
from penstock.values import decode_json

_LISTED = 50
_WORDS = ("pool", "function", "state", "name", "key", "concurrency_key", "error")


async def _load(view: View) -> Mapping[str, Any]:
    given: dict[str, Any] = {word: view.word(word) for word in _WORDS}
    where, after = JobFilter(**given), view.word("after")
    asked = {word: value for word, value in given.items() if value is not None}
    (seen, pools), calls = await view.activity.look(), view.backend.job_calls
    below, jobs = ABOVE_ALL if after is None else job_uuid(after), calls.store.jobs
    found = await calls.read(lambda session: jobs.list(session, where, _LISTED + 1, calls.now(), below))
    return {
        "pools": pools,
        "rows": {row.name: row for row in seen.pools},
        "jobs": found[:_LISTED],
        "older": urlencode(asked | {"after": found[_LISTED - 1].id}) if len(found) > _LISTED else None,
        "given": given,
        "filtered": bool(asked) or after is not None,
        "states": [state.value for state in JobState],
        "most": MOST_PARALLEL,
    }


async def _pause(view: View) -> str:
    await change_pool(view.backend.engine, view.needed("name"), paused=True)
    return f"{view.needed('name')} is paused. Running jobs continue."


async def _resume(view: View) -> str:
    await change_pool(view.backend.engine, view.needed("name"), paused=False)
    return f"{view.needed('name')} is resumed."


async def _limit(view: View) -> str:
    limit = view.number("limit", 0, MOST_PARALLEL)
    await change_pool(view.backend.engine, view.needed("name"), max_parallelism=limit)
    return f"{view.needed('name')} runs at most {limit:,} jobs at once."


async def _load_job(view: View) -> Mapping[str, Any]:
    job = await view.backend.job(JobId(view.needed("job")))
    if job is None:
        raise Refused(404, "JobNotFound", "There is no such job. Its status may have expired.")
    options = job.options
    return {
        "job": job,
        "context": None if options.context is None else decode_json(options.context),
        "may_retry": job.state in RETRIABLE,
        "may_cancel": job.state not in {*FINISHED, JobState.COMPLETING},
        "may_recall": job.on_complete_error is not None and job.state in FINISHED,
        "ended": job.state in FINISHED,
    }


async def _retry(view: View) -> str:
    done = await view.backend.job_calls.retry([job_uuid(view.needed("job"))])
    return "It is retried." if done else "Not done: only failed and canceled jobs are retried."


async def _recall(view: View) -> str:
    done = await view.backend.job_calls.retry([job_uuid(view.needed("job"))], on_complete=True)
    return "Its on_complete is called again." if done else "Not done: its on_complete has not failed for good."


async def _cancel(view: View) -> str:
    await view.backend.job_calls.cancel([job_uuid(view.needed("job"))])
    return "Asked for it to be canceled."


PAGES = (
    Page("/work", "Work", "work.html", _load, {"pause": Act(_pause), "resume": Act(_resume), "limit": Act(_limit)}),
    Page(
        "/jobs/{job}",
        "Job",
        "job.html",
        _load_job,
        {"retry": Act(_retry), "recall": Act(_recall), "cancel": Act(_cancel, sure="Cancel this job?")},
        above="/work",
    ),
)
