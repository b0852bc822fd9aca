"""Retry policies: what follows a failed attempt, for any policy and any attempt, and what is refused of them.

The names rs1 to rs15 and rd2 to rd7 are those of behaviours that are promised of reactive tasks.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import DeclarationError
from penstock.jobs.retry import LONGEST, Exponential, Retry, backoff, wait_after
from penstock.store.nouns.jobtext import options_of, options_text, retry_form, retry_of, retry_parts

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
CHANCE = st.floats(0, 1, exclude_max=True)
MIDDLE = 0.5  # the chance with which jitter adds nothing
WAITS = st.floats(0, LONGEST) | st.timedeltas(timedelta(0), timedelta(days=365))
HOW_OFTEN: dict[str, Any] = {
    "max_attempts": st.none() | st.integers(1, 10**6),
    "max_duration": st.none() | st.floats(0, 1e9) | st.timedeltas(timedelta(0), timedelta(days=36500)),
}
PART = st.floats(0, 1)
POLICIES = (
    st.builds(Retry, initial_backoff=WAITS, base=st.floats(1, 1e300), max_backoff=st.none() | WAITS, **HOW_OFTEN)
    | st.builds(Retry.fixed, WAITS, jitter=PART, **HOW_OFTEN)
    | st.builds(Retry.linear, WAITS, jitter=PART, **HOW_OFTEN)
    | st.builds(Retry.series, st.lists(WAITS, min_size=1, max_size=100), jitter=PART, **HOW_OFTEN)
    | st.builds(
        Retry.cron,
        st.sampled_from(["* * * * *", "30 2 * * *", "0 0 29 2 *", "*/7 * * * * *"]),
        timezone=st.sampled_from(["UTC", "Europe/Prague", "America/New_York"]),
        jitter=st.floats(0, 3600),
        **HOW_OFTEN,
    )
)


def waits(policy: Retry, *attempts: int, chance: float = MIDDLE) -> list[float | None]:
    """Seconds after attempts that failed one right after the other; None where it gives up."""
    found = [wait_after(policy, attempt, NOW, NOW, chance) for attempt in attempts]
    return [None if wait is None else wait.total_seconds() for wait in found]


def refused(part: str, declare: Any, *args: Any, **named: Any) -> DeclarationError:
    """The error with which a declaration is refused, which names the part."""
    with pytest.raises(DeclarationError, match=part) as caught:
        declare(*args, **named)
    return caught.value


# ----- the formula of exponential waits


def test_no_wait_is_longer_than_was_said_or_than_a_year() -> None:
    assert backoff(Exponential(initial_backoff=10, base=10, max_backoff=60), 3, 0.9) == 60
    assert backoff(Exponential(initial_backoff=10, base=10, max_backoff=0), 3, 0.9) == 0
    assert backoff(Exponential(0.25, 2), 10_000, 0.0) == LONGEST
    assert backoff(Exponential(initial_backoff=0, base=2), 10_000, 0.9) == 0
    assert waits(Retry.linear(LONGEST, max_attempts=None), 1, 2, 10**9) == [LONGEST] * 3
    assert waits(Retry.fixed(LONGEST, jitter=1), 1, chance=0.9) == [LONGEST], "jitter makes it no longer either"


# ----- what follows a failed attempt


@pytest.mark.parametrize(
    ("expression", "timezone", "failed", "next_at"),
    [
        ("0 6 * * *", "UTC", "2030-01-01T05:59:59.5+00:00", "2030-01-01T06:00:00+00:00"),
        ("0 6 * * *", "UTC", "2030-01-01T06:00:00+00:00", "2030-01-02T06:00:00+00:00"),
        ("*/20 * * * * *", "UTC", "2030-01-01T00:00:21+00:00", "2030-01-01T00:00:40+00:00"),
        # 2030-03-31: from 2 to 3 o'clock. 2030-10-27: back from 3 to 2.
        ("30 2 * * *", "Europe/Prague", "2030-03-30T12:00:00+00:00", "2030-03-31T03:00:00+02:00"),
        ("30 2 * * *", "Europe/Prague", "2030-10-27T00:30:00+00:00", "2030-10-28T02:30:00+01:00"),
    ],
)
def test_rs5_cron_waits_until_it_is_due_on_the_clock_of_its_zone(
    expression: str, timezone: str, failed: str, next_at: str
) -> None:
    now = datetime.fromisoformat(failed)
    wait = wait_after(Retry.cron(expression, timezone=timezone), 1, None, now, 0.9)
    assert wait is not None
    assert now + wait == datetime.fromisoformat(next_at)


def test_rs6_bad_cron_is_refused_when_it_is_declared() -> None:
    refused("'61 \\* \\* \\* \\*' cannot be read", Retry.cron, "61 * * * *")
    refused("five or six fields", Retry.cron, "every day")
    refused("never comes", Retry.cron, "0 0 30 2 *")
    refused("no time zone 'Europe/Pragu'", Retry.cron, "0 6 * * *", timezone="Europe/Pragu")
    for expression, timezone in ((5, "UTC"), (None, "UTC"), ("* * * * *", None), ("* * * * *", UTC)):
        refused("^Retry.cron: expression and timezone must be text", Retry.cron, expression, timezone=timezone)


def test_rs7_an_unknown_policy_is_none() -> None:
    for form in ({"type": "fibonacci", "wait": 1}, {"wait": 1}, "fixed", 5, None, True, {"type": ["fixed"]}):
        with pytest.raises((ValueError, TypeError)):
            retry_of(form)


NAN, INF = float("nan"), float("inf")
NO_WAITS: list[Any] = [-1, -0.001, -SECOND, NAN, INF, -INF, 10**400, "5 minutes", "5", True, [5], timedelta(days=366)]


def test_rs8_rs9_rs10_rs11_rs12_rs13_what_makes_no_sense_is_refused_by_name() -> None:
    refused("^Retry.series: waits must be 1 to 100, not 0", Retry.series, [])
    refused("^Retry.series: waits must be 1 to 100, not 101", Retry.series, [1] * 101)
    for given_waits in (5, "1 2 3", None, MINUTE, {1: 2}, iter([1])):
        refused("^Retry.series: waits must be a list", Retry.series, given_waits)
    with pytest.raises(TypeError, match="wait"):
        Retry.fixed()  # type: ignore[call-arg]
    refused("^Retry.fixed: wait must be a timedelta or a number of seconds, not None", Retry.fixed, None)
    for wait in NO_WAITS:
        refused("^Retry.fixed: wait must be ", Retry.fixed, wait)
        refused("^Retry.linear: wait must be ", Retry.linear, wait)
        refused("^Retry.cron: jitter must be ", Retry.cron, "* * * * *", jitter=wait)
        for place in (0, 1, 2):
            series: list[Any] = [1, MINUTE, 0.5]
            series[place] = wait
            refused(rf"^Retry.series: waits\[{place}\] must be ", Retry.series, series)
    nonsense: dict[str, list[Any]] = {
        "max_attempts": [0, -1, True, 2.0, "3", NAN],
        "initial_backoff": [-0.1, NAN, INF, None, "1s", True, -SECOND, timedelta(days=366)],
        "base": [0.5, -2, NAN, INF, None, "2", True, 10**400],
        "max_backoff": [-1, NAN, INF, "1d", False, timedelta(days=366)],
        "max_duration": [-1, NAN, INF, "1d", True, timedelta(days=36501)],
    }
    for name, values in nonsense.items():
        for value in values:
            refused(f"^Retry: {name} must be ", Retry, **{name: value})
    for declare in ANY_POLICY:
        for value in (-1, "1h", NAN, False):
            refused("max_duration must be ", declare, max_duration=value)
        refused("max_attempts must be a whole number of at least 1, not -1", declare, max_attempts=-1)


def test_rs15_it_gives_up_when_the_first_failure_is_older_than_max_duration_and_not_before() -> None:
    policy = Retry.fixed(MINUTE, max_duration=HOUR)
    for attempt, since, goes_on in (
        (1, timedelta(0), True), (2, HOUR - SECOND, True), (2, HOUR, True), (500, HOUR, True),
        (2, HOUR + timedelta(microseconds=1), False), (2, 2 * HOUR, False), (2, -HOUR, True),
    ):  # fmt: skip
        found = wait_after(policy, attempt, NOW - since, NOW, MIDDLE)
        assert found == (MINUTE if goes_on else None), (attempt, since)
    assert wait_after(policy, 1, None, NOW, MIDDLE) == MINUTE, "the first failure begins the time"


# ----- how many attempts there are if nothing is said


ANY_POLICY: list[Any] = [
    Retry,
    lambda **how: Retry.fixed(1, **how),
    lambda **how: Retry.linear(1, **how),
    lambda **how: Retry.series([1, 2], **how),
    lambda **how: Retry.cron("* * * * *", **how),
]


@pytest.mark.parametrize("declare", ANY_POLICY)
def test_rd2_rd3_rd4_rd5_rd6_rd7_rs14_how_many_attempts_there_are(declare: Any) -> None:
    def ends(**how: Any) -> list[bool]:
        return [wait is None for wait in waits(declare(**how), 1, 2, 3, 4, 5, 99)]

    assert (declare().max_attempts, declare().max_duration) == (5, None)
    assert ends() == [False] * 4 + [True] * 2
    assert ends(max_attempts=3) == [False] * 2 + [True] * 4
    assert ends(max_attempts=1) == [True] * 6
    assert ends(max_attempts=None) == ends(max_duration=HOUR) == [False] * 6
    both = declare(max_attempts=5, max_duration=3600)
    assert (both.max_attempts, both.max_duration) == (5, HOUR)
    assert ends(max_attempts=5, max_duration=3600) == [False] * 4 + [True] * 2
    assert wait_after(both, 2, NOW - 2 * HOUR, NOW, MIDDLE) is None


# ----- jitter


def test_jitter_is_a_tenth_unless_something_else_is_said() -> None:
    for policy in (Retry.fixed(100), Retry.linear(100), Retry.series([100])):
        assert [waits(policy, 1, chance=chance)[0] for chance in (0.0, 0.5, 0.75)] == pytest.approx([90, 100, 105])
    wide, none = Retry.fixed(100, jitter=1), Retry.series([100], jitter=0)
    assert [waits(wide, 1, chance=chance)[0] for chance in (0.0, 0.25)] == [0, 50]
    assert [waits(none, 1, chance=chance)[0] for chance in (0.0, 0.99)] == [100, 100]
    for jitter in (-0.1, 1.1, NAN, "0.1", None, True, SECOND):
        refused("^Retry.fixed: jitter must be a part of the wait", Retry.fixed, 1, jitter=jitter)


def test_jitter_of_cron_comes_after_it_is_due() -> None:
    policy = Retry.cron("0 * * * *", jitter=MINUTE)
    assert [waits(policy, 1, chance=chance)[0] for chance in (0.0, 0.5)] == [3600, 3630]


@given(POLICIES, st.integers(1, 10**6), st.floats(0, 1e9), CHANCE)
def test_what_follows_is_an_end_or_a_wait_that_is_not_past(
    policy: Retry, attempt: int, since: float, chance: float
) -> None:
    began = NOW - timedelta(seconds=since)
    wait = wait_after(policy, attempt, began, NOW, chance)
    if wait is None:
        used_up = policy.max_attempts is not None and attempt >= policy.max_attempts
        assert used_up or (policy.max_duration is not None and NOW - began > policy.max_duration)
    else:
        assert wait >= timedelta(0)
        assert policy.max_attempts is None or attempt < policy.max_attempts
        assert policy.max_duration is None or NOW - began <= policy.max_duration


# ----- as they are stored


@given(POLICIES)
def test_a_stored_policy_is_the_same_when_it_is_read(policy: Retry) -> None:
    assert retry_of(json.loads(json.dumps(retry_form(policy)))) == policy
    assert retry_of(json.loads(json.dumps(retry_parts(policy)))) == policy


def test_a_plain_policy_is_stored_as_plain_sql_writes_it() -> None:
    assert retry_form(Retry(3, 1, 2, 60)) == [3, 1.0, 2.0, 60.0]
    assert retry_of([3, 0.25, 2, None]) == Retry(3)
    year = timedelta(days=365)
    assert retry_of([3, 1e9, 2, 10**400]) == Retry(3, year, 2, year), "no wait is longer, and no job is parked for it"
    assert retry_form(Retry(max_duration=HOUR)) == {
        "type": "exponential", "initial_backoff": 0.25, "base": 2.0, "max_backoff": None, "max_attempts": None,
        "max_duration": 3600.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    "form",
    [
        [], [0, 1, 2, None], [3, 1, 2, None, 5], ["3", 1, 2, None], {"type": "fixed"}, {"type": "fixed", "wait": -1},
        {"type": "fixed", "wait": 1, "colour": "red"}, {"type": "series", "waits": []}, {"type": "series", "waits": {}},
        {"type": "cron", "expression": "61 * * * *"}, {"type": "cron", "expression": "* * * * *", "timezone": "Mars/A"},
        {"type": "linear", "wait": 1, "jitter": "some"},
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_no_policy(form: Any) -> None:
    if form == []:
        assert retry_of(form) == Retry(), "each part has its default"
        return
    stored = json.dumps({"retry": form, "name": "a"})
    options = options_of(stored)
    assert (options.retry, options.name, options.unread) == (None, "a", json.dumps({"retry": form}))
    assert json.loads(options_text(options) or "") == json.loads(stored), "nothing of it is lost"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("task", [1]), ("task", True), ("task", 1.0), ("timeout", "x"), ("timeout", False), ("name", 5),
        ("context", {}), ("key", 5), ("concurrency_key", 5), ("trace", []), ("until_start", 1),
    ],
)  # fmt: skip
def test_options_of_other_types_are_of_no_use_and_are_kept_as_they_are(name: str, value: Any) -> None:
    stored = {"retry": [3, 0.25, 2.0, None], name: value, "colour": "red"}
    options = options_of(json.dumps(stored))
    assert (options.retry, json.loads(options.broken or ""), options.unread) == (
        Retry(3),
        {name: value},
        json.dumps({"colour": "red"}),
    )
    assert getattr(options, name) == ("5" if name == "key" else None), "it has a key, which is to be freed"
    assert json.loads(options_text(options) or "") == stored


def test_rs1_rs2_rs3_rs4_waits_are_those_of_the_policy() -> None:
    assert waits(Retry.linear(MINUTE), 1, 2, 3, 4) == [60, 120, 180, 240]
    assert waits(Retry(None, initial_backoff=1, base=2, max_backoff=10), 1, 2, 3, 4, 5, 50) == [1, 2, 4, 8, 10, 10]
    assert waits(Retry.fixed(5, max_attempts=None), 1, 5, 5000) == [5, 5, 5]
    series = Retry.series([1, MINUTE, timedelta(hours=2)], max_attempts=None)
    assert waits(series, 1, 2, 3, 4, 1000) == [1, 60, 7200, 7200, 7200], "the last one again and again"
    assert waits(Retry.series([1, 2]), 1, 2, 3, 4, 5) == [1, 2, 2, 2, None], "it does not say how many attempts"
