"""The examples of outboxes: each runs to its end on both stores."""

from __future__ import annotations

from stage.programs import run_example


def test_each_booking_is_confirmed_once_and_in_order_though_the_gateway_was_down(database_url: str) -> None:
    said = run_example("outbox/sms", database_url)
    assert "40 SMS were sent, each once; 3 calls were refused." in said
    assert "They came in the order of the bookings." in said


def test_a_read_model_counts_each_entry_once_those_before_it_too(database_url: str) -> None:
    said = run_example("outbox/readmodel", database_url)
    assert "600 entries were counted, each once: 300 of them were there before." in said
    assert "700 entries were counted anew, 100 of them written meanwhile." in said
