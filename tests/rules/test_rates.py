"""Rate limits: never more than they allow, whatever the order of times, and not a moment later than needed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from stage.needs import examples

from penstock.errors import DeclarationError, LimitExceeded, ValueInvalid
from penstock.pools.rates import (
    FixedWindow,
    RateLimit,
    Taken,
    TokenBucket,
    capacity,
    max_reserved,
    peek,
    take,
)

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
SECOND, MINUTE, TICK = timedelta(seconds=1), timedelta(minutes=1), timedelta.resolution
ZERO = timedelta(0)

BUCKET = TokenBucket(rate=10, period=MINUTE, capacity=3)
WINDOW = FixedWindow(rate=3, period=MINUTE)


def taken(policy: RateLimit, *takes: tuple[timedelta, int]) -> list[bool]:
    """Whether tokens are given, for a number of them at each of some times after noon."""
    state, given = None, list[bool]()
    for when, count in takes:
        found = take(policy, state, NOON + when, count)
        state, given = found.state, [*given, found.ok]
    return given


# ----- stories


def test_a_policy_declared_anew_takes_over_what_is_left_and_lets_off_what_it_would_not_have_lent() -> None:
    state = take(TokenBucket(rate=100, period=MINUTE), None, NOON, 40).state
    for policy, left in (
        (TokenBucket(rate=7, period=timedelta(hours=1), capacity=100), 60),
        (TokenBucket(rate=100, period=SECOND, capacity=50), 50),
        (FixedWindow(rate=80, period=MINUTE), 60),
        (FixedWindow(rate=10, period=MINUTE), 10),
    ):
        assert peek(policy, state, NOON) == left
    owing = take(WINDOW, take(WINDOW, None, NOON, 3).state, NOON, 2, reserve=True).state
    assert peek(TokenBucket(rate=60, period=MINUTE), owing, NOON + SECOND) == -1
    fast, state = TokenBucket(rate=10**6, period=SECOND, max_reserved=10**9), None
    for _ in range(1001):
        state = take(fast, state, NOON, 10**6, reserve=True).state
    slow = TokenBucket(rate=1, period=timedelta(days=365), max_reserved=2)
    assert (peek(fast, state, NOON), peek(slow, state, NOON)) == (-(10**9), -2)
    assert take(slow, state, NOON) == Taken(ok=False, state=state, retry_after=timedelta(days=3 * 365))


def test_what_cannot_be_taken_is_refused() -> None:
    naive = datetime(2030, 1, 1)  # noqa: DTZ001 - what is refused
    for policy in (BUCKET, WINDOW):
        for count in (4, 10**30):
            with pytest.raises(LimitExceeded, match=r"waiting would not help\. Take them in parts") as raised:
                take(policy, None, NOON, count, reserve=policy is BUCKET)
            assert raised.value.facts == {"limit": 3}
        for call in (lambda policy=policy: take(policy, None, naive), lambda policy=policy: peek(policy, None, naive)):
            with pytest.raises(ValueInvalid, match="has no time zone"):
                call()
    wrong: Any
    for wrong in (0, -1, 1.0, True, "1", None):
        with pytest.raises(ValueInvalid, match="whole numbers of at least 1, not "):
            take(BUCKET, None, NOON, wrong)


def test_what_a_window_leaves_is_carried_over_up_to_the_capacity() -> None:
    policy = FixedWindow(rate=3, period=MINUTE, capacity=5)
    assert capacity(policy) == 5
    takes = [(ZERO, 5), (MINUTE, 1), (2 * MINUTE, 5), (2 * MINUTE, 1), (9 * MINUTE, 5), (9 * MINUTE, 1)]
    assert taken(policy, *takes) == [True, True, True, False, True, False]


def test_windows_start_where_their_start_says() -> None:
    prague = ZoneInfo("Europe/Prague")
    policy = FixedWindow(rate=1, period=timedelta(hours=24), start=datetime(2025, 1, 1, tzinfo=prague))
    first = take(policy, None, datetime(2025, 1, 10, 0, 30, tzinfo=prague))
    again = take(policy, first.state, datetime(2025, 1, 10, 23, tzinfo=prague))
    assert (first.ok, again.ok, again.retry_after) == (True, False, timedelta(hours=1))
    summer = take(policy, None, datetime(2025, 7, 10, 23, tzinfo=prague))  # a period is a length of real time
    assert take(policy, summer.state, datetime(2025, 7, 10, 23, 30, tzinfo=prague)).retry_after == timedelta(hours=1.5)
    before = take(policy, None, datetime(2020, 1, 1, 12, tzinfo=prague))
    assert take(policy, before.state, datetime(2020, 1, 1, 12, tzinfo=prague)).retry_after == timedelta(hours=12)


def test_tokens_reserved_in_a_window_to_come_count_in_that_window() -> None:
    policy = FixedWindow(rate=10, period=MINUTE)
    used = take(policy, None, NOON, 8).state
    reserved = take(policy, used, NOON, 5, reserve=True)
    assert (reserved.ok, reserved.retry_after, peek(policy, reserved.state, NOON)) == (True, MINUTE, -5)
    assert not take(policy, reserved.state, NOON + MINUTE, 6).ok
    assert take(policy, reserved.state, NOON + MINUTE, 5).ok
    second = take(policy, reserved.state, NOON, 6, reserve=True)
    assert (second.ok, second.retry_after) == (False, MINUTE)
    assert take(policy, reserved.state, NOON, 5, reserve=True).retry_after == MINUTE


# ----- for all policies, and all orders of times

POLICIES = st.builds(
    TokenBucket,
    rate=st.integers(1, 50),
    period=st.timedeltas(TICK, timedelta(hours=2)),
    capacity=st.integers(1, 20),
    max_reserved=st.integers(0, 30),
) | st.integers(1, 20).flatmap(
    lambda rate: st.builds(
        FixedWindow,
        rate=st.just(rate),
        period=st.timedeltas(TICK, timedelta(hours=2)),
        capacity=st.integers(rate, 40),
        max_reserved=st.integers(0, 30),
        start=st.just(NOON) | st.datetimes(timezones=st.just(UTC)).filter(lambda one: 1900 < one.year < 2100),
    )
)


def part(above: int, below: int) -> Fraction:
    """A part between -1 and 1. Making parts of two numbers takes a fifth of the time of `st.fractions`."""
    return Fraction(abs(above) % (below + 1) * (1 if above >= 0 else -1), below)


# As parts of the time in which all tokens come, so that limits are met whatever the period is.
TIMES, FORWARD = (
    st.lists(
        st.tuples(st.builds(part, st.integers(least, 60), st.integers(1, 60)), st.integers(1, 20), st.booleans()),
        min_size=2,
        max_size=25,
    )
    for least in (-60, 0)
)


class Given:
    """Tokens given: when what they are for may begin, and how many.

    The time of a take is that of the clock that was furthest ahead when tokens were given.
    """

    def __init__(self, policy: RateLimit, takes: list[tuple[Fraction, int, bool]], *, reserve: bool) -> None:
        self.policy, self.grants, self.state = policy, list[tuple[datetime, int]](), None
        now, times = NOON, list[datetime]()
        fills = policy.period * capacity(policy) / policy.rate
        for part, count, reserved in takes:
            now += fills * float(part)
            found = take(policy, self.state, now, min(count, capacity(policy)), reserve=reserve and reserved)
            if found.ok:
                times.append(now)
                self.grants.append((max(*times, now + found.retry_after), min(count, capacity(policy))))
            self.state = found.state
        self.grants.sort()

    def check(self) -> None:
        for first in range(len(self.grants)):
            total = 0
            for when, count in self.grants[first:]:
                total += count
                assert total <= self.allowed(self.grants[first][0], when)

    def allowed(self, start: datetime, end: datetime) -> Fraction:
        """How many tokens may be given from one instant to another, both included."""
        if isinstance(self.policy, TokenBucket):
            passed = Fraction((end - start) // TICK, self.policy.period // TICK)
            return capacity(self.policy) + self.policy.rate * passed
        windows = [(one - self.policy.start) // self.policy.period for one in (start, end)]
        return Fraction(capacity(self.policy) + self.policy.rate * (windows[1] - windows[0]))


@settings(max_examples=examples(150))
@given(POLICIES, FORWARD | TIMES)
def test_no_stretch_of_time_gives_more_than_the_policy_allows(
    policy: RateLimit, takes: list[tuple[Fraction, int, bool]]
) -> None:
    found = Given(policy, takes, reserve=False)
    assert found.grants
    found.check()


@settings(max_examples=examples(150))
@given(POLICIES, FORWARD | TIMES)
@example(FixedWindow(10, MINUTE), [(Fraction(0), 8, True), (Fraction(0), 5, True), (Fraction(1), 7, False)])
def test_nor_does_it_if_tokens_are_reserved(policy: RateLimit, takes: list[tuple[Fraction, int, bool]]) -> None:
    Given(policy, takes, reserve=True).check()


@settings(max_examples=examples(200))
@given(POLICIES, TIMES, st.integers(1, 20), st.booleans())
def test_the_time_after_which_to_try_again_is_enough_and_no_longer_than_needed(
    policy: RateLimit, takes: list[tuple[Fraction, int, bool]], count: int, reserve: bool
) -> None:
    state = Given(policy, takes, reserve=True).state
    count, now = min(count, capacity(policy)), NOON
    found = take(policy, state, now, count, reserve=reserve)
    if found.ok:
        assert found.retry_after == ZERO or reserve
    else:
        assert found.retry_after > ZERO
        assert take(policy, state, now + found.retry_after, count, reserve=reserve).ok
        assert not take(policy, state, now + found.retry_after - TICK, count, reserve=reserve).ok
        assert not take(policy, state, now + found.retry_after / 2, count, reserve=reserve).ok


@given(POLICIES, TIMES, st.integers(1, 20))
def test_reserved_tokens_have_come_when_it_says_and_not_before(
    policy: RateLimit, takes: list[tuple[Fraction, int, bool]], count: int
) -> None:
    state = Given(policy, takes, reserve=True).state
    now = NOON if state is None else max(NOON, state.moment)
    found = take(policy, state, now, min(count, capacity(policy)), reserve=True)
    if found.ok:
        assert peek(policy, found.state, now + found.retry_after) >= 0
        assert found.retry_after == ZERO or peek(policy, found.state, now + found.retry_after - TICK) < 0


@given(POLICIES, POLICIES, TIMES, st.timedeltas(-timedelta(days=1), timedelta(days=36500)))
def test_what_is_left_stays_within_its_bounds_even_if_the_policy_changes(
    policy: RateLimit, other: RateLimit, takes: list[tuple[Fraction, int, bool]], idle: timedelta
) -> None:
    state = Given(policy, takes, reserve=True).state
    assert -max_reserved(policy) <= peek(policy, state, NOON + idle) <= capacity(policy)
    assert peek(other, state, NOON + idle) <= capacity(other)
    if state is not None:
        assert peek(other, state, state.moment) <= max(peek(policy, state, state.moment), 0)
        assert abs(state.value) < 2**63


@given(POLICIES, TIMES)
def test_nothing_that_is_taken_comes_back(policy: RateLimit, takes: list[tuple[Fraction, int, bool]]) -> None:
    state = Given(policy, takes, reserve=True).state
    if state is not None:
        times = [state.moment - MINUTE, state.moment, state.moment - timedelta(days=9), state.moment]
        assert all(peek(policy, state, one) == peek(policy, state, other) for one, other in pairwise(times))


# ----- what is refused at the door


@pytest.mark.parametrize("kind", [TokenBucket, FixedWindow])
def test_a_policy_that_cannot_be_is_refused(kind: type[RateLimit]) -> None:
    naive = datetime(2030, 1, 1)  # noqa: DTZ001 - what is refused
    refused: list[tuple[dict[str, Any], str]] = [
        ({"rate": 0}, "rate must be a whole number of at least 1, not 0."),
        ({"rate": 1.5}, "rate must be a whole number"),
        ({"capacity": 0}, "capacity must be a whole number of at least 1, not 0."),
        ({"max_reserved": -1}, "max_reserved must be a whole number of at least 0, not -1."),
        ({"period": ZERO}, "period must be a timedelta above zero, not datetime.timedelta(0). Write timedelta"),
        ({"period": 60}, "period must be a timedelta above zero, not 60."),
        ({"period": timedelta(days=40_000)}, "take more than a hundred years to refill. Declare a lower capacity"),
    ]
    if kind is FixedWindow:
        refused += [
            ({"rate": 2**62}, "more precision than the databases have"),
            ({"capacity": 9}, "a capacity of 9 cannot hold the 10 tokens of one window. Write rate=9"),
            ({"start": naive}, "start must be a datetime with a time zone"),
            ({"start": 0}, "start must be a datetime with a time zone, not 0"),
        ]
        assert capacity(FixedWindow(rate=2**62, period=MINUTE, max_reserved=0)) == 2**62
    else:
        uncountable = {"rate": 10**9 + 7, "period": timedelta(days=1), "max_reserved": 0}
        refused.append((uncountable, "more precision than the databases have"))
        assert capacity(TokenBucket(rate=10**9, period=timedelta(days=1), max_reserved=0)) == 10**9
    for changed, told in refused:
        with pytest.raises(DeclarationError) as raised:
            kind(**{"rate": 10, "period": MINUTE, **changed})
        assert str(raised.value).startswith(f"{kind.__name__}: ")
        assert told in str(raised.value)


def test_a_bucket_starts_full_and_fills_evenly_up_to_its_capacity() -> None:
    after = [ZERO, ZERO, ZERO, ZERO, 6 * SECOND - TICK, 6 * SECOND, 6 * SECOND, 12 * SECOND]
    assert taken(BUCKET, *((when, 1) for when in after)) == [True] * 3 + [False, False, True, False, True]
    assert taken(BUCKET, (ZERO, 3), (timedelta(days=36500), 3), (timedelta(days=36500), 1)) == [True, True, False]
    assert peek(BUCKET, None, NOON) == 3
    state = take(BUCKET, None, NOON, 3).state
    assert [peek(BUCKET, state, NOON + n * SECOND) for n in (0, 5, 6, 12, 60)] == [0, 0, 1, 2, 3]
