"""A cron's turn: what is run of what is due, what is skipped and why, and what comes next.

Puts catching up and admission together. Decides only; the service that asks writes it down.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from penstock.crons.catchup import Admission, admit, catch_up
from penstock.crons.cron import Cron

Reason = Literal["missed", "under way"]


@dataclass(frozen=True, slots=True)
class Skip:
    """Planned times that are not run."""

    first: datetime  # the first of them
    last: datetime  # the last of them
    reason: Reason  # they were missed and are not caught up, or an earlier run is still under way


@dataclass(frozen=True, slots=True)
class Turn:
    """What becomes of a cron whose time has come."""

    run: datetime | None  # the planned time that is run now, or None
    last: datetime  # the last planned time that is decided on
    next: datetime  # the planned time after that; it may have come already
    skips: tuple[Skip, ...] = ()  # what is not run


def take_turn(cron: Cron, last: datetime, now: datetime, *, under_way: bool) -> Turn | None:
    """What is to be done now about a cron; None if it waits for its run under way.

    At most one planned time is run at once: the next one has its turn when that run has ended.

    Args:
        cron: The cron.
        last: The last planned time that was decided on. Aware.
        now: The time of the decision. Aware.
        under_way: Whether an earlier run has not ended.
    """
    due = catch_up(cron.schedule, cron.catch_up, last, now, most=1)
    skips = (Skip(*due.skipped, "missed"),) if due.skipped else ()
    if not due.run:
        return Turn(None, due.last, due.next, skips)
    (planned,) = due.run
    admission = admit(cron.overlap, under_way=under_way)
    if admission is Admission.WAIT:
        return None
    if admission is Admission.SKIP:
        return Turn(None, due.last, due.next, (*skips, Skip(planned, planned, "under way")))
    return Turn(planned, due.last, due.next, skips)
