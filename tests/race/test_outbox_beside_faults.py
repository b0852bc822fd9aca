"""What befalls messages that are under way beside each other: writes that fail, or of which nobody knows, restarts
while one is put aside behind another, and changes by others. Nothing is lost, sent twice, or comes after later ones.
"""

from __future__ import annotations

import logging
from contextlib import suppress

import pytest
from stage.outboxes import OutboxStage, drain, failing, outbox_row, relaying, run_sql
from stage.reactive import Stage
from stage.windows import (
    SECOND,
    TEN,
    Item,
    Slow,
    each,
    fail_once,
    got,
    halted,
    handing_over,
    is_set,
    looked,
    of,
    soon,
    staged,
)

from penstock import Retry
from penstock.errors import DatabaseUnavailable
from penstock.testing import TestClock, raising

UNCERTAIN = DatabaseUnavailable("lost during the commit", uncertain=True)


async def failed_behind(stage: OutboxStage, url: str, clock: TestClock) -> None:
    """A relay that stops while `a1` takes long, with `b1` put aside behind it; it is due."""
    stage.during = Slow("a1").during
    stage.fails = failing(lambda: ValueError("no"), "b1")
    async with relaying(stage.app, url, clock, grace=0.05) as (backend, relay):
        await relay.tick()
        relay.start()
        await stage.insert(backend, *of("a1", "b1"))
        await halted(backend, relay, "halted")
        await relay.stop()
    stage.fails = lambda _message: None
    clock.advance(TEN)


# ----- put aside behind one that takes long


async def test_those_behind_a_parked_one_are_handed_over_beside_one_that_takes_long(database_url: str) -> None:
    retry = Retry.fixed(SECOND, max_attempts=1, jitter=0)
    stage, clock, a1, k1 = staged(on_failure="park", retry=retry), TestClock(), Slow("a1"), Slow("k1")
    stage.fails = failing(lambda: ValueError("no"), "k1")
    async with handing_over(stage, database_url, clock) as (backend, relay):
        await stage.insert(backend, *of("k1"))
        await halted(backend, relay, "parked")
        stage.fails, stage.during = lambda _message: None, each(a1, k1)
        await stage.app.outboxes.retry(backend, "send")
        clock.advance(SECOND)
        await soon(relay, is_set(k1.begun))
        await stage.insert(backend, *of("a1", "k2"))  # which is put aside behind it
        await soon(relay, is_set(a1.begun))
        await halted(backend, relay, "waiting", "waiting")
        k1.ends.set()
        clock.advance(SECOND)
        await got(stage, relay, ["k1", "k2"])
        a1.ends.set()
        await got(stage, relay, ["k1", "k2", "a1"])


async def test_behind_a_truncate_messages_go_beside_each_other(postgres_url: str) -> None:
    stage, clock, slow = staged(on=("insert", "truncate")), TestClock(), Slow("a1")
    stage.during = slow.during
    async with relaying(stage.app, postgres_url, clock) as (backend, relay):
        await run_sql(postgres_url, "truncate item")
        await stage.insert(backend, *of("a1", "b1", "c1"))
        await relay.tick()
        relay.start()
        await got(stage, relay, ["truncate", "b1", "c1"])
        slow.ends.set()
        await got(stage, relay, ["truncate", "b1", "c1", "a1"])
        await relay.stop()


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
            await soon(relay, is_set(failed))
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
        await soon(relay, is_set(failed))
        b1.ends.set()
        await got(stage, relay, ["b1", "c1"])
        await looked(relay)
        assert (len(stage.tried), standing.state.uncertain) == (3, True)
        await got(stage, relay, ["b1", "b2", "c1"], clock)
        a1.ends.set()
        await got(stage, relay, ["a1", "b1", "b2", "c1"])
    assert len(stage.tried) == 4


async def test_what_nobody_knows_is_written_again_though_there_is_no_more_to_write(database_url: str) -> None:
    stage, clock = staged(on_failure="halt_key"), TestClock()
    await failed_behind(stage, database_url, clock)
    b1 = Slow("b1")
    stage.during = b1.during
    async with handing_over(stage, database_url, clock) as (backend, relay):
        await soon(relay, is_set(b1.begun))
        await got(stage, relay, ["a1"])
        await halted(backend, relay, "halted")
        relay.outboxes[0]._cursor.doubt()  # as if only the reader had moved, and nobody knew where it is
        await stage.insert(backend, *of("c1"))
        await got(stage, relay, ["a1", "c1"], clock)
        b1.ends.set()
        await got(stage, relay, ["a1", "b1", "c1"])


async def test_a_relay_that_stops_when_others_have_just_changed_its_outbox_has_written_what_it_sent(
    database_url: str,
) -> None:
    stage, clock, slow = staged(), TestClock(), Slow("a1")
    stage.during = slow.during
    async with relaying(stage.app, database_url, clock, grace=0.05) as (backend, relay):
        await relay.tick()
        relay.start()
        await stage.insert(backend, *of("a1", "b1"))
        await got(stage, relay, ["b1"])
        await backend.engine.store.outboxes.pause("send", paused=True)
        await backend.engine.store.outboxes.pause("send", paused=False)
        standing = relay.outboxes[0]._cursor

        async def is_lost() -> bool:
            clock.advance(SECOND / 2)
            return standing.state.row is None

        await soon(relay, is_lost)
        await relay.stop()
        assert (await outbox_row(backend)).delivered == 1
    slow.ends.set()
    async with stage.open(database_url, clock=clock) as test:
        await drain(test, TEN)
        assert stage.texts() == ["b1", "a1"]


@pytest.mark.parametrize("moment", ["commit.before", "commit.after"])
@pytest.mark.parametrize("source", ["older", "aside"])
async def test_a_mutation_whose_commit_nobody_knows_of_is_there_once_of_older_rows_and_from_aside(
    database_url: str, source: str, moment: str
) -> None:
    before = Stage(Item)
    async with before.open(database_url) as test:
        await before.insert(test, *of("a1", "b1") if source == "older" else ())
    stage, clock = OutboxStage(Item), TestClock(seed=5000)
    stage.outbox(Item, mutation=True, partition_by="lane", on_failure="halt_key", retry=Retry.fixed(TEN, jitter=0))
    async with stage.open(database_url, clock=clock) as test:
        if source == "aside":
            stage.fails = failing(lambda: ValueError("no"), "a1")
            await drain(test)
            await stage.insert(test, *of("a1", "b1"))
            await drain(test)
            stage.fails = lambda _message: None
            clock.advance(TEN)
        with raising(moment, UNCERTAIN), suppress(DatabaseUnavailable):
            await drain(test)
        await drain(test)
        assert sorted(await stage.written(test)) == ["a1", "b1"]
        assert (await outbox_row(test)).delivered == 2
