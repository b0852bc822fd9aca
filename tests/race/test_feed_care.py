"""The care of the change feed: its room while writers write, readers that stop, interests that do not capture."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from conformance.outboxes import PLAN
from conformance.taskbench import SPEC, task_plan
from stage.databases import connected
from stage.feed import ENTRIES, NOW, Reader, entry, feed, told, write
from stage.needs import examples

from penstock import App
from penstock.api.holding import held
from penstock.changes import rotation
from penstock.changes.interest import Interest
from penstock.changes.position import BEGINNING
from penstock.clock import SystemClock
from penstock.errors import ContextError
from penstock.services.feed_watch import FeedWatch
from penstock.services.pruner import FeedTruncation, Pruner
from penstock.store.store import Store
from penstock.testing import TestApp, TestClock

WRITERS, ROWS = 4, examples(1500)
MINUTE = timedelta(minutes=1)


def events(caplog: pytest.LogCaptureFixture, name: str) -> list[dict[str, Any]]:
    """The facts of events of one name, with their levels; they are forgotten."""
    found = [
        {"level": record.levelname, **vars(record)["facts"]}
        for record in caplog.records
        if getattr(record, "event", None) == name
    ]
    caplog.clear()
    return found


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
    """Let writers write rows, ten in a transaction, and look after the feed beside them."""

    async def write_many(writer: int) -> None:
        for n in range(0, ROWS, 10):
            await write(store, *(entry(writer, n + step) for step in range(10)))

    writing = [asyncio.create_task(write_many(first + number)) for number in range(WRITERS)]
    while not all(task.done() for task in writing):
        await care()
    await asyncio.gather(*writing)


# ----- the pruner

app = OPENED = App()


class Care:
    """A backend with a captured table, a reader of it, and a pruner that was not started."""

    def __init__(self, test: TestApp, pruner: Pruner, caplog: pytest.LogCaptureFixture) -> None:
        self.test, self.pruner, self.store = test, pruner, test.engine.store
        self._caplog = caplog

    async def tells(self, event: str, passing: timedelta = MINUTE, times: int = 1) -> list[dict[str, Any]]:
        """What is told once a time has passed."""
        for _ in range(times):
            self.test.clock.advance(passing)
            await self.pruner.tick()
        return events(self._caplog, event)

    async def broken(self, times: int = 1) -> list[tuple[str, bool]]:
        """The states of interests that are told to be broken, and whether they were mended."""
        told = await self.tells("changes.interest_broken", times=times)
        assert all((one["table"], one["interest"]) == ("entry", ENTRIES.name) for one in told)
        return [(one["state"], one["mended"]) for one in told]

    async def states(self) -> list[str]:
        return [row.state for row in await self.store.interests.list()]


@pytest.fixture
def pruned(caplog: pytest.LogCaptureFixture) -> Any:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Care]:
        async with TestApp(app, url, clock=TestClock(SystemClock().now()), metrics_token="t") as test:
            await write(
                test.engine.store, "create table entry (writer integer, n integer, saw text, primary key (writer, n))"
            )
            await test.engine.store.interests.declare([ENTRIES], test.clock.now())
            pruner = test.make_service("pruner")
            assert isinstance(pruner, Pruner)
            yield Care(test, pruner, caplog)

    return opened


async def test_a_reader_that_has_stopped_is_told_of_once(
    database_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, pruned: Any
) -> None:
    async with pruned(database_url) as care:
        changes, clock = care.store.changes, care.test.clock
        assert await changes.register("mail", clock.now())
        await write(care.store, entry(1, 1), entry(1, 2))
        assert not await care.tells("changes.reader_behind", timedelta(0)), "it may still come"
        (found,) = await care.tells("changes.reader_behind", 2 * MINUTE)
        assert (found["level"], found["reader"], found["rows"], found["stopped"]) == ("WARNING", "mail", 2, True)
        assert 60 <= found["seconds"] <= 130
        assert found["bytes"] > 0
        assert "penstock changes drop mail" in found["fix"]
        assert not await care.tells("changes.reader_behind", 2 * MINUTE)
        monkeypatch.setattr("penstock.changes.lag.FULL", 1)
        for passing in (2 * MINUTE, timedelta(hours=1)):  # then comes a reminder
            assert [one["level"] for one in await care.tells("changes.reader_behind", passing)] == ["ERROR"]
        caplog.set_level(logging.INFO, "penstock")
        await changes.place("mail", clock.now())
        assert [one["reader"] for one in await care.tells("changes.reader_caught_up", 2 * MINUTE)] == ["mail"]
        await changes.forget("mail")
        assert not await care.tells("changes.reader_behind", 2 * MINUTE)


# ----- interests


async def test_tasks_and_outboxes_without_an_interest_are_told_of(database_url: str, pruned: Any) -> None:
    async with pruned(database_url) as care:
        store, now = care.store, care.test.clock.now()
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
        told = [await care.tells("changes.no_interest", passing) for passing in (timedelta(0), MINUTE, MINUTE, MINUTE)]
        found = [[(one["level"], one["reader"]) for one in each] for each in told]
        assert found == [[], [("ERROR", "task:deaf"), ("ERROR", "task:other"), ("ERROR", "outbox:deaf")], [], []]


async def test_mending_waits_for_nobody_and_one_that_is_being_declared_is_no_alarm(
    postgres_url: str, pruned: Any
) -> None:
    async with pruned(postgres_url) as care, connected(postgres_url) as other:
        (row,) = await care.store.interests.list()
        await write(care.store, f"alter table entry disable trigger _penstock_change_{row.id}_insert")
        await other.execute("begin; select * from entry")
        begun = SystemClock().monotonic()
        assert not await care.broken(), "it may be that it is being declared"
        assert SystemClock().monotonic() - begun < 20, "statements of others wait for 27 seconds"
        (found,) = await care.tells("changes.interest_broken")
        assert (found["state"], found["mended"]) == ("disabled", False)
        assert found["error"].startswith("DatabaseBusy: ")
        await other.execute("commit")
        assert await care.broken() == [("disabled", True)]
        assert await care.states() == ["ok"]
        before = len((await care.store.changes.read(BEGINNING, 10)).changes)
        await other.execute("begin; lock table entry in share mode")
        second = Interest(name="second", table="entry", key=["writer", "n"])
        declaring = asyncio.create_task(care.store.interests.declare([second], care.test.clock.now()))
        while await other.fetchval("select count(*) from penstock.interest") < 2:
            await SystemClock().sleep(0)
        assert not await care.broken()
        await other.execute("commit")
        await declaring
        assert not await care.broken()
        assert len((await care.store.changes.read(BEGINNING, 10)).changes) == before


def test_a_hold_on_a_connection_that_commits_each_statement_by_itself_is_refused(database_url: str) -> None:
    file = database_url.removeprefix("sqlite:///")
    if file == database_url:
        connection: Any = psycopg.connect(database_url, autocommit=True)
    else:
        connection = sqlite3.connect(file, isolation_level=None)
    with closing(connection):
        with pytest.raises(ContextError, match="commits each statement by itself"), held(connection, "shop"):
            """Nothing."""
        connection.execute("begin")
        with held(connection, "shop"):
            """Nothing."""
        connection.execute("commit")


async def test_a_signal_makes_no_look_and_a_part_that_fails_keeps_no_other_from_its_time(
    database_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, pruned: Any
) -> None:
    async with pruned(database_url) as care:
        looked: list[str] = []
        assert 0 < await care.pruner.tick() <= rotation.LATEST

        async def fail(self: Any) -> float:
            looked.append("room")
            raise RuntimeError("no room")

        async def look(self: Any) -> float:
            looked.append("watch")
            return 60.0

        monkeypatch.setattr(FeedTruncation, "look", fail)
        monkeypatch.setattr(FeedWatch, "look", look)
        assert 0 < await care.pruner._safe_tick() <= rotation.LATEST
        assert looked == [], "the signal that comes with each job hurries nothing"
        pruner = care.test.make_service("pruner")
        with pytest.raises(RuntimeError, match="no room"):
            await pruner.tick()
        assert 0 < await pruner._safe_tick() <= 5
        assert looked == ["room", "watch"]
        care.test.clock.advance(timedelta(seconds=5))
        with pytest.raises(RuntimeError, match="no room"):
            await pruner.tick()
        assert looked == ["room", "watch", "room"], "what has failed is tried again, the others have their time"
        care.test.clock.advance(MINUTE)
        assert 0 < await pruner._safe_tick() <= 5
        assert looked[3:] == ["room", "watch"]
        assert [one["error"] for one in events(caplog, "pruner.tick_failed")] == ["RuntimeError: no room"]
