"""Batches wait for more messages only where more may come: not after a failure, and not for rows that there are."""

from __future__ import annotations

from datetime import timedelta

import pytest
from stage.items import ONCE, begun, of, rows_before, staged, valued
from stage.outboxes import drain, outbox_row

from penstock import Retry

FIVE = timedelta(seconds=5)


async def test_a_batch_lingers_until_it_is_full_or_its_time_is_over(database_url: str) -> None:
    stage = staged(batch=3, linger=2 * FIVE)
    async with begun(stage, database_url, "a") as test:
        await drain(test, timedelta(seconds=9))
        assert stage.texts() == []
        await stage.insert(test, *of("b"))
        await drain(test, timedelta(seconds=1))
        assert (stage.texts(), stage.calls) == (["a", "b"], [2])
        await stage.insert(test, *of(*"cdef"))
        await drain(test)
        assert (stage.texts(), stage.calls) == (["c", "d", "e"], [2, 3])
        await drain(test, 2 * FIVE)
        assert stage.texts() == ["f"]


@pytest.mark.parametrize("mutation", [False, True])
async def test_pieces_of_a_batch_that_failed_wait_no_more(database_url: str, *, mutation: bool) -> None:
    stage = staged("21", batch=64, linger=FIVE, on_failure="park", retry=ONCE, mutation=mutation)
    async with begun(stage, database_url, *map(str, range(40))) as test:
        assert stage.calls == []
        await drain(test, FIVE)
        got = await stage.written(test) if mutation else list(dict.fromkeys(stage.texts()))
        assert got == [str(number) for number in range(40) if number != 21]
        await stage.insert(test, *of("a"))
        await drain(test)
        assert stage.texts() == [], "others wait as before"
        await drain(test, FIVE)
        assert (await outbox_row(test)).delivered == 40


async def test_retries_of_others_do_not_have_a_batch_wait_longer(database_url: str) -> None:
    retry = Retry.fixed(timedelta(seconds=2), jitter=0)
    stage = staged("0", batch=3, linger=FIVE, on_failure="halt_key", retry=retry)
    async with begun(stage, database_url, "0", "1", "2") as test:
        assert stage.texts() == ["1", "2"]
        await stage.insert(test, *of("a"))
        for _ in range(4):
            assert stage.texts() == []
            await drain(test, timedelta(seconds=2))
        assert stage.texts() == ["a"]


@pytest.mark.parametrize("order", [(), ("value",)])
async def test_older_rows_fill_batches_of_any_size_and_wait_for_nothing(
    database_url: str, order: tuple[str, ...]
) -> None:
    await rows_before(database_url, *valued(700))
    stage = staged(batch=600, linger=FIVE, order_by=order)
    async with stage.open(database_url) as test:
        await drain(test)
        assert stage.calls == [600, 100]


async def test_what_was_captured_fills_batches_that_are_larger_than_what_is_read_at_once(database_url: str) -> None:
    stage = staged(batch=2500, linger=FIVE, start="end")
    async with stage.open(database_url) as test:
        await drain(test)
        for _ in range(3):
            await stage.insert(test, *valued(1000))
        await drain(test)
        assert stage.calls == [2500]
        await drain(test, FIVE)
        assert stage.calls == [2500, 500]
