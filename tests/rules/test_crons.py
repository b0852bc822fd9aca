"""Crons as declared, what is run of what has come, and one run at a time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any, get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.crons.cron import CatchUp, Cron, Decision, Skip, chance_of, decide
from penstock.crons.schedule import CronExpression, Interval, Schedule
from penstock.errors import DeclarationError

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
TEN = Interval(10 * MINUTE)
TICK = timedelta.resolution


def minutes(*numbers: int) -> tuple[datetime, ...]:
    return tuple(NOON + number * MINUTE for number in numbers)


# ----- missed times


def skipped(*numbers: int) -> tuple[Skip, ...]:
    first, last = minutes(*numbers)
    return (Skip(first, last, "missed"),)


def turn(policy: CatchUp, last: datetime, now: datetime, schedule: Schedule = TEN) -> Decision:
    decision = decide(Cron("tidy", schedule, policy, "wait"), last, now, under_way=False)
    assert decision is not None
    return decision


def test_what_has_only_just_come_was_not_missed() -> None:
    ten, twenty, thirty, forty = minutes(10, 20, 30, 40)
    assert turn("skip", NOON, thirty + MINUTE) == Decision(thirty, thirty, forty, skipped(10, 20))
    assert turn("skip", NOON, thirty + MINUTE + TICK) == Decision(None, thirty, forty, skipped(10, 30))
    assert turn("skip", NOON, ten + 5 * MINUTE) == Decision(None, ten, twenty, skipped(10, 10))


@pytest.mark.parametrize("policy", get_args(CatchUp))
def test_a_clock_that_goes_back_runs_nothing_twice(policy: CatchUp) -> None:
    assert turn(policy, NOON, NOON - 3 * HOUR) == Decision(None, NOON, minutes(10)[0])


def test_a_day_on_which_clocks_jump_is_caught_up_like_any_other() -> None:
    schedule = CronExpression("30 2 * * *", "Europe/Prague")
    last, now = datetime(2025, 3, 28, 1, 30, tzinfo=UTC), datetime(2025, 3, 31, 12, tzinfo=UTC)
    hours = []
    while (decision := turn("all", last, now, schedule)).run is not None:
        last = decision.last
        hours.append(f"{decision.run:%d %H:%M}")
    assert hours == ["29 01:30", "30 01:00", "31 00:30"]


SCHEDULES = st.sampled_from(["*/10 * * * *", "0 9 * * MON", "30 2 * * *"]).map(
    lambda text: CronExpression(text, "Europe/Prague")
) | st.timedeltas(timedelta(minutes=1), timedelta(days=9)).map(Interval)


@given(SCHEDULES, st.timedeltas(-timedelta(days=2), timedelta(days=9)))
def test_every_planned_time_is_run_or_skipped_and_none_is_forgotten(schedule: Schedule, passed: timedelta) -> None:
    last, now = datetime(2025, 3, 25, tzinfo=UTC), datetime(2025, 3, 25, tzinfo=UTC) + passed
    for policy in get_args(CatchUp):
        step = turn(policy, last, now, schedule)
        assert step.next == schedule.next(step.last)
        assert step.next > now or (policy == "all" and step.run)
        assert step.run is None or last < step.run <= now
        known = [one for skip in step.skips for one in (skip.first, skip.last)] + ([step.run] if step.run else [])
        assert not known or (min(known), max(known)) == (schedule.next(last), step.last)
        assert known or step.last == last
        assert not step.run or step.run == step.last
        assert policy != "all" or not step.skips


# ----- later than planned


def test_jitter_is_taken_from_the_name() -> None:
    cron = Cron("send reminders", TEN, jitter=MINUTE)
    assert chance_of("send reminders") == Fraction(0x7237B428DFAAAF12, 1 << 64)  # for ever
    late = cron.begin(NOON) - NOON
    assert late == int(chance_of("send reminders") * 60_000_000) * TICK
    assert cron.begin(NOON + HOUR) - NOON - HOUR == late
    assert Cron("send invoices", TEN, jitter=MINUTE).begin(NOON) != cron.begin(NOON)


@given(
    SCHEDULES,
    st.timedeltas(timedelta(0), timedelta(days=1)),
    st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=100),
)
@example(Interval(timedelta(seconds=1)), 10 * TICK, "x")
@example(Interval(timedelta(seconds=1)), timedelta(days=1), "x")
def test_no_run_begins_before_its_time_or_as_late_as_the_next(schedule: Schedule, jitter: timedelta, name: str) -> None:
    planned = schedule.next(NOON)
    begun = Cron(name, schedule, jitter=jitter).begin(planned)
    assert planned <= begun < schedule.next(planned)
    assert begun - planned < jitter or begun == planned


# ----- what cannot be declared


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"name": ""}, "1 to 100 characters, not all of them blanks. Write a short one"),
        ({"name": "café"}, "'café' is not printable ASCII. Use letters without accents"),
        ({"name": "a\x7fb"}, "is not printable ASCII"),
        ({"name": 5}, "is text, not 5"),
        ({"schedule": "0 9 * * *"}, "'0 9 * * *' is no schedule. Write CronExpression("),
        ({"catch_up": "every"}, "catch_up cannot be 'every'. Write one of 'skip', 'one', 'all'."),
        ({"overlap": "run"}, "overlap cannot be 'run'. Write one of 'skip', 'wait'."),
        ({"catch_up": "all"}, 'Write overlap="wait", or catch_up="one".'),
        ({"jitter": timedelta(days=1, seconds=1)}, "jitter must be a timedelta from 0 to a day"),
        ({"jitter": 30}, "jitter must be a timedelta from 0 to a day, not 30. Write timedelta"),
    ],
)
def test_a_cron_that_cannot_be_is_refused(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(DeclarationError) as raised:
        Cron(**{"name": "tidy", "schedule": TEN, **changed})
    assert told in str(raised.value)
    assert Cron("tidy", TEN, catch_up="all", overlap="wait").catch_up == "all"
