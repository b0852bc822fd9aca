"""A filter of jobs is refused at once if no database could take it, or no job could meet it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from penstock import JobFilter, JobState, ValueInvalid

TEXTS = ("pool", "function", "name", "key", "concurrency_key", "error", "on_complete_error")


@pytest.mark.parametrize("word", [*TEXTS, "state"])
@pytest.mark.parametrize("value", ["\ud800", "a\udcff", "a\0b", 5, b"x"])
def test_texts_that_no_database_holds(word: str, value: Any) -> None:
    with pytest.raises(ValueInvalid, match=f"^{word} "):
        JobFilter(**{word: value})


@pytest.mark.parametrize("word", TEXTS)
@pytest.mark.parametrize("value", ["", "%", "é\U0001f600", "' or 1=1 --", "x" * 100_000])
def test_texts_that_any_database_holds(word: str, value: Any) -> None:
    assert getattr(JobFilter(**{word: value}), word) == value


def test_every_state_and_no_other() -> None:
    for state in JobState:
        assert JobFilter(state=state.value).state == state.value
        assert state.value in (JobFilter.__doc__ or "").lower()
    with pytest.raises(ValueInvalid, match="no state 'late'"):
        JobFilter(state="late")


@pytest.mark.parametrize("word", ["since", "before"])
@pytest.mark.parametrize("value", [datetime(2026, 1, 1), "2026-01-01", 5])  # noqa: DTZ001 - it is to have no zone
def test_times_without_a_zone(word: str, value: Any) -> None:
    with pytest.raises(ValueInvalid, match="aware"):
        JobFilter(**{word: value})
