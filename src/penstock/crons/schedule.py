"""Schedules: the next time at which something recurring is due.

A cron expression is matched by the library cronsim, which is only given the time on a clock on the wall, never a
time zone. `crons/cron` decides about missed times.
"""

from __future__ import annotations

import difflib
import zoneinfo
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import cast

from cronsim import CronSim, CronSimError

from penstock.errors import DeclarationError, ValueInvalid
from penstock.values import EPOCH

SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)  # no clock was ever set by more, and none twice within one


@lru_cache
def zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return zoneinfo.ZoneInfo(name)
    except (LookupError, ValueError, OSError) as error:  # the errors of a missing file, a bad name, a folder's name
        near = difflib.get_close_matches(name, sorted(zoneinfo.available_timezones()), n=1)
        meant = f"Did you mean {near[0]!r}?" if near else "Write the IANA name of a place, such as 'Europe/Prague'."
        raise DeclarationError(f"There is no time zone {name!r}.", fix=meant) from error


def in_utc(moment: datetime) -> datetime:
    """Convert an instant to UTC; ValueInvalid if it has no time zone."""
    if moment.tzinfo is None:
        raise ValueInvalid(f"{moment} has no time zone.", fix="Use datetime.now(UTC), or attach a tzinfo.")
    return moment.astimezone(UTC)


def local_time(instant: datetime, place: tzinfo) -> datetime:
    """The naive time that a clock there shows at an instant."""
    return instant.astimezone(place).replace(tzinfo=None)


def first_instant(wall: datetime, place: tzinfo) -> datetime:
    """The first instant, in UTC, at which a clock there shows a time, or jumps over it."""
    instant = wall.replace(tzinfo=place, fold=0).astimezone(UTC)
    if local_time(instant, place) == wall:
        return instant
    # In a gap, fold=1 gives an instant before the jump, and fold=0 one that is not before it (PEP 495).
    before = wall.replace(tzinfo=place, fold=1).astimezone(UTC)
    return change_within(before, instant, place) or instant


def change_within(start: datetime, end: datetime, place: tzinfo) -> datetime | None:
    """When a clock there is set in ``(start, end]``, at most a day long."""
    before = _offset(start, place)
    if before == _offset(end, place):
        return None
    while end - start > SECOND:
        middle = start + (end - start) // 2
        middle = max(middle.replace(microsecond=0), start + SECOND)
        if _offset(middle, place) == before:
            start = middle
        else:
            end = middle
    return end


def _offset(instant: datetime, place: tzinfo) -> timedelta:
    return instant.astimezone(place).utcoffset() or timedelta(0)


@dataclass(frozen=True, slots=True)
class LocalTime:
    """A time as a clock at a place shows it, for ``run_at``.

    When clocks are set, the rule of crons holds: a time that clocks jump over is the moment of the jump, and of a time
    that comes twice the first one counts.

    Args:
        time: The time on the clock: a datetime without a time zone.
        timezone: IANA name of the place's time zone.

    Attributes:
        instant: That moment, in UTC.

    Raises:
        DeclarationError: The time has a time zone, or there is no such zone.
    """

    time: datetime
    timezone: str
    instant: datetime = field(init=False, compare=False)

    def __post_init__(self) -> None:
        time, name = cast("tuple[object, object]", (self.time, self.timezone))
        if not isinstance(time, datetime) or time.tzinfo is not None:
            raise DeclarationError(
                f"LocalTime takes a datetime without a time zone, not {time!r}.", fix="Pass an aware one as it is."
            )
        if not isinstance(name, str):
            raise DeclarationError(f"A time zone is given by its name, not as {name!r}.", fix="Write 'Europe/Prague'.")
        object.__setattr__(self, "instant", first_instant(time, zone(name)))


_LONGEST_TEXT = 256
_EXAMPLES = "Write minute, hour, day of month, month and day of week, such as '30 9 * * MON-FRI'"
_YEARS = 366 * DAY
_SEARCHED = 50 * _YEARS  # the rarest day that a calendar has, a given weekday as 29 February, comes every 40 years
_RULED = EPOCH + 130 * _YEARS  # beyond the changes that zones list one by one: from here on the pattern repeats


@dataclass(frozen=True, slots=True)
class CronExpression:
    """A cron expression, in a time zone.

    The syntax and the meaning are those of Debian's cron, as the library cronsim has them. There are ``*``, lists,
    ranges, steps, names of months and weekdays; where both days are restricted, either may match; also ``L`` and ``LW``
    as day of month, ``5L`` (the last Friday) and ``MON#1`` (the first Monday) as day of week.

    When clocks are set, Debian's rule holds too, for five fields and for six. An expression whose minute and hour are
    both given runs at that time once a day. If clocks jump over it, at the moment of the jump. If it comes twice, the
    first time. An expression whose minute or hour begins with ``*`` follows the clock. It runs in both of two equal
    hours, and not in an hour that does not come.

    Args:
        expression: Minute, hour, day of month, month, day of week; with six fields, the second comes first.
        timezone: IANA name of the time zone.

    Raises:
        DeclarationError: The expression cannot be read, never comes, or there is no such zone.
    """

    expression: str
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        _check_expression(self.expression)
        name: object = self.timezone
        if not isinstance(name, str):
            raise DeclarationError(f"A time zone is given by its name, not as {name!r}.", fix="Write 'Europe/Prague'.")
        self.next(_RULED)

    def next(self, after: datetime) -> datetime:
        """The first time at which it is due after an instant; in UTC."""
        place = zone(self.timezone)
        minute, hour = self.expression.split()[-5:-3]
        find = _next_on_the_clock if minute.startswith("*") or hour.startswith("*") else _next_at_a_time
        found = find(self.expression, place, in_utc(after).replace(microsecond=0))
        if found is None:
            raise _never(self.expression, self.timezone)
        return found


