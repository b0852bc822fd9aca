"""A row that the database refuses to keep anything of, among others."""

from __future__ import annotations

import asyncio
import logging

import pytest
from stage.waits import SOON

from penstock import App, Table, TaskCtx
from penstock.clock import SystemClock, random_of
from penstock.store.session import Statement


class Label(Table, source="label", key="text", managed=False):
    """What another program writes, with a key of any length."""

    text: str


labels: list[str] = []
app = App()


@app.reactive_task(Label)
async def read(ctx: TaskCtx[Label]) -> None:
    """Note a label."""
    labels.append(ctx.doc_id)


async def test_a_row_that_cannot_be_kept_keeps_none_of_the_others(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a key this long PostgreSQL takes the row itself, and not one that is a little longer."""
    labels.clear()
    letters = random_of(1)
    long = "".join(chr(letters.randrange(48, 122)) for _ in range(2680))
    short = [f"label {number}" for number in range(20)]
    is_sqlite = database_url.startswith("sqlite")
    async with App().open(database_url) as backend:
        session = await backend.engine.store.begin_write()
        await session.execute(Statement("create table label (text text primary key)"))
        await session.commit()
        await session.rollback()
    async with app.open(database_url, services=("worker", "planner")) as backend:
        with caplog.at_level(logging.ERROR):
            session = await backend.engine.store.begin_write()
            for text in (*short[:10], long, *short[10:]):
                value = backend.engine.store.dialect.parameter
                await session.execute(Statement(f"insert into label values ({value if is_sqlite else '$1'})"), [text])
            await session.commit()
            await session.rollback()
            async with asyncio.timeout(SOON):
                while len(labels) < len(short) + is_sqlite:
                    await SystemClock().sleep(0)
    assert sorted(set(labels) - {long}) == sorted(short)
    refused = [record for record in caplog.records if getattr(record, "event", "") == "planner.row_refused"]
    assert bool(refused) is not is_sqlite
