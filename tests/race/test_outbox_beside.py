"""Messages that are under way beside each other: one that takes long or fails keeps nobody else waiting, and what was
sent before it is done with is not sent again, though the relay stops.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from stage.outboxes import drain, failing, outbox_row, relaying, states, text_of
from stage.reactive import Stage
from stage.waits import SOON, until
from stage.windows import SECOND, TEN, Item, Slow, got, handing_over, is_set, looked, of, soon, staged

from penstock import Retry
from penstock.outbox.message import Message
from penstock.store.nouns.outboxes import Aside
from penstock.testing import TestClock

ALL_THE_TIME = Retry.fixed(SECOND, max_attempts=None, jitter=0)

# ----- keys that fail


async def test_keys_that_are_tried_again_all_the_time_keep_no_older_rows_waiting(database_url: str) -> None:
    before = Stage(Item)
    async with before.open(database_url) as test:
        await before.insert(test, *(Item(note=f"n{number}", lane=f"n{number}") for number in range(500)))
    bad = {f"n{number}" for number in range(4)}
    stage, clock = staged(on_failure="halt_key", retry=ALL_THE_TIME, start="beginning"), TestClock()
    stage.fails = failing(lambda: ConnectionError("down"), *bad)

    async def during(_ctx: Any, message: Message[Any]) -> None:
        if text_of(message) in bad:
            clock.advance(SECOND)  # the others are due again

    stage.during = during
    async with handing_over(stage, database_url, clock) as (_backend, relay):
        await got(stage, relay, {f"n{number}" for number in range(500)} - bad)
        stage.fails = lambda _message: None


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


async def test_what_failed_is_tried_again_beside_what_flows(database_url: str) -> None:
    stage, clock, slow = staged(on_failure="halt_key"), TestClock(), Slow("x1")
    stage.fails = failing(lambda: ValueError("no"), "x1")
    async with handing_over(stage, database_url, clock) as (backend, relay):
        await stage.insert(backend, *of("x1", "x2"))

        async def is_halted() -> bool:
            return await states(backend) == ["halted", "waiting"]

        await until(is_halted)
        stage.during = slow.during
        clock.advance(TEN)
        await soon(relay, is_set(slow.begun))
        await stage.insert(backend, *of("a1", "a2", "b1", "x3"))
        await got(stage, relay, ["a1", "a2", "b1"])
        stage.fails = failing(lambda: ValueError("no"))
        slow.ends.set()
        await got(stage, relay, ["a1", "a2", "b1", "x1", "x2", "x3"])
        assert [text for text in stage.texts() if text[0] == "x"] == ["x1", "x2", "x3"]


async def test_one_that_fails_behind_another_is_put_aside_at_once_and_its_attempts_are_counted(
    database_url: str,
) -> None:
    stage, clock, slow = staged(on_failure="halt_key"), TestClock(), Slow("a1")
    stage.during = slow.during
    stage.fails = failing(lambda: ValueError("no"), "b1")
    async with handing_over(stage, database_url, clock) as (backend, relay):
        await stage.insert(backend, *of("a1", "b1", "b2", "c1"))

        async def is_put_aside() -> bool:
            relay.outboxes[0].wake.set()
            return await states(backend) == ["halted", "waiting"]

        await until(is_put_aside)
        await got(stage, relay, ["c1"])
        stage.fails = failing(lambda: ValueError("no"))
        clock.advance(TEN)
        await got(stage, relay, ["b1", "b2", "c1"])
        assert [one.attempt for one in stage.got if text_of(one) == "b1"] == [2]
        slow.ends.set()
        await got(stage, relay, ["a1", "b1", "b2", "c1"])
    async with relaying(stage.app, database_url, clock) as (backend, relay):
        await relay.drain()
        assert (len(stage.tried), (await outbox_row(backend)).delivered) == (5, 4)


@pytest.mark.parametrize("parallelism", [1, 2])
async def test_those_that_wait_are_not_looked_for_while_one_of_their_key_halts(
    database_url: str, parallelism: int
) -> None:
    stage = staged(parallelism=parallelism, on_failure="halt_key")
    stage.fails = failing(lambda: ValueError("no"), "x1")
    async with stage.open(database_url) as test:
        await drain(test)
        await stage.insert(test, *of("x1", "x2", "x3"))
        await drain(test)
        assert await states(test) == ["halted", "waiting", "waiting"]
        outboxes = test.engine.store.outboxes
        waiting, looks = outboxes.waiting, list[int]()

        async def look(outbox: int, limit: int) -> list[Aside]:
            looks.append(limit)
            return await waiting(outbox, limit)

        outboxes.waiting = look  # type: ignore[method-assign]
        await stage.insert(test, *of("a1", "x4", "b1"))
        await drain(test)
        assert (sorted(stage.texts()), looks) == (["a1", "b1"], [])
        stage.fails = failing(lambda: ValueError("no"))
        await drain(test, TEN)
        assert (stage.texts(), len(looks) > 0) == (["x1", "x2", "x3", "x4"], True)


# ----- what takes long


async def test_one_that_takes_long_keeps_no_others_waiting_however_many_they_are(database_url: str) -> None:
    stage, clock, slow = staged(), TestClock(), Slow("a1")
    stage.during = slow.during
    others = [f"{lane}{number}" for number in range(60) for lane in "bcdefgh"]
    async with handing_over(stage, database_url, clock) as (backend, relay):
        await stage.insert(backend, *of("a1", "a2", *others[:300]))
        await got(stage, relay, others[:300])
        await stage.insert(backend, *of(*others[300:]))
        await got(stage, relay, others)
        clock.advance(SECOND)

        async def is_written() -> bool:
            (status,) = await stage.app.outboxes.list(backend)
            return (status.delivered, status.messages) == (len(others), 2)

        await until(is_written)
        slow.ends.set()
        await got(stage, relay, ["a1", "a2", *others])
    row = None
    async with relaying(stage.app, database_url, clock) as (backend, relay):
        await relay.drain()
        row = await outbox_row(backend)
    assert (len(stage.got), row.delivered, row.passed) == (len(others) + 2, len(others) + 2, frozenset())


async def test_an_outbox_that_is_paused_while_one_takes_long_begins_nothing_more(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, clock, slow = staged(), TestClock(), Slow("a1")
    stage.during = slow.during
    async with handing_over(stage, database_url, clock) as (backend, relay):

        async def is_written() -> bool:  # so that no write finds that the outbox was changed
            clock.advance(SECOND / 2)
            return (await outbox_row(backend)).delivered == 1

        await stage.insert(backend, *of("a1", "b1"))
        await soon(relay, is_written)
        standing, asked = relay.outboxes[0]._cursor, asyncio.Event()
        is_changed = standing.is_changed

        async def look() -> bool:
            found = await is_changed()
            asked.set()
            return found

        monkeypatch.setattr(standing, "is_changed", look)
        await stage.app.outboxes.pause(backend, "send")
        clock.advance(TEN)
        relay.outboxes[0].wake.set()
        await asyncio.wait_for(asked.wait(), SOON)
        await stage.insert(backend, *of("b2"))
        await looked(relay)
        assert len(stage.tried) == 2
        slow.ends.set()
        await got(stage, relay, ["a1", "b1"])
        await relay.tick()
        assert len(stage.tried) == 2
        await stage.app.outboxes.resume(backend, "send")
        clock.advance(SECOND)
        await got(stage, relay, ["a1", "b1", "b2"])


# ----- what stops


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("cut", [False, True])
async def test_a_relay_that_stops_while_one_takes_long_has_written_what_it_sent(
    database_url: str, *, cut: bool, older: bool
) -> None:
    rows = of("a1", "b1", "a2", "b2", "c1")
    stage, clock, slow = staged(start="beginning" if older else "end"), TestClock(), Slow("a1")
    stage.during = slow.during
    if older:
        before = Stage(Item)
        async with before.open(database_url) as test:
            await before.insert(test, *rows)
    async with relaying(stage.app, database_url, clock, grace=0.05 if cut else 30.0) as (backend, relay):
        await relay.tick()
        relay.start()
        if not older:
            await stage.insert(backend, *rows)
        await got(stage, relay, ["b1", "b2", "c1"])
        if not cut:
            slow.ends.set()
        await relay.stop()
        assert (await outbox_row(backend)).delivered == (3 if cut else len(stage.got))
    stage.during = None
    async with stage.open(database_url, clock=clock) as test:
        await drain(test, TEN)
        await drain(test, TEN)
        assert sorted(stage.texts()) == ["a1", "a2", "b1", "b2", "c1"], "each once"
        row = await outbox_row(test)
        assert (row.delivered, row.passed) == (5, frozenset())


async def test_a_move_that_keeps_older_rows_keeps_those_that_were_sent(database_url: str) -> None:
    before = Stage(Item)
    async with before.open(database_url) as test:
        await before.insert(test, *of("a1", "b1", "c1", "d1"))
    stage, clock, slow = staged(start="beginning"), TestClock(), Slow("a1")
    stage.during = slow.during
    async with relaying(stage.app, database_url, clock, grace=0.05) as (backend, relay):
        await relay.tick()
        relay.start()
        await got(stage, relay, ["b1", "c1", "d1"])
        await relay.stop()
        (status,) = await stage.app.outboxes.list(backend)
        assert status.position is not None
        await stage.app.outboxes.move(backend, "send", status.position)
    stage.during = None
    async with stage.open(database_url, clock=clock) as test:
        await drain(test, TEN)
        await drain(test, TEN)
        assert stage.texts() == ["b1", "c1", "d1", "a1"]
        assert (await outbox_row(test)).delivered == 4


async def test_a_relay_that_loses_its_lease_while_some_are_under_way_begins_no_more(database_url: str) -> None:
    stage, clock, slow = staged(), TestClock(), Slow("a1")
    stage.during = slow.during
    async with handing_over(stage, database_url, clock) as (backend, relay):
        await stage.insert(backend, *of("a1", "b1", "a2"))
        await got(stage, relay, ["b1"])
        interrupting = asyncio.create_task(relay.outboxes[0].interrupt())
        with suppress(asyncio.CancelledError):
            await interrupting
        await got(stage, relay, ["b1"])
        slow.ends.set()
        await got(stage, relay, ["b1", "a1", "a2"])
        assert len(stage.tried) == 4, "the one that was under way was cut, and was tried again"
