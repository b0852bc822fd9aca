"""The order of jobs that age: at any moment that of their priority and the time they have waited."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from penstock.jobs.order import NO_AGEING, PRIORITIES, rank

NOW = datetime(2030, 1, 1, tzinfo=UTC)
TIMES = st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC))  # noqa: DTZ001 - hypothesis adds it
STEPS = st.integers(PRIORITIES[0], PRIORITIES[-1])
AGEING = st.timedeltas(timedelta(milliseconds=1), NO_AGEING)


@given(TIMES, STEPS, st.none() | AGEING)
def test_a_rank_fits_a_column(run_at: datetime, priority: int, ageing: timedelta | None) -> None:
    assert -(2**63) <= rank(run_at, priority, ageing) < 2**63


@given(TIMES, TIMES, TIMES, STEPS, STEPS, AGEING)
def test_the_most_urgent_of_any_moment_comes_first(
    one: datetime, other: datetime, moment: datetime, high: int, low: int, ageing: timedelta
) -> None:
    def urgency(run_at: datetime, priority: int) -> int:
        """Priority and waiting time, in microseconds of waiting."""
        return priority * (ageing // timedelta.resolution) + (moment - run_at) // timedelta.resolution

    before = rank(one, high, ageing) < rank(other, low, ageing)
    assert before == (urgency(one, high) > urgency(other, low))


def test_without_ageing_a_higher_priority_comes_first_for_years() -> None:
    assert rank(NOW + timedelta(days=2900), 1) < rank(NOW, 0)
    assert rank(NOW, 0) < rank(NOW + timedelta.resolution, 0), "of one priority the oldest"


def test_with_ageing_who_has_waited_long_enough_comes_first() -> None:
    minute = timedelta(minutes=1)
    assert rank(NOW, 0, minute) < rank(NOW + 6 * minute, 5, minute)
    assert rank(NOW + 4 * minute, 5, minute) < rank(NOW, 0, minute)
