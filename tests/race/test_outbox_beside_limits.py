"""What goes beside each other and what does not: how far others go past one that takes long, whose turn it is, and what
is sent behind the first one that is not done with, however it comes up again.
"""

from __future__ import annotations

import pytest
from stage.outboxes import OutboxStage, drain, failing, outbox_row, relaying, states, text_of
from stage.reactive import Stage
from stage.windows import SECOND, TEN, Item, Slow, each, got, halted, handing_over, is_set, looked, of, soon, staged

from penstock import Index, Table
from penstock.services.relay import window
from penstock.testing import TestClock


class Shelf(Table):
    note: str = ""
    lane: str = "a"
    place: int = 0

    by_place = Index("place")


def apart(*notes: str, pad: str = "") -> list[Item]:
    """Items each of a lane of its own."""
    return [Item(note=note, lane=note + pad) for note in notes]


# ----- how far others go past one that takes long


async def test_others_go_past_one_that_takes_long_until_so_many_are_behind_it(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window, "_SPAN", 10)
    stage, clock, slow = staged(), TestClock(), Slow("a1")
    stage.during = slow.during
    others = [f"b{number}" for number in range(20)]
    async with handing_over(stage, database_url, clock) as (backend, relay):
        await stage.insert(backend, *of("a1"))
        await soon(relay, is_set(slow.begun))
        await stage.insert(backend, *apart(*others))
        await got(stage, relay, others[:9])
        await looked(relay)
        assert sorted(map(text_of, stage.got)) == others[:9]
        slow.ends.set()
        await got(stage, relay, ["a1", *others])


async def test_others_go_past_one_that_takes_long_until_so_much_is_behind_it(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window, "_BYTES", 1000)
    stage, clock, slow = staged(), TestClock(), Slow("a1")
    stage.during = slow.during
    async with handing_over(stage, database_url, clock) as (backend, relay):
        await stage.insert(backend, *of("a1"))
        await soon(relay, is_set(slow.begun))
        await stage.insert(backend, *apart("b1", "b2"))
        await got(stage, relay, ["b1", "b2"])
        await stage.insert(backend, *apart("c1", "c2", pad="." * 500))
        await got(stage, relay, ["b1", "b2", "c1", "c2"])
        await stage.insert(backend, *apart("d1"))
        await looked(relay)
        assert len(stage.got) == 4
        slow.ends.set()
        await got(stage, relay, ["a1", "b1", "b2", "c1", "c2", "d1"])


async def test_a_failed_older_row_behind_one_that_takes_long_is_put_aside_after_that(database_url: str) -> None:
    before = Stage(Item)
    async with before.open(database_url) as test:
        await before.insert(test, *of("a1", "b1", "c1"))
    stage, clock, slow = staged(on_failure="halt_key", start="beginning"), TestClock(seed=5000), Slow("a1")
    stage.during = slow.during
    stage.fails = failing(lambda: ValueError("no"), "b1")
    async with handing_over(stage, database_url, clock) as (backend, relay):

        async def has_failed() -> bool:
            return len(stage.tried) == 2

        await soon(relay, has_failed)
        clock.advance(SECOND)
        await looked(relay)
        assert (await states(backend), stage.texts()) == ([], [])
        slow.ends.set()
        await halted(backend, relay, "halted")
        await got(stage, relay, ["a1", "c1"])
        stage.fails = lambda _message: None
        clock.advance(TEN)
        await got(stage, relay, ["a1", "c1", "b1"])


# ----- whose turn it is


async def test_what_is_tried_again_and_what_flows_have_every_other_place(database_url: str) -> None:
    stage, clock = staged(on_failure="halt_key"), TestClock()
    a1, b1 = Slow("a1"), Slow("b1")
    failed = [f"x{number}" for number in range(4)]
    stage.fails = failing(lambda: ValueError("no"), *failed)
    async with handing_over(stage, database_url, clock) as (backend, relay):
        await stage.insert(backend, *apart(*failed))
        await halted(backend, relay, *["halted"] * 4)
        stage.fails, stage.during = lambda _message: None, each(a1, b1)
        await stage.insert(backend, *of("a1", "b1"))
        await soon(relay, is_set(a1.begun))
        await soon(relay, is_set(b1.begun))
        others = [f"c{number}" for number in range(8)]
        await stage.insert(backend, *apart(*others))
        clock.advance(TEN)
        await looked(relay)
        b1.ends.set()
        await got(stage, relay, ["b1", *failed, *others])
        assert "".join(text_of(one)[0] for one in stage.got[1:5]) in {"cxcx", "xcxc"}
        a1.ends.set()
        await got(stage, relay, ["a1", "b1", *failed, *others])


# ----- sent behind the first one


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


async def test_an_older_row_sent_behind_another_and_then_moved_comes_once(database_url: str) -> None:
    before = Stage(Shelf)
    async with before.open(database_url) as test:
        rows = [Shelf(note="a1", lane="a", place=1), Shelf(note="b1", lane="b", place=2)]
        _, moved = await before.insert(test, *rows)
    stage, clock, slow = OutboxStage(Shelf), TestClock(seed=5000), Slow("a1")
    stage.outbox(Shelf, partition_by="lane", parallelism=2, order_by="place")
    stage.during = slow.during
    async with relaying(stage.app, database_url, clock, grace=0.05) as (_backend, relay):
        await relay.tick()
        relay.start()
        await got(stage, relay, ["b1"])
        await relay.stop()
    slow.ends.set()
    async with stage.open(database_url, clock=clock) as test:
        await stage.patch(test, Shelf, moved, place=9)
        await drain(test, TEN)
        await drain(test, TEN)
        assert stage.texts() == ["b1", "a1"]
