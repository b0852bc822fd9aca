"""Jobs: pools with their limits and queues, jobs, and one job with its attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from penstock.api.pools.activity import MOST_COUNTED, Look, hindrance
from penstock.api.pools.workpool import change_pool
from penstock.api.tasks.views import key_text, plain_key
from penstock.dashboard.charts import charts_of
from penstock.dashboard.page import Act, Page, View, act_of
from penstock.errors import ValueInvalid
from penstock.jobs.job import JobId, JobStatus, job_id, job_uuid
from penstock.jobs.states import CANCELABLE, FINISHED, RETRIABLE, STAGES, JobState
from penstock.observe.readable import amount
from penstock.operations import jobs
from penstock.operations.operation import Given
from penstock.pools.pool import MOST_PARALLEL
from penstock.pools.rates import rate_words
from penstock.server.requests import Refused
from penstock.store.nouns.jobs import ABOVE_ALL, BELOW_ALL, LOOKED_AT
from penstock.store.nouns.pools import KeyRow
from penstock.values import decode_json

_LISTED, _EVENTS = 25, 200
_KEYS_READ, _KEY_COUNTED = 200, 1_000  # keys of a pool, and jobs of a key
_WORDS = ("pool", "function", "state", "name", "key", "concurrency_key", "error", "on_complete_error", "since")
_SINCE = {
    "15 minutes": timedelta(minutes=15),
    "1 hour": timedelta(hours=1),
    "1 day": timedelta(days=1),
    "7 days": timedelta(days=7),
}
_MAY_BE_RETRIED = {None, *(state.value for state in RETRIABLE)}
_MAY_BE_CANCELED = {None, *CANCELABLE}
_COUNTED = {*CANCELABLE, JobState.FAILED.value}
_TABS = tuple(one for one in STAGES if one != JobState.PENDING.value)


# ----- pools and lists of jobs


async def _load(view: View) -> Mapping[str, Any]:
    asked, after, state = _filter_words(view), view.word("after"), view.word("state")
    where, (seen, pools) = jobs.build_filter(view.backend, _filter_values(view)), await view.activity.look()
    calls = view.backend.job_calls
    below, store = ABOVE_ALL if after is None else job_uuid(after), calls.store
    down_to = await calls.read(lambda session: store.jobs.horizon(session, where, below))
    listed = await calls.read(lambda session: store.jobs.list(session, where, _LISTED + 1, calls.now(), below, down_to))
    found = list(map(calls.mask, listed))
    last = found[_LISTED - 1].id if len(found) > _LISTED else job_id(down_to) if down_to > BELOW_ALL else None
    rows = {row.name: row for row in seen.pools}
    row = rows.get(where.pool or "")
    return {
        "pools": [one for one in pools if _is_meant(view, one.name)],
        "named": view.word("pools") or "",
        "rows": rows,
        "row": row,
        "charts": None if where.pool is None else await charts_of(view, (f"pool {where.pool}", "job"), **asked),
        "keys": await _keys(view, row.name) if row is not None and row.waiting else [],
        "most": MOST_COUNTED,
        "most_of_key": _KEY_COUNTED,
        "rates": [] if row is None else [one and rate_words(one) for one in (row.rate_limit, row.key_rate_limit)],
        "jobs": found[:_LISTED],
        "older": None if last is None else urlencode(asked | {"after": last}),
        "looked_at": LOOKED_AT if down_to > BELOW_ALL and len(found) <= _LISTED else None,
        "given": {word: asked.get(word) for word in _WORDS},
        "filtered": bool(asked) or after is not None,
        "tabs": await _tabs(view, asked),
        "functions": sorted({one.name for one in view.backend.app.registry} | {asked.get("function", "")} - {""}),
        "pool_names": sorted({one.name for one in pools} | {asked.get("pool", "")} - {""}),
        "sinces": list(_SINCE),
        "largest": MOST_PARALLEL,
        "may_retry": bool(asked) and state in _MAY_BE_RETRIED and where.on_complete_error is None,
        "may_cancel": bool(asked) and state in _MAY_BE_CANCELED and where.on_complete_error is None,
    }


async def _tabs(view: View, asked: Mapping[str, str]) -> list[tuple[str, str, int | None]]:
    """Each stage with the query that filters by it, and the number of its jobs if no other word filters."""
    counts: Mapping[str, int] = {}
    others = {word: text for word, text in asked.items() if word != "state"}
    if not others:
        calls = view.backend.job_calls
        counts = await calls.read(lambda session: calls.store.jobs.count_some(session, calls.now(), MOST_COUNTED))
    return [("all", urlencode(others), None)] + [
        (one, urlencode(others | {"state": one}), counts.get(one, 0 if one in _COUNTED and not others else None))
        for one in _TABS
    ]


def _filter_words(view: View) -> dict[str, str]:
    return {word: value for word in _WORDS if (value := view.word(word)) is not None}


def _filter_values(view: View) -> dict[str, Any]:
    given: dict[str, Any] = _filter_words(view)
    if "since" in given:
        if given["since"] not in _SINCE:
            raise ValueInvalid(f"since is one of {', '.join(_SINCE)}.")
        given["since"] = view.backend.job_calls.now() - _SINCE[given["since"]]
    return given


async def _keys(view: View, pool: str) -> list[KeyRow]:
    calls = view.backend.job_calls
    return await calls.read(lambda session: calls.store.pools.waiting(session, pool, _KEYS_READ, _KEY_COUNTED))


def _is_meant(view: View, pool: str) -> bool:
    return view.words.get("pools", "") in pool


async def _pools(view: View) -> list[str]:
    """The pool that the form names, or those with a limit that the page lists. `ValueInvalid` if there are none."""
    if (one := view.word("of")) is not None:
        return [one]
    names = [one.name for one in (await view.activity.look())[0].pools if _is_meant(view, one.name)]
    if not names:
        raise ValueInvalid("No pool matches.")
    return names


def _sure_of_pools(verb: str) -> Callable[[View], Awaitable[str]]:
    async def ask(view: View) -> str:
        if view.word("of") is not None:
            return ""
        names = await _pools(view)
        to = f" to {view.number('limit', 0, MOST_PARALLEL):,}" if "limit" in view.words else ""
        return f"{verb} {amount(len(names), 'pool')}{to}: {', '.join(names)}?"

    return ask


def _changing(done: str, **change: bool) -> Callable[[View], Awaitable[str]]:
    async def act(view: View) -> str:
        changes: dict[str, Any] = change or {"max_parallelism": view.number("limit", 0, MOST_PARALLEL)}
        names = await _pools(view)
        await asyncio.gather(*(change_pool(view.backend.engine, one, **changes) for one in names))
        told = f"{names[0]} is" if len(names) == 1 else f"{len(names):,} pools are"
        return f"{told} {done.format(*changes.values())}"

    return act


def _require_filter(view: View) -> Given:
    if not _filter_words(view):
        raise ValueInvalid("This would change all jobs.", fix="Filter the jobs first.")
    return {"job": (), **_filter_values(view)}


def _read_boxes(view: View) -> Given:
    """The jobs whose boxes are checked."""
    return {"job": tuple(view.require("job").split())}


async def _ask_of_chosen(view: View) -> str:
    return f"Cancel {amount(len(_read_boxes(view)['job']), 'job')}?"


def _tell_of_chosen(_given: Given, found: Any) -> str:
    done = [won for _, won in found["jobs"]]
    return f"{amount(sum(done), 'job')} retried, of {len(done):,}."


def _tell_of_canceled(_given: Given, found: Any) -> str:
    asked = [one for one in found["jobs"] if one.state not in {*FINISHED, JobState.COMPLETING}]
    return f"Asked for {amount(len(asked), 'job')} to be canceled, of {len(found['jobs']):,}."


def _tell_of_retries(_given: Given, found: Any) -> str:
    return f"{amount(len(found['retried']), 'job')} retried."


# ----- one job


async def _load_job(view: View) -> Mapping[str, Any]:
    job = await view.backend.job(JobId(view.require("job")))
    if job is None:
        raise Refused(404, "JobNotFound", "There is no such job. Its status may have expired.")
    options, calls, waits, task = job.options, view.backend.job_calls, list[str](), None
    if job.state is JobState.PENDING:
        seen, _ = await view.activity.look()
        keys = [] if options.concurrency_key is None else await _keys(view, job.pool)
        known = view.backend.app.registry.find(job.function) is not None
        waits = list(_reasons(job, seen, keys, calls.now(), known=known))
    if options.task is not None:
        task = next((one.plan.name for one in await calls.store.tasks.list() if one.id == options.task), None)
    return {
        "job": job,
        "is_run": job.function in view.backend.app.registry.workflows,
        "entries": await view.log(_EVENTS, words=[f" {job.id} "]),
        "waits": waits,
        "task": task,
        "row": key_text(plain_key(job.args["key"])) if task is not None and "key" in job.args else None,
        "context": None if options.context is None else decode_json(options.context),
        "may_retry": job.state in RETRIABLE,
        "may_cancel": job.state not in {*FINISHED, JobState.COMPLETING},
        "may_recall": job.on_complete_error is not None and job.state in FINISHED,
        "ended": job.state in FINISHED,
    }


def _reasons(job: JobStatus, seen: Look, keys: list[KeyRow], now: datetime, *, known: bool) -> Iterator[str]:
    """Why a pending job has not begun."""
    if job.run_at > now:
        yield f"It is not due yet{': it waits for its next attempt' if job.stage == 'retrying' else ''}."
        return
    yield "It is in the queue. Jobs of its pool that are older or have a higher priority start first."
    if not seen.workers:
        yield "No worker runs. Start one with: penstock worker"
    if not known:
        yield "This program does not declare its function. A worker of a program that does runs it."
    pool = next((row for row in seen.pools if row.name == job.pool), None)
    if pool is not None and (why := hindrance(pool)) is not None:
        yield why
    key = next((one for one in keys if one.key == job.options.concurrency_key), None)
    if pool is not None and key is not None and pool.key_parallelism is not None:
        yield f"Of its concurrency key {key.running} of at most {pool.key_parallelism} jobs run, {key.waiting} wait."
    if pool is not None and pool.waiting and (pool.rate_limit or pool.key_rate_limit):
        limits = [rate_words(one) for one in (pool.rate_limit, pool.key_rate_limit) if one is not None]
        yield f"Its pool starts jobs at a limited rate: {' and '.join(limits)}."


def _name_job(view: View) -> Given:
    return {"job": (view.require("job"),)}


def _name_recall(view: View) -> Given:
    return {**_name_job(view), "on_complete": True}


def _tell_whether(done: str, otherwise: str) -> Callable[[Given, Any], str]:
    return lambda _given, found: done if found["jobs"][0][1] else f"Not done: {otherwise}"


_RETRY = act_of(
    jobs.retry, _tell_whether("It is retried.", "only failed and canceled jobs are retried."), sure="", given=_name_job
)
_RECALL = act_of(
    jobs.retry,
    _tell_whether("Its on_complete is called again.", "its on_complete has not failed for good."),
    sure="",
    given=_name_recall,
)
_CANCEL = act_of(jobs.cancel, "Asked for it to be canceled.", sure="Cancel this job?", given=_name_job)

PAGES = (
    Page(
        "/work",
        "Jobs",
        "work.html",
        _load,
        {
            "pause": Act(_changing("paused. Running jobs continue.", paused=True), sure=_sure_of_pools("Pause")),
            "resume": Act(_changing("resumed.", paused=False), sure=_sure_of_pools("Resume")),
            "limit": Act(_changing("limited to {:,} jobs at once."), sure=_sure_of_pools("Set the limit of")),
            "retry all": act_of(jobs.retry, _tell_of_retries, given=_require_filter),
            "cancel all": act_of(jobs.cancel, jobs.cancel.tell, given=_require_filter),
            "retry chosen": act_of(jobs.retry, _tell_of_chosen, sure="", given=_read_boxes),
            "cancel chosen": act_of(jobs.cancel, _tell_of_canceled, sure=_ask_of_chosen, given=_read_boxes),
        },
    ),
    Page(
        "/jobs/{job}",
        "Job",
        "job.html",
        _load_job,
        {"retry": _RETRY, "recall": _RECALL, "cancel": _CANCEL},
        above="/work",
    ),
)
