"""The examples of pools: each runs to its end on both stores, and says what its page says of it."""

from __future__ import annotations

import re

from stage.programs import run_example


def test_mails_are_not_held_up_by_forecasts(database_url: str) -> None:
    said = run_example("workpools/signups", database_url)
    sent, there, all_of_them = (
        int(number) for number in re.findall(r"(\d+) (?:e-mails|forecasts (?:are there|came))", said)
    )
    assert (sent, all_of_them) == (20, 200)
    assert there < 200, "somebody waits for an e-mail, and nobody for a forecast"


def test_each_customer_pays_once_after_an_outage(database_url: str) -> None:
    said = run_example("workpools/payments", database_url)
    assert "{'paid': 30}, 30 payments were made" in said
    most = re.search(r"more than (\d+) requests", said)
    assert most is not None
    assert 0 < int(most[1]) <= 4


def test_a_singleton_counter_counts_each_time(database_url: str) -> None:
    assert "The counter stands at 200; 200 jobs" in run_example("workpools/counter", database_url)
