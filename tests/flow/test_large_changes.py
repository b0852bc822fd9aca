"""Changes of large rows are read few at a time, so that the memory of who reads them does not depend on their size."""

from __future__ import annotations

from typing import Any

import pytest
from stage.outboxes import OutboxStage, drain
from stage.stories import Stage, settle

from penstock import Table
from penstock.store.nouns.changes import Batch

ROWS, LARGE = 60, 100_000
FEW = 25  # the first are so many, as nobody knows how large they are


class Item(Table):
    note: str


def spied(test: Any) -> list[int]:
    """How many changes are asked for at once, from now on."""
    changes, asked = test.engine.store.changes, list[int]()
    read = changes.read

    async def spy(start: Any, limit: int, *args: Any) -> Batch:
        asked.append(limit)
        batch: Batch = await read(start, limit, *args)
        return batch

    changes.read = spy
    return asked


@pytest.mark.parametrize("reader", ["outbox", "planner"])
async def test_few_are_read_that_are_large(database_url: str, reader: str) -> None:
    stage: Any = OutboxStage(Item) if reader == "outbox" else Stage(Item)
    read: Any = drain if reader == "outbox" else settle
    stage.outbox(Item, start="end") if reader == "outbox" else stage.task(Item)
    async with stage.open(database_url) as test:
        await read(test)
        await stage.insert(test, *[Item(note=f"{number}{'x' * LARGE}") for number in range(ROWS)])
    async with stage.open(database_url) as test:
        asked = spied(test)
        await read(test)
        assert len(stage.got if reader == "outbox" else stage.taken()) == ROWS
        assert asked[0] == FEW
        assert max(asked) <= 4 * FEW + ROWS
