"""Relays and rebuilds keep their lease for as long as something is under way, or it would be done by two at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from stage.outboxes import OutboxStage, Sent, drain, outbox_row, relaying, sql
from stage.reactive import Stage
from stage.waits import SOON, until

from penstock import MutationCtx, Table
from penstock.app import Backend
from penstock.outbox.message import Message
from penstock.services.relay.backfill import Backfill
from penstock.services.relay.relay import Relay
from penstock.testing import TestClock

RENEWS = timedelta(seconds=8)  # a quarter of a lease, and a little
ROUNDS = 6
BATCH = 30


class Item(Table):
    note: str = ""


def slow(stage: OutboxStage) -> tuple[asyncio.Event, asyncio.Event]:
    """A handler that has begun, and may end."""
    begun, ends = asyncio.Event(), asyncio.Event()

    async def during(_ctx: Any, _message: Message[Item]) -> None:
        begun.set()
        await ends.wait()

    stage.during = during
    return begun, ends


async def begin_to_stop(relay: Relay) -> asyncio.Task[None]:
    """Stop a relay, up to where it waits for what is under way."""
    stopping = asyncio.create_task(relay.stop())

    async def is_asked() -> bool:
        return relay.outboxes[0]._stopping

    await until(is_asked)
    return stopping


def holds(backend: Backend, clock: TestClock, worker: str) -> Callable[[], Awaitable[bool]]:
    """Whether the lease that was taken first was renewed at this time."""

    async def is_renewed() -> bool:
        session = await backend.engine.store.begin_read()
        try:
            ends = [one.expires_at for one in await backend.engine.store.leases.list(session) if worker in one.holder]
        finally:
            await session.rollback()
        return ends[0] >= clock.now() + 2 * RENEWS

    return is_renewed


@pytest.mark.parametrize("options", [{}, {"parallelism": 2}, {"mutation": True}])
async def test_a_relay_that_is_stopped_has_its_lease_until_what_is_under_way_has_ended(
    postgres_url: str, sqlite_url: str, options: dict[str, Any]
) -> None:
    """A mutation under way keeps SQLite's only writer, so that nobody else does anything there."""
    for url in (postgres_url, *([] if options.get("mutation") else [sqlite_url])):
        stage, clock = OutboxStage(Item), TestClock()
        stage.outbox(Item, start="end", **options)
        begun, ends = slow(stage)
        async with relaying(stage.app, url, clock, grace=SOON) as (backend, relay):
            await relay.drain()
            await stage.insert(backend, Item(note="a"))
            relay.start()
            await asyncio.wait_for(begun.wait(), SOON)
            async with relaying(stage.app, url, clock) as (_backend, other):
                stopping = await begin_to_stop(relay)
                for _ in range(ROUNDS):
                    clock.advance(RENEWS)
                    await until(holds(backend, clock, "relay"))
                    await other.drain()
                    assert not other.outboxes[0].has_it
                ends.set()
                await asyncio.wait_for(stopping, SOON)
                await other.drain()
                assert other.outboxes[0].has_it
            assert len(stage.tried) == 1
            assert (await outbox_row(backend)).delivered == 1


async def test_a_relay_that_loses_its_lease_while_it_stops_ends_what_is_under_way(database_url: str) -> None:
    stage, clock = OutboxStage(Item), TestClock()
    stage.outbox(Item, start="end")
    begun, _ends = slow(stage)
    async with relaying(stage.app, database_url, clock, grace=SOON) as (backend, relay):
        await relay.drain()
        await stage.insert(backend, Item(note="a"))
        relay.start()
        await asyncio.wait_for(begun.wait(), SOON)
        lease = relay.outboxes[0]._cursor.state.lease
        assert lease is not None
        stopping = await begin_to_stop(relay)
        await backend.engine.store.leases.rescue(lease, clock.now() + timedelta(minutes=1), lambda _jobs: [])
        clock.advance(RENEWS)
        await asyncio.wait_for(stopping, SOON / 2)
        assert (stage.texts(), (await outbox_row(backend)).delivered) == ([], 0)


@pytest.mark.parametrize("taker", ["itself", "another"])
async def test_after_a_lost_lease_a_backfill_reads_as_many_rows_at_once_as_before(
    database_url: str, monkeypatch: pytest.MonkeyPatch, taker: str
) -> None:
    """Only another relay delivers a batch's worth of messages one by one, as the first may have died of one."""
    rows = Stage(Item)
    async with rows.open(database_url) as before:
        await rows.insert(before, *[Item(note=str(number)) for number in range(4 * BATCH)])
    stage, clock, pages, page = OutboxStage(Item), TestClock(), list[int](), Backfill.page
    stage.outbox(Item, batch=BATCH)

    async def counted(backfill: Backfill, *args: Any) -> Any:
        pages.append(args[-1])
        return await page(backfill, *args)

    monkeypatch.setattr(Backfill, "page", counted)
    async with (
        relaying(stage.app, database_url, clock) as (backend, relay),
        relaying(stage.app, database_url, clock) as (_backend, other),
    ):
        await relay.tick()
        await relay.outboxes[0].tick()
        assert (stage.calls, pages) == ([BATCH], [BATCH])
        lease = relay.outboxes[0]._cursor.state.lease
        assert lease is not None
        clock.advance(timedelta(seconds=31))
        await backend.engine.store.leases.rescue(lease, clock.now(), lambda _jobs: [])
        if taker == "itself":
            await relay.tick()  # it learns that the lease is lost
        await (relay if taker == "itself" else other).drain()
        assert stage.calls[1:] == ([] if taker == "itself" else [1] * BATCH) + [BATCH] * (3 - (taker == "another"))
        assert set(pages) == {BATCH}
        assert len(pages) <= 6
        assert sorted(map(int, stage.texts())) == list(range(4 * BATCH))


