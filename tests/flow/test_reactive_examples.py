"""The examples of reactive tasks: each runs to its end on both stores, against a service of its own."""

from __future__ import annotations

import re

from stage.processes import run_example


def test_an_erp_gets_each_paid_order_as_it_is(database_url: str) -> None:
    said = run_example("reactive/erp", database_url)
    assert "10 of 20 orders were paid, and changed 5 times; the ERP has 10" in said
    calls = re.search(r"after (\d+) calls", said)
    assert calls is not None
    assert 10 <= int(calls[1]) <= 50, "at least each once, at most each change"
    assert "Notes are nothing to it: 0 more calls." in said


def test_a_receiver_that_refuses_is_left_alone_for_a_while(database_url: str) -> None:
    said = run_example("reactive/webhook", database_url)
    refused = re.search(r"All 25 subscriptions were told as they are, (\d+) calls were refused", said)
    assert refused is not None
    assert int(refused[1]) < 60
    assert "and 0 runs have failed." in said


def test_a_crm_that_was_down_gets_each_customer_once_as_it_is(database_url: str) -> None:
    said = run_example("reactive/crm", database_url)
    assert "and has 0 customers." in said
    took = re.search(r"It is back: it took (\d+) calls, and has 15 customers as they are now.", said)
    assert took is not None
    assert 15 <= int(took[1]) < 30, "one each, unless it was back before the last change of one was known"
    assert "It was told that customer 0 has left; 14 are there." in said


def test_a_ledger_has_each_transfer_once_however_often_its_transaction_was_undone(database_url: str) -> None:
    said = run_example("reactive/ledger", database_url)
    undone = re.search(r"(\d+) times a transaction was undone at its end; the ledger has 20 entries", said)
    assert undone is not None
    assert int(undone[1]) > 0
    assert "for 20 transfers, and the bank carried out 20." in said
