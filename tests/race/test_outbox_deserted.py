"""What becomes of an outbox whose reader is gone."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest
from stage.waits import events

from penstock import ActionCtx, App, Message, MutationCtx, Table
from penstock.testing import TestApp, TestClock

app = App()
ids: list[str] = []


class Crate(Table, name="kept_crate"):
    number: int


@app.outbox(Crate, name="send", start="end")
async def send(ctx: ActionCtx, message: Message[Crate]) -> None:
    ids.append(message.id)


@app.internal_mutation
async def put(ctx: MutationCtx) -> None:
    await ctx.db.insert(Crate(number=1))


async def hand_over(test: TestApp) -> None:
    test.clock.advance(timedelta(seconds=6))
    await test.relay.drain()
    test.clock.advance(timedelta(seconds=6))
    await test.relay.drain()  # readers go on from where nothing was for them


async def test_an_outbox_whose_reader_is_gone_halts_and_says_so(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    ids.clear()
    clock = TestClock()
    async with TestApp(app, database_url, clock=clock) as test:
        await hand_over(test)
        await test.engine.store.changes.forget("outbox:send")
        await test.run_mutation(put)
        (found,) = await app.outboxes.list(test)
        assert found.position is None
    caplog.set_level(logging.INFO, "penstock")
    async with TestApp(app, database_url, clock=clock) as test:
        await test.run_mutation(put)
        await hand_over(test)
        (found,) = await app.outboxes.list(test)
        assert found.halted
        assert "ReaderLost" in (found.error or "")
        assert found.retry_at is None
        assert ids == []
        (told,) = events(caplog, "outbox.halted")
        assert told["outbox"] == "send"
        assert (await app.outboxes.messages(test, "send")).messages == []
        assert await app.outboxes.retry(test, "send") == 1
        await hand_over(test)
        assert len(ids) == 1, "it goes on with what was written since it has a reader again"
        (found,) = await app.outboxes.list(test)
        assert (found.halted, found.error, found.messages) == (False, None, 0)
    caplog.clear()
    async with TestApp(app, database_url, clock=clock):
        assert events(caplog, "outbox.halted") == []