async def test_a_rebuild_whose_reset_takes_longer_than_a_lease_is_kept_from_relays(postgres_url: str) -> None:
    """On SQLite nobody else writes while the reset does."""
    stage, begun, ends = OutboxStage(Item), asyncio.Event(), asyncio.Event()
    resets = list[int]()

    async def clear(ctx: MutationCtx) -> None:
        async for one in ctx.db.query(Sent):
            await ctx.db.delete(Sent, one.id)
        (reader,) = [one for one in await backend.engine.store.changes.readers() if one.name == "outbox:send"]
        assert reader.lease is not None
        resets.append(reader.lease)
        if len(resets) == 1:  # the second attempt is kept from the relay, too
            await backend.engine.store.outboxes.hold("send", relay_lease)
        else:
            begun.set()
            await ends.wait()

    stage.outbox(Item, mutation=True, reset=clear)
    async with stage.open(postgres_url) as backend:
        await stage.insert(backend, Item(note="a"))
        await drain(backend)
        relay_lease = backend.relay.outboxes[0]._cursor.state.lease or 0
        assert relay_lease
        rebuilding = asyncio.ensure_future(stage.app.outboxes.rebuild(backend, "send"))
        await asyncio.wait_for(begun.wait(), SOON)
        for _ in range(ROUNDS):
            backend.clock.advance(RENEWS)
            await until(holds(backend, backend.clock, "rebuild"))
            await drain(backend)
            assert not backend.relay.outboxes[0].has_it
        ends.set()
        await rebuilding
        assert resets == [resets[0]] * 2
        await drain(backend)
        assert await stage.written(backend) == ["a"]


# ----- fences


async def test_what_a_suspended_relay_ends_late_has_a_smaller_fence_than_what_its_successor_sent(
    database_url: str,
) -> None:
    stage, clock = OutboxStage(Item), TestClock()
    stage.outbox(Item, start="end")
    fences, suspended = list[int](), [asyncio.Event(), asyncio.Event()]

    async def during(_ctx: Any, message: Message[Item]) -> None:
        first = not fences
        fences.append(message.fence)
        if first:
            suspended[0].set()
            await suspended[1].wait()

    stage.during = during
    async with relaying(stage.app, database_url, clock) as (backend, relay):
        await relay.drain()
        await stage.insert(backend, Item(note="a"), Item(note="b"))
        late = asyncio.ensure_future(relay.drain())
        await asyncio.wait_for(suspended[0].wait(), SOON)
        lease = relay.outboxes[0]._cursor.state.lease
        assert lease is not None
        await backend.engine.store.leases.rescue(lease, clock.now() + timedelta(minutes=1), lambda _jobs: [])
        async with relaying(stage.app, database_url, clock) as (_backend, other):
            for _ in range(3):  # one by one at first, as a process may have died of the first message
                await other.drain()
                clock.advance(timedelta(seconds=1))
            assert stage.texts() == ["a", "b"]
        suspended[1].set()
        await late
        assert stage.texts()[0] == "a", "which a sink without a fence takes after b"
    assert fences[0] < fences[1] == fences[2]
    assert set(fences[3:]) <= {fences[0]}, "nor has what it begins then another one"


async def test_the_fence_rises_though_an_older_lease_takes_the_outbox_over(database_url: str) -> None:
    stage, clock = OutboxStage(Item), TestClock()
    stage.outbox(Item, start="end")
    async with (
        relaying(stage.app, database_url, clock) as (backend, older),
        relaying(stage.app, database_url, clock) as (_backend, younger),
    ):
        await older.tick()  # it has a lease, and not the outbox
        for number, relay in enumerate([younger, older, younger, older]):
            await stage.insert(backend, Item(note=str(number)))
            await relay.drain()
            await relay.outboxes[0]._cursor.leave()
        fences = [message.fence for message in stage.got]
        assert stage.texts() == ["0", "1", "2", "3"]
        assert fences == sorted(set(fences))


async def test_the_fence_is_the_same_for_all_that_is_sent_under_a_lease_and_rises_in_a_restored_database(
    database_url: str,
) -> None:
    stage, clock = OutboxStage(Item), TestClock()
    stage.outbox(Item, start="end")
    schema = "penstock." if database_url.startswith("postgres") else "penstock_"
    async with relaying(stage.app, database_url, clock) as (backend, relay):
        await relay.drain()
        for note in "ab":
            await stage.insert(backend, Item(note=note))
            await relay.drain()
        await stage.app.outboxes.pause(backend, "send")
        clock.advance(timedelta(seconds=2))
        await relay.drain()
        await stage.app.outboxes.resume(backend, "send")
        clock.advance(timedelta(seconds=2))
        await relay.drain()
        await stage.insert(backend, Item(note="c"))
        await relay.drain()
        await relay.outboxes[0]._cursor.leave()
        await sql(backend, f"update {schema}change_reader set fence = 3")  # as it was at the time of the backup
        await stage.insert(backend, Item(note="d"))
        await relay.drain()
        fences = [message.fence for message in stage.got]
    assert fences[0] == fences[1] == fences[2] < fences[3] < 2**53
