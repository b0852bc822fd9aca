"""Reactive tasks and their rows as programs see them."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import field, fields
from datetime import datetime
from typing import Any

from penstock.changes.change import read_values
from penstock.dataclass import dataclass
from penstock.jobs.job import JobId, JobStatus, job_id
from penstock.jobs.states import JobState
from penstock.reactive.describe import Finding
from penstock.reactive.reconciling import Reconciling
from penstock.reactive.task import Change
from penstock.store.nouns.tasks import RecordRow
from penstock.store.store import Store


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """The status of a reactive task.

    Attributes:
        name: Its name.
        table: The table that it is about.
        declared: Whether this program declares it; if not, its rows are left to programs that do.
        version: The version of its handler.
        pool: The pool of its jobs.
        paused: Whether none of its runs starts, until it is resumed.
        held_until: The time until which none starts; None for no such time.
        reconciling: The progress of a scan of all its rows; None if that is done.
        reconciled_at: When that was done last.
        ready: How many of its runs may start now; this and the following are counted up to 100,000.
        scheduled: How many start later.
        running: How many are under way.
        failed: The number of rows whose last run has failed.
        oldest: The due time of the oldest run that may start.
    """

    name: str
    table: str
    declared: bool
    version: int
    pool: str
    paused: bool
    held_until: datetime | None
    reconciling: Reconciling | None
    reconciled_at: datetime | None
    ready: int
    scheduled: int
    running: int
    failed: int
    oldest: datetime | None


async def look_at(store: Store, now: datetime, declared: Collection[str], most: int) -> list[TaskStatus]:
    """The status of all tasks by name, with up to `most` jobs of each place counted; this program declares some."""
    backlog = {one.task: one for one in await store.records.backlog(most)}
    found = []
    for row in await store.tasks.list():
        work = backlog.get(row.id)
        found.append(
            TaskStatus(
                name=row.plan.name,
                table=row.plan.spec.table,
                declared=row.plan.name in declared,
                version=row.plan.version,
                pool=row.plan.pool,
                paused=row.paused,
                held_until=row.held_until if row.held_until is not None and row.held_until > now else None,
                reconciling=row.reconciling,
                reconciled_at=row.reconciled_at,
                ready=0 if work is None else work.ready,
                scheduled=0 if work is None else work.scheduled,
                running=0 if work is None else work.running,
                failed=0 if work is None else work.failed,
                oldest=None if work is None else work.oldest,
            )
        )
    return found


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """The status of a row of a reactive task.

    Attributes:
        task: The name of the task.
        key: The id of the row, or its key, as JSON has it: a list if that has several columns.
        job: Its job, which tells of its runs.
        state: The state of the job; None if the job is lost.
        generation: How many changes the row had that the task wanted to hear of, and retries by hand.
        change: The last of these.
        changed_at: When the row changed.
        due_at: When it was to be run then.
        gone: ``left`` if it does not match any more, ``deleted`` if there is no such row; None if it is there.
        attempt: Attempts so far since the last change.
        run_at: When its run is due, or was.
        started_at: When the last attempt began.
        finished_at: When the last run ended.
        error: The error of the last attempt, or why it waits.
    """

    task: str
    key: Any
    job: JobId
    state: JobState | None
    generation: int
    change: Change
    changed_at: datetime
    due_at: datetime
    gone: str | None
    attempt: int | None
    run_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    error: str | None


@dataclass(frozen=True, slots=True)
class TaskPage:
    """Some rows of reactive tasks.

    Attributes:
        records: The rows.
        next: The cursor of the next page, for `after`; None if this was the last page.
    """

    records: list[TaskRecord]
    next: str | None


@dataclass(frozen=True, slots=True)
class WatchedValue:
    """A watched value of a row.

    Attributes:
        name: Its name.
        then: The value when the last run was planned, as text; None if nothing was captured.
        now: The present value, as text; None if there is no such row.
    """

    name: str
    then: str | None
    now: str | None


@dataclass(frozen=True, slots=True)
class TaskExplanation:
    """Why a reactive task has run for a row, or has not. As text it can be read.

    Attributes:
        task: The name of the task.
        key: The id of the row, or its key.
        reasons: The reasons, most important first, in sentences.
        exists: Whether there is such a row; None if this program does not know the table.
        matches: Whether it matches the filter of the task now; None if there is no such row, or it cannot be read.
        findings: The parts of the filter that decide that, with their results.
        watched: Its watched values, then and now.
        record: The record of the row; None if the task has not heard of it.
        job: Its job with its runs, which began with the oldest.
    """

    task: str
    key: Any
    reasons: tuple[str, ...]
    exists: bool | None
    matches: bool | None
    findings: tuple[Finding, ...] = ()
    watched: tuple[WatchedValue, ...] = ()
    record: TaskRecord | None = None
    job: JobStatus | None = field(default=None, repr=False)

    def __str__(self) -> str:
        lines = [f"{self.task}, row {key_text(self.key)}:", *(f"- {reason}" for reason in self.reasons)]
        if self.exists is not None:
            matches = {True: "matches the filter", False: "does not match the filter", None: "cannot be read"}
            lines.append(f"The row {matches[self.matches]} now." if self.exists else "There is no such row now.")
        lines += [f"  {finding}" for finding in self.findings]
        for one in self.watched:
            known = "not captured" if one.then is None else one.then
            now = "" if one.now is None else ", unchanged" if one.then == one.now else f", now {one.now}"
            lines.append(f"  watches {one.name}: {known}{now}")
        if self.record is not None:
            kept = self.record
            state = "lost" if kept.state is None else kept.state.value
            gone = f", row {kept.gone}" if kept.gone else ""
            lines.append(f"Kept: {state}, generation {kept.generation}, {kept.change} {kept.changed_at}{gone}.")
        for attempt in () if self.job is None else self.job.attempts:
            error = "" if attempt.error is None else f": {attempt.error.partition(chr(10))[0]}"
            lines.append(f"  {attempt.ended_at} {attempt.what}{error}")
        return "\n".join(lines)


def record_of(state: RecordRow, name: str) -> TaskRecord:
    """A record as programs see it."""
    own: dict[str, Any] = {"task": name, "key": plain_key(state.key), "job": job_id(state.job)}
    own["state"] = None if state.state is None else JobState(state.state)
    return TaskRecord(**{one.name: getattr(state, one.name) for one in fields(TaskRecord)} | own)


def key_text(key: Any) -> str:
    """A key as people read it: its value, or several columns as JSON."""
    return json.dumps(key, ensure_ascii=False, default=str) if isinstance(key, (list, tuple)) else str(key)


def plain_key(text: str) -> Any:
    """The key of a row from its spelling in the change feed; several columns as a list."""
    values = read_values(text)
    return values[0] if len(values) == 1 else values
