"""Crons: their schedules in words, their next times, and how their last runs ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.crons.plan import schedule_of
from penstock.crons.schedule import in_words
from penstock.dashboard.page import Page, View, act_of, page_of, parameters_of
from penstock.errors import DataError
from penstock.jobs.filter import JobFilter
from penstock.operations import crons

_NEXT, _RUNS = 5, 20


async def _load(view: View) -> Mapping[str, Any]:
    found, given = await view.backend.app.crons.list(view.backend), parameters_of(view, crons.every)
    shown, names = page_of(found, given)
    return {"crons": [(one, in_words(one.schedule)) for one in shown], **names}


async def _load_one(view: View) -> Mapping[str, Any]:
    backend, calls, name = view.backend, view.backend.job_calls, view.require("cron")
    cron = next((one for one in await backend.app.crons.list(backend) if one.name == name), None)
    if cron is None:
        raise DataError(f"The database knows no cron {name!r}.")
    kept = await calls.read(lambda session: calls.store.crons.list(session, calls.now()))
    schedule = schedule_of(next(one.plan.schedule for one, _ in kept if one.plan.name == name))
    where, now = JobFilter(function=cron.function), calls.now()
    runs = await calls.read(lambda session: calls.store.jobs.list_recent(session, where, _RUNS, now))
    times = [cron.next_at]
    while len(times) < _NEXT:
        times.append(schedule.next(times[-1]))
    return {
        "cron": cron,
        "words": in_words(cron.schedule),
        "times": times,
        "runs": list(map(calls.mask, runs)),
    }


_ACTS = {
    "run": act_of(crons.run, "{cron} runs now, as job {job}."),
    "pause": act_of(crons.pause, "{cron} is paused. A run in progress continues."),
    "resume": act_of(crons.resume, "{cron} runs again, from its next planned time."),
}

PAGES = (
    Page("/crons", "Crons", "crons.html", _load, _ACTS),
    Page("/crons/cron", "Cron", "cron.html", _load_one, _ACTS, above="/crons"),
)
