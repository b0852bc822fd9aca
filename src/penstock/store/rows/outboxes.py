"""Outboxes and messages as rows: the conversion that both stores share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from penstock.changes.change import CapturedChange
from penstock.outbox.trouble import Trouble
from penstock.store.contract.outboxes import Aside, OutboxPlan, OutboxRow, Step


def plan_values(plan: OutboxPlan) -> dict[str, Any]:
    """An outbox as the values of the queries that declare it."""
    return {
        "name": plan.name,
        "function": plan.function,
        "kind": plan.kind,
        "source": plan.source,
        "spec": plan.spec,
        "version": plan.version,
        "keep_for": plan.keep_for,
    }


def outbox_of(
    row: Sequence[Any],
    keep_for: timedelta,
    interests: Sequence[int],
    declared_at: datetime,
    skips: Sequence[int],
    delivered_at: datetime | None,
) -> OutboxRow:
    """An outbox from its row, with the values that stores write in ways of their own."""
    number, name, function, kind, source, spec, version = row[:7]
    plan = OutboxPlan(name, function, kind, source, spec, version, keep_for)
    return OutboxRow(
        id=number,
        plan=plan,
        interests=tuple(interests),
        declared_at=declared_at,
        epoch=row[10],
        ready=bool(row[11]),
        paused=bool(row[12]),
        backfill=row[13],
        skips=tuple(skips),
        trouble=None if row[15] is None else Trouble.parse(row[15]),
        delivered=row[16],
        delivered_at=delivered_at,
        rate=row[18],
        meanings={int(number): said for number, said in json.loads(row[19]).items()},
        passed=frozenset((number, key) for number, key in json.loads(row[20])),
        fence=row[21] or 0,
    )


def step_values(step: Step) -> dict[str, Any]:
    """A step as the values of the query that writes an outbox's cursor."""
    return {
        "outbox": step.outbox.id,
        "epoch": step.outbox.epoch,
        "reader": step.move.reader,
        "lease": step.move.lease,
        "before": str(step.move.before),
        "after": str(step.move.after),
        "backfill": step.backfill,
        "trouble": None if step.trouble is None else step.trouble.text(),
        "delivered": step.delivered,
        "passed": json.dumps(sorted(step.passed, key=str)) if step.passed else "[]",
        "skipped": [*step.skipped],
    }


def aside_values(one: Aside) -> dict[str, Any]:
    """A set-aside message as the values of the query that puts it there."""
    change, trouble = one.change, one.trouble
    return {
        "seq": change.seq,
        "key": one.key,
        "state": one.state,
        "interest": change.interest,
        "kind": change.kind,
        "row_key": change.key,
        "before": change.before,
        "after": change.after,
        "changed_at": change.changed_at,
        "attempts": trouble.attempts if trouble else 0,
        "failed_at": trouble.since if trouble else None,
        "retry_at": trouble.retry_at if trouble else None,
        "error": trouble.error if trouble else None,
        "traceback": trouble.traceback if trouble else None,
        "deaths": trouble.deaths if trouble else 0,
        "used_up": trouble.halted if trouble else False,
        "turned": one.turned,
    }


def aside_of(row: Sequence[Any], changed_at: datetime, failed_at: datetime | None, retry_at: datetime | None) -> Aside:
    """A set-aside message from its row, with the values that stores write in ways of their own."""
    seq, interest, kind, row_key, before, after, _changed_at, key, state, attempts, _failed, _retry, *known = row
    error, trace, deaths, used_up, turned = known
    trouble = None
    if failed_at is not None:
        trouble = Trouble(
            seq=seq,
            attempts=attempts,
            since=failed_at,
            retry_at=retry_at,
            error=error or "",
            traceback=trace,
            halted=bool(used_up),
            deaths=deaths,
        )
    change = CapturedChange(seq, interest, kind, row_key, before, after, changed_at)
    return Aside(change, key, state, trouble, bool(turned))
