"""Timeline: one call, job or row from the request through the mutation, the change and the job to the message.

Owns what belongs together: jobs that share a trace or name a row, the row's task records and messages, and log events
that name any of them.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from penstock.clock import layout_uuid7
from penstock.dashboard.page import Page, View
from penstock.dataclass import dataclass
from penstock.jobs.job import JobId, JobStatus, job_uuid
from penstock.jobs.states import FINISHED, JobState
from penstock.observe.following import began_at, parent_span, span_of, trace_id
from penstock.observe.logbook import LogEvent
from penstock.schema.ids import JOB_PREFIX, is_id, parse_id
from penstock.server.requests import Refused

_LAST, _MOST_JOBS, _MOST_ROWS, _MOST_TRACES, _MOST_MESSAGES, _MOST_EVENTS = 20, 200, 5, 5, 200, 500
_EVERY = 2.0  # seconds: it reads all jobs that are younger
_TRACE = re.compile(r"[0-9a-f]{32}")
_ID = re.compile(r"[a-z][a-z0-9_]*_[0-7][0-9a-hjkmnp-tv-z]{25}")
_BEFORE = timedelta(minutes=10)  # clocks differ, and traces of OpenTelemetry, whose ids have no time, began earlier
_WITHIN = timedelta(microseconds=999)  # of the millisecond that an id has: a row does not come before its request
_OF_JOBS = {"job.ran", "job.failed"}  # say what the job says too
_RUN = {"http.request": "request", "call.ran": "call", "job.ran": "job"}


@dataclass(frozen=True, slots=True)
class Step:
    """Something that happened."""

    at: datetime  # when it began
    until: datetime | None  # when it ended; None if it took no time, or has not ended
    kind: str  # the kind of thing
    what: str  # what it is, such as a function
    link: str = ""  # the page about it
    note: str = ""  # what else is to be said
    bad: bool = False  # whether it went wrong


@dataclass(slots=True)
class _Found:
    view: View
    tables: Mapping[str, list[str]]  # the managed tables by the prefix of their ids, which components may share
    jobs: dict[JobId, JobStatus] = field(default_factory=dict)
    traces: set[str] = field(default_factory=set)
    words: set[str] = field(default_factory=set)  # that log events may name
    rows: dict[str, None] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)

    async def follow(self, trace: str, since: datetime) -> None:
        """Add the jobs of a trace."""
        if trace not in self.traces and len(self.traces) < _MOST_TRACES:
            self.traces.add(trace)
            self.words.add(trace)
            await self.add_naming(trace, (began_at(trace) or since) - _BEFORE, in_args=False)

    async def add_naming(self, text: str, since: datetime, *, in_args: bool) -> None:
        """Add the jobs that name something in their options, or in their arguments, too."""
        calls, first = self.view.backend.job_calls, UUID(int=layout_uuid7(int(since.timestamp() * 1000), 0))
        for job in await calls.read(
            lambda session: calls.store.jobs.naming(session, text, first, _MOST_JOBS, calls.now(), in_args=in_args)
        ):
            self.add(job)

    def add(self, job: JobStatus) -> None:
        self.jobs[job.id] = job
        self.words.add(job.id)
        for text in _ID.findall(json.dumps(job.args)):
            if text[:-27] in self.tables and len(self.rows) < _MOST_ROWS:
                self.rows[text] = None


async def _load(view: View) -> Mapping[str, Any]:
    of = view.word("of")
    if of is None:
        return {"of": "", "steps": [], "rows": [], "jobs": 0, "full": False, "last": await _last(view)}
    names = _tables(view)
    found = _Found(view, names, words={of})
    if is_id(JOB_PREFIX, of):
        job = await view.backend.job(JobId(of))
        if job is None:
            raise Refused(404, "JobNotFound", "There is no such job. Its status may have expired.")
        found.add(job)
        await _follow(found, job)
    elif _TRACE.fullmatch(of):
        await found.follow(of, view.backend.engine.clock.now())
    elif of[:-27] in names and is_id(of[:-27], of):
        found.rows[of] = None
        await found.add_naming(of, _insert_time(of), in_args=True)
        for job in [*found.jobs.values()]:
            await _follow(found, job)
    else:
        for entry in await view.log(_MOST_EVENTS, words=[f" {of} "]):
            if entry.facts.get("request_id") == of and (trace := entry.facts.get("trace")):
                await found.follow(trace, entry.at)
    for row in [*found.rows]:
        await _add_row(found, row)
    found.steps += [step for job in found.jobs.values() for step in _of_job(job, found.jobs)]
    found.steps += await _of_log(found)
    steps = sorted(found.steps, key=lambda one: (one.at, one.kind != "request"))
    return {
        "of": of,
        "steps": list(_place(steps)),
        "rows": list(found.rows),
        "jobs": len(found.jobs),
        "full": len(found.jobs) >= _MOST_JOBS,
    }


def _tables(view: View) -> dict[str, list[str]]:
    """The names of managed tables by the prefix of their ids."""
    found: dict[str, list[str]] = {}
    for one in view.backend.app.definitions():
        if one.managed:
            found.setdefault(one.id_prefix, []).append(one.name)
    return found


async def _follow(found: _Found, job: JobStatus) -> None:
    """Add the jobs of a job's trace: that of its caller, or the one that it has begun itself."""
    trace = job.options.trace
    await found.follow(trace_id(trace) if trace else f"{job_uuid(job.id).int:032x}", job.enqueued_at)


def _insert_time(row: str) -> datetime:
    return datetime.fromtimestamp((parse_id(row[:-27], row) >> 80) / 1000, UTC)


