"""How long messages of outboxes are kept, and what becomes of an outbox whose reader is gone."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest
from stage.feed import write
from stage.told import events

from penstock import ActionCtx, App, Message, MutationCtx, Table
from penstock.changes.position import BEGINNING
from penstock.changes.rotation import SLOT_AGE, Slots
from penstock.clock import SystemClock
from penstock.testing import TestApp, TestClock

HOUR = timedelta(hours=1)
AGED = {
    True: "update penstock.change set changed_at = changed_at - interval '1 hour' * {hours}",
    False: "update penstock_change set changed_at = strftime('%Y-%m-%dT%H:%M:%f000Z', changed_at, '-{hours} hours')",
}

app, plain = App(), App()
ids: list[str] = []


class Crate(Table, name="kept_crate"):
    number: int


@app.outbox(Crate, name="send", start="end", keep_for=2 * HOUR)
async def send(ctx: ActionCtx, message: Message[Crate]) -> None:
    ids.append(message.id)


@plain.outbox(Crate, name="other", start="end")
async def other(ctx: ActionCtx, message: Message[Crate]) -> None: ...


@app.internal_mutation
async def put(ctx: MutationCtx) -> None:
    await ctx.db.insert(Crate(number=1))


async def hand_over(test: TestApp) -> None:
    test.clock.advance(timedelta(seconds=6))
    await test.relay.drain()
    test.clock.advance(timedelta(seconds=6))
    await test.relay.drain()  # readers go on from where nothing was for them


async def rotate(test: TestApp) -> None:
    """Look after the room of the feed for some hours."""
    for hour in range(1, 9):
        await test.engine.store.changes.rotate(test.clock.now() + hour * 2 * HOUR, 100)


async def age(test: TestApp, hours: float) -> None:
    """Let what is written be older by so much; its times are by the clock of the database."""
    store = test.engine.store
    await write(store, AGED[store.dialect.schemas].format(hours=hours))


async def kept(test: TestApp) -> int:
    return len((await test.engine.store.changes.read(BEGINNING, 100)).changes)


async def test_messages_are_kept_for_as_long_as_their_outbox_says(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        ids.clear()
        await test.run_mutation(put)
        await hand_over(test)
        assert len(ids) == 1
        await rotate(test)
        assert await kept(test) == 1
        await age(test, 1.9)
        await rotate(test)
        assert await kept(test) == 1
        await app.outboxes.move(test, "send", "beginning")  # as it is kept for that
        await hand_over(test)
        assert len(ids) == 2
        await age(test, 0.2)
        await rotate(test)
        assert await kept(test) == 0


async def test_what_is_unread_is_kept_however_old_it_is(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        await app.outboxes.pause(test, "send")
        await test.run_mutation(put)
        await age(test, 1000)
        await rotate(test)
        assert await kept(test) == 1


async def test_once_nobody_keeps_it_what_is_read_is_dropped(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        await test.run_mutation(put)
        await hand_over(test)
        await app.outboxes.drop(test, "send")
        await rotate(test)
        assert await kept(test) == 0


def test_slots_are_few_and_so_what_is_kept_is_spread_over_them() -> None:
    now = SystemClock().now()
    full = {0: 2**26, 1: 0, 2: 0, 3: 0}
    assert Slots(0, now, full).following(now) == 1
    week = timedelta(days=7)
    assert Slots(0, now, full, week).following(now + SLOT_AGE) is None
    assert Slots(0, now, full, week).following(now + week / 2) == 1


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


async def test_messages_that_nobody_hands_over_are_told_of_at_start(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock")
    clock = TestClock()
    async with TestApp(app, database_url, clock=clock) as test:
        await hand_over(test)
    async with TestApp(plain, database_url, clock=clock):
        assert events(caplog, "outbox.unknown") == []  # there is nothing to be sent
    async with TestApp(app, database_url, clock=clock) as test:
        await test.run_mutation(put)
    async with TestApp(plain, database_url, clock=clock) as test:
        (told,) = events(caplog, "outbox.unknown")
        assert (told["outbox"], told["messages"], told["source"]) == ("send", 1, "kept_crate")
        assert "penstock outbox drop send" in told["fix"]
        found = {one.name: one.declared for one in await plain.outboxes.list(test)}
        assert found == {"other": True, "send": False}
    async with TestApp(app, database_url, clock=clock) as test:
        caplog.clear()
        await test.relay.tick()
        for line in test.relay.outboxes:
            await line.tick()
        async with TestApp(plain, database_url, clock=clock):
            assert events(caplog, "outbox.unknown") == [], "somebody hands over"
