"""Decides which planned time of a cron runs now: one that has come, was missed, or waits for a run under way.

Leaves writing the decision, logging skipped times and asking again to the service.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from penstock.crons.cron import Cron
from penstock.crons.schedule import in_utc, last_due, next_due

_IN_TIME = timedelta(minutes=1)  # two take-overs of a dead process's work are shorter than this

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
    """The decision about a cron, which runs one planned time at a time; None if it waits for that run.

    Of missed times ``skip`` runs the latest if it has only just come, ``one`` the latest, however late, ``all`` each.
    """
    first, latest = next_due(cron.schedule, last), last_due(cron.schedule, last, now)
    if latest is None:
        return Decision(None, in_utc(last), first)
    planned = first if cron.catch_up == "all" else latest
    following = next_due(cron.schedule, planned)
    if cron.catch_up == "skip" and in_utc(now) - latest > _IN_TIME:
        return Decision(None, latest, following, (Skip(first, latest, "missed"),))
    if under_way and cron.overlap == "wait":
        return None
    before = last_due(cron.schedule, last, planned - timedelta.resolution)
    missed = (Skip(first, before, "missed"),) if before else ()
    if under_way:
        return Decision(None, planned, following, (*missed, Skip(planned, planned, "under way")))
    return Decision(planned, planned, following, missed)
