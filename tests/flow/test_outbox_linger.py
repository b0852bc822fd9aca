"""Batches wait for more messages only where more may come: not after a failure, and not for rows that there are."""

from __future__ import annotations

from datetime import timedelta

import pytest
from stage.outboxes import OutboxStage, drain, failing, outbox_row
from stage.reactive import Stage

from penstock import Index, Retry, Table

FIVE = timedelta(seconds=5)
SOON = Retry.fixed(timedelta(seconds=1), max_attempts=1, jitter=0)


class Item(Table):
    note: str = ""

    by_note = Index("note")


def of(count: int) -> list[Item]:
    return [Item(note=str(number)) for number in range(count)]


@pytest.mark.parametrize("mutation", [False, True])
async def test_pieces_of_a_batch_that_failed_wait_no_more(database_url: str, *, mutation: bool) -> None:
    stage = OutboxStage(Item)
    stage.outbox(Item, batch=64, linger=FIVE, on_failure="park", retry=SOON, mutation=mutation)
    stage.fails = failing(lambda: ValueError("no"), "21")
    async with stage.open(database_url) as test:
        await drain(test)
        await stage.insert(test, *of(40))
        await drain(test)
        assert stage.calls == []
        await drain(test, FIVE)
        got = await stage.written(test) if mutation else list(dict.fromkeys(stage.texts()))
        assert got == [str(number) for number in range(40) if number != 21]
        await stage.insert(test, Item(note="a"))
        await drain(test)
        assert stage.texts() == [], "others wait as before"
        await drain(test, FIVE)
        assert (await outbox_row(test)).delivered == 40


async def test_retries_of_others_do_not_have_a_batch_wait_longer(database_url: str) -> None:
    stage = OutboxStage(Item)
    retry = Retry.fixed(timedelta(seconds=2), jitter=0)
    stage.outbox(Item, batch=3, linger=FIVE, on_failure="halt_key", retry=retry)
    stage.fails = failing(lambda: ValueError("no"), "0")
    async with stage.open(database_url) as test:
        await drain(test)
        await stage.insert(test, *of(3))
        await drain(test)
        assert stage.texts() == ["1", "2"]
        await stage.insert(test, Item(note="a"))
        for _ in range(4):
            assert stage.texts() == []
            await drain(test, timedelta(seconds=2))
        assert stage.texts() == ["a"]


@pytest.mark.parametrize("order", [(), ("note",)])
async def test_older_rows_fill_batches_of_any_size_and_wait_for_nothing(
    database_url: str, order: tuple[str, ...]
) -> None:
    before = Stage(Item)
    async with before.open(database_url) as test:
        await before.insert(test, *of(700))
    stage = OutboxStage(Item)
    stage.outbox(Item, batch=600, linger=FIVE, order_by=order)
    async with stage.open(database_url) as test:
        await drain(test)
        assert stage.calls == [600, 100]


async def test_what_was_captured_fills_batches_that_are_larger_than_what_is_read_at_once(database_url: str) -> None:
    stage = OutboxStage(Item)
    stage.outbox(Item, batch=2500, linger=FIVE, start="end")
    async with stage.open(database_url) as test:
        await drain(test)
        for _ in range(3):
            await stage.insert(test, *of(1000))
        await drain(test)
        assert stage.calls == [2500]
        await drain(test, FIVE)
        assert stage.calls == [2500, 500]