async def _add_row(found: _Found, row: str) -> None:
    """Add what a row's reactive tasks and outboxes know of it."""
    backend, tables = found.view.backend, found.tables[row[:-27]]
    found.words.add(json.dumps([row]))  # as the change feed spells it
    inserted, link = _insert_time(row) + _WITHIN, f"/data/{tables[0]}/row?key={row}" if len(tables) == 1 else ""
    found.steps.append(Step(inserted, None, "insert", " or ".join(tables), link, f"…{row[-6:]}"))
    for task in (one.task for one in backend.app.tasks):
        if task.definition.name not in tables:
            continue
        record = await backend.app.tasks.find(backend, task.name, row)
        if record is not None:
            note = f"…{row[-6:]}, generation {record.generation}" + (f", row {record.gone}" if record.gone else "")
            found.steps.append(
                Step(record.changed_at, None, "change", f"{record.change} for task {task.name}", note=note)
            )
            if record.job not in found.jobs and (job := await backend.job(record.job)) is not None:
                found.add(job)
    for outbox in backend.app.outboxes:
        definition = outbox.outbox.definition
        if definition is not None and definition.name in tables:
            page = await backend.app.outboxes.messages(backend, outbox.outbox.name, limit=_MOST_MESSAGES)
            for one in page.messages:
                at = one.failed_at or one.written_at
                if one.key == row and at is not None:
                    what = f"{one.kind} for outbox {outbox.outbox.name} is {one.state}"
                    found.steps.append(Step(at, None, "message", what, note=one.error or "", bad=bool(one.error)))


def _of_job(job: JobStatus, jobs: Mapping[JobId, JobStatus]) -> Iterator[Step]:
    link, trace = f"/jobs/{job.id}", job.options.trace
    span, bad = parent_span(trace) if trace else "", job.state is JobState.FAILED
    parent = next((one for one in jobs.values() if span_of(job_uuid(one.id).int) == span), None)
    note = f"by {parent.function}" if parent is not None else ""
    yield Step(job.enqueued_at, None, "enqueued", job.function, link, note)
    for one in job.attempts:
        what = f"{job.function}, attempt {one.number}"
        yield Step(one.started_at, one.ended_at, "job", what, link, one.error or one.what, bad=True)
    told = {one.started_at for one in job.attempts}
    if job.started_at is not None and job.started_at not in told:
        what = f"{job.function}, attempt {job.attempt}"
        yield Step(job.started_at, job.finished_at, "job", what, link, job.state.value, bad=bad)
    elif job.finished_at is not None and job.finished_at not in {one.ended_at for one in job.attempts}:
        yield Step(job.finished_at, None, "ended", job.function, link, job.state.value, bad=bad)
    for one in job.on_complete_attempts:
        yield Step(one.started_at, one.ended_at, "on_complete", job.on_complete or "", link, one.error or "", bad=True)
    called = job.on_complete is not None and job.state in FINISHED and job.options.calls_after(job.state)
    if called and job.finished_at is not None:
        error = job.on_complete_error
        yield Step(
            job.finished_at, None, "on_complete", job.on_complete or "", link, error or "has run", bad=bool(error)
        )


async def _of_log(found: _Found) -> list[Step]:
    entries = await found.view.log(_MOST_EVENTS, words=[f" {word} " for word in found.words])
    return [
        _of_entry(one) for one in reversed(entries) if not (one.name in _OF_JOBS and one.facts.get("job") in found.jobs)
    ]


def _of_entry(entry: LogEvent) -> Step:
    facts, kind, bad = entry.facts, _RUN.get(entry.name), entry.level >= logging.WARNING
    words = ("message", "step", "caller", "status", "request_id", "read", "written", "error")
    note = ", ".join(f"{name} {facts[name]}" for name in words if name in facts)
    if kind is None:
        return Step(entry.at, None, "log", entry.name, note=note, bad=bad)
    what = f"{facts['method']} {facts['path']}" if "method" in facts else facts["function"]
    return Step(entry.at - timedelta(milliseconds=facts["ms"]), entry.at, kind, what, note=note, bad=bad)


async def _last(view: View) -> list[tuple[str, str, Step, str]]:
    """The last calls and jobs, each once: the id of its timeline, its name, its run and the error."""
    told: dict[str, tuple[str, str, Step, str]] = {}
    for name in _RUN:
        for entry in await view.log(_MOST_EVENTS, event=name):
            of = entry.facts.get("job") or entry.facts.get("trace")
            if of is not None:
                step = _of_entry(entry)
                told.setdefault(of, (of, entry.facts.get("function", step.what), step, entry.facts.get("error", "")))
    return sorted(told.values(), key=lambda one: -(one[2].until or one[2].at).timestamp())[:_LAST]


def _place(steps: Sequence[Step]) -> Iterator[tuple[Step, float, float | None, float, float]]:
    """Each step, the seconds since the first one began, its own seconds, and its place in a bar of 100 parts."""
    ends = [((one.until or one.at) - steps[0].at).total_seconds() for one in steps]
    whole = max([*ends, 1e-6])
    for one in steps:
        after = (one.at - steps[0].at).total_seconds()
        seconds = None if one.until is None else max((one.until - one.at).total_seconds(), 0.0)
        yield one, after, seconds, round(99 * after / whole, 2), round(max(1.0, 99 * (seconds or 0.0) / whole), 2)


PAGES = (Page("/timeline", "Timeline", "timeline.html", _load, {}, every=_EVERY),)
