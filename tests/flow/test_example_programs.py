"""Examples of pools, outboxes, locks, tasks and tenants: each runs to its end, and says what its page says of it."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
import shops
from stage.databases import name_of
from stage.processes import run_example
from tenants import Tenants

from penstock.clock import SystemClock
from penstock.errors import DatabaseUnavailable

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


def test_questions_are_answered_from_documents(vector_url: str) -> None:
    said = run_example("answers/answers", vector_url)
    assert "Holidays are 30 days a year. Ask your lead two weeks before you leave. ['The handbook']" in said
    assert "do tomatoes need?\n  No document tells. []\n" in said
    assert "Tomatoes need six hours of sunshine, and water every morning. ['The garden']" in said


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
    most: Any = re.search(r"more than (\d+) requests", said)
    assert 0 < int(most[1]) <= 4


def test_payments_to_an_account_do_not_write_over_each_other(database_url: str) -> None:
    said = run_example("locks/accounts", database_url)
    assert "30 payments of 10 were made: {'account 0': 100, 'account 1': 100, 'account 2': 100}." in said
    late: Any = re.search(r"The bank refuses who comes late: (\d+) is over: (\d+) was here", said)
    assert int(late[1]) < int(late[2])
    assert "So does the database." in said


# ----- reactive tasks


def test_an_erp_gets_each_paid_order_as_it_is(database_url: str) -> None:
    said = run_example("reactive/erp", database_url)
    assert "10 of 20 orders were paid, and changed 5 times; the ERP has 10" in said
    calls: Any = re.search(r"after (\d+) calls", said)
    assert 10 <= int(calls[1]) <= 50, "at least each once, at most each change"
    assert "Notes are nothing to it: 0 more calls." in said


def test_a_receiver_that_refuses_is_left_alone_for_a_while(database_url: str) -> None:
    said = run_example("reactive/webhook", database_url)
    refused: Any = re.search(r"All 25 subscriptions were told as they are, (\d+) calls were refused", said)
    assert int(refused[1]) < 60
    assert "and 0 runs have failed." in said


def test_a_crm_that_was_down_gets_each_customer_once_as_it_is(database_url: str) -> None:
    said = run_example("reactive/crm", database_url)
    assert "and has 0 customers." in said
    took: Any = re.search(r"It is back: it took (\d+) calls, and has 15 customers as they are now.", said)
    assert 15 <= int(took[1]) < 30, "one each, unless it was back before the last change of one was known"
    assert "It was told that customer 0 has left; 14 are there." in said


def test_a_ledger_has_each_transfer_once_however_often_its_transaction_was_undone(database_url: str) -> None:
    said = run_example("reactive/ledger", database_url)
    undone: Any = re.search(r"(\d+) times a transaction was undone at its end; the ledger has 20 entries", said)
    assert int(undone[1]) > 0
    assert "for 20 transfers, and the bank carried out 20." in said


# ----- tenants


def test_each_shop_has_its_own_orders_and_all_share_one_worker(sqlite_url: str) -> None:
    said = run_example("tenants/shops", sqlite_url)
    assert said.splitlines() == [
        "bakery: [0, 1, 2, 3, 4]",
        "bikes: [10, 11, 12, 13, 14]",
        "books: [20, 21, 22, 23, 24]",
    ]


async def test_tenants_on_both_stores_are_opened_once_and_closed_when_idle(sqlite_url: str, postgres_url: str) -> None:
    away = postgres_url.replace(name_of(postgres_url), "none")
    urls = {"file": sqlite_url, "server": postgres_url, "away": away}
    async with Tenants(shops.app, urls.__getitem__, most=1) as tenants:
        async with tenants.backend("file") as here, tenants.backend("server") as there:
            await here.run_mutation(shops.order, number=1)
            async with tenants.backend("file") as again:
                assert again is here, "it is in use, so it stays though there are too many"
            jobs = [(await backend.job_counts())["ready"] for backend in (here, there)]
            assert jobs == [1, 0], "the job is where its row is"
        with pytest.raises(KeyError):
            async with tenants.backend("nobody"):
                pass
        for _ in range(2):
            with pytest.raises(DatabaseUnavailable):
                async with tenants.backend("away"):
                    pass

        async def opened() -> object:
            async with tenants.backend("server") as backend:
                await SystemClock().sleep(0)
                return backend

        first, second = await asyncio.gather(opened(), opened())
        assert first is second, "who comes while it opens waits for the same one"
        async with tenants.backend("file") as other:
            assert other is not here, "it was idle, and has made room"
