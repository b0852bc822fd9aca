"""Schedules: when something that comes again and again is next due.

Owns intervals, and the questions that are asked of every schedule. Leaves cron expressions to `crons/expression`, and
what becomes of times that have passed unserved to `crons/catchup`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from penstock.crons.expression import CronExpression
from penstock.crons.wall import EPOCH, SECOND, in_utc
from penstock.errors import DeclarationError

_LONGEST = timedelta(days=3660)


@dataclass(frozen=True, slots=True)
class Interval:
    """The same length of time again and again, counted from an anchor, so that it never drifts.

    It counts real time: clocks that are set do not matter. It begins at its anchor. Convex counts from the first
    deployment instead.

    Args:
        every: From one time to the next; from a second to ten years.
        anchor: The first time it comes; aware. By default the beginning of 1970 in UTC, so that an interval that
            divides the day comes at whole hours, minutes or seconds of UTC.

    Raises:
        DeclarationError: The interval is too short or too long, or the anchor has no time zone.
    """

    every: timedelta
    anchor: datetime = EPOCH

    def __post_init__(self) -> None:
        given: object = self.every
        if not isinstance(given, timedelta):
            raise DeclarationError(
                f"Interval: every must be a timedelta, not {given!r}.", fix="Write timedelta(hours=1)."
            )
        if not SECOND <= given <= _LONGEST:
            raise DeclarationError(
                f"Interval: every must be from a second to {_LONGEST.days} days, not {given}.",
                fix="Write timedelta(seconds=1) or more; run anything more frequent in a loop of your own.",
            )
        anchor: object = self.anchor
        if not isinstance(anchor, datetime) or anchor.tzinfo is None:
            raise DeclarationError(
                f"Interval: anchor must be a datetime with a time zone, not {anchor!r}.",
                fix="Write datetime(2030, 1, 1, tzinfo=UTC).",
            )

    def next(self, after: datetime) -> datetime:
        """The first time at which it is due after an instant; in UTC.

        Raises:
            ValueInvalid: The instant has no time zone.
        """
        anchor = in_utc(self.anchor)
        passed = (in_utc(after) - anchor) // self.every
        return anchor + max(passed + 1, 0) * self.every


Schedule = CronExpression | Interval


def next_due(schedule: Schedule, after: datetime) -> datetime:
    """The first time at which a schedule is due after an instant; in UTC.

    Args:
        schedule: The schedule.
        after: An instant, aware; what is due at this very instant is not meant.

    Raises:
        ValueInvalid: The instant has no time zone.
    """
    return schedule.next(after)


def last_due(schedule: Schedule, after: datetime, until: datetime) -> datetime | None:
    """The last time at which a schedule is due after one instant and not after another; None if there is none.

    It halves the time in question again and again, so that years of missed seconds cost a few dozen steps.

    Args:
        schedule: The schedule.
        after: An instant, aware; what is due at this very instant is not meant.
        until: An instant, aware; what is due at this very instant is meant.

    Raises:
        ValueInvalid: An instant has no time zone.
    """
    found, end = next_due(schedule, after), in_utc(until)
    if found > end:
        return None
    while found < end:
        middle = found + (end - found) // 2
        later = next_due(schedule, middle)
        if later <= end:
            found = later
        else:
            end = middle
    return found
