"""Intervals, schedules in words, and the last time that was due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.crons.every import daily, hourly, interval, monthly, weekly
from penstock.crons.schedule import CronExpression, Interval, Schedule, last_due
from penstock.errors import DeclarationError, ValueInvalid

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
HOUR, MINUTE, SECOND = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

INSTANTS = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - bounds
LENGTHS = st.timedeltas(SECOND, timedelta(days=3660))
INTERVALS = st.builds(Interval, LENGTHS, INSTANTS)


# ----- intervals


def test_an_interval_is_counted_from_its_anchor() -> None:
    schedule = Interval(timedelta(minutes=7), NOON)
    assert schedule.next(NOON - 100 * HOUR) == NOON
    assert schedule.next(NOON + 7 * MINUTE - timedelta.resolution) == NOON + 7 * MINUTE
    assert schedule.next(NOON + timedelta(days=365)) == NOON + timedelta(days=365) + 2 * MINUTE
    assert Interval(6 * HOUR).next(NOON + 35 * MINUTE) == NOON + 6 * HOUR, "whole hours of UTC"


def test_an_interval_counts_real_time_while_clocks_are_set() -> None:
    prague = ZoneInfo("Europe/Prague")
    schedule = Interval(24 * HOUR, datetime(2025, 3, 1, 9, tzinfo=prague))
    found = [schedule.next(datetime(2025, 3, day, 12, tzinfo=prague)).astimezone(prague) for day in (28, 29, 30)]
    assert [(one.day, one.hour) for one in found] == [(29, 9), (30, 10), (31, 10)]


@given(INTERVALS, INSTANTS)
def test_an_interval_never_drifts(schedule: Interval, after: datetime) -> None:
    found = schedule.next(after)
    assert found > after
    assert found >= schedule.anchor
    assert (found - schedule.anchor) % schedule.every == timedelta(0)
    assert found - schedule.every <= after or found == schedule.anchor


@pytest.mark.parametrize(
    ("given_values", "told"),
    [
        ({"every": timedelta(0)}, "from a second to 3660 days, not 0:00:00. Write timedelta"),
        ({"every": timedelta(days=3661)}, "from a second to 3660 days"),
        ({"every": 60}, "must be a timedelta, not 60"),
        ({"every": HOUR, "anchor": datetime(2030, 1, 1)}, "anchor must be a datetime with a time zone"),  # noqa: DTZ001
    ],
)
def test_an_interval_that_cannot_be_is_refused(given_values: dict[str, Any], told: str) -> None:
    with pytest.raises(DeclarationError, match=told):
        Interval(**given_values)


def test_a_time_without_a_zone_is_no_instant() -> None:
    naive = datetime(2030, 1, 1)  # noqa: DTZ001 - what is refused
    for schedule in (Interval(HOUR), CronExpression("0 * * * *")):
        with pytest.raises(ValueInvalid, match="has no time zone"):
            schedule.next(naive)
        with pytest.raises(ValueInvalid, match="has no time zone"):
            last_due(schedule, NOON, naive)


# ----- schedules in words


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (interval(seconds=30), Interval(timedelta(seconds=30))),
        (interval(minutes=90), Interval(timedelta(minutes=90))),
        (hourly("tidy", 5), CronExpression("5 * * * *")),
        (daily("tidy", 9, 30), CronExpression("30 9 * * *")),
        (weekly("tidy", "sunday", 9, 30), CronExpression("30 9 * * 0")),
        (monthly("tidy", 31, 9, 30), CronExpression("30 9 31 * *")),
        (monthly("tidy", "last", 9, 30), CronExpression("30 9 L * *")),
    ],
)
def test_schedules_in_words(schedule: Schedule, expected: Schedule) -> None:
    assert schedule == expected


def test_a_minute_that_is_not_given_belongs_to_the_name() -> None:
    assert hourly("send reminders").expression == "26 * * * *"  # for ever: a deployment must not move it
    assert daily("send reminders", 4).expression == "26 4 * * *"
    assert weekly("send reminders", "friday", 4).expression == "26 4 * * 5"
    assert monthly("send reminders", 1, 4).expression == "26 4 1 * *"
    assert hourly("send reminders", 0).expression == "0 * * * *"


@pytest.mark.parametrize(
    ("declare", "told"),
    [
        (interval, "exactly one of seconds, minutes and hours, not none of them. Write interval"),
        (lambda: interval(seconds=0), "interval: seconds cannot be 0"),
        (lambda: interval(hours=100_000), "from a second to 3660 days"),
        (lambda: hourly("x", 60), "hourly: minute cannot be 60. Write a whole number from 0 to 59."),
        (lambda: weekly("x", "mon", 9), "'mon' is no weekday. Write one of sunday, monday"),  # type: ignore[arg-type]
        (lambda: monthly("x", 0, 9), "monthly: day cannot be 0. Write a whole number from 1 to 31, or 'last'."),
        (lambda: daily("x", 9, timezone="Europe/Praha"), "Did you mean 'Europe/Prague'"),
        (lambda: daily("dňa", 9), "is not printable ASCII"),
    ],
)
def test_words_that_cannot_be_are_refused(declare: Any, told: str) -> None:
    with pytest.raises(DeclarationError) as raised:
        declare()
    assert told in str(raised.value)


# ----- the last time that was due


@given(
    st.sampled_from(["*/10 * * * *", "0 9 * * MON", "30 2 * * *", "0 0 29 2 *"]).map(
        lambda text: CronExpression(text, "Europe/Prague")
    )
    | INTERVALS,
    st.datetimes(datetime(2024, 1, 1), datetime(2026, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001 - bounds
    st.timedeltas(timedelta(0), timedelta(days=500)),
)
@example(Interval(SECOND, EPOCH), NOON, timedelta(0))
@example(Interval(SECOND, EPOCH), NOON, SECOND)
def test_nothing_is_due_between_the_last_time_and_the_end(
    schedule: Schedule, after: datetime, passed: timedelta
) -> None:
    found = last_due(schedule, after, after + passed)
    if found is None:
        assert schedule.next(after) > after + passed
    else:
        assert after < found <= after + passed
        assert schedule.next(found) > after + passed
        assert schedule.next(found - timedelta.resolution) == found
