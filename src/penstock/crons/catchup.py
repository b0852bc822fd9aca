"""What is to be run now: times that have come, times that were missed, and runs that are still under way.

Decides only. Leaves to the service that asks to write the decision, to log what it skips, and to ask again.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from penstock.crons.schedule import Schedule, last_due, next_due
from penstock.crons.wall import in_utc

CatchUp = Literal["skip", "one", "all"]
Overlap = Literal["skip", "wait"]

IN_TIME = timedelta(minutes=1)  # two take-overs of a dead process's work are shorter than this
MOST_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Due:
    """Which planned times are to be run, and which comes next."""

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
    """Which planned times since the last one are to be run now.

    Several planned times have passed when nobody looked for a while, or when a run took longer than the time to the
    next one. Convex runs the earliest of them and logs that it skips the others; ``one`` runs the latest, so that a run
    that is told its planned time does what is wanted now.

    Args:
        schedule: When it is due.
        policy: ``skip`` runs the latest planned time if it has only just come, and nothing that was missed. ``one``
            runs the latest one, however late it is. ``all`` runs each of them.
        last: The last planned time that was run or skipped; for a new cron, when it was declared. Aware.
        now: The time of the decision; if it lies before the last planned time, nothing is due. Aware.
        most: How many planned times ``all`` gives in one step, at least 1.
        in_time: By how much a planned time may be late and still count as not missed, for ``skip``.
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
    """What becomes of a planned time that is to be run."""

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
    """Whether a planned time is run, so that at most one run of a cron is under way.

    ``skip`` passes over it, as Convex does; ``wait`` leaves it to be decided anew when the run under way has ended, and
    what has come by then is a matter of catching up.

    Args:
        overlap: What the cron wants.
        under_way: Whether an earlier run of it has not ended yet, its further attempts included.
    """
    return ADMISSIONS[overlap, under_way]
