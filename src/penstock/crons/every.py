"""Schedules in words: every hour, day, week or month.

Owns the words. Gives cron expressions and intervals. The words and their rules are those of Convex, with a time zone
instead of UTC alone.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, get_args

from penstock.crons.cron import chance_of, check_name
from penstock.crons.schedule import CronExpression, Interval
from penstock.errors import DeclarationError

Weekday = Literal["sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"]

_WEEKDAYS: tuple[Weekday, ...] = get_args(Weekday)


def interval(*, seconds: int | None = None, minutes: int | None = None, hours: int | None = None) -> Interval:
    """Every so many seconds, minutes or hours: exactly one of them, as in Convex.

    Args:
        seconds: Seconds from one time to the next, at least 1.
        minutes: Minutes from one time to the next, at least 1.
        hours: Hours from one time to the next, at least 1.

    Raises:
        DeclarationError: Not exactly one is given, or it is not a whole number of at least 1.
    """
    given = {"seconds": seconds, "minutes": minutes, "hours": hours}
    chosen = [(unit, number) for unit, number in given.items() if number is not None]
    if len(chosen) != 1:
        names = " and ".join(unit for unit, _ in chosen) or "none of them"
        raise DeclarationError(
            f"interval takes exactly one of seconds, minutes and hours, not {names}.", fix="Write interval(minutes=90)."
        )
    (unit, number) = chosen[0]
    _check_number("interval", unit, number, 1, 10**9)
    return Interval(timedelta(**{unit: number}))


def hourly(name: str, minute: int | None = None, *, timezone: str = "UTC") -> CronExpression:
    """Every hour of the clock. When clocks are set, it follows: an hour that comes twice is served twice.

    Args:
        name: The cron's name, from which a minute is taken that is not given: always the same one.
        minute: Minute of the hour, 0 to 59.
        timezone: IANA name of the time zone; it matters where clocks differ from UTC by parts of an hour.

    Raises:
        DeclarationError: The name, the minute or the time zone cannot be.
    """
    return CronExpression(f"{_minute('hourly', name, minute)} * * * *", timezone)


def daily(name: str, hour: int, minute: int | None = None, *, timezone: str = "UTC") -> CronExpression:
    """Every day at a time, once each day, whatever clocks do; see `CronExpression`.

    Args:
        name: The cron's name, from which a minute is taken that is not given: always the same one.
        hour: Hour of the day, 0 to 23.
        minute: Minute of the hour, 0 to 59.
        timezone: IANA name of the time zone.

    Raises:
        DeclarationError: The name, the time or the time zone cannot be.
    """
    _check_number("daily", "hour", hour, 0, 23)
    return CronExpression(f"{_minute('daily', name, minute)} {hour} * * *", timezone)


def weekly(
    name: str, weekday: Weekday, hour: int, minute: int | None = None, *, timezone: str = "UTC"
) -> CronExpression:
    """Every week on a day, ``monday`` and so on, at a time; the rest is as for `daily`."""
    if weekday not in _WEEKDAYS:
        raise DeclarationError(f"weekly: {weekday!r} is no weekday.", fix=f"Write one of {', '.join(_WEEKDAYS)}.")
    _check_number("weekly", "hour", hour, 0, 23)
    day = _WEEKDAYS.index(weekday)
    return CronExpression(f"{_minute('weekly', name, minute)} {hour} * * {day}", timezone)


def monthly(
    name: str, day: int | Literal["last"], hour: int, minute: int | None = None, *, timezone: str = "UTC"
) -> CronExpression:
    """Every month on a day, 1 to 31 or ``last``, at a time; the rest is as for `daily`.

    A month that has no such day is left out, as in Convex.
    """
    if day != "last":
        _check_number("monthly", "day", day, 1, 31, other="last")
    _check_number("monthly", "hour", hour, 0, 23)
    shown = "L" if day == "last" else day
    return CronExpression(f"{_minute('monthly', name, minute)} {hour} {shown} * *", timezone)


def _minute(word: str, name: str, minute: int | None) -> int:
    check_name(name)
    if minute is None:
        return int(chance_of(name) * 60)
    _check_number(word, "minute", minute, 0, 59)
    return minute


def _check_number(word: str, what: str, given: object, least: int, most: int, other: str = "") -> None:
    if type(given) is not int or not least <= given <= most:
        fix = f"Write a whole number from {least} to {most}" + (f", or {other!r}." if other else ".")
        raise DeclarationError(f"{word}: {what} cannot be {given!r}.", fix=fix)
