"""Messages that are under way beside each other: one that takes long or fails keeps nobody else waiting, and what was
sent before it is done with is not sent again, though the relay stops, or a write fails.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any

import pytest
from stage.outboxes import OutboxStage, drain, failing, outbox_row, relaying, states, text_of
from stage.reactive import Stage
from stage.waits import until
from stage.windows import SECOND, TEN, Item, Slow, each, fail_once, got, halted, handing_over, looked, of, soon, staged

from penstock import Retry
from penstock.errors import DatabaseUnavailable
from penstock.outbox.message import Message
from penstock.services.relay import window
from penstock.store.nouns.outboxes import Aside
from penstock.testing import TestClock

ALL_THE_TIME = Retry.fixed(SECOND, max_attempts=None, jitter=0)
UNCERTAIN = DatabaseUnavailable("lost during the commit", uncertain=True)


def apart(*notes: str, pad: str = "") -> list[Item]:
    """Items each of a lane of its own."""
    return [Item(note=note, lane=note + pad) for note in notes]


def no() -> Exception:
    return ValueError("no")


async def older(url: str, *rows: Item) -> None:
    """Rows that are there before the outbox."""
    before = Stage(Item)
    async with before.open(url) as test:
        await before.insert(test, *rows)


# ----- keys that fail


async def test_keys_that_are_tried_again_all_the_time_keep_no_older_rows_waiting(database_url: str) -> None:
    names = [f"n{number}" for number in range(300)]
    await older(database_url, *apart(*names))
    bad = set(names[:4])
    stage, clock = staged(on_failure="halt_key", retry=ALL_THE_TIME, start="beginning"), TestClock()
    stage.fails = failing(lambda: ConnectionError("down"), *bad)

    async def during(_ctx: Any, message: Message[Any]) -> None:
        if text_of(message) in bad:
            clock.advance(SECOND)  # the others are due again

    stage.during = during
    async with handing_over(stage, database_url, clock) as (_backend, relay):
        await got(stage, relay, set(names) - bad)
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


async def test_one_that_fails_behind_another_is_put_aside_at_once_and_its_attempts_are_counted(
    database_url: str,
) -> None:
    stage, clock, slow = staged(on_failure="halt_key"), TestClock(), Slow("a1")
    stage.during, stage.fails = slow.during, failing(no, "b1")
    async with handing_over(stage, database_url, clock) as (backend, relay):
        await stage.insert(backend, *of("a1", "b1", "b2", "c1"))
        await halted(backend, relay, "halted", "waiting")
        await got(stage, relay, ["c1"])
        stage.fails = failing(no)
        clock.advance(TEN)
        await got(stage, relay, ["b1", "b2", "c1"])
        assert [one.attempt for one in stage.got if text_of(one) == "b1"] == [2]
        slow.ends.set()
        await got(stage, relay, ["a1", "b1", "b2", "c1"])
    async with relaying(stage.app, database_url, clock) as (backend, relay):
        await relay.drain()
        assert (len(stage.tried), (await outbox_row(backend)).delivered) == (5, 4)


async def test_those_that_wait_are_not_looked_for_while_one_of_their_key_halts(database_url: str) -> None:
    stage = staged(on_failure="halt_key")
    stage.fails = failing(no, "x1")
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
        stage.fails = failing(no)
        await drain(test, TEN)
        assert (stage.texts(), len(looks) > 0) == (["x1", "x2", "x3", "x4"], True)


async def test_a_failed_older_row_behind_one_that_takes_long_is_put_aside_after_that(database_url: str) -> None:
    await older(database_url, *of("a1", "b1", "c1"))
    stage, clock, slow = staged(on_failure="halt_key", start="beginning"), TestClock(seed=5000), Slow("a1")
    stage.during, stage.fails = slow.during, failing(no, "b1")
    async with handing_over(stage, database_url, clock) as (backend, relay):
        await soon(relay, lambda: len(stage.tried) == 2)
        clock.advance(SECOND)
        await looked(relay)
        assert (await states(backend), stage.texts()) == ([], [])
        slow.ends.set()
        await halted(backend, relay, "halted")
        await got(stage, relay, ["a1", "c1"])
        stage.fails = failing(no)
        clock.advance(TEN)
        await got(stage, relay, ["a1", "c1", "b1"])


async def test_what_is_tried_again_and_what_flows_have_every_other_place(database_url: str) -> None:
    stage, clock = staged(on_failure="halt_key"), TestClock()
    a1, b1 = Slow("a1"), Slow("b1")
    failed, others = [f"x{number}" for number in range(4)], [f"c{number}" for number in range(8)]
    stage.fails = failing(no, *failed)
    async with handing_over(stage, database_url, clock) as (backend, relay):
        await stage.insert(backend, *apart(*failed))
        await halted(backend, relay, *["halted"] * 4)
        stage.fails, stage.during = failing(no), each(a1, b1)
        await stage.insert(backend, *of("a1", "b1"))
        await soon(relay, lambda: a1.begun.is_set() and b1.begun.is_set())
        await stage.insert(backend, *apart(*others))
        clock.advance(TEN)
        await looked(relay)
        b1.ends.set()
        await got(stage, relay, ["b1", *failed, *others])
        assert "".join(text_of(one)[0] for one in stage.got[1:5]) in {"cxcx", "xcxc"}
        a1.ends.set()
        await got(stage, relay, ["a1", "b1", *failed, *others])


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


@pytest.mark.parametrize("bound", ["messages", "bytes"])
async def test_others_go_past_one_that_takes_long_until_so_much_is_behind_it(
    database_url: str, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(window, *(("_SPAN", 10) if bound == "messages" else ("_BYTES", 1000)))
    stage, clock, slow = staged(), TestClock(), Slow("a1")
    stage.during = slow.during
    others = [f"b{number}" for number in range(20 if bound == "messages" else 5)]
    passing = others[:9] if bound == "messages" else others[:4]
    async with handing_over(stage, database_url, clock) as (backend, relay):
        await stage.insert(backend, *of("a1"))
        await soon(relay, slow.begun.is_set)
        if bound == "messages":
            await stage.insert(backend, *apart(*others))
        else:
            for few, pad in ((others[:2], ""), (others[2:4], "." * 500)):
                await stage.insert(backend, *apart(*few, pad=pad))
                await got(stage, relay, others[: others.index(few[1]) + 1])
            await stage.insert(backend, *apart(others[4]))
        await got(stage, relay, passing)
        await looked(relay)
        assert sorted(map(text_of, stage.got)) == passing
        slow.ends.set()
        await got(stage, relay, ["a1", *others])


async def test_an_outbox_that_is_paused_while_one_takes_long_begins_nothing_more(database_url: str) -> None:
    stage, clock, slow = staged(), TestClock(), Slow("a1")
    stage.during = slow.during
    async with handing_over(stage, database_url, clock) as (backend, relay):
        await stage.insert(backend, *of("a1", "b1"))
        await got(stage, relay, ["b1"])
        await stage.app.outboxes.pause(backend, "send")
        clock.advance(TEN)
        await looked(relay)
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


async def test_a_relay_that_loses_its_lease_while_some_are_under_way_begins_no_more(database_url: str) -> None:
    stage, clock, slow = staged(), TestClock(), Slow("a1")
    stage.during = slow.during
    async with handing_over(stage, database_url, clock) as (backend, relay):
        await stage.insert(backend, *of("a1", "b1", "a2"))
        await got(stage, relay, ["b1"])
        with suppress(asyncio.CancelledError):
            await asyncio.create_task(relay.outboxes[0].interrupt())
        await got(stage, relay, ["b1"])
        slow.ends.set()
        await got(stage, relay, ["b1", "a1", "a2"])
        assert len(stage.tried) == 4, "the one that was under way was cut, and was tried again"


async def test_one_sent_behind_another_is_not_in_a_batch_later(database_url: str) -> None:
    clock, slow = TestClock(), Slow("a1")
    stage, batches = staged(), OutboxStage(Item)
    stage.during = slow.during
    batches.outbox(Item, partition_by="lane", batch=10, start="end")
    async with relaying(stage.app, database_url, clock, grace=0.05) as (backend, relay):
        await relay.tick()
        relay.start()
        await stage.insert(backend, *of("a1", "b1"))
        await got(stage, relay, ["b1"])
        await stage.insert(backend, *of("a2"))
        await relay.stop()
    async with batches.open(database_url, clock=clock) as test:
        await drain(test, TEN)
        await drain(test, TEN)
        assert (batches.texts(), (await outbox_row(test)).passed) == (["a1", "a2"], frozenset())


# ----- writes that fail


async def test_a_database_that_is_away_for_a_moment_keeps_nobody_waiting_for_one_that_takes_long(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    stage, clock, slow = staged(), TestClock(), Slow("a1")
    stage.during = slow.during
    async with handing_over(stage, database_url, clock) as (backend, relay):
        await stage.insert(backend, *of("a1", "b1"))
        await got(stage, relay, ["b1"])
        with caplog.at_level(logging.WARNING, "penstock"):
            failed = fail_once(backend, DatabaseUnavailable("for a moment"))
            clock.advance(SECOND)
            await soon(relay, failed.is_set)
        await stage.insert(backend, *of("b2", "c1", "d1"))
        clock.advance(SECOND)
        await got(stage, relay, ["b1", "b2", "c1", "d1"])

        async def is_written() -> bool:
            clock.advance(SECOND)
            return (await outbox_row(backend)).delivered == 4

        await soon(relay, is_written)
        slow.ends.set()
        await got(stage, relay, ["a1", "b1", "b2", "c1", "d1"])
    assert len(stage.tried) == 5
    assert "outbox.tick_failed" in caplog.text, "it is told of"


async def test_nothing_begins_while_nobody_knows_what_is_written(database_url: str) -> None:
    stage, clock, a1, b1 = staged(parallelism=3), TestClock(), Slow("a1"), Slow("b1")
    stage.during = each(a1, b1)
    async with handing_over(stage, database_url, clock) as (backend, relay):
        await stage.insert(backend, *of("a1", "b1", "b2", "c1"))
        await got(stage, relay, ["c1"])
        failed, standing = fail_once(backend, UNCERTAIN, written=True), relay.outboxes[0]._cursor
        clock.advance(SECOND)
        await soon(relay, failed.is_set)
        b1.ends.set()
        await got(stage, relay, ["b1", "c1"])
        await looked(relay)
        assert (len(stage.tried), standing.state.uncertain) == (3, True)
        await got(stage, relay, ["b1", "b2", "c1"], clock)
        a1.ends.set()
        await got(stage, relay, ["a1", "b1", "b2", "c1"])
    assert len(stage.tried) == 4
