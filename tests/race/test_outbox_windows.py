"""Messages that are under way beside each other: one that takes long or fails keeps nobody else waiting, and what was
sent before it is done with is not sent again, though the relay stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from stage.outboxes import OutboxStage, drain, failing, outbox_row, relaying, states, text_of
from stage.stories import Stage
from stage.waits import until

from penstock import Retry, Table
from penstock.app import Backend
from penstock.outbox.message import Message
from penstock.services.relay.relay import Relay
from penstock.testing import TestClock

SECOND, TEN = timedelta(seconds=1), timedelta(seconds=10)
SOON = Retry.fixed(TEN, max_attempts=3, jitter=0)


class Item(Table):
    note: str = ""
    lane: str = "a"


class Slow:
    """A message that takes until it is let go."""

    def __init__(self, note: str) -> None:
        self.note = note
        self.begun, self.ends = asyncio.Event(), asyncio.Event()

    async def during(self, _ctx: Any, message: Message[Any]) -> None:
        if text_of(message) == self.note:
            self.begun.set()
            await self.ends.wait()


def of(*notes: str) -> list[Item]:
    """Items whose lanes are the first letters of their notes."""
    return [Item(note=note, lane=note[0]) for note in notes]


def staged(**options: Any) -> OutboxStage:
    stage = OutboxStage(Item)
    usual: dict[str, Any] = {"partition_by": "lane", "parallelism": 2, "retry": SOON, "start": "end"}
    stage.outbox(Item, **usual | options)
    return stage


@asynccontextmanager
async def handing_over(stage: OutboxStage, url: str, clock: TestClock) -> AsyncIterator[tuple[Backend, Relay]]:
    """A relay that has the outbox and runs."""
    async with relaying(stage.app, url, clock) as (backend, relay):
        await relay.tick()
        relay.start()
        yield backend, relay
        await relay.stop()


async def got(stage: OutboxStage, relay: Relay, notes: Iterable[str], clock: TestClock | None = None) -> None:
    """Wait until all these were handed over; with a clock that goes on meanwhile."""
    wanted = sorted(notes)

    async def are_there() -> bool:
        if clock is not None:
            clock.advance(SECOND)
        return sorted(map(text_of, stage.got)) == wanted

    await soon(relay, are_there)


async def soon(relay: Relay, true: Callable[[], Awaitable[bool] | bool]) -> None:
    """Wait until something is true, while the lines of a relay look again and again."""

    def is_true() -> Awaitable[bool] | bool:
        for line in relay.outboxes:
            line.wake.set()
        return true()

    await until(is_true)


ALL_THE_TIME = Retry.fixed(SECOND, max_attempts=None, jitter=0)


async def older(url: str, *rows: Item) -> None:
    """Rows that are there before the outbox."""
    before = Stage(Item)
    async with before.open(url) as test:
        await before.insert(test, *rows)


# ----- keys that fail


@pytest.mark.parametrize("parallelism", [1, 2])
async def test_keys_that_are_tried_again_all_the_time_keep_no_others_waiting(
    database_url: str, parallelism: int
) -> None:
    stage = staged(parallelism=parallelism, on_failure="halt_key", retry=ALL_THE_TIME)
    stage.fails = failing(lambda: ConnectionError("down"), "x", "y", "z")
    async with stage.open(database_url) as test:
        await stage.insert(test, *of("x", "y", "z"))
        await drain(test)
        assert await states(test) == ["halted"] * 3
        test.clock.advance(SECOND)

        async def during(_ctx: Any, message: Message[Any]) -> None:
            if message.key in {"x", "y", "z"}:  # it takes so long that the others are due again
                test.clock.advance(SECOND)
                await stage.insert(test, *of(f"{message.key}{len(stage.tried)}"))

        stage.during = during
        await stage.insert(test, *of("a1", "b1", "a2"))
        for _ in range(9):
            await test.relay.outboxes[0].tick()
        assert sorted(stage.texts()) == ["a1", "a2", "b1"]
        stage.fails, stage.during = failing(lambda: ConnectionError("down")), None
        await drain(test, SECOND)
        assert await states(test) == []
        for lane in "xyz":
            numbers = [int(text[1:] or 0) for text in map(text_of, stage.got) if text[0] == lane]
            assert numbers == sorted(numbers), "those of a key in order"


# ----- what takes long


async def test_one_that_takes_long_keeps_no_others_waiting_however_many_they_are(database_url: str) -> None:
    stage, clock, slow = staged(), TestClock(), Slow("a1")
    stage.during = slow.during
    others = [f"{lane}{number}" for number in range(40) for lane in "bcdefgh"]
    async with handing_over(stage, database_url, clock) as (backend, relay):
        await stage.insert(backend, *of("a1", "a2", *others[:200]))
        await got(stage, relay, others[:200])
        await stage.insert(backend, *of(*others[200:]))
        await got(stage, relay, others)
        clock.advance(SECOND)

        async def is_written() -> bool:
            (status,) = await stage.app.outboxes.list(backend)
            return (status.delivered, status.messages) == (len(others), 2)

        await until(is_written)
        slow.ends.set()
        await got(stage, relay, ["a1", "a2", *others])
    async with relaying(stage.app, database_url, clock) as (backend, relay):
        await relay.drain()
        row = await outbox_row(backend)
    assert (len(stage.got), row.delivered, row.passed) == (len(others) + 2, len(others) + 2, frozenset())


# ----- what stops


@pytest.mark.parametrize("how", ["ends", "is cut", "is cut, of older rows", "is moved, of older rows"])
async def test_a_relay_that_stops_while_one_takes_long_has_written_what_it_sent(database_url: str, how: str) -> None:
    rows, is_older, cut = of("a1", "b1", "a2", "b2", "c1"), "older" in how, how != "ends"
    if is_older:
        await older(database_url, *rows)
    stage, clock, slow = staged(start="beginning" if is_older else "end"), TestClock(), Slow("a1")
    stage.during = slow.during
    async with relaying(stage.app, database_url, clock, grace=0.05 if cut else 30.0) as (backend, relay):
        await relay.tick()
        relay.start()
        if not is_older:
            await stage.insert(backend, *rows)
        await got(stage, relay, ["b1", "b2", "c1"])
        if not cut:
            slow.ends.set()
        await relay.stop()
        assert (await outbox_row(backend)).delivered == (3 if cut else len(stage.got))
        if "moved" in how:
            (status,) = await stage.app.outboxes.list(backend)
            assert status.position is not None
            await stage.app.outboxes.move(backend, "send", status.position)
    stage.during = None
    async with stage.open(database_url, clock=clock) as test:
        await drain(test, TEN)
        await drain(test, TEN)
        assert sorted(stage.texts()) == ["a1", "a2", "b1", "b2", "c1"], "each once"
        row = await outbox_row(test)
        assert (row.delivered, row.passed) == (5, frozenset())
