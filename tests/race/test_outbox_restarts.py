"""PostgreSQL goes away while an outbox hands over: what a mutation writes, and how far it has come, stay one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from stage.outboxes import OutboxStage, outbox_row, relaying
from stage.proxy import Moment, Proxy
from stage.server import Server, server
from stage.waits import SOON, until

from penstock import Retry, Table
from penstock.app import Backend
from penstock.errors import TryAgain
from penstock.outbox.message import Message
from penstock.services.relay.relay import Relay
from penstock.testing import TestClock, gate

NOTES = [f"{number:02}" for number in range(30)]
ANYHOW = Retry(max_attempts=None, initial_backoff=0.001)
Ends = Callable[[Server], Awaitable[None]]


class Item(Table):
    note: str = ""


def staged(**options: Any) -> OutboxStage:
    """An outbox whose handler writes."""
    stage = OutboxStage(Item)
    stage.outbox(Item, start="end", mutation=True, retry=ANYHOW, **options)
    return stage


async def once(relay: Relay) -> None:
    """Hand over what there is, as a service that is told of an error, and tries again."""
    with contextlib.suppress(TryAgain):
        await relay.drain()


async def drained(stage: OutboxStage, backend: Backend, relay: Relay, clock: TestClock, count: int) -> list[str]:
    """What is written once all is handed over, by a relay that tries again as its service does."""
    async with asyncio.timeout(SOON):
        while True:
            clock.advance(timedelta(seconds=1))
            await once(relay)
            with contextlib.suppress(TryAgain):
                if (await outbox_row(backend)).delivered >= count:
                    return await stage.written(backend)


async def crash(own: Server) -> None:
    """Kill a process of the server, once it runs again after the last time, and wait until all others have ended."""
    watching: list[Any] = []

    async def is_up() -> bool:
        try:
            watching.append(await asyncpg.connect(own.url))
        except (OSError, asyncpg.PostgresError):
            return False
        return True

    async def is_down() -> bool:
        closed: bool = watching[0].is_closed()
        return closed

    await until(is_up)
    await own.crash()
    await until(is_down)


@pytest.mark.parametrize("options", [{}, {"batch": 4}], ids=["one by one", "batches"])
@pytest.mark.parametrize("ends", [Server.restart, crash], ids=["restart", "crash"])
async def test_a_server_that_dies_around_the_commit_of_a_mutation(options: dict[str, Any], ends: Ends) -> None:
    """In the middle of the handler, before the commit, and after it."""
    stage, clock = staged(**options), TestClock()
    with server() as own:
        async with relaying(stage.app, own.url, clock) as (backend, relay):
            await relay.drain()

            async def during(_ctx: Any, message: Message[Item]) -> None:
                if message.row is not None and message.row.note == NOTES[7]:
                    stage.during = None
                    await ends(own)

            stage.during = during
            for part, moment in enumerate(("mutation.ran", "commit.before", "commit.after")):
                await stage.insert(backend, *[Item(note=note) for note in NOTES[part * 10 : part * 10 + 10]])
                with gate(moment, most=1) as held:
                    ticking = asyncio.create_task(once(relay))
                    await held.arrived()
                    await ends(own)
                    held.open()
                    await ticking
                assert await drained(stage, backend, relay, clock, part * 10 + 10) == NOTES[: part * 10 + 10]
            assert (await outbox_row(backend)).delivered == len(NOTES), "each once"


@pytest.mark.parametrize("options", [{}, {"batch": 4}], ids=["one by one", "batches"])
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_commit_whose_answer_is_lost(postgres_url: str, moment: Moment, options: dict[str, Any]) -> None:
    stage, clock = staged(**options), TestClock()
    async with Proxy(postgres_url).running() as proxy, relaying(stage.app, proxy.url, clock) as (backend, relay):
        await relay.drain()
        await stage.insert(backend, *[Item(note=note) for note in NOTES])
        proxy.cut(moment, times=3)
        assert await drained(stage, backend, relay, clock, len(NOTES)) == NOTES
        assert (await outbox_row(backend)).delivered == len(NOTES)
        assert proxy.cuts >= 1


@pytest.mark.parametrize("ends", [Server.restart, crash], ids=["restart", "crash"])
async def test_a_server_gives_numbers_of_undone_transactions_anew_after_it_died(ends: Ends) -> None:
    """A relay had read past them, and has not written that: they were not on the disk."""
    stage, clock = staged(), TestClock()
    with server("wal_writer_delay = '10s'\n") as own:
        async with relaying(stage.app, own.url, clock) as (backend, relay):
            await relay.drain()
            await own.spend_numbers(200, "rollback")
            await relay.drain()
            await ends(own)
            for note in NOTES[:3]:
                await stage.insert(backend, Item(note=note))
            await own.spend_numbers(300, "commit")  # all of those numbers are given
            assert await drained(stage, backend, relay, clock, 3) == NOTES[:3]


@pytest.mark.parametrize("mutation", [False, True], ids=["action", "mutation"])
async def test_a_server_that_dies_while_messages_are_delivered_that_were_read_beside_undone_transactions(
    *, mutation: bool
) -> None:
    stage, clock = OutboxStage(Item), TestClock()
    stage.outbox(Item, start="end", mutation=mutation, retry=ANYHOW)
    with server("wal_writer_delay = '10s'\n") as own:
        async with relaying(stage.app, own.url, clock) as (backend, relay):
            await relay.drain()
            await stage.insert(backend, Item(note=NOTES[0]))
            await own.spend_numbers(200, "rollback")
            with gate("outbox.next", most=1) as held:
                ticking = asyncio.create_task(once(relay))
                await held.arrived()
                await own.restart()
                for note in NOTES[1:3]:  # and all connections are new ones
                    await stage.insert(backend, Item(note=note))
                await own.spend_numbers(300, "commit")  # all of those numbers are given
                held.open()
                await ticking
            told = set[str]()
            async with asyncio.timeout(SOON):
                while told != set(NOTES[:3]):
                    clock.advance(timedelta(seconds=1))
                    await once(relay)
                    told |= set(await stage.written(backend) if mutation else stage.texts())
