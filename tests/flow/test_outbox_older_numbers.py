"""Numbers of rows that are older than their outbox: what is asked for one of them never befalls another one."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from stage.items import ONCE, Item, rows_before, staged, valued
from stage.outboxes import drain, outbox_row

from penstock import Retry
from penstock.outbox.backfill import BEFORE_ALL, BackfillProgress, new_backfill

ORDERS: list[tuple[str, ...]] = [(), ("value",)]


@pytest.mark.parametrize("order", ORDERS)
async def test_to_skip_an_older_row_that_is_gone_skips_no_other_one(database_url: str, order: tuple[str, ...]) -> None:
    ids = await rows_before(database_url, *valued(6))
    stage = staged("2", "3", order_by=order)
    async with stage.open(database_url) as test:
        await drain(test)
        trouble = (await outbox_row(test)).trouble
        assert trouble is not None
        assert await test.engine.store.outboxes.skip("send", trouble.seq)
        await stage.delete(test, Item, ids[2])  # before any relay has seen that
        stage.fails = lambda _message: None
        await drain(test, timedelta(seconds=2))
        assert stage.texts() == ["0", "1", "3", "4", "5"]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("between", ["nothing", "a move", "a restart"])
async def test_the_number_of_an_older_row_that_failed_and_is_gone_is_given_to_no_other_one(
    database_url: str, between: str, order: tuple[str, ...]
) -> None:
    ids = await rows_before(database_url, *valued(6))
    stage = staged("2", "3", order_by=order, retry=Retry.fixed(timedelta(seconds=1), max_attempts=9, jitter=0))
    async with stage.open(database_url) as test:
        await drain(test)
        before = (await outbox_row(test)).trouble
        assert before is not None
        await stage.delete(test, Item, ids[2])
        if between == "a move":
            position = (await stage.app.outboxes.list(test))[0].position
            assert position is not None
            await stage.app.outboxes.move(test, "send", position)
        if between != "a restart":
            await drain(test, timedelta(seconds=5))
        clock = test.clock
    async with stage.open(database_url, clock=clock) as test:
        await drain(test, timedelta(seconds=5))
        for _ in range(2):
            trouble = (await outbox_row(test)).trouble
            assert trouble is not None
            assert (trouble.key, trouble.seq) == (f'["{ids[3]}"]', before.seq + 1)
            assert not await test.engine.store.outboxes.skip("send", before.seq)
            await drain(test, timedelta(seconds=5))
        assert await test.engine.store.outboxes.skip("send", before.seq + 1)
        await drain(test, timedelta(seconds=5))
        assert stage.texts() == ["0", "1", "4", "5"]
        numbers = Counter(one.number for one in stage.got)
        assert all(number == 1 for number in numbers.values())


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("then", ["is deleted", "moves on", "stays"])
async def test_what_was_sent_and_not_written_is_known_by_its_row(
    database_url: str, then: str, order: tuple[str, ...]
) -> None:
    ids = await rows_before(database_url, *valued(4))
    stage = staged(order_by=order)

    async def fail_second(_ctx: Any, _message: Any) -> None:
        if stage.got:
            raise ValueError("enough")

    async with stage.open(database_url) as test:
        await test.relay.tick()
        line, advance, refused = test.relay.outboxes[0], test.engine.store.outboxes.advance, [1]

        async def refuse(step: Any, now: Any, session: Any = None) -> bool:
            if step.delivered and refused[0]:
                refused[0] -= 1
                raise ConnectionError("the database is away")
            return await advance(step, now, session)

        test.engine.store.outboxes.advance = refuse  # type: ignore[method-assign]
        stage.during = fail_second
        with pytest.raises(ConnectionError):
            await line.tick()
        stage.during = None
        if then == "is deleted":
            await stage.delete(test, Item, ids[0])
        elif then == "moves on":
            await stage.patch(test, Item, ids[0], value=9)
        await drain(test)
        assert stage.texts() == ["0", "1", "2", "3"]


async def test_the_number_of_an_older_row_can_be_said_in_json(database_url: str) -> None:
    await rows_before(database_url, *valued(3))
    stage = staged("1", on_failure="park", retry=ONCE)
    async with stage.open(database_url) as test:
        await drain(test)
        (one,) = (await stage.app.outboxes.messages(test, "send")).messages
        assert (one.state, one.content["note"]) == ("parked", "1")
        assert -(2**53) < one.number < 0
        assert BEFORE_ALL < BackfillProgress.parse(new_backfill((), 10**9)).number < 0


def test_what_is_left_of_older_rows_is_read_as_it_was_written() -> None:
    left = BackfillProgress(after='[1, "ž"]', count=7, order=("a", "b"), base=2**40)
    assert BackfillProgress.parse(left.text()) == left
    assert left.after_row("x").number == left.number + 1
    assert left.after_row("x", left.number + 5).count == 12
    assert left.at_number(left.number - 3) == left
