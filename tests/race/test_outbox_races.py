"""Outboxes while relays die, are paused past their lease, or take over: nothing is missed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest
from stage.databases import connected
from stage.outboxes import OutboxStage, aside, died, drain, failing, outbox_row, relaying, text_of
from stage.reactive import Stage
from stage.storms import held
from stage.waits import SOON, until
from stage.windows import fail_once

from penstock import Index, Retry, Table
from penstock.app import Backend
from penstock.errors import DatabaseUnavailable
from penstock.outbox.message import Message
from penstock.services.relay.relay import Relay
from penstock.testing import TestClock, raising

LOST, SECOND = timedelta(seconds=31), timedelta(seconds=1)
UNCERTAIN = DatabaseUnavailable("The connection was lost.", uncertain=True)


class Item(Table):
    note: str = ""
    lane: str = "a"
    value: int = 0

    by_value = Index("value")


class Crash(BaseException):
    """What ends a process in the middle of something."""


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


@pytest.mark.parametrize("options", [{}, {"batch": 2}])
@pytest.mark.parametrize("moment", ["mutation.ran", "commit.before", "commit.after"])
async def test_a_process_that_dies_around_the_commit_of_a_mutation(
    database_url: str, moment: str, options: dict[str, Any]
) -> None:
    async with staged(database_url, mutation=True, **options) as (stage, clock, backend, relay):
        await put(stage, backend, *"abcde")
        with raising(moment, Crash()), pytest.raises(Crash):
            await relay.drain()
        written = await stage.written(backend)
        assert written == (list("abcde") if moment == "commit.after" else [])
        async with next_relay(stage, database_url, clock):
            assert await stage.written(backend) == list("abcde")
            assert (await outbox_row(backend)).delivered == 5


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


# ----- at least once


@pytest.mark.parametrize("options", [{}, {"parallelism": 3}, {"batch": 3}])
async def test_a_process_that_dies_between_an_action_and_its_cursor_repeats_what_was_not_written(
    database_url: str, options: dict[str, Any]
) -> None:
    async with staged(database_url, **options) as (stage, clock, backend, relay):
        await put(stage, backend, *"abc")
        with raising("outbox.write", Crash()), pytest.raises(Crash):
            await relay.drain()
        assert set(stage.texts()) <= set("abc")
        async with next_relay(stage, database_url, clock):
            assert sorted(set(stage.texts())) == ["a", "b", "c"]
        assert len(set(stage.tried)) == 3, "with the same ids"


@pytest.mark.parametrize("options", [{}, {"parallelism": 3}, {"batch": 3}])
async def test_what_others_ask_for_meanwhile_repeats_nothing_and_who_rewinds_gets_it_again(
    database_url: str, options: dict[str, Any]
) -> None:
    async with staged(database_url, **options) as (stage, clock, backend, relay):
        store, start = backend.engine.store.outboxes, relay.outboxes[0]._cursor.state.position

        async def pause(_ctx: Any, message: Message[Item]) -> None:
            if text_of(message) in "be":
                await store.pause("send", paused=True)
                await store.pause("send", paused=False)

        async def rewind(_ctx: Any, message: Message[Item]) -> None:
            if text_of(message) == "h":
                stage.during = None
                await store.place("send", start, None, clock.now())

        async def hand_over() -> None:
            for _ in range(4):
                clock.advance(2 * SECOND)
                await relay.drain()

        stage.during = pause
        await put(stage, backend, *"abcdef")
        await hand_over()
        assert Counter(stage.texts()) == Counter("abcdef")
        assert (await outbox_row(backend)).delivered == 6
        stage.during = rewind
        await put(stage, backend, *"ghi")
        await hand_over()
        assert Counter(stage.texts()) >= Counter("abcdefghi")


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


@pytest.mark.parametrize("options", [{}, {"mutation": True}])
async def test_a_handler_that_will_not_be_interrupted_does_not_end_its_outbox(
    database_url: str, options: dict[str, Any]
) -> None:
    async with staged(database_url, **options) as (stage, _clock, backend, relay):
        (line,) = relay.outboxes
        begun, asked, ends = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def during(_ctx: Any, _message: Message[Item]) -> None:
            begun.set()
            while not ends.is_set():
                try:
                    await ends.wait()
                except asyncio.CancelledError:
                    asked.set()

        stage.during = during
        await put(stage, backend, "a")
        line.start()
        await begun.wait()
        interrupting = asyncio.create_task(line.interrupt())  # as a relay does that has lost its lease
        await asked.wait()
        ends.set()
        await asyncio.wait_for(interrupting, SOON)
        await put(stage, backend, "b")

        async def is_done() -> bool:
            line.wake.set()
            return (await outbox_row(backend)).delivered == 2

        await until(is_done)
        assert [text_of(message) for message in stage.got] == ([] if options else ["a", "b"])
        assert await stage.written(backend) == (["a", "b"] if options else [])
        await line.kill()


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


async def test_a_write_that_fails_does_not_end_the_care_that_follows_a_death(database_url: str) -> None:
    async with staged(database_url, batch=5) as (stage, clock, backend, relay):
        await put(stage, backend, *"abcdef")
        with raising("outbox.next", Crash()), pytest.raises(Crash):
            await relay.drain()
        clock.advance(LOST)
        async with relaying(stage.app, database_url, clock) as (other_backend, other):
            failed = fail_once(other_backend, DatabaseUnavailable("away for a moment"), lambda step: step.delivered)
            for _ in range(5):
                clock.advance(SECOND)
                with suppress(DatabaseUnavailable):
                    await other.drain()
            assert failed.is_set()
    assert Counter(stage.texts()) == Counter("abcdef")
    assert set(stage.calls) == {1}, "it is known of which message the next process dies"


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
