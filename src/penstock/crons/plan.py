"""A cron as stored: its declaration, its last decided time, and its schedule as text.

Owns the stored form of schedules, and the time from which a changed or resumed cron counts. The job of a run is kept
with it as text, and belongs to the code that enqueues it.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from penstock.crons.cron import CatchUp, Cron, Overlap
from penstock.crons.schedule import CronExpression, Interval, Schedule, in_utc
from penstock.dataclass import dataclass
from penstock.errors import DeclarationError

_UNITS = (("day", timedelta(days=1)), ("hour", timedelta(hours=1)), ("minute", timedelta(minutes=1)))


@dataclass(frozen=True, slots=True)
class CronPlan:
    """A cron's declaration as stored. A row that cannot be read is one row, and stops no other."""

    name: str
    schedule: str  # see `schedule_text`
    catch_up: CatchUp
    overlap: Overlap
    jitter: float  # in seconds
    function: str  # name of the function that it runs
    job: str  # the job that a run is, as text
    takes_planned_at: bool  # whether the function is given the planned time
    declared: bool  # whether a program declares it; if not, it was created at run time

    def cron(self) -> Cron:
        """The cron; DeclarationError if it cannot be read, such as a time zone unknown to this machine."""
        jitter = timedelta(seconds=self.jitter)
        return Cron(self.name, schedule_of(self.schedule), self.catch_up, self.overlap, jitter)


@dataclass(frozen=True, slots=True)
class KeptCron:
    plan: CronPlan
    paused: bool  # whether nothing is run until it is resumed
    last_at: datetime  # all planned times up to here are decided on
    next_at: datetime  # the planned time after that
    job_id: UUID | None = None  # the job of its last run, if there was one
    planned_at: datetime | None = None  # the planned time of that run


def plan_of(cron: Cron, *, function: str, job: str, takes_planned_at: bool = False, declared: bool = False) -> CronPlan:
    given = cron.name, schedule_text(cron.schedule), cron.catch_up, cron.overlap, cron.jitter.total_seconds()
    return CronPlan(*given, function, job, takes_planned_at, declared)


def begin(
    plan: CronPlan,
    since: datetime,
    paused: bool = False,
    job_id: UUID | None = None,
    planned_at: datetime | None = None,
) -> KeptCron:
    """Start a cron that runs nothing planned up to a time."""
    return KeptCron(plan, paused, in_utc(since), schedule_of(plan.schedule).next(since), job_id, planned_at)


def replan(kept: KeptCron, plan: CronPlan, now: datetime) -> KeptCron:
    """A cron with another plan.

    Another schedule counts from now, so that nothing runs twice. If the old one was late, its next time is caught up.
    """
    since = kept.last_at
    if plan.schedule != kept.plan.schedule:
        since = max(since, min(now, kept.next_at - timedelta.resolution))
    return begin(plan, since, kept.paused, kept.job_id, kept.planned_at)


def set_paused(kept: KeptCron, now: datetime, *, pause: bool) -> KeptCron:
    """A cron that is paused, or resumed: times planned meanwhile are not run."""
    since = max(kept.last_at, now) if kept.paused else kept.last_at
    return begin(kept.plan, since, pause, kept.job_id, kept.planned_at)


def schedule_text(schedule: Schedule) -> str:
    """A schedule as JSON: ``{"expression", "timezone"}``, or ``{"every", "anchor"}`` with seconds and a time."""
    if isinstance(schedule, CronExpression):
        return json.dumps({"expression": schedule.expression, "timezone": schedule.timezone})
    return json.dumps({"every": schedule.every.total_seconds(), "anchor": in_utc(schedule.anchor).isoformat()})


def schedule_of(text: str) -> Schedule:
    try:
        given: dict[str, Any] = json.loads(text)
        if "expression" in given:
            return CronExpression(given["expression"], given["timezone"])
        return Interval(timedelta(seconds=given["every"]), datetime.fromisoformat(given["anchor"]))
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise DeclarationError(f"{text} is no schedule: {error}.") from error


def schedule_words(schedule: Schedule) -> tuple[str, str]:
    """A schedule as people read it, and its time zone."""
    if isinstance(schedule, CronExpression):
        return schedule.expression, schedule.timezone
    every = schedule.every
    unit, length = next((unit for unit in _UNITS if not every % unit[1]), ("second", timedelta(seconds=1)))
    count = every / length
    return f"every {unit}" if count == 1 else f"every {count:g} {unit}s", "UTC"
