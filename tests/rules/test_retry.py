"""The wait between attempts: one formula, within its bounds for any policy and any attempt."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.errors import DeclarationError
from penstock.jobs.retry import Retry, backoff

CHANCE = st.floats(0, 1, exclude_max=True)
POLICIES = st.builds(
    Retry,
    max_attempts=st.integers(1, 10**6),
    initial_backoff=st.floats(0, 1e300),
    base=st.floats(1, 1e300),
    max_backoff=st.none() | st.floats(0, 1e9),
)
YEAR = 365 * 86400.0


def test_the_wait_grows_by_its_base_and_varies_by_half() -> None:
    policy = Retry(initial_backoff=0.25, base=2)
    assert [backoff(policy, attempt, 0.5) for attempt in (1, 2, 3, 4)] == [0.25, 0.5, 1.0, 2.0]
    assert backoff(policy, 1, 0.0) == 0.125
    assert backoff(policy, 3, 0.999) == pytest.approx(1.499)
    assert backoff(Retry(initial_backoff=2, base=1), 50, 0.5) == 2


def test_no_wait_is_longer_than_was_said_or_than_a_year() -> None:
    assert backoff(Retry(initial_backoff=10, base=10, max_backoff=60), 3, 0.9) == 60
    assert backoff(Retry(initial_backoff=10, base=10, max_backoff=0), 3, 0.9) == 0
    assert backoff(Retry(), 10_000, 0.0) == YEAR
    assert backoff(Retry(initial_backoff=0), 10_000, 0.9) == 0


@given(POLICIES, st.integers(1, 10**6), CHANCE)
def test_every_wait_is_a_number_within_its_bounds(policy: Retry, attempt: int, chance: float) -> None:
    wait = backoff(policy, attempt, chance)
    assert math.isfinite(wait)
    assert 0 <= wait <= (YEAR if policy.max_backoff is None else policy.max_backoff)


@given(POLICIES, st.integers(1, 100), CHANCE)
@example(Retry(base=1e300), 2, 0.0)
def test_a_later_attempt_never_waits_less(policy: Retry, attempt: int, chance: float) -> None:
    assert backoff(policy, attempt, chance) <= backoff(policy, attempt + 1, chance)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("max_attempts", [0, -1]),
        ("initial_backoff", [-0.1, NAN, INF]),
        ("base", [0.5, -2, NAN, INF]),
        ("max_backoff", [-1, NAN, INF]),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(DeclarationError, match=f"^Retry: {name} must be "):
            Retry(**{name: value})
