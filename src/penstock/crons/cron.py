"""A cron as declared: its name, its schedule, and its policies for late and overlapping runs.

Owns the declaration, the chance that belongs to a name, and which planned time runs now: one that has come, was missed,
or waits for a run under way. Leaves writing that, logging skipped times and asking again to the service.
"""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Literal, get_args

from penstock.crons.schedule import CronExpression, Interval, Schedule, in_utc, last_due
from penstock.dataclass import dataclass
from penstock.errors import DeclarationError

CatchUp = Literal["skip", "one", "all"]
Overlap = Literal["skip", "wait"]
_LONGEST_NAME = 100
_LONGEST_JITTER = timedelta(days=1)
_BITS = 64


@dataclass(frozen=True, slots=True)
class Cron:
    """A function and its schedule, with one run at a time. The defaults are those of Convex."""

    name: str
    schedule: Schedule
    catch_up: CatchUp = "one"
    overlap: Overlap = "skip"
    jitter: timedelta = timedelta(0)

    def __post_init__(self) -> None:
        check_name(self.name)
        if not isinstance(self.schedule, (CronExpression, Interval)):
            fix = 'Write CronExpression("0 9 * * *"), Interval(timedelta(hours=1)), or daily(hour=9).'
            self._refuse(f"{self.schedule!r} is no schedule", fix)
        for word, choices in (("catch_up", get_args(CatchUp)), ("overlap", get_args(Overlap))):
            if getattr(self, word) not in choices:
                named = ", ".join(map(repr, choices))
                self._refuse(f"{word} cannot be {getattr(self, word)!r}", f"Write one of {named}.")
        if self.catch_up == "all" and self.overlap == "skip":
            self._refuse(
                'catch_up="all" and overlap="skip" contradict each other: what is caught up comes while the first run '
                "is under way",
                'Write overlap="wait", or catch_up="one".',
            )
        given: object = self.jitter
        if not isinstance(given, timedelta) or not timedelta(0) <= given <= _LONGEST_JITTER:
            self._refuse(f"jitter must be a timedelta from 0 to a day, not {given!r}", "Write timedelta(seconds=30).")

    def begin(self, planned: datetime) -> datetime:
        """The time at which the run of a planned time begins, in UTC: before the next planned time."""
        room = min(self.jitter, self.schedule.next(planned) - planned)
        return in_utc(planned) + int(chance_of(self.name) * (room // timedelta.resolution)) * timedelta.resolution

    def _refuse(self, why: str, fix: str) -> None:
        raise DeclarationError(f"Cron {self.name!r}: {why}.", fix=fix)


def check_name(name: object) -> None:
    if not isinstance(name, str):
        raise DeclarationError(f"The name of a cron is text, not {name!r}.", fix='Write "send reminders".')
    if not name.strip() or len(name) > _LONGEST_NAME:
        raise DeclarationError(
            f"The name of a cron has 1 to {_LONGEST_NAME} characters, not all of them blanks.",
            fix='Write a short one, such as "send reminders".',
        )
    if not (name.isascii() and name.isprintable()):
        raise DeclarationError(
            f"The name of the cron {name!r} is not printable ASCII.",
            fix="Use letters without accents, digits, blanks and punctuation.",
        )


def chance_of(name: str) -> Fraction:
    """A number in [0, 1) that belongs to a name: stable, and spread evenly over names."""
    digest = hashlib.blake2b(name.encode(), digest_size=_BITS // 8).digest()
    return Fraction(int.from_bytes(digest, "big"), 1 << _BITS)


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
    first, latest = cron.schedule.next(last), last_due(cron.schedule, last, now)
    if latest is None:
        return Decision(None, in_utc(last), first)
    planned = first if cron.catch_up == "all" else latest
    following = cron.schedule.next(planned)
    if cron.catch_up == "skip" and in_utc(now) - latest > _IN_TIME:
        return Decision(None, latest, following, (Skip(first, latest, "missed"),))
    if under_way and cron.overlap == "wait":
        return None
    before = last_due(cron.schedule, last, planned - timedelta.resolution)
    missed = (Skip(first, before, "missed"),) if before else ()
    if under_way:
        return Decision(None, planned, following, (*missed, Skip(planned, planned, "under way")))
    return Decision(planned, planned, following, missed)
