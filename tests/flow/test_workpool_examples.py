"""The examples of pools, outboxes and locks: each runs to its end on both stores, and says what its page says of it."""

from __future__ import annotations

import re

import pytest
from stage.processes import run_example

SAID = {
    "workpools/counter": ["The counter stands at 200; 200 jobs"],
    "outbox/sms": [
        "40 SMS were sent, each once; 3 calls were refused.",
        "They came in the order of the bookings.",
    ],
    "outbox/readmodel": [
        "600 entries were counted, each once: 300 of them were there before.",
        "700 entries were counted anew, 100 of them written meanwhile.",
    ],
}


@pytest.mark.parametrize("example", SAID)
def test_an_example_says_what_its_page_says(database_url: str, example: str) -> None:
    said = run_example(example, database_url)
    assert all(sentence in said for sentence in SAID[example]), said


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


def test_payments_to_an_account_do_not_write_over_each_other(database_url: str) -> None:
    said = run_example("locks/accounts", database_url)
    assert "30 payments of 10 were made: {'account 0': 100, 'account 1': 100, 'account 2': 100}." in said
    late = re.search(r"The bank refuses who comes late: (\d+) is over: (\d+) was here", said)
    assert late is not None
    assert int(late[1]) < int(late[2])
    assert "So does the database." in said
