"""Tasks and their records as rows: the conversion that both stores share, and the effects of a new declaration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

from penstock.reactive.reconciling import Reconciling
from penstock.reactive.task import TaskSpec
from penstock.store.contract.tasks import Progress, RecordRow, TaskPlan, TaskRow
from penstock.store.rows.jobs import options_of, options_text


def plan_values(plan: TaskPlan, number: int | None) -> dict[str, Any]:
    """A task as the values of the queries that declare it."""
    return {
        "name": plan.name,
        "function": plan.function,
        "kind": plan.kind,
        "pool": plan.pool,
        "priority": plan.priority,
        "options": options_text(replace(plan.options, task=number)) or "",
        "resets": plan.resets,
        "history": plan.history,
        "version": plan.version,
        "signature": plan.signature,
        "spec": plan.spec.text(),
    }


def task_of(
    row: Sequence[Any],
    interests: Sequence[int],
    earlier: Sequence[int],
    declared_at: datetime,
    held_until: datetime | None,
    reconciled_at: datetime | None,
) -> TaskRow:
    """A task from its row, with the values that stores write in ways of their own."""
    number, name, function, kind, pool, priority, options, resets, history, version, signature, spec = row[:12]
    plan = TaskPlan(
        name=name,
        function=function,
        kind=kind,
        pool=pool,
        priority=priority,
        options=replace(options_of(options), task=None),
        resets=bool(resets),
        history=history,
        version=version,
        signature=signature,
        spec=TaskSpec.parse(spec),
    )
    return TaskRow(
        id=number,
        plan=plan,
        interest=row[19],
        interests=tuple(interests),
        earlier=tuple(earlier),
        declared_at=declared_at,
        paused=bool(row[14]),
        held_until=held_until,
        reconciling=None if row[16] is None else Reconciling.parse(row[16]),
        reconciled_at=reconciled_at,
        begun=row[18],
    )


def record_of(row: Sequence[Any], job: UUID, changed_at: datetime, due_at: datetime) -> RecordRow:
    """A record from its row."""
    task, key, _id, generation, live, change, before, after, *_times, gone = row
    return RecordRow(task, key, job, generation, bool(live), change, before, after, changed_at, due_at, gone)


def progress_values(progress: Progress) -> dict[str, Any]:
    """The progress of a scan of a task's rows, as values of the query that writes it."""
    task, reconciling = progress.task, progress.reconciling
    return {
        "task": task.id,
        "version": task.plan.version,
        "signature": task.plan.signature,
        "begun": task.begun,
        "begins": int(progress.begins),
        "reconciling": None if reconciling is None else reconciling.text(),
    }


def newly(plan: TaskPlan, known: TaskRow | None) -> tuple[bool, Reconciling | None]:
    """Whether a declaration changes a task, and the scan of its rows that follows from it."""
    if known is None:
        return True, Reconciling()
    if known.plan.version > plan.version or known.plan == plan:
        return False, None
    reprocess = plan.on_version_change if plan.version > known.plan.version else "none"
    rekeyed = is_unkeyed(plan, known) and plan.spec.partition is not None
    if reprocess == "none" and not (plan.reconciles and (rekeyed or known.plan.signature != plan.signature)):
        return True, None
    again = known.reconciling or Reconciling(part="records")
    return True, replace(
        again.begun(),
        part="rows" if plan.reconciles else again.part,
        version=again.version if reprocess == "none" else plan.version,
        reprocess=max(reprocess, again.reprocess, key=_REPROCESSES.index),
        retimes=again.retimes or rekeyed or plan.spec.run_at != known.plan.spec.run_at,
    )


def runs_otherwise(plan: TaskPlan, known: TaskRow) -> bool:
    """Whether pending jobs of a task are to run otherwise than they were made to."""
    if is_unkeyed(plan, known):
        return True
    return any(getattr(plan, name) != getattr(known.plan, name) for name in ("function", "kind", "pool", "priority"))


def is_unkeyed(plan: TaskPlan, known: TaskRow) -> bool:
    """Whether the keys that rows have for the gate are of another column."""
    return plan.spec.partition != known.plan.spec.partition


_REPROCESSES = ("none", "reprocess_failed", "reprocess_all")
