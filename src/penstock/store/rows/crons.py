"""Crons as rows: the conversion that both stores share, and the jobs that crons enqueue, as text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any
from uuid import UUID

from penstock.crons.plan import CronPlan, KeptCron
from penstock.jobs.job import NewJob
from penstock.jobs.order import rank
from penstock.store.rows.jobs import options_of, options_text
from penstock.values import decode_json, encode_json

_PLAN = tuple(field.name for field in fields(CronPlan))
_OF_EACH_RUN = {"id", "run_at", "rank", "options"}
_JOB = tuple(field.name for field in fields(NewJob) if field.name not in _OF_EACH_RUN)


def plan_values(plan: CronPlan) -> dict[str, Any]:
    """A plan's values by the names of its columns."""
    return {name: getattr(plan, name) for name in _PLAN}


def kept_of(row: Sequence[Any]) -> KeptCron:
    """A cron from its row: the plan, then its last decided time."""
    *plan, paused, last_at, next_at, job_id, planned_at = row
    given = dict(zip(_PLAN, plan, strict=True))
    given |= {name: bool(given[name]) for name in ("takes_planned_at", "declared")}
    return KeptCron(CronPlan(**given), bool(paused), last_at, next_at, job_id, planned_at)


def job_text(job: NewJob) -> str:
    """The common part of the jobs of all runs of a cron, as JSON."""
    common = {name: getattr(job, name) for name in _JOB}
    ahead = rank(job.run_at) - job.rank  # of a job without priority; the same at any time
    return json.dumps({**common, "ahead": ahead, "options": options_text(job.options)}, ensure_ascii=False)


def run_of(plan: CronPlan, planned_at: datetime, run_at: datetime, uuid: UUID) -> NewJob:
    """The job of one run. Unknown fields, written by another version, are left out."""
    given = json.loads(plan.job)
    common = {name: given[name] for name in _JOB if name in given}
    if plan.takes_planned_at:
        common["args"] = encode_json({**decode_json(common["args"]), "planned_at": planned_at}, "The arguments")
    place = rank(run_at) - given["ahead"]
    return NewJob(id=uuid, run_at=run_at, rank=place, options=options_of(given["options"]), **common)
