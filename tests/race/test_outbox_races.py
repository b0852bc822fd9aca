"""Outboxes while relays die, stop, are paused past their lease, or take over: nothing is missed, or sent by two."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest
from stage.databases import connected, sql
from stage.faults import held
from stage.outboxes import OutboxStage, Sent, aside, died, drain, failing, outbox_row, relaying, text_of
from stage.stories import Stage
from stage.waits import SOON, until

from penstock import Index, MutationCtx, Retry, Table
from penstock.app import Backend
from penstock.errors import DatabaseUnavailable
from penstock.outbox.message import Message
from penstock.services.relay.relay import Relay
from penstock.store.session import reading
from penstock.testing import TestClock, raising

LOST, SECOND = timedelta(seconds=31), timedelta(seconds=1)
UNCERTAIN = DatabaseUnavailable("The connection was lost.", uncertain=True)


class Item(Table):
    note: str = ""
    lane: str = "a"
    value: int = 0

    by_value = Index("value")


async def put(stage: Stage, backend: Backend, *notes: str) -> None:
    await stage.insert(backend, *[Item(note=text, lane=text) for text in notes])


@asynccontextmanager
async def staged(url: str, **options: Any) -> AsyncIterator[tuple[OutboxStage, TestClock, Backend, Relay]]:
    """A relay that has the outbox, which is empty."""
    stage, clock = OutboxStage(Item), TestClock()
    stage.outbox(Item, start="end", **options)
    async with relaying(stage.app, url, clock) as (backend, relay):
        await relay.drain()
        yield stage, clock, backend, relay


@asynccontextmanager
async def next_relay(stage: OutboxStage, url: str, clock: TestClock) -> AsyncIterator[Relay]:
    """Another process on the same database, once the lease of the one before has run out."""
    async with relaying(stage.app, url, clock) as (_backend, relay):
        await relay.drain()
        clock.advance(LOST)
        for _ in range(3):
            clock.advance(SECOND)
            await relay.drain()
        yield relay


# ----- exactly once


@pytest.mark.parametrize("moment", ["commit.before", "commit.after"])
@pytest.mark.parametrize("source", ["feed", "older rows", "aside"])
async def test_a_mutation_whose_commit_nobody_knows_of_is_there_once(
    database_url: str, source: str, moment: str
) -> None:
    before, stage, clock = Stage(Item), OutboxStage(Item), TestClock(seed=5000)
    if source == "older rows":
        async with before.open(database_url) as test:
            await put(before, test, "a", "b")
    stage.outbox(Item, mutation=True, partition_by="lane", on_failure="halt_key", retry=Retry.fixed(SECOND, jitter=0))
    async with stage.open(database_url, clock=clock) as test:
        if source != "older rows":
            await drain(test)
            if source == "aside":
                stage.fails = failing(lambda: ValueError("no"), "a")
            await put(stage, test, "a", "b")
        if source == "aside":
            await drain(test)
            stage.fails = lambda _message: None
            clock.advance(SECOND)
        with raising(moment, UNCERTAIN), suppress(DatabaseUnavailable):
            await drain(test)
        await drain(test)
        assert sorted(await stage.written(test)) == ["a", "b"]
        assert (await outbox_row(test)).delivered == 2


# ----- two relays


async def test_a_relay_that_was_paused_past_its_lease_cannot_move_the_cursor(database_url: str) -> None:
    async with staged(database_url) as (stage, clock, backend, relay):
        await put(stage, backend, *"ab")
        async with (
            held("outbox.write", relay.outboxes[0].tick()) as ticking,
            next_relay(stage, database_url, clock) as other,
        ):
            await put(stage, backend, *"cd")
            await other.drain()
            position = other.outboxes[0]._cursor.state.position
        assert ticking.done()
        assert (await outbox_row(backend)).delivered == 4
        assert other.outboxes[0]._cursor.state.position == position
        assert relay.outboxes[0]._cursor.state.row is None, "it knows that it has lost"
        readers = await backend.engine.store.changes.readers()
        assert [one.position for one in readers if one.name == "outbox:send"] == [position]
        assert sorted(set(stage.texts())) == list("abcd")


@pytest.mark.parametrize("options", [{}, {"parallelism": 2}, {"batch": 2}, {"mutation": True}])
async def test_a_relay_that_was_paused_past_its_lease_begins_nothing_more(
    database_url: str, options: dict[str, Any]
) -> None:
    async with staged(database_url, **options) as (stage, clock, backend, relay):
        await put(stage, backend, *"ab")
        async with held("outbox.next", relay.outboxes[0].tick()):
            clock.advance(2 * LOST)
        assert (stage.texts(), stage.tried, (await outbox_row(backend)).delivered) == ([], [], 0)
        if options.get("mutation"):
            await relay.drain()
            await put(stage, backend, *"cd")
            async with held("outbox.next", relay.outboxes[0].tick()), next_relay(stage, database_url, clock):
                assert await stage.written(backend) == list("abcd")
            assert await stage.written(backend) == list("abcd"), "nothing of it commits"
            assert (await outbox_row(backend)).delivered == 4


async def test_a_relay_that_died_is_followed_within_a_lease_and_one_that_stopped_at_once(database_url: str) -> None:
    async with staged(database_url) as (stage, clock, backend, _relay):
        await put(stage, backend, "a")
        async with relaying(stage.app, database_url, clock) as (_other, second):
            for seconds in (0, 15, 15):
                assert stage.texts() == [], "one has it"
                clock.advance(timedelta(seconds=seconds))
                await second.drain()
            assert stage.texts() == ["a"]
            await second.finish()
            await put(stage, backend, "b")
        async with relaying(stage.app, database_url, clock) as (_third, third):
            await third.drain()
            assert stage.texts() == ["b"]
            assert (await outbox_row(backend)).trouble is None


# ----- messages that end their process


@pytest.mark.parametrize("policy", ["park", "halt_key"])
@pytest.mark.parametrize("options", [{}, {"mutation": True}, {"parallelism": 4}, {"mutation": True, "batch": 4}])
async def test_one_that_ends_its_process_each_time_is_put_aside_and_the_rest_flows(
    database_url: str, policy: str, options: dict[str, Any]
) -> None:
    retry = Retry.fixed(SECOND, max_attempts=3, jitter=0)
    async with staged(database_url, on_failure=policy, retry=retry, **options) as (stage, clock, backend, relay):
        notes, dies = [f"{number:02}" for number in range(40)], asyncio.Event()
        await put(stage, backend, *notes)

        async def die(_ctx: Any, message: Message[Item]) -> None:
            if text_of(message) == "21":
                dies.set()
                await asyncio.get_running_loop().create_future()

        async def go_on() -> None:
            async with next_relay(stage, database_url, clock) as following:
                for _ in range(5):
                    clock.advance(SECOND)
                    await following.drain()

        stage.during = die
        assert await died(relay.drain(), dies)
        deaths = 1
        while await died(go_on(), dies):
            deaths += 1
            assert deaths < 30
        got = await stage.written(backend) if options.get("mutation") else sorted(set(stage.texts()))
        assert got == [one for one in notes if one != "21"]
        (put_aside,) = await aside(backend)
        assert "21" in (put_aside.change.after or "")
        assert put_aside.trouble is not None
        assert (put_aside.state, put_aside.trouble.retry_at) == ("parked" if policy == "park" else "halted", None)
        assert deaths == 3, "as many as max_attempts"


# ----- rows that move


@pytest.mark.parametrize("ends", [0, 1, 3])
async def test_a_row_that_moved_in_an_open_transaction_comes_once_whenever_that_ends(
    postgres_url: str, ends: int
) -> None:
    before, stage = Stage(Item), OutboxStage(Item)
    async with before.open(postgres_url) as test:
        await before.insert(test, *[Item(note=str(one), value=one) for one in range(9)])
    stage.outbox(Item, order_by="value", batch=3)
    async with stage.open(postgres_url) as test:
        await test.relay.tick()
        await test.relay.outboxes[0].tick()  # which hands over three
        async with connected(postgres_url) as first, connected(postgres_url) as other:
            await first.execute("begin; update item set value = -1 where note in ('4', '8')")
            await first.execute("update item set value = 100 where note = '0'")
            await first.execute("insert into item select 'item_x', creation_time, 'new', 'a', -5 from item limit 1")
            for turn in range(5):
                if turn == ends:
                    await first.execute("commit")
                if turn == 1:
                    await other.execute("update item set value = 50 where note = '1'")
                    await other.execute("update item set value = -2 where note = '7'")
                await test.relay.outboxes[0].tick()
        await drain(test)
        assert Counter(stage.texts()) == Counter([*map(str, range(9)), "new"])


RENEWS = timedelta(seconds=8)  # a quarter of a lease, and a little
ROUNDS = 5


def slow(stage: OutboxStage) -> tuple[asyncio.Event, asyncio.Event]:
    """A handler that has begun, and may end."""
    begun, ends = asyncio.Event(), asyncio.Event()

    async def during(_ctx: Any, _message: Message[Item]) -> None:
        begun.set()
        await ends.wait()

    stage.during = during
    return begun, ends


def lease_of(relay: Relay) -> int:
    return relay.outboxes[0]._cursor.state.lease or 0


async def begin_to_stop(relay: Relay) -> asyncio.Task[None]:
    """Stop a relay, up to where it waits for what is under way."""
    stopping = asyncio.create_task(relay.stop())
    await until(lambda: relay.outboxes[0]._stopping)
    return stopping


def is_renewed(backend: Backend, clock: TestClock, worker: str) -> Callable[[], Awaitable[bool]]:
    """Whether the lease that was taken first was renewed at this time."""

    async def has_time() -> bool:
        async with reading(backend.engine.store.begin_read) as session:
            ends = [one.expires_at for one in await backend.engine.store.leases.list(session) if worker in one.holder]
        return ends[0] >= clock.now() + 2 * RENEWS

    return has_time


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
                    await until(is_renewed(backend, clock, "relay"))
                    await other.drain()
                    assert not other.outboxes[0].has_it
                ends.set()
                await asyncio.wait_for(stopping, SOON)
                await other.drain()
                assert other.outboxes[0].has_it
            assert (len(stage.tried), (await outbox_row(backend)).delivered) == (1, 1)


async def test_a_rebuild_whose_reset_takes_longer_than_a_lease_is_kept_from_relays(postgres_url: str) -> None:
    """On SQLite nobody else writes while the reset does."""
    stage, begun, ends, resets = OutboxStage(Item), asyncio.Event(), asyncio.Event(), list[int]()

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
        relay_lease = lease_of(backend.relay)
        rebuilding = asyncio.ensure_future(stage.app.outboxes.rebuild(backend, "send"))
        await asyncio.wait_for(begun.wait(), SOON)
        for _ in range(ROUNDS):
            backend.clock.advance(RENEWS)
            await until(is_renewed(backend, backend.clock, "rebuild"))
            await drain(backend)
            assert not backend.relay.outboxes[0].has_it
        ends.set()
        await rebuilding
        assert resets == [resets[0]] * 2
        await drain(backend)
        assert await stage.written(backend) == ["a"]


# ----- fences


@pytest.mark.both_stores
async def test_the_fence_is_the_same_under_one_lease_and_rises_with_each_take_though_the_lease_is_older(
    database_url: str,
) -> None:
    stage, clock = OutboxStage(Item), TestClock()
    stage.outbox(Item, start="end")
    schema = "penstock." if database_url.startswith("postgres") else "penstock_"
    async with (
        relaying(stage.app, database_url, clock) as (backend, older),
        relaying(stage.app, database_url, clock) as (_backend, younger),
    ):
        await older.tick()  # it has a lease, and not the outbox
        for number, relay in enumerate([younger, older, younger, older]):
            for note in "ab":
                await stage.insert(backend, Item(note=f"{number}{note}"))
                await relay.drain()
            if number == 2:
                for verb in (stage.app.outboxes.pause, stage.app.outboxes.resume):
                    await verb(backend, "send")
                    clock.advance(timedelta(seconds=2))
                    await relay.drain()
            await relay.outboxes[0]._cursor.leave()
        fences = [message.fence for message in stage.got]
        assert stage.texts() == [f"{number}{note}" for number in range(4) for note in "ab"]
        assert fences == sorted(fences)
        assert len(set(fences)) == 4
        await sql(backend, f"update {schema}change_reader set fence = 3")  # as it was at the time of the backup
        await stage.insert(backend, Item(note="d"))
        await older.drain()
        assert fences[-1] < stage.got[-1].fence < 2**53, "it rises in a restored database"
