"""Crons as declared, what is run of what has come, and one run at a time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any, get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.crons.catchup import ADMISSIONS, Admission, Due, admit, catch_up
from penstock.crons.cron import CatchUp, Cron, Overlap, chance_of
from penstock.crons.schedule import CronExpression, Interval, Schedule, next_due
from penstock.errors import DeclarationError, ValueInvalid

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
TEN = Interval(10 * MINUTE)
TICK = timedelta.resolution


def minutes(*numbers: int) -> tuple[datetime, ...]:
    return tuple(NOON + number * MINUTE for number in numbers)


# ----- catching up


@pytest.mark.parametrize("policy", get_args(CatchUp))
def test_a_time_that_comes_is_run_and_nothing_before_it(policy: CatchUp) -> None:
    ten, twenty = minutes(10, 20)
    assert catch_up(TEN, policy, NOON, ten - TICK) == Due((), NOON, ten)
    assert catch_up(TEN, policy, NOON, ten) == Due((ten,), ten, twenty)
    assert catch_up(TEN, policy, NOON, ten + MINUTE) == Due((ten,), ten, twenty)
    assert catch_up(TEN, policy, ten, ten + MINUTE) == Due((), ten, twenty)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("skip", Due((), minutes(30)[0], minutes(40)[0], minutes(10, 30))),  # type: ignore[arg-type]
        ("one", Due(minutes(30), minutes(30)[0], minutes(40)[0], minutes(10, 20))),  # type: ignore[arg-type]
        ("all", Due(minutes(10, 20, 30), minutes(30)[0], minutes(40)[0])),
    ],
)
def test_times_that_were_missed(policy: CatchUp, expected: Due) -> None:
    assert catch_up(TEN, policy, NOON, minutes(35)[0]) == expected


def test_what_has_only_just_come_was_not_missed() -> None:
    ten, twenty, thirty, forty = minutes(10, 20, 30, 40)
    assert catch_up(TEN, "skip", NOON, thirty + MINUTE) == Due((thirty,), thirty, forty, (ten, twenty))
    assert catch_up(TEN, "skip", NOON, thirty + MINUTE + TICK) == Due((), thirty, forty, (ten, thirty))
    assert catch_up(TEN, "skip", NOON, thirty + TICK, in_time=timedelta(0)).run == ()
    assert catch_up(TEN, "skip", NOON, ten + 5 * MINUTE) == Due((), ten, twenty, (ten, ten))


def test_all_gives_a_part_in_each_step_and_says_that_more_has_come() -> None:
    now = minutes(57)[0]
    first = catch_up(TEN, "all", NOON, now, most=2)
    assert first == Due(minutes(10, 20), minutes(20)[0], minutes(30)[0])
    second = catch_up(TEN, "all", first.last, now, most=2)
    assert second == Due(minutes(30, 40), minutes(40)[0], minutes(50)[0])
    third = catch_up(TEN, "all", second.last, now, most=2)
    assert third == Due(minutes(50), minutes(50)[0], minutes(60)[0])
    assert catch_up(TEN, "all", third.last, now, most=2).run == ()


@pytest.mark.parametrize("policy", get_args(CatchUp))
def test_a_clock_that_goes_back_runs_nothing_twice(policy: CatchUp) -> None:
    assert catch_up(TEN, policy, NOON, NOON - 3 * HOUR) == Due((), NOON, minutes(10)[0])


def test_a_day_on_which_clocks_jump_is_caught_up_like_any_other() -> None:
    schedule = CronExpression("30 2 * * *", "Europe/Prague")
    last, now = datetime(2025, 3, 28, 1, 30, tzinfo=UTC), datetime(2025, 3, 31, 12, tzinfo=UTC)
    found = catch_up(schedule, "all", last, now)
    hours = [one.strftime("%d %H:%M") for one in found.run]
    assert hours == ["29 01:30", "30 01:00", "31 00:30"]


SCHEDULES = st.sampled_from(["*/10 * * * *", "0 9 * * MON", "30 2 * * *"]).map(
    lambda text: CronExpression(text, "Europe/Prague")
) | st.timedeltas(timedelta(minutes=1), timedelta(days=9)).map(Interval)


@given(SCHEDULES, st.timedeltas(-timedelta(days=2), timedelta(days=9)), st.integers(1, 9))
def test_every_planned_time_is_run_or_skipped_and_none_is_forgotten(
    schedule: Schedule, passed: timedelta, most: int
) -> None:
    last, now = datetime(2025, 3, 25, tzinfo=UTC), datetime(2025, 3, 25, tzinfo=UTC) + passed
    for policy in get_args(CatchUp):
        step = catch_up(schedule, policy, last, now, most=most)
        assert step.next == next_due(schedule, step.last)
        assert step.next > now or (policy == "all" and len(step.run) == most)
        assert all(last < one <= now for one in step.run)
        known = [*step.run, *(step.skipped or ())]
        assert not known or (min(known), max(known)) == (next_due(schedule, last), step.last)
        assert known or step.last == last
        if policy == "all":
            assert step.skipped is None
            assert all(next_due(schedule, one) == other for one, other in zip(step.run, step.run[1:], strict=False))
        else:
            assert len(step.run) <= 1
            assert not step.run or step.run[0] == step.last


# ----- one run at a time


def test_while_a_run_is_under_way_no_other_begins() -> None:
    assert admit("skip", under_way=False) is admit("wait", under_way=False) is Admission.RUN
    assert admit("skip", under_way=True) is Admission.SKIP
    assert admit("wait", under_way=True) is Admission.WAIT
    assert set(ADMISSIONS) == {(overlap, busy) for overlap in get_args(Overlap) for busy in (False, True)}


# ----- later than planned


def test_a_run_begins_as_planned_unless_jitter_is_wanted() -> None:
    assert Cron("tidy", TEN).begin(NOON) == NOON
    assert Cron("tidy", TEN).begin(NOON, 0.999) == NOON


def test_jitter_is_taken_from_the_name_or_from_chance() -> None:
    cron = Cron("send reminders", TEN, jitter=MINUTE)
    assert chance_of("send reminders") == Fraction(0x7237B428DFAAAF12, 1 << 64)  # for ever
    late = cron.begin(NOON) - NOON
    assert late == int(chance_of("send reminders") * 60_000_000) * TICK
    assert cron.begin(NOON + HOUR) - NOON - HOUR == late
    assert Cron("send invoices", TEN, jitter=MINUTE).begin(NOON) != cron.begin(NOON)
    assert cron.begin(NOON, 0.0) == NOON
    assert cron.begin(NOON, 0.5) == NOON + MINUTE / 2


def test_jitter_ends_before_the_next_planned_time() -> None:
    cron = Cron("tidy", CronExpression("0,1 * * * *"), jitter=30 * MINUTE)
    assert cron.begin(NOON, 0.5) == NOON + MINUTE / 2
    assert cron.begin(NOON + MINUTE, 0.5) == NOON + 16 * MINUTE


@given(
    SCHEDULES,
    st.timedeltas(timedelta(0), timedelta(days=1)),
    st.floats(0, 1, exclude_max=True) | st.none(),
    st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=100),
)
@example(Interval(timedelta(seconds=1)), 10 * TICK, 1 - 2**-53, "x")
@example(Interval(timedelta(seconds=1)), timedelta(days=1), 1 - 2**-53, "x")
def test_no_run_begins_before_its_time_or_as_late_as_the_next(
    schedule: Schedule, jitter: timedelta, chance: float | None, name: str
) -> None:
    planned = next_due(schedule, NOON)
    begun = Cron(name, schedule, jitter=jitter).begin(planned, chance)
    assert planned <= begun < next_due(schedule, planned)
    assert begun - planned < jitter or begun == planned


@pytest.mark.parametrize("chance", [-0.1, 1.0, 2, float("nan"), float("inf")])
def test_a_chance_that_is_none_is_refused(chance: float) -> None:
    with pytest.raises(ValueInvalid, match="at least 0 and less than 1"):
        Cron("tidy", TEN, jitter=MINUTE).begin(NOON, chance)


# ----- what cannot be declared


@pytest.mark.parametrize("name", ["a", "x" * 100, "send reminders", "a:b/c (d) ~!", " padded "])
def test_names_that_are_well(name: str) -> None:
    assert Cron(name, TEN).name == name


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"name": ""}, "1 to 100 characters, not all of them blanks. Write a short one"),
        ({"name": "   "}, "not all of them blanks"),
        ({"name": "x" * 101}, "1 to 100 characters"),
        ({"name": "café"}, "'café' is not printable ASCII. Use letters without accents"),
        ({"name": "a\nb"}, "is not printable ASCII"),
        ({"name": "a\0b"}, "is not printable ASCII"),
        ({"name": "a\x7fb"}, "is not printable ASCII"),
        ({"name": 5}, "is text, not 5"),
        ({"schedule": "0 9 * * *"}, "'0 9 * * *' is no schedule. Write CronExpression("),
        ({"schedule": timedelta(hours=1)}, "is no schedule"),
        ({"catch_up": "every"}, "catch_up cannot be 'every'. Write one of 'skip', 'one', 'all'."),
        ({"catch_up": None}, "catch_up cannot be None"),
        ({"overlap": "run"}, "overlap cannot be 'run'. Write one of 'skip', 'wait'."),
        ({"catch_up": "all"}, 'Write overlap="wait", or catch_up="one".'),
        ({"jitter": timedelta(seconds=-1)}, "jitter must be a timedelta from 0 to a day"),
        ({"jitter": timedelta(days=1, seconds=1)}, "jitter must be a timedelta from 0 to a day"),
        ({"jitter": 30}, "jitter must be a timedelta from 0 to a day, not 30. Write timedelta"),
    ],
)
def test_a_cron_that_cannot_be_is_refused(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(DeclarationError) as raised:
        Cron(**{"name": "tidy", "schedule": TEN, **changed})
    assert told in str(raised.value)
    assert Cron("tidy", TEN, catch_up="all", overlap="wait").catch_up == "all"
