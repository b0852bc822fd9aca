"""The care of the change feed: its room while writers write, readers that stop, interests that do not capture."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from conformance.outboxes import PLAN
from conformance.taskbench import SPEC, task_plan
from stage.databases import connected
from stage.examples import examples
from stage.feed import ENTRIES, NOW, Reader, entry, feed, told, write

from penstock import App
from penstock.changes import rotation
from penstock.changes.interest import Interest
from penstock.changes.lag import LARGE
from penstock.changes.position import BEGINNING
from penstock.clock import SystemClock
from penstock.services.feed_watch import FeedWatch
from penstock.services.pruner import FeedTruncation, Pruner
from penstock.store.session import Statement
from penstock.store.store import Store
from penstock.testing import TestApp, TestClock

WRITERS, ROWS = 4, examples(3000)
MINUTE = timedelta(minutes=1)


def events(caplog: pytest.LogCaptureFixture, name: str) -> list[dict[str, Any]]:
    """The facts of events of one name, with their levels; they are forgotten."""
    found = [
        {"level": record.levelname, **record.facts}  # type: ignore[attr-defined]
        for record in caplog.records
        if getattr(record, "event", None) == name
    ]
    caplog.clear()
    return found


async def test_the_database_of_a_test_is_not_taken_for_one_that_was_restored(postgres_url: str) -> None:
    """Its tables are copied; whoever read its feed first would lock it, and write it anew, beside all other tests."""
    async with connected(postgres_url) as connection:
        assert await connection.fetchval("select origin = penstock.origin() from penstock.change_slot")


# ----- room


async def test_the_room_stays_bounded_while_readers_pass_and_nothing_unread_is_lost(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotation, "SLOT_BYTES", 2**15)
    monkeypatch.setattr("penstock.services.pruner._TRUNCATED_AT_ONCE", 100)
    async with feed(database_url) as store:
        lease = await store.leases.take("reader", timedelta(hours=1), NOW)
        reader, room = Reader(store, lease, 200), FeedTruncation(store.changes, SystemClock())
        kept_rows = [0]

        async def care() -> None:
            while not await reader.step():
                pass
            await room.look()
            kept_rows.append((await store.changes.lag(BEGINNING, 1_000_000)).rows)

        await while_writing(store, 0, care)
        await care()
        expected = {f"{number}.{n}" for number in range(WRITERS) for n in range(ROWS)}
        assert {".".join(map(str, one.key_values())) for one in reader.changes} == expected
        assert len(reader.changes) == len(expected)
        assert 0 < max(kept_rows) < WRITERS * ROWS / 2, "a part of what was written"

        await store.changes.register("slow", NOW)
        (slow,) = [row for row in await store.changes.readers() if row.name == "slow"]
        await while_writing(store, WRITERS, care)
        await care()
        kept = await store.changes.read(slow.position, 100_000)
        assert len(kept.changes) == len(set(told(kept))) == WRITERS * ROWS, "all is kept for who has not read it"
        assert kept_rows[-1] >= WRITERS * ROWS
        await store.changes.forget("slow")
        for _ in range(WRITERS * ROWS // 100 + 1):
            await care()
        assert kept_rows[-1] < WRITERS * ROWS / 4


async def while_writing(store: Store, first: int, care: Any) -> None:
    """Let writers write, and look after the feed beside them."""
    writing = [asyncio.create_task(write_many(store, first + number)) for number in range(WRITERS)]
    while not all(task.done() for task in writing):
        await care()
    await asyncio.gather(*writing)


async def write_many(store: Store, writer: int) -> None:
    """Write rows, ten in a transaction."""
    for n in range(0, ROWS, 10):
        await write(store, *(entry(writer, n + step) for step in range(10)))


async def test_who_has_nothing_to_empty_looks_rarely(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock")
    async with feed(database_url) as store:
        room = FeedTruncation(store.changes, SystemClock())
        assert [await room.look() for _ in range(3)] == [rotation.LATEST] * 3
        assert not events(caplog, "changes.rotated")
        await write(store, entry(1, 1))
        lease = await store.leases.take("reader", timedelta(hours=1), NOW)
        await Reader(store, lease, 10).step()
        clock = TestClock(SystemClock().now() + timedelta(hours=2))
        room = FeedTruncation(store.changes, clock)
        told_of = []
        for _ in range(3):
            await room.look()
            told_of += events(caplog, "changes.rotated")
        assert sum(one["emptied"] for one in told_of) == 1
        assert (await store.changes.read(BEGINNING, 10)).changes == []


# ----- the pruner

app = OPENED = App()


@asynccontextmanager
async def pruned(url: str, **settings: Any) -> AsyncIterator[tuple[TestApp, Pruner]]:
    """A backend with a captured table, a reader of it, and a pruner that was not started."""
    async with TestApp(app, url, clock=TestClock(SystemClock().now()), **settings) as backend:
        store = backend.engine.store
        await write(store, "create table entry (writer integer, n integer, saw text, primary key (writer, n))")
        await store.interests.declare([ENTRIES], backend.clock.now())
        pruner = backend.make_service("pruner")
        assert isinstance(pruner, Pruner)
        yield backend, pruner


async def test_a_part_that_fails_keeps_no_other_from_its_time(
    database_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with pruned(database_url) as (backend, _):
        looked: list[str] = []

        async def fail(self: Any) -> float:
            looked.append("room")
            raise RuntimeError("no room")

        async def look(self: Any) -> float:
            looked.append("watch")
            return 60.0

        monkeypatch.setattr(FeedTruncation, "look", fail)
        monkeypatch.setattr(FeedWatch, "look", look)
        pruner = backend.make_service("pruner")
        with pytest.raises(RuntimeError, match="no room"):
            await pruner.tick()
        assert 0 < await pruner._safe_tick() <= 5
        assert looked == ["room", "watch"], "the signal that comes with each job hurries nothing"
        backend.clock.advance(timedelta(seconds=5))
        with pytest.raises(RuntimeError, match="no room"):
            await pruner.tick()
        assert looked == ["room", "watch", "room"], "what has failed is tried again, the others have their time"
        backend.clock.advance(MINUTE)
        assert 0 < await pruner._safe_tick() <= 5
        assert looked[3:] == ["room", "watch"]
        assert [one["error"] for one in events(caplog, "pruner.tick_failed")] == ["RuntimeError: no room"]


async def test_a_signal_alone_makes_no_look(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pruned(database_url) as (backend, pruner):
        assert 0 < await pruner.tick() <= rotation.LATEST
        looks: list[Any] = []

        async def tick(self: Any) -> float:
            looks.append(self)
            return 1.0

        monkeypatch.setattr(Pruner, "tick", tick)
        assert 0 < await pruner._safe_tick() <= rotation.LATEST
        assert looks == []
        backend.clock.advance(MINUTE)
        assert await pruner._safe_tick() == 1.0
        assert len(looks) == 1


# ----- readers


async def test_a_reader_that_has_stopped_is_told_of_once(
    database_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with pruned(database_url) as (backend, pruner):
        store = backend.engine.store
        assert await store.changes.register("mail", backend.clock.now())
        await write(store, entry(1, 1), entry(1, 2))
        await pruner.tick()
        assert not events(caplog, "changes.reader_behind"), "it may still come"
        backend.clock.advance(2 * MINUTE)
        await pruner.tick()
        (found,) = events(caplog, "changes.reader_behind")
        assert (found["level"], found["reader"], found["rows"], found["stopped"]) == ("WARNING", "mail", 2, True)
        assert 60 <= found["seconds"] <= 130
        assert found["bytes"] > 0
        assert "penstock changes drop mail" in found["fix"]
        backend.clock.advance(2 * MINUTE)
        await pruner.tick()
        assert not events(caplog, "changes.reader_behind")
        monkeypatch.setattr("penstock.changes.lag.FULL", 1)
        backend.clock.advance(2 * MINUTE)
        await pruner.tick()
        assert [one["level"] for one in events(caplog, "changes.reader_behind")] == ["ERROR"]
        backend.clock.advance(timedelta(hours=1))
        await pruner.tick()
        assert [one["level"] for one in events(caplog, "changes.reader_behind")] == ["ERROR"], "a reminder"
        caplog.set_level(logging.INFO, "penstock")
        await store.changes.place("mail", backend.clock.now())
        backend.clock.advance(2 * MINUTE)
        await pruner.tick()
        assert [one["reader"] for one in events(caplog, "changes.reader_caught_up")] == ["mail"]
        await store.changes.forget("mail")
        backend.clock.advance(2 * MINUTE)
        await pruner.tick()
        assert not events(caplog, "changes.reader_behind")


def test_a_feed_that_readers_pass_is_never_large() -> None:
    assert LARGE >= 2 * 4 * rotation.SLOT_BYTES


# ----- interests


async def test_an_interest_that_does_not_capture_is_told_of_and_mended(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with pruned(database_url, metrics_token="t") as (backend, pruner):
        store = backend.engine.store
        assert backend.engine.journal.meters is not None
        gauge = backend.engine.journal.meters.gauges["penstock_interests_broken"]
        await pruner.tick()
        assert (events(caplog, "changes.interest_broken"), gauge()) == ([], {})
        (row,) = await store.interests.list()
        on = " on entry" if store.dialect.schemas else ""
        await write(store, f"drop trigger _penstock_change_{row.id}_insert{on}", entry(1, 1))
        backend.clock.advance(MINUTE)
        await pruner.tick()
        (found,) = events(caplog, "changes.interest_broken")
        assert (found["level"], found["table"], found["state"], found["mended"]) == ("ERROR", "entry", "missing", True)
        assert found["interest"] == ENTRIES.name
        assert gauge() == {}
        await write(store, entry(1, 2))
        kinds = [one.kind for one in (await store.changes.read(BEGINNING, 10)).changes]
        assert kinds == ["lost", "enter"], "who reads it knows that there is a gap, and looks at the table"
        await write(store, "drop table entry")
        for _ in range(3):
            backend.clock.advance(MINUTE)
            await pruner.tick()
        (found,) = events(caplog, "changes.interest_broken")
        assert (found["state"], found["mended"]) == ("gone", False)
        assert gauge() == {"gone": 1}


async def test_one_that_cannot_be_mended_is_told_of_with_its_reason(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with pruned(database_url) as (backend, pruner):
        store = backend.engine.store
        await write(store, "alter table entry rename column saw to seen")
        for _ in range(4):
            await pruner.tick()
            backend.clock.advance(MINUTE)
        (found,) = events(caplog, "changes.interest_broken")
        assert (found["state"], found["mended"]) == ("altered", False)
        assert "no column saw" in str(found["error"])
        await write(store, "alter table entry rename column seen to saw")
        await write(store, entry(3, 3))
        for _ in range(3):
            await pruner.tick()
            backend.clock.advance(MINUTE)
        assert [row.state for row in await store.interests.list()] == ["ok"]


async def test_tasks_and_outboxes_without_an_interest_are_told_of(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with pruned(database_url) as (backend, pruner):
        store, now = backend.engine.store, backend.clock.now()
        (number,) = [row.id for row in await store.interests.list()]
        fine = replace(ENTRIES, name="task:fine")
        plans = [task_plan("deaf"), task_plan("fine", spec=replace(SPEC, interest=fine.digest))]
        await store.tasks.declare([*plans, task_plan("other")], now)
        other = replace(ENTRIES, name="task:other")  # which another release of the task has declared
        await store.interests.declare([fine, other], now)
        (task,) = [row for row in await store.tasks.list() if row.plan.name == "other"]
        assert task.interests
        assert task.plan.spec.interest != other.digest
        for name, numbers in (("deaf", [number + 9]), ("fine", [number, number + 9]), ("topic", [-1])):
            row = await store.outboxes.declare(replace(PLAN, name=name), None, now)
            await store.outboxes.capture(row.id, numbers)
            await store.outboxes.note_prepared(row.id)
        await store.outboxes.declare(replace(PLAN, name="not yet"), None, now)
        told = []
        for _ in range(4):
            await pruner.tick()
            told.append([(one["level"], one["reader"]) for one in events(caplog, "changes.no_interest")])
            backend.clock.advance(MINUTE)
        assert told == [[], [("ERROR", "task:deaf"), ("ERROR", "task:other"), ("ERROR", "outbox:deaf")], [], []]


async def test_mending_waits_for_nobody(postgres_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with pruned(postgres_url) as (backend, pruner):
        store = backend.engine.store
        (row,) = await store.interests.list()
        await write(store, f"alter table entry disable trigger _penstock_change_{row.id}_insert")
        other = await asyncpg.connect(postgres_url)
        try:
            await other.execute("begin; select * from entry")
            begun = SystemClock().monotonic()
            await pruner.tick()
            assert SystemClock().monotonic() - begun < 20, "statements of others wait for 27 seconds"
            assert not events(caplog, "changes.interest_broken"), "it may be that it is being declared"
            backend.clock.advance(MINUTE)
            await pruner.tick()
            (found,) = events(caplog, "changes.interest_broken")
            assert (found["state"], found["mended"]) == ("disabled", False)
            assert found["error"].startswith("DatabaseBusy: ")
            await other.execute("commit")
        finally:
            await other.close()
        backend.clock.advance(MINUTE)
        await pruner.tick()
        (found,) = events(caplog, "changes.interest_broken")
        assert (found["state"], found["mended"]) == ("disabled", True)
        assert [one.state for one in await store.interests.list()] == ["ok"]


async def test_one_that_is_being_declared_is_no_alarm(postgres_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with pruned(postgres_url) as (backend, pruner):
        other = await asyncpg.connect(postgres_url)
        try:
            await other.execute("begin; lock table entry in share mode")
            second = Interest(name="second", table="entry", key=["writer", "n"])
            declaring = asyncio.create_task(backend.engine.store.interests.declare([second], backend.clock.now()))
            while await other.fetchval("select count(*) from penstock.interest") < 2:
                await SystemClock().sleep(0)
            await pruner.tick()
            assert not events(caplog, "changes.interest_broken")
            await other.execute("commit")
            await declaring
        finally:
            await other.close()
        backend.clock.advance(MINUTE)
        await pruner.tick()
        assert not events(caplog, "changes.interest_broken")
        session = await backend.engine.store.begin_read()
        assert not await session.fetch(Statement("select 1 from penstock.change"))
        await session.rollback()
