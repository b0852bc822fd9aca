"""Outboxes whose messages go beside each other, messages that take until they are let go, and writes that fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

from stage.outboxes import Handler, OutboxStage, relaying, states, text_of
from stage.waits import until

from penstock import Retry, Table
from penstock.app import Backend
from penstock.outbox.message import Message
from penstock.services.relay.relay import Relay
from penstock.store.nouns.outboxes import Step
from penstock.store.session import Session
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


def each(*slow: Slow) -> Handler:
    """Several messages that take until each is let go."""

    async def during(ctx: Any, message: Message[Any]) -> None:
        for one in slow:
            await one.during(ctx, message)

    return during


async def soon(relay: Relay, true: Callable[[], Awaitable[bool] | bool]) -> None:
    """Wait until something is true, while the lines of a relay look again and again."""

    def is_true() -> Awaitable[bool] | bool:
        for line in relay.outboxes:
            line.wake.set()
        return true()

    await until(is_true)


async def looked(relay: Relay) -> None:
    """Wait until the line of a relay has looked at what was there before, and has begun what it found."""
    (line,) = relay.outboxes
    clock, looks = line.clock, 0
    wait = clock.wait

    async def count(event: asyncio.Event, seconds: float) -> bool:
        nonlocal looks
        looks += event is line.wake
        return await wait(event, seconds)

    clock.wait = count  # type: ignore[method-assign]
    await soon(relay, lambda: looks > 3)  # the first may be under way, what the second begins has begun by the fourth
    clock.wait = wait  # type: ignore[method-assign]


async def halted(backend: Backend, relay: Relay, *wanted: str) -> None:
    """Wait until messages are put aside so."""

    async def are_there() -> bool:
        return await states(backend) == list(wanted)

    await soon(relay, are_there)


def fail_once(
    backend: Backend, error: Exception, of: Callable[[Step], object] = lambda _step: True, *, written: bool = False
) -> asyncio.Event:
    """Have the next write of an outbox fail that is one of some, before or after it is written; set when it has."""
    outboxes, failed = backend.engine.store.outboxes, asyncio.Event()
    advance = outboxes.advance

    async def failing(step: Step, now: datetime, session: Session | None = None) -> bool:
        if failed.is_set() or not of(step):
            return await advance(step, now, session)
        if written:
            await advance(step, now, session)
        failed.set()
        raise error

    outboxes.advance = failing  # type: ignore[method-assign]
    return failed
