"""Rows that move in transactions which stay open while an outbox hands over older rows in a declared order."""

from __future__ import annotations

from collections import Counter

import pytest
from stage.databases import connected
from stage.outboxes import OutboxStage, drain
from stage.reactive import Stage

from penstock import Index, Table


class Item(Table):
    note: str = ""
    value: int = 0

    by_value = Index("value")


@pytest.mark.parametrize("ends", range(5))
async def test_a_row_that_moved_in_an_open_transaction_comes_once_whenever_that_ends(
    postgres_url: str, ends: int
) -> None:
    before = Stage(Item)
    async with before.open(postgres_url) as test:
        await before.insert(test, *[Item(note=str(one), value=one) for one in range(9)])
    stage = OutboxStage(Item)
    stage.outbox(Item, order_by="value", batch=3)
    async with stage.open(postgres_url) as test:
        await test.relay.tick()
        await test.relay.outboxes[0].tick()  # which hands over three
        async with connected(postgres_url) as connection:
            transaction = connection.transaction()
            for turn in range(6):
                if turn == 0:
                    await transaction.start()
                    await connection.execute("update item set value = -1 where note in ('4', '8')")
                    await connection.execute("update item set value = 100 where note = '0'")
                    await connection.execute(
                        "insert into item select 'item_x', creation_time, 'new', -5 from item limit 1"
                    )
                if turn == ends:
                    await transaction.commit()
                if turn == 1:
                    async with connected(postgres_url) as other:
                        await other.execute("update item set value = 50 where note = '1'")
                        await other.execute("update item set value = -2 where note = '7'")
                await test.relay.outboxes[0].tick()
        await drain(test)
        assert Counter(stage.texts()) == Counter([*map(str, range(9)), "new"])
