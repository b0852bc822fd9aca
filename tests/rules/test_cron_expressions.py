"""When cron expressions are due: calendars, and clocks that are set, against slow and simple ones."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st
from stage.needs import examples

from penstock.crons.schedule import CronExpression
from penstock.errors import DeclarationError, ValueInvalid

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def following(expression: str, timezone: str, after: datetime, count: int) -> list[str]:
    """The next times at which it is due, as the clock of its zone shows them."""
    schedule, found = CronExpression(expression, timezone), []
    for _ in range(count):
        after = schedule.next(after)
        assert after.tzinfo is UTC
        found.append(after.astimezone(ZoneInfo(timezone)).isoformat())
    return found


# ----- the calendar


@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        ("0 12 29 2 *", "2096-03-01T00:00", ["2104-02-29T12:00", "2108-02-29T12:00"]),
        ("0 0 L * *", "2028-01-31T00:00", ["2028-02-29T00:00", "2028-03-31T00:00"]),
        ("0 0 * * MON#1", "2025-05-01T00:00", ["2025-05-05T00:00", "2025-06-02T00:00"]),
        ("0 0 13 * FRI", "2025-06-07T00:00", ["2025-06-13T00:00", "2025-06-20T00:00"]),  # either of the days
        ("0 0 */31 * MON", "2025-06-07T00:00", ["2025-09-01T00:00", "2025-12-01T00:00"]),  # both, as one has a star
        ("0 0 * feb mon#5", "2025-01-01T00:00", ["2044-02-29T00:00", "2072-02-29T00:00", "2112-02-29T00:00"]),
    ],
)
def test_calendars(expression: str, after: str, expected: list[str]) -> None:
    found = following(expression, "UTC", at(f"{after}Z"), len(expected))
    assert found == [f"{one}:00+00:00" for one in expected]


def test_a_sixth_field_gives_the_seconds_and_comes_first() -> None:
    found = following("*/20 30 9 * * *", "UTC", at("2030-01-01T00:00Z"), 4)
    assert found == [f"2030-01-0{time}+00:00" for time in ("1T09:30:00", "1T09:30:20", "1T09:30:40", "2T09:30:00")]
    found = following("15 30 * * * *", "Europe/Prague", at("2025-10-26T02:29:30+02:00"), 2)
    assert found == ["2025-10-26T02:30:15+02:00", "2025-10-26T02:30:15+01:00"]


def test_what_is_due_now_is_not_due_after_now_but_is_due_after_a_moment_before() -> None:
    schedule, noon = CronExpression("0 12 * * *"), at("2030-01-01T12:00Z")
    assert schedule.next(noon - timedelta.resolution) == noon
    assert schedule.next(noon) == noon + 24 * HOUR
    assert schedule.next(noon + timedelta.resolution) == noon + 24 * HOUR


def test_the_zone_of_the_instant_does_not_matter_but_it_needs_one() -> None:
    schedule = CronExpression("*/10 12 * * *", "Europe/Prague")
    utc, tokyo = at("2030-01-01T11:05Z"), at("2030-01-01T20:05+09:00")
    assert schedule.next(utc) == schedule.next(tokyo) == at("2030-01-01T12:10+01:00")
    with pytest.raises(ValueInvalid, match="has no time zone"):
        schedule.next(datetime(2030, 1, 1))  # noqa: DTZ001 - what is refused


# ----- against slow and simple ones

SETTINGS = [
    ("Europe/Prague", "2025-03-30T01:00Z"), ("Europe/Prague", "2025-10-26T01:00Z"),
    ("America/New_York", "2025-03-09T07:00Z"), ("America/New_York", "2025-11-02T06:00Z"),
    ("Australia/Lord_Howe", "2025-10-04T15:30Z"), ("Australia/Lord_Howe", "2025-04-05T15:00Z"),
    ("America/Sao_Paulo", "2018-11-04T03:00Z"), ("America/Sao_Paulo", "2019-02-17T02:00Z"),
    ("Antarctica/Troll", "2025-03-30T01:00Z"), ("Antarctica/Troll", "2025-10-26T01:00Z"),
    ("Pacific/Apia", "2011-12-30T10:00Z"), ("Pacific/Kwajalein", "1993-08-21T12:00Z"),
    ("Asia/Kathmandu", "1985-12-31T18:30Z"), ("Asia/Pyongyang", "2015-08-14T15:00Z"),
    ("Africa/Casablanca", "2025-02-23T02:00Z"), ("Africa/Casablanca", "2025-04-06T02:00Z"),
    ("Europe/Dublin", "2025-10-26T01:00Z"), ("Africa/Cairo", "2025-10-30T21:00Z"),
    ("Asia/Kolkata", "2030-01-01T00:00Z"),
]  # fmt: skip


def shown(instant: datetime, timezone: str) -> datetime:
    return instant.astimezone(ZoneInfo(timezone)).replace(tzinfo=None)


class Slow:
    """Says for every minute around a setting of the clock whether an expression is due, by looking at each."""

    def __init__(self, minutes: set[int], hours: set[int], timezone: str, around: datetime) -> None:
        self.minutes, self.hours, self.timezone = minutes, hours, timezone
        self.start, self.end = around - 52 * HOUR, around + 52 * HOUR

    def on_the_clock(self) -> Iterator[datetime]:
        for instant, wall in self.walls():
            if self.matches(wall):
                yield instant

    def at_a_time(self) -> Iterator[datetime]:
        latest: datetime | None = None
        for instant, wall in self.walls():
            passed = [] if latest is None else [latest + n * MINUTE for n in range(1, (wall - latest) // MINUTE + 1)]
            if any(map(self.matches, passed)):
                yield instant
            latest = wall if latest is None else max(latest, wall)

    def walls(self) -> Iterator[tuple[datetime, datetime]]:
        instant = self.start
        while instant < self.end:
            yield instant, shown(instant, self.timezone)
            instant += MINUTE

    def matches(self, wall: datetime) -> bool:
        return wall.minute in self.minutes and wall.hour in self.hours


def listed(numbers: set[int]) -> str:
    return ",".join(map(str, sorted(numbers)))


@settings(max_examples=examples(150))
@given(
    st.sampled_from(SETTINGS),
    st.sets(st.integers(0, 59), min_size=1, max_size=4),
    st.sets(st.integers(0, 23), min_size=1, max_size=4),
    st.integers(-26 * 3600, 26 * 3600),
    st.sampled_from([0, 1, 999_999]),
    st.sampled_from(["both", "minute", "hour"]),
)
def test_every_time_is_the_one_that_looking_at_each_minute_finds(
    setting: tuple[str, str], minutes: set[int], hours: set[int], seconds: int, microseconds: int, given_fields: str
) -> None:
    timezone, when = setting
    after = at(when) + timedelta(seconds=seconds, microseconds=microseconds)
    match given_fields:
        case "both":
            text = f"{listed(minutes)} {listed(hours)} * * *"
            slow = Slow(minutes, hours, timezone, at(when)).at_a_time()
        case "minute":
            text = f"{listed(minutes)} * * * *"
            slow = Slow(minutes, set(range(24)), timezone, at(when)).on_the_clock()
        case _:
            text = f"*/7 {listed(hours)} * * *"
            slow = Slow(set(range(0, 60, 7)), hours, timezone, at(when)).on_the_clock()
    expected = [instant for instant in slow if instant > after][:5]
    found, schedule = [after], CronExpression(text, timezone)
    while len(found) <= len(expected):
        found.append(schedule.next(found[-1]))
    assert found[1:] == expected
    assert expected


@settings(max_examples=examples(300))
@given(
    st.sampled_from(SETTINGS),
    st.integers(0, 59),
    st.integers(0, 23),
    st.sampled_from(["*", "*/3", "L", "15"]),
    st.sampled_from(["*", "MON", "0L", "FRI#2"]),
    st.integers(-400 * 86400, 400 * 86400),
)
def test_times_of_day_are_those_of_the_library_that_knows_zones_itself(
    setting: tuple[str, str], minute: int, hour: int, day: str, weekday: str, seconds: int
) -> None:
    timezone, when = setting
    text, after = f"{minute} {hour} {day} * {weekday}", at(when) + timedelta(seconds=seconds)
    library = CronSim(text, after.astimezone(ZoneInfo(timezone)))
    # In the second of two equal hours the library gives times of the first one, which have passed.
    expected = next(instant for one in library if (instant := one.astimezone(UTC)) > after)
    assert CronExpression(text, timezone).next(after) == expected


# ----- what cannot be declared


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("61 * * * *", "bad minute. Write minute, hour, day of month"),
        ("* * * * MON#6", "bad day-of-week"),
        ("5-1 * * * *", "bad minute"),
        ("60 * * * * *", "bad second"),
        ("", "does not have five or six fields. Write minute"),
        ("0 0 31 2 *", "never comes in any time zone. Choose a day that the month has"),
        ("* * */20 * 1L", "never comes in Europe/Prague"),
        ("*/15 2 * 3 0L", "never comes in Europe/Prague. .* an hour that no clock change skips"),
        ("0 0 * * *" + " " * 256, "is longer than 256"),
        (None, "is text, not None"),
    ],
)
def test_an_expression_that_cannot_be_is_refused(expression: str, told: str) -> None:
    with pytest.raises(DeclarationError, match=told):
        CronExpression(expression, "Europe/Prague")


@pytest.mark.parametrize(
    ("timezone", "told"),
    [
        ("Europe/Praha", "There is no time zone 'Europe/Praha'. Did you mean 'Europe/Prague'?"),
        ("../etc/passwd", "There is no time zone"),
        ("", "Write the IANA name of a place"),
        ("a\0b", "There is no time zone"),
        (None, "given by its name, not as None"),
        (UTC, "given by its name"),
    ],
)
def test_a_zone_that_does_not_exist_is_refused(timezone: str, told: str) -> None:
    with pytest.raises(DeclarationError) as raised:
        CronExpression("0 9 * * *", timezone)
    assert told in str(raised.value)
