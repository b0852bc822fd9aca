"""Cron expressions in a time zone: what they are, and when they are next due.

Owns what becomes of them when clocks are set. Leaves matching the fields to the library cronsim, which is only ever
given what the clock on the wall shows, never a time zone.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

from cronsim import CronSim, CronSimError

from penstock.crons.wall import DAY, EPOCH, SECOND, change_within, check_zone, first_instant, in_utc, shown, zone
from penstock.errors import DeclarationError

_LONGEST = 256
_EXAMPLES = "Write minute, hour, day of month, month and day of week, such as '30 9 * * MON-FRI'"
_YEARS = 366 * DAY
_SEARCHED = 50 * _YEARS  # the rarest day that a calendar has, a given weekday as 29 February, comes every 40 years
_RULED = EPOCH + 130 * _YEARS  # beyond the changes that zones list one by one: what comes here comes for ever


@dataclass(frozen=True, slots=True)
class CronExpression:
    """A cron expression, in a time zone.

    The syntax and the meaning are those of Debian's cron, as the library cronsim has them: ``*``, lists, ranges, steps,
    names of months and weekdays; where both days are restricted, either may match; also ``L`` and ``LW`` as day of
    month, ``5L`` (the last Friday) and ``MON#1`` (the first Monday) as day of week.

    When clocks are set, Debian's rule holds too, for five fields and for six. An expression whose minute and hour are
    both given runs at that time once a day: if clocks jump over it, at the moment of the jump; if it comes twice, the
    first time. An expression whose minute or hour begins with ``*`` follows the clock: it runs in both of two equal
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
        _check(self.expression)
        check_zone(self.timezone)
        self.next(_RULED)

    def next(self, after: datetime) -> datetime:
        """The first time at which it is due after an instant; in UTC.

        Raises:
            ValueInvalid: The instant has no time zone.
            DeclarationError: It never comes. Declaring it has made sure that it does, as long as the zone stays as is.
        """
        place = zone(self.timezone)
        find = _next_at_a_time if self._at_a_time() else _next_on_the_clock
        found = find(self.expression, place, in_utc(after).replace(microsecond=0))
        if found is None:
            raise _never(self.expression, self.timezone)
        return found

    def _at_a_time(self) -> bool:
        minute, hour = self.expression.split()[-5:-3]
        return not (minute.startswith("*") or hour.startswith("*"))


def _next_at_a_time(expression: str, place: tzinfo, after: datetime) -> datetime | None:
    """Times of the clock and the first instants at which they come follow each other in the same order."""
    for match in CronSim(expression, shown(after, place)):
        instant = first_instant(match, place)
        if instant > after:
            return instant
    return None


def _next_on_the_clock(expression: str, place: tzinfo, after: datetime) -> datetime | None:
    """Goes from one setting of the clock to the next, as in between a match is as far away as the clock says."""
    start, wall = after, shown(after, place)
    while start - after < _SEARCHED:
        match = next(CronSim(expression, wall), None)
        if match is None:
            return None
        instant = start + (match - shown(start, place))
        near = min(instant, start + DAY)
        change = change_within(start, near, place)
        if change is None and instant == near:
            return instant
        # A clock set back within a day could show again what it has shown; later than that, only what is to come.
        start = change or match.replace(tzinfo=place).astimezone(UTC) - DAY
        wall = shown(start, place) - SECOND
    return None


def _check(expression: object) -> None:
    if not isinstance(expression, str):
        raise DeclarationError(f"A cron expression is text, not {expression!r}.", fix=f"{_EXAMPLES}.")
    if len(expression) > _LONGEST:
        raise DeclarationError(f"A cron expression of {len(expression)} characters is longer than {_LONGEST}.")
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


def _is_read_without_month(expression: str) -> bool:
    """Whether its fields are well, so that only their combination cannot be."""
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
