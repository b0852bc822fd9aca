"""Search: what an id, a key, a name or a part of an error leads to, from the box on each page."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

from penstock.dashboard.page import Elsewhere, Page, View
from penstock.jobs.job import JobId
from penstock.schema.ids import JOB_PREFIX, is_id

_LISTED, _MOST_NAMES = 20, 30
_LOOKED_AT = 10_000  # jobs of each place
_EVERY = 10.0  # seconds
_LONGEST = 200
_TRACE = re.compile(r"[0-9a-f]{32}")


async def _load(view: View) -> Mapping[str, Any]:
    sought = (view.word("for") or "").replace("\0", "").strip()[:_LONGEST]
    if not sought:
        return {"sought": "", "names": [], "jobs": [], "entries": [], "most": _LOOKED_AT}
    if (path := await _find_id(view, sought)) is not None:
        raise Elsewhere(path)
    calls = view.backend.job_calls
    found = await calls.read(lambda session: calls.store.jobs.seek(session, sought, _LISTED, calls.now(), _LOOKED_AT))
    lower = sought.lower()
    names = [one async for one in _names(view) if lower in one[1].lower()]
    return {
        "sought": sought,
        "names": names[:_MOST_NAMES],
        "jobs": [*map(calls.mask, found)],
        "entries": await view.log(_LISTED, text=sought),
        "most": _LOOKED_AT,
    }


async def _find_id(view: View, sought: str) -> str | None:
    """The page of a job, a row, or what a trace or a request did; None if it is none of these."""
    if is_id(JOB_PREFIX, sought):
        job = await view.backend.job(JobId(sought))
        return None if job is None else f"/jobs/{sought}"
    tables = {one.name for one in view.backend.app.definitions() if one.managed}
    if sought[:-27] in tables and is_id(sought[:-27], sought):
        return f"/data/{quote(sought[:-27])}/row?key={quote_plus(sought)}"
    if _TRACE.fullmatch(sought) or await view.log(1, words=[f" {sought} "], function="", event="http.request"):
        return f"/timeline?of={quote_plus(sought)}"
    return None


async def _names(view: View) -> AsyncIterator[tuple[str, str, str]]:
    """All that has a name: its kind, its name and its page."""
    backend, store = view.backend, view.backend.engine.store
    for one in _list_declarations(view):
        yield one
    for pool in (await view.activity.look())[1]:
        yield "pool", pool.name, f"/work?pool={quote_plus(pool.name)}"
    for task in await store.tasks.list():
        yield "task", task.plan.name, f"/tasks/task?task={quote_plus(task.plan.name)}"
    for outbox in await store.outboxes.list():
        yield "outbox", outbox.plan.name, f"/outboxes/outbox?outbox={quote_plus(outbox.plan.name)}"
    for cron in await backend.app.crons.list(backend):
        yield "cron", cron.name, f"/crons/cron?cron={quote_plus(cron.name)}"


def _list_declarations(view: View) -> Iterator[tuple[str, str, str]]:
    for function in view.backend.app.registry:
        yield "function", function.name, f"/functions/{quote(function.name, safe='')}"
    for table in view.backend.app.definitions():
        yield "table", table.name, f"/data/{quote(table.name)}"


PAGES = (Page("/search", "Search", "search.html", _load, {}, above="/search", every=_EVERY),)
