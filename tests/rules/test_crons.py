"""Crons as declared, what is run of what has come, one run at a time, and the plan that is kept of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any, get_args
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock import Retry
from penstock.crons.cron import CatchUp, Cron, Decision, Skip, chance_of, decide
from penstock.crons.plan import begin, plan_of, replan, schedule_of, schedule_text, schedule_words, set_paused
from penstock.crons.schedule import CronExpression, Interval, Schedule
from penstock.errors import DeclarationError
from penstock.jobs.job import NewJob, Options
from penstock.jobs.order import rank
from penstock.store.nouns.crons import job_text, run_of

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


@pytest.mark.parametrize("policy", get_args(CatchUp))
def test_a_clock_that_goes_back_runs_nothing_twice(policy: CatchUp) -> None:
    assert turn(policy, NOON, NOON - 3 * HOUR) == Decision(None, NOON, minutes(10)[0])


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


def at(minutes: float) -> datetime:
    return NOON + minutes * MINUTE


def cron(minutes: int = 10, **policies: Any) -> Cron:
    return Cron("c", Interval(minutes * MINUTE), **policies)


# ----- turns


@pytest.mark.parametrize(
    ("policies", "minutes", "under_way", "turn"),
    [
        ({}, 9, False, Decision(None, at(0), at(10))),
        ({}, 10, False, Decision(at(10), at(10), at(20))),
        ({}, 10, True, Decision(None, at(10), at(20), (Skip(at(10), at(10), "under way"),))),
        ({}, 35, False, Decision(at(30), at(30), at(40), (Skip(at(10), at(20), "missed"),))),
        (
            {},
            35,
            True,
            Decision(None, at(30), at(40), (Skip(at(10), at(20), "missed"), Skip(at(30), at(30), "under way"))),
        ),
        ({"catch_up": "skip"}, 35, False, Decision(None, at(30), at(40), (Skip(at(10), at(30), "missed"),))),
        ({"catch_up": "skip"}, 30.5, True, Decision(
            None, at(30), at(40), (Skip(at(10), at(20), "missed"), Skip(at(30), at(30), "under way")),
        )),
        ({"overlap": "wait"}, 10, False, Decision(at(10), at(10), at(20))),
        ({"overlap": "wait"}, 10, True, None),
        ({"overlap": "wait"}, 9, True, Decision(None, at(0), at(10))),
        ({"catch_up": "all", "overlap": "wait"}, 35, False, Decision(at(10), at(10), at(20))),
        ({"catch_up": "all", "overlap": "wait"}, 35, True, None),
    ],
)  # fmt: skip
def test_a_turn(policies: dict[str, Any], minutes: float, under_way: bool, turn: Decision | None) -> None:
    assert decide(cron(**policies), NOON, at(minutes), under_way=under_way) == turn


# ----- plans

KEPT: list[tuple[Schedule, str, tuple[str, str]]] = [
    (
        CronExpression("0 9 * * *", "Europe/Prague"),
        '{"expression": "0 9 * * *", "timezone": "Europe/Prague"}',
        ("0 9 * * *", "Europe/Prague"),
    ),
    (
        Interval(timedelta(hours=1.5), NOON),
        '{"every": 5400.0, "anchor": "2030-01-01T12:00:00+00:00"}',
        ("every 90 minutes", "UTC"),
    ),
]


@pytest.mark.parametrize(("schedule", "text", "words"), KEPT)
def test_a_schedule_is_kept_as_text(schedule: Schedule, text: str, words: tuple[str, str]) -> None:
    assert schedule_text(schedule) == text
    assert schedule_of(text) == schedule
    assert schedule_words(schedule) == words


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "7", '{"every": "x", "anchor": "y"}', '{"expression": "0 9 * * *", "timezone": "Mars"}']
)
def test_a_text_that_is_no_schedule_is_refused(text: str) -> None:
    with pytest.raises(DeclarationError):
        schedule_of(text)


def test_what_was_planned_while_a_cron_was_paused_is_not_run() -> None:
    kept = begin(plan_of(cron(), function="m:f", job="{}"), NOON)
    stopped = set_paused(kept, at(5), pause=True)
    assert stopped == replace(kept, paused=True)
    assert set_paused(stopped, at(7), pause=True).next_at == at(10)
    assert set_paused(stopped, at(35), pause=False) == replace(kept, last_at=at(35), next_at=at(40))
    assert set_paused(kept, at(35), pause=False) == kept, "it was not paused, and is late"


# ----- the job of a run


def test_the_job_of_a_run_is_as_it_was_asked_for() -> None:
    options = Options(retry=Retry(3, 1.0, 2), name="c", timeout=5.0, context='{"é": 1}')
    place = rank(NOON, 7, timedelta(hours=1))
    job = NewJob(UUID(int=1), "m:f", "action", '{"a": [1]}', NOON, place, "p", 7, options, "m:told", "")
    text = job_text(job).replace("{", '{"of another version": "red", ', 1)
    plan = plan_of(cron(), function="m:f", job=text)
    run = run_of(plan, at(1), at(2), UUID(int=2))
    assert run == replace(job, id=UUID(int=2), run_at=at(2), rank=rank(at(2), 7, timedelta(hours=1)))
    told = run_of(replace(plan, takes_planned_at=True), at(1), at(2), UUID(int=2))
    assert told.args == '{"a":[1],"planned_at":"2030-01-01T12:01:00Z"}'


def test_a_changed_schedule_counts_from_now_and_never_goes_back() -> None:
    ten, other, four, one = (plan_of(cron(minutes), function="m:f", job="{}") for minutes in (10, 7, 4, 1))
    kept = replace(begin(ten, NOON), job_id=UUID(int=1), planned_at=NOON)
    assert (kept.last_at, kept.next_at) == (NOON, at(10))
    assert replan(kept, replace(ten, jitter=5.0), at(3)) == replace(kept, plan=replace(ten, jitter=5.0))
    now = replan(kept, other, at(7.5))
    assert (now.plan, now.last_at, now.next_at) == (other, at(7.5), schedule_of(other.schedule).next(at(7.5)))
    assert (now.job_id, now.planned_at) == (kept.job_id, kept.planned_at)
    late = replan(begin(ten, NOON), four, at(30))
    assert (late.last_at, late.next_at) == (at(10) - timedelta.resolution, at(12)), "what the one before has missed"
    ahead = replace(begin(ten, NOON), last_at=at(10), next_at=at(20))  # decided by a clock that ran ahead
    assert replan(ahead, one, at(9)).next_at == at(11)
