"""What is reported of a pool: counts and rates, as Workpool computes them."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import App, DeclarationError
from penstock.pools.report import Tally


def test_rates_count_attempts_and_jobs() -> None:
    tally = Tally()
    for status in ("success", "success", "success", "failed", "retrying", "retrying", "canceled"):
        tally.add(status)
    assert (tally.completed, tally.succeeded, tally.failed, tally.retries, tally.canceled) == (7, 3, 1, 2, 1)
    assert tally.failure_rate() == 0.4286, "3 of 7 attempts"
    assert tally.permanent_failure_rate() == 0.2, "1 of 5 jobs that have ended for good"


def test_where_nothing_has_ended_there_is_no_rate() -> None:
    assert (Tally().failure_rate(), Tally().permanent_failure_rate()) == (None, None)
    assert (Tally(retries=2).failure_rate(), Tally(retries=2).permanent_failure_rate()) == (1.0, None)


@pytest.mark.parametrize(
    ("level", "tells", "reports"),
    [("debug", True, True), ("info", True, True), ("report", False, True), ("warning", False, False)],
)
def test_a_level_says_which_events_are_told(level: Any, tells: bool, reports: bool) -> None:
    definition = App().workpool("p", log_level=level).definition
    assert (definition.tells_of_jobs, definition.reports) == (tells, reports)


def test_a_pool_reports_unless_it_is_told_otherwise() -> None:
    assert App().workpool("p").definition.log_level == "report"


def test_a_level_that_does_not_exist_is_refused() -> None:
    with pytest.raises(DeclarationError, match=r"log_level must be one of debug, info, report, warning, error, not 'I"):
        App().workpool("p", log_level="INFO")  # type: ignore[arg-type]  # wrong on purpose