def _next_at_a_time(expression: str, place: tzinfo, after: datetime) -> datetime | None:
    """Times of the clock and their first instants have the same order."""
    for match in CronSim(expression, local_time(after, place)):
        instant = first_instant(match, place)
        if instant > after:
            return instant
    return None


def _next_on_the_clock(expression: str, place: tzinfo, after: datetime) -> datetime | None:
    """Between two settings of the clock, a match is as far away as the clock says."""
    start, wall = after, local_time(after, place)
    while start - after < _SEARCHED:
        match = next(CronSim(expression, wall), None)
        if match is None:
            return None
        instant = start + (match - local_time(start, place))
        near = min(instant, start + DAY)
        change = change_within(start, near, place)
        if change is None and instant == near:
            return instant
        # A clock set back within a day could show a time again; later than that, only new times.
        start = change or match.replace(tzinfo=place).astimezone(UTC) - DAY
        wall = local_time(start, place) - SECOND
    return None


def _check_expression(expression: object) -> None:
    if not isinstance(expression, str):
        raise DeclarationError(f"A cron expression is text, not {expression!r}.", fix=f"{_EXAMPLES}.")
    if len(expression) > _LONGEST_TEXT:
        raise DeclarationError(f"A cron expression of {len(expression)} characters is longer than {_LONGEST_TEXT}.")
    if len(expression.split()) not in {5, 6}:
        raise DeclarationError(
            f"The cron expression {expression!r} does not have five or six fields.",
            fix=f"{_EXAMPLES}; with six fields, the second comes first.",
        )
    try:
        CronSim(expression, datetime(2000, 1, 1))  # noqa: DTZ001 - what a clock shows
    except CronSimError as error:
        if _is_read_without_month(expression):
            raise _never(expression, "any time zone") from error
        raise DeclarationError(
            f"The cron expression {expression!r} cannot be read: {str(error).lower()}.", fix=f"{_EXAMPLES}."
        ) from error


@lru_cache
def in_words(schedule: str) -> str:
    """A cron expression in words, such as ``At 09:00 every day``; other schedules are in words already."""
    try:
        return CronSim(schedule, datetime(2000, 1, 1)).explain()  # noqa: DTZ001 - what a clock shows
    except CronSimError:
        return schedule


def _is_read_without_month(expression: str) -> bool:
    """Whether each field is valid, so that only their combination never comes."""
    *before, month, weekday = expression.split()
    try:
        for text in (" ".join([*before, "*", weekday]), f"* * * {month} *"):
            CronSim(text, datetime(2000, 1, 1))  # noqa: DTZ001 - what a clock shows
    except CronSimError:
        return False
    return True


def _never(expression: str, where: str) -> DeclarationError:
    return DeclarationError(
        f"The cron expression {expression!r} never comes in {where}.",
        fix="Choose a day that the month has, such as L for its last, and an hour that no clock change skips.",
        expression=expression,
    )


_LONGEST = timedelta(days=3660)


@dataclass(frozen=True, slots=True)
class Interval:
    """A fixed length of time, repeated and counted from an anchor, so that it never drifts.

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
            raise _no_interval(f"every must be a timedelta, not {given!r}", "Write timedelta(hours=1).")
        if not SECOND <= given <= _LONGEST:
            fix = "Write timedelta(seconds=1) or more; run anything more frequent in a loop of your own."
            raise _no_interval(f"every must be from a second to {_LONGEST.days} days, not {given}", fix)
        anchor: object = self.anchor
        if not isinstance(anchor, datetime) or anchor.tzinfo is None:
            fix = "Write datetime(2030, 1, 1, tzinfo=UTC)."
            raise _no_interval(f"anchor must be a datetime with a time zone, not {anchor!r}", fix)

    def next(self, after: datetime) -> datetime:
        anchor = in_utc(self.anchor)
        passed = (in_utc(after) - anchor) // self.every
        return anchor + max(passed + 1, 0) * self.every


def _no_interval(why: str, fix: str) -> DeclarationError:
    return DeclarationError(f"Interval: {why}.", fix=fix)


Schedule = CronExpression | Interval


def last_due(schedule: Schedule, after: datetime, until: datetime) -> datetime | None:
    """The last time at which a schedule is due in ``(after, until]``; None if there is none.

    It searches by halves, so that years of missed seconds cost a few dozen steps.
    """
    found, end = schedule.next(after), in_utc(until)
    if found > end:
        return None
    while found < end:
        middle = found + (end - found) // 2
        later = schedule.next(middle)
        if later <= end:
            found = later
        else:
            end = middle
    return found
