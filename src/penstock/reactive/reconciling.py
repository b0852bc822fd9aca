"""Looking at all rows of a task: rows older than it, and rows whose changes nobody could tell.

Owns the progress, as text that outlives processes. Leaves reading rows and records to the store.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import asdict, fields, replace
from datetime import datetime
from typing import Any, Literal

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


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rows and records of one task, compared at one time."""

    task: PlannedTask
    at: Reconciling
    unread: AbstractSet[str]  # keys of rows with changes that are still to be planned, and plan better
    now: datetime
    read: Read  # of a captured value

    def is_meant(self, row: Found) -> bool:
        """Whether a row matches, where the database could not say it exactly."""
        task = self.task
        if task.spec.exact or task.condition is None or row.after is None:
            return True
        return holds(task.condition, values_of(task, row.after, self.read))

    def is_as_kept(self, row: Found, kept: Kept) -> bool:
        """Whether nothing has changed that the task hears of: its watched values, and its time."""
        task = self.task
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
        return same(*(read_each(expressions, values_of(task, text, self.read)) for text in (kept.after, row.after)))

    def is_reprocessed(self, record: Kept) -> bool:
        at = self.at
        if record.version >= at.version:
            return False
        return at.reprocess == "reprocess_all" or (at.reprocess == "reprocess_failed" and record.state == "failed")

    def run(self, row: Found) -> RowPlan:
        """A run of a row as it is now; none if its time is not known."""
        captured = _read_captured(row.after)
        at = due(self.task.spec, captured, self.now, self.read)
        return RowPlan(
            task=self.task.number,
            key=row.key,
            runs=at is not None,
            drops=at is None,
            change="reconcile",
            changed_at=self.now,
            due_at=at or self.now,
            after=row.after,
            partition=partition_of(self.task.spec, captured, self.read),
        )

    def run_again(self, row: Found, record: Kept) -> RowPlan | None:
        """A further run of a row that is there, or another time for the one that waits; None if neither is wanted."""
        again = self.is_reprocessed(record)
        if record.gone is not None:
            return None  # it matches since the filter is a wider one, which is not caught up with
        if not again and not (self.at.retimes and record.state is None and not record.running):
            return None
        plan = replace(self.run(row), version=self.at.version if again else -1)
        return plan if plan.runs or record.state is None else None

    def drop(self, key: str, record: Kept, gone: Gone) -> RowPlan:
        kind: Change = "leave" if gone == "left" else "delete"
        runs = kind in self.task.spec.on
        return RowPlan(
            task=self.task.number,
            key=key,
            runs=runs,
            drops=not runs,
            change=kind,
            changed_at=self.now,
            due_at=self.now,
            before=record.after,
            partition=partition_of(self.task.spec, _read_captured(record.after), self.read),
            gone=gone,
            forgets_at=forgets_at(self.task.spec, gone, self.now),
        )

    def drop_again(self, key: str, record: Kept, gone: Gone) -> RowPlan:
        captured = _read_captured(record.after if record.after is not None else record.before)
        return replace(
            self.drop(key, record, gone),
            runs=True,
            drops=False,
            change=record.change or "leave",
            before=record.before,
            after=record.after,
            partition=partition_of(self.task.spec, captured, self.read),
            version=self.at.version,
        )

    def erase(self, key: str, record: Kept) -> RowPlan:
        """A row that had left is deleted; a run that waits because it left still runs."""
        return replace(self.drop(key, record, "deleted"), runs=False, drops=False)


def compare_rows(by: Comparison, rows: Iterable[Found], known: Mapping[str, Kept]) -> list[RowPlan]:
    """Plans for rows that are unknown or differ from their captured values."""
    plans = list[RowPlan]()
    for row in rows:
        kept = known.get(row.key)
        if row.key in by.unread or not by.is_meant(row):
            continue
        is_new = kept is None or kept.gone is not None
        wanted = ("enter" if is_new else "change") in hears(by.task.spec)
        if wanted and (kept is None or is_new or not by.is_as_kept(row, kept)):
            plan = by.run(row)
            if plan.runs or kept is not None:
                plans.append(plan)
    return plans


def compare_records(
    by: Comparison, kept: Mapping[str, Kept], there: Mapping[str, Found], exist: AbstractSet[str]
) -> list[RowPlan]:
    """Plans for records whose rows are gone, or run again though nothing changed.

    `there` are rows that the task may be about, `exist` the keys of all rows that exist.
    """
    plans, spec = list[RowPlan](), by.task.spec
    for key, record in kept.items():
        row = there.get(key)
        if key in by.unread:
            continue
        if row is None or not by.is_meant(row):
            gone: Gone = "left" if key in exist else "deleted"
            if record.gone is None:
                if gone == "deleted" or spec.reconciles or not by.at.audit:
                    plans.append(by.drop(key, record, gone))
            elif record.change in _GOING and record.change in spec.on and by.is_reprocessed(record):
                plans.append(by.drop_again(key, record, gone))
            elif record.gone == "left" and gone == "deleted":
                plans.append(by.erase(key, record))
        elif (plan := by.run_again(row, record)) is not None:
            plans.append(plan)
    return plans


def is_found(plan: RowPlan) -> bool:
    """Whether a plan repairs something. A deleted row that had left before is only noted, as nobody captures it."""
    return plan.runs or plan.drops


def _read_captured(text: str | None) -> Any:
    return {} if text is None else read_values(text)
