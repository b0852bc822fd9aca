"""Workflows: their runs, and one run as a waterfall of its steps, waits and retries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from penstock.dashboard.page import Answer, Page, View, act_of, parameters_of
from penstock.errors import DataError
from penstock.jobs.states import FINISHED, RETRIABLE, JobState
from penstock.operations import workflows
from penstock.operations.workflows import RunUnknown
from penstock.server.requests import Refused
from penstock.store.nouns.jobs import LOOKED_AT
from penstock.workflows.record import LONGEST_ARGUMENTS
from penstock.workflows.waterfall import RunStep

_LISTED, _MOST_STEPS = 50, 500


async def _load(view: View) -> Mapping[str, Any]:
    given = {name: view.word(name) for name in ("state", "function", "key")}
    if given["state"] not in {None, *workflows.STATES}:
        raise DataError(f"A run is in one of these states: {', '.join(workflows.STATES)}.")
    found = await workflows.every.run(view.backend, {**given, "after": view.word("after"), "limit": _LISTED + 1})
    asked = {name: text for name, text in given.items() if text is not None}
    older = urlencode(asked | {"after": found[_LISTED - 1][0].id}) if len(found) > _LISTED else None
    known = sorted({*view.backend.app.registry.workflows, given["function"] or ""} - {""})
    return {
        "runs": found[:_LISTED],
        "given": given,
        "states": list(workflows.STATES),
        "functions": known,
        "older": older,
        "looked_at": LOOKED_AT,
    }


async def _load_one(view: View) -> Mapping[str, Any]:
    try:
        run = await workflows.find_run(view.backend, view.require("run"))
    except RunUnknown as error:
        raise Refused(404, "RunNotFound", error.what) from error
    now = view.backend.engine.clock.now()
    return {
        "run": run,
        "job": run.job,
        "steps": list(_place(run.steps[-_MOST_STEPS:], run.job.finished_at or now)),
        "longest": LONGEST_ARGUMENTS,
        "left_out": max(len(run.steps) - _MOST_STEPS, 0),
        "events": sorted(view.backend.app.events),
        "ended": run.job.state in FINISHED,
        "may_retry": run.job.state in RETRIABLE,
        "may_cancel": run.job.state not in {*FINISHED, JobState.COMPLETING},
    }


def _place(steps: Sequence[RunStep], end: datetime) -> Iterator[tuple[RunStep, float, float, float, float]]:
    """Each step, the seconds since the first one began, its own seconds, and its place in a bar of 100 parts."""
    ends = [one.ended_at or end for one in steps]
    whole = max([(one - steps[0].began_at).total_seconds() for one in ends] or [0.0]) or 1e-6
    for one, until in zip(steps, ends, strict=True):
        after = (one.began_at - steps[0].began_at).total_seconds()
        seconds = max((until - one.began_at).total_seconds(), 0.0)
        yield one, after, seconds, round(99 * after / whole, 2), round(max(1.0, 99 * seconds / whole), 2)


async def _fork(view: View) -> Answer:
    """Begin a new run, and go to its page."""
    found = await workflows.fork.run(view.backend, parameters_of(view, workflows.fork))
    return Answer(f"This run begins with the history of {found['of']}.", path=f"/workflows/{found['run']}")


_ACTS = {
    "send": act_of(workflows.send, "{event} is sent."),
    "cancel": act_of(workflows.cancel, "Asked for it to be canceled.", sure="Cancel this run?"),
    "retry": act_of(workflows.retry, "It goes on. Deleted records: {deleted}."),
    "fork": replace(act_of(workflows.fork, ""), run=_fork),
}

PAGES = (
    Page("/workflows", "Workflows", "workflows.html", _load, {}),
    Page("/workflows/{run}", "Run", "run.html", _load_one, _ACTS, above="/workflows"),
)
