"""Looking at all rows of a task: rows older than it, and rows whose changes nobody could tell.

Owns the progress, as text that outlives processes. Leaves reading rows and records to the store.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import asdict, fields, replace
from datetime import datetime
from typing import Literal

from penstock.changes.change import read_values
from penstock.dataclass import dataclass
from penstock.reactive.evaluate import holds, read_each, same
from penstock.reactive.planning import Gone, PlannedTask, Read, RowPlan, due, forgets_at, hears, partition_of, values_of
from penstock.reactive.task import Change, OnVersionChange, TaskSpec, kinds_of

Part = Literal["rows", "records"]
_GOING: tuple[Change, ...] = ("leave", "delete")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciling:
    """The progress of a scan for a task: first all rows of its table, then all of its records."""

    part: Part = "rows"  # which of the two it scans now
    after: str | None = None  # the key of the last one that was looked at; None at the beginning
    looked: int = 0  # how many were looked at
    found: int = 0  # how many of them were to be run, or forgotten
    reprocess: OnVersionChange = "none"  # which rows are run again though nothing of them has changed
    version: int = 0  # the version that runs them again, if a lower one has run them
    retimes: bool = False  # whether runs that are still to come get another time, as `run_at` is another one
    audit: bool = False  # whether nothing should be found, as it is only looked whether all is well

    @classmethod
    def auditing(cls, spec: TaskSpec) -> Reconciling:
        """The beginning of an audit. Rows that are not caught up with look as missed ones do, so they are left."""
        return cls(part="rows" if spec.reconciles else "records", audit=True)

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Reconciling:
        given = json.loads(text)
        return cls(**{field.name: given[field.name] for field in fields(cls) if field.name in given})

    def begin(self) -> Reconciling:
        return replace(self, part="rows", after=None, looked=0, found=0, audit=False)

    def advance(self, after: str | None, looked: int, found: int) -> Reconciling | None:
        """The state after a piece: `after` is None if that was the last of its part. None if all is done."""
        moved = replace(self, after=after, looked=self.looked + looked, found=self.found + found)
        if after is not None:
            return moved
        return replace(moved, part="records") if self.part == "rows" else None


@dataclass(frozen=True, slots=True)
class Kept:
    """The record of a row."""

    after: str | None  # its last captured values
    gone: Gone | None  # whether it was not there any more, for the task
    state: str | None = None  # how its job has ended, where that was asked for; None if it has not
    running: bool = False  # whether its run is under way, where that was asked for
    change: Change | None = None  # why it was to be run last, where that was asked for
    before: str | None = None  # its captured values before that, where that was asked for
    version: int = -1  # the version of the handler that has run it last, where that was asked for; -1 for none


@dataclass(frozen=True, slots=True)
class Found:
    """A row as it is now, with the values that a change would capture, and the same values as they were."""

    key: str
    after: str | None
    before: str | None


def compare_rows(
    task: PlannedTask,
    rows: Iterable[Found],
    known: Mapping[str, Kept],
    unread: AbstractSet[str],
    now: datetime,
    read: Read,
) -> list[RowPlan]:
    """Plans for rows that are unknown or differ from their captured values; `unread` changes plan better."""
    plans = list[RowPlan]()
    for row in rows:
        kept = known.get(row.key)
        if row.key in unread or not _is_meant(task, row, read):
            continue
        is_new = kept is None or kept.gone is not None
        wanted = ("enter" if is_new else "change") in hears(task.spec)
        if wanted and (kept is None or is_new or not _is_as_kept(task, row, kept, read)):
            plan = _of_row(task, row, now, read)
            if plan.runs or kept is not None:
                plans.append(plan)
    return plans


def compare_records(
    task: PlannedTask,
    kept: Mapping[str, Kept],
    there: Mapping[str, Found],
    exist: AbstractSet[str],
    at: Reconciling,
    unread: AbstractSet[str],
    now: datetime,
    read: Read,
) -> list[RowPlan]:
    """Plans for records whose rows are gone, or run again though nothing changed.

    `there` are rows that the task may be about, `exist` the keys of all rows that exist.
    """
    plans = list[RowPlan]()
    for key, record in kept.items():
        row = there.get(key)
        if key in unread:
            continue
        if row is None or not _is_meant(task, row, read):
            gone: Gone = "left" if key in exist else "deleted"
            if record.gone is None:
                if gone == "deleted" or task.spec.reconciles or not at.audit:
                    plans.append(_drop(task, key, record, gone, now, read))
            elif record.change in _GOING and record.change in task.spec.on and _is_reprocessed(record, at):
                plans.append(replace(_drop_again(task, key, record, gone, now, read), version=at.version))
            elif record.gone == "left" and gone == "deleted":
                plans.append(_erase(task, key, record, now, read))
        elif (plan := _of_kept(task, row, record, at, now, read)) is not None:
            plans.append(plan)
    return plans


def is_found(plan: RowPlan) -> bool:
    """Whether a plan repairs something. A deleted row that had left before is only noted, as nobody captures it."""
    return plan.runs or plan.drops


def _is_reprocessed(record: Kept, at: Reconciling) -> bool:
    if record.version >= at.version:
        return False
    return at.reprocess == "reprocess_all" or (at.reprocess == "reprocess_failed" and record.state == "failed")


def _of_kept(task: PlannedTask, row: Found, record: Kept, at: Reconciling, now: datetime, read: Read) -> RowPlan | None:
    """A further run of a row that is there, or another time for the one that waits; None if neither is wanted."""
    again = _is_reprocessed(record, at)
    if record.gone is not None:
        return None  # it matches since the filter is a wider one, which is not caught up with
    if not again and not (at.retimes and record.state is None and not record.running):
        return None
    plan = replace(_of_row(task, row, now, read), version=at.version if again else -1)
    return plan if plan.runs or record.state is None else None


def _of_row(task: PlannedTask, row: Found, now: datetime, read: Read) -> RowPlan:
    """A run of a row as it is now; none if its time is not known."""
    captured = {} if row.after is None else read_values(row.after)
    at = due(task.spec, captured, now, read)
    return RowPlan(
        task=task.number,
        key=row.key,
        runs=at is not None,
        drops=at is None,
        change="reconcile",
        changed_at=now,
        due_at=at or now,
        after=row.after,
        partition=partition_of(task.spec, captured, read),
    )


def _drop(task: PlannedTask, key: str, record: Kept, gone: Gone, now: datetime, read: Read) -> RowPlan:
    kind: Change = "leave" if gone == "left" else "delete"
    runs = kind in task.spec.on
    captured = {} if record.after is None else read_values(record.after)
    return RowPlan(
        task=task.number,
        key=key,
        runs=runs,
        drops=not runs,
        change=kind,
        changed_at=now,
        due_at=now,
        before=record.after,
        partition=partition_of(task.spec, captured, read),
        gone=gone,
        forgets_at=forgets_at(task.spec, gone, now),
    )


def _drop_again(task: PlannedTask, key: str, record: Kept, gone: Gone, now: datetime, read: Read) -> RowPlan:
    captured = record.after if record.after is not None else record.before
    return replace(
        _drop(task, key, record, gone, now, read),
        runs=True,
        drops=False,
        change=record.change or "leave",
        before=record.before,
        after=record.after,
        partition=partition_of(task.spec, {} if captured is None else read_values(captured), read),
    )


def _erase(task: PlannedTask, key: str, record: Kept, now: datetime, read: Read) -> RowPlan:
    """A row that had left is deleted; a run that waits because it left still runs."""
    return replace(_drop(task, key, record, "deleted", now, read), runs=False, drops=False)


def _is_meant(task: PlannedTask, row: Found, read: Read) -> bool:
    """Whether a row matches, where the database could not say it exactly."""
    if task.spec.exact or task.condition is None or row.after is None:
        return True
    return holds(task.condition, values_of(task, row.after, read))


def _is_as_kept(task: PlannedTask, row: Found, kept: Kept, read: Read) -> bool:
    """Whether nothing has changed that the task hears of: its watched values, and its time."""
    if row.after == kept.after or row.after is None or task.expressions is None:
        return True
    expressions, run_at = task.expressions if "change" in task.spec.on else (), task.spec.run_at
    if kept.after is None:
        return False
    then, now = read_values(kept.after), read_values(row.after)
    if not {*kinds_of(expressions), *(() if run_at is None else (run_at,))} <= then.keys() & now.keys():
        return False  # rows that are captured whole may have other columns now, which nobody watches
    if run_at is not None and then[run_at] != now[run_at]:
        return False
    return same(*(read_each(expressions, values_of(task, text, read)) for text in (kept.after, row.after)))
