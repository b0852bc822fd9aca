"""Decides which planned times run now: those that have come, were missed, or wait for a run under way.

Leaves writing the decision, logging skipped times and asking again to the service.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from penstock.crons.cron import CatchUp, Cron, Overlap
from penstock.crons.schedule import Schedule, in_utc, last_due, next_due

IN_TIME = timedelta(minutes=1)  # two take-overs of a dead process's work are shorter than this
MOST_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Due:
    run: tuple[datetime, ...]  # planned times to be run, the earliest first
    last: datetime  # the last planned time that is decided on, from which the next step goes on
    next: datetime  # the planned time after that. It has come already if more are to be run than one step may give
    skipped: tuple[datetime, datetime] | None = None  # the first and the last planned time that are not run, or None


def catch_up(
    schedule: Schedule,
    policy: CatchUp,
    last: datetime,
    now: datetime,
    *,
    most: int = MOST_AT_ONCE,
    in_time: timedelta = IN_TIME,
) -> Due:
    """The planned times since the last one that are to run now.

    ``skip`` runs the latest if it has only just come; ``one`` the latest, however late; ``all`` runs each.
    """
    first = next_due(schedule, last)
    latest = last_due(schedule, last, now)
    if latest is None:
        return Due((), in_utc(last), first)
    if policy == "all":
        return _all(schedule, first, latest, most)
    following = next_due(schedule, latest)
    if policy == "skip" and in_utc(now) - latest > in_time:
        return Due((), latest, following, (first, latest))
    before = last_due(schedule, last, latest - timedelta.resolution)
    return Due((latest,), latest, following, (first, before) if before else None)


def _all(schedule: Schedule, first: datetime, latest: datetime, most: int) -> Due:
    run = [first]
    while run[-1] < latest and len(run) < most:
        run.append(next_due(schedule, run[-1]))
    return Due(tuple(run), run[-1], next_due(schedule, run[-1]))


class Admission(enum.Enum):
    RUN = "run"
    SKIP = "skip"
    WAIT = "wait"


ADMISSIONS: dict[tuple[Overlap, bool], Admission] = {
    ("skip", False): Admission.RUN,
    ("skip", True): Admission.SKIP,
    ("wait", False): Admission.RUN,
    ("wait", True): Admission.WAIT,
}


def admit(overlap: Overlap, *, under_way: bool) -> Admission:
    """Whether a planned time is run while an earlier run, its further attempts included, is under way or not."""
    return ADMISSIONS[overlap, under_way]


Reason = Literal["missed", "under way"]


@dataclass(frozen=True, slots=True)
class Skip:
    first: datetime  # the first of them
    last: datetime  # the last of them
    reason: Reason  # they were missed and are not caught up, or an earlier run is still under way


@dataclass(frozen=True, slots=True)
class Decision:
    run: datetime | None  # the planned time that is run now, or None
    last: datetime  # the last planned time that is decided on
    next: datetime  # the planned time after that; it may have come already
    skips: tuple[Skip, ...] = ()  # the times that are not run


def decide(cron: Cron, last: datetime, now: datetime, *, under_way: bool) -> Decision | None:
    """The decision about a cron, which runs one planned time at a time; None if it waits for that run."""
    due = catch_up(cron.schedule, cron.catch_up, last, now, most=1)
    skips = (Skip(*due.skipped, "missed"),) if due.skipped else ()
    if not due.run:
        return Decision(None, due.last, due.next, skips)
    (planned,) = due.run
    admission = admit(cron.overlap, under_way=under_way)
    if admission is Admission.WAIT:
        return None
    if admission is Admission.SKIP:
        return Decision(None, due.last, due.next, (*skips, Skip(planned, planned, "under way")))
    return Decision(planned, due.last, due.next, skips)
