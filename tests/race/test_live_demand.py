"""A table is captured while a live query reads it, and no change is missed when capturing begins, ends or lapses."""

from __future__ import annotations

import asyncio
import math
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest
from stage.databases import as_user, connected
from stage.outboxes import run_sql, sql
from stage.processes import Process
from stage.theatre import ROOM, Other, Seat, Theatre, insert
from stage.told import events
from stage.watching import burn, settle, watched

from penstock import MutationCtx, QueryCtx, Table
from penstock.changes.demand import Demands
from penstock.clock import random_of
from penstock.live.entry import Entry
from penstock.services.live.live import LiveQueries
from penstock.testing import TestApp


async def captured(test: TestApp) -> int:
    ((number,),) = await sql(test, f"select count(*) from {_feed(test)}")
    return int(number)


def _feed(test: TestApp) -> str:
    return "penstock_change" if test.config.database.startswith("sqlite") else "penstock.change"


def _answer(entry: Entry) -> Any:
    assert entry.answer is not None
    return entry.answer.result


async def test_writes_of_a_table_that_nobody_watches_are_not_captured(database_url: str) -> None:
    stage = Theatre()
    async with stage.open(database_url) as test:
        (seat,) = await stage.insert(test, Seat())
        await stage.patch(test, Seat, seat, row=1)
        await sql(test, insert("seat_1"), "update seat set row = 2")
        await stage.delete(test, Seat, seat)
        assert await captured(test) == 0
        live, entry = stage.watching(test)
        await settle(live)
        assert (_answer(entry), await captured(test)) == (1, 0)
        await settle(live)
        await sql(test, insert("seat_2"))
        assert await captured(test) == 1
        await settle(live)
        assert _answer(entry) == 2


async def test_a_task_is_captured_whether_or_not_anybody_watches_its_table(database_url: str) -> None:
    stage = Theatre()
    stage.task(Seat)
    async with stage.open(database_url) as test:
        live, entry = stage.watching(test)
        for _ in range(2):
            await stage.insert(test, Seat())
            await test.run_until_idle()
            assert len(stage.taken()) == 1
            await settle(live)
            await settle(live)
        assert _answer(entry) == 2


@pytest.mark.parametrize("how", ["commit", "rollback"])
@pytest.mark.parametrize("level", ["read committed", "serializable"])
async def test_who_wrote_before_a_table_was_watched_and_commits_later_is_seen(
    database_url: str, how: str, level: str
) -> None:
    if database_url.startswith("sqlite"):
        pytest.skip("on SQLite nobody writes while another one does")
    stage = Theatre()
    async with stage.open(database_url) as test, connected(database_url) as first, connected(database_url) as second:
        await first.execute(f"begin isolation level {level}")
        await first.execute(insert("seat_1"))
        live, entry = stage.watching(test)
        await settle(live)
        await second.execute(f"begin isolation level {level}")
        await second.execute(insert("seat_2"))
        await settle(live)
        assert (_answer(entry), await captured(test)) == (0, 0)
        await sql(test, insert("seat_3"))
        await settle(live)
        runs = entry.runs
        await settle(live)
        assert (_answer(entry), entry.runs) == (1, runs)
        await second.execute(how)
        await settle(live)
        assert _answer(entry) == (2 if how == "commit" else 1)
        await first.execute(how)
        await settle(live)
        assert _answer(entry) == (3 if how == "commit" else 1)
        runs = entry.runs
        await settle(live)
        assert entry.runs == runs


async def test_a_transaction_from_before_tells_what_it_writes_later(database_url: str) -> None:
    """The number of a transaction, and not its snapshot, decides whether it is captured."""
    if database_url.startswith("sqlite"):
        pytest.skip("on SQLite nobody writes while another one does")
    stage = Theatre()
    async with stage.open(database_url) as test, connected(database_url) as other:
        await other.execute("begin isolation level serializable")
        await other.execute("select count(*) from seat")
        live, entry = stage.watching(test)
        await settle(live)
        await settle(live)
        await other.execute(insert("seat_1"))
        await other.execute("commit")
        assert await captured(test) == 1
        await settle(live)
        assert _answer(entry) == 1


@pytest.mark.parametrize("write", ["copy", "truncate", "update", "delete"])
async def test_no_way_to_write_is_missed(database_url: str, write: str) -> None:
    if database_url.startswith("sqlite"):
        pytest.skip("SQLite has neither COPY nor TRUNCATE")
    stage = Theatre()
    async with stage.open(database_url) as test, connected(database_url) as other:
        await sql(test, insert("seat_1"))
        live, entry = stage.watching(test)
        await settle(live)
        for captures in (False, True):
            if captures:
                await settle(live)
            match write:
                case "copy":
                    rows = [(f"seat_{captures}", test.clock.now(), 0)]
                    await other.copy_records_to_table("seat", records=rows, columns=["id", "creation_time", "row"])
                case "update":
                    await other.execute("update seat set id = id || 'x'")
                case _:
                    await other.execute("truncate seat" if write == "truncate" else "delete from seat")
            assert bool(await captured(test)) is captures
            await settle(live)
            assert _answer(entry) == await test.run_query(stage.count)
            await sql(test, insert(f"seat_again{captures}"))


async def test_serializable_writers_do_not_conflict_with_who_begins_to_watch(database_url: str) -> None:
    stage = Theatre()
    async with stage.open(database_url) as test:
        begun, goes_on = asyncio.Event(), asyncio.Event()

        async def step(ctx: MutationCtx) -> None:
            await ctx.db.insert(Seat())
            begun.set()
            await goes_on.wait()

        live, entry = stage.watching(test)
        await settle(live)
        writing = asyncio.ensure_future(stage.do(test, step))
        await begun.wait()
        ticking = asyncio.ensure_future(settle(live))  # on SQLite it waits for the writer
        if not database_url.startswith("sqlite"):
            await ticking
        begun.clear()
        goes_on.set()
        await writing
        await ticking
        assert not begun.is_set()  # it ran once
        await settle(live)
        assert _answer(entry) == 1


async def test_a_demand_that_nobody_prolongs_ends(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a process that watches is killed."""
    monkeypatch.setattr(Demands, "room", 8)
    stage = Theatre()
    async with stage.captured(database_url) as (test, live, entry):
        for number in range(30):
            await sql(test, insert(f"seat_{number}"))
        assert 0 < await captured(test) <= 10
        await settle(live)  # it was not killed after all
        await settle(live)
        assert _answer(entry) == 30
        await sql(test, insert("seat_30"))
        await settle(live)
        assert (_answer(entry), entry.causes[-1][:11]) == (31, "seat: enter")


async def test_a_demand_is_prolonged_before_it_ends(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Demands, "room", 40)
    stage = Theatre()
    async with stage.captured(database_url) as (test, live, entry):
        for number in range(100):
            await sql(test, insert(f"seat_{number}"))
            await settle(live)
            assert (_answer(entry), entry.causes[-1][:11]) == (number + 1, "seat: enter")


@pytest.mark.parametrize("seed", range(4))
async def test_nothing_is_missed_by_two_processes_whatever_writers_do(
    database_url: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes that come, go, and pause, with demands that end often; writers that take their time."""
    monkeypatch.setattr(Demands, "room", 12)
    choice, stage, lite = random_of(seed), Theatre(), database_url.startswith("sqlite")
    async with AsyncExitStack() as stack:
        tests = [await stack.enter_async_context(stage.open(database_url)) for _ in range(2)]
        watching = [stage.watching(test) for test in tests]
        writers = [] if lite else [await stack.enter_async_context(connected(database_url)) for _ in range(4)]
        is_open = [False] * len(writers)
        for number in range(250):
            match choice.choice(["write", "write", "write", "tick", "tick", "leave"]):
                case "write" if lite:
                    await run_sql(database_url, insert(f"seat_{number}"))
                case "write":
                    place = choice.randrange(len(writers))
                    how = choice.choice(["commit", "commit", "rollback", "insert"]) if is_open[place] else "begin"
                    await writers[place].execute(insert(f"seat_{number}") if how == "insert" else how)
                    if how == "begin" and choice.random() < 0.8:
                        await writers[place].execute(insert(f"seat_{number}"))
                    is_open[place] = how in {"begin", "insert"}
                case "leave":
                    place = choice.randrange(2)
                    live, entry = watching[place]
                    for view, _number in list(entry.watchers):
                        view.close()
                    await settle(live)
                    watching[place] = live, watched(live, stage.count)
                case _:
                    place = choice.randrange(2)
                    live, entry = watching[place]
                    await settle(live)
                    assert _answer(entry) == await tests[place].run_query(stage.count), (seed, number)


async def test_a_writer_needs_no_right_of_penstocks(postgres_url: str) -> None:
    stage = Theatre()
    async with stage.open(postgres_url) as test, connected(postgres_url) as other:
        await other.execute("create role theatre_guest; grant select, insert, update, delete on seat to theatre_guest")
        try:
            live, entry = stage.watching(test)
            await settle(live)
            for name in ("seat_1", "seat_2"):
                await other.execute("set role theatre_guest")
                await other.execute(insert(name))
                await other.execute("reset role")
                await settle(live)
            assert (_answer(entry), await captured(test)) == (2, 1)
        finally:
            await other.execute("drop owned by theatre_guest; drop role theatre_guest")


async def test_a_user_who_may_not_have_tables_captured_polls_them_and_is_told_once_what_to_grant(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Theirs(Table, source="theirs", key="nr", managed=False, live=True):
        nr: int

    stage, name = Theatre(), "theatre_lowly"
    stage.app._tables.append(Theirs)

    @stage.app.query
    async def theirs(ctx: QueryCtx) -> int:
        return await ctx.db.query(Theirs).count()

    await run_sql(postgres_url, "create table theirs (nr integer primary key)")
    async with stage.open(postgres_url) as owner, connected(postgres_url) as other:
        await other.execute(
            f"create role {name} login; grant usage on schema penstock to {name};"
            f"grant select, insert, update, delete on all tables in schema public, penstock to {name}"
        )
        try:
            async with stage.app.open(as_user(postgres_url, name), push_schema=False, clock=owner.clock) as test:
                live = LiveQueries(test.runner, stage.app.definitions())
                entries = [watched(live, one) for one in (stage.count, theirs)]
                for number in range(1, 4):
                    await sql(owner, insert(f"seat_{number}"), f"insert into theirs values ({number})")
                    owner.clock.advance(timedelta(seconds=6))
                    await settle(live)
                    assert [_answer(one) for one in entries] == [number, number]
                    live._feed.position = None  # as after an error
                told = events(caplog, "live.polled")
                assert [one["table"] for one in told] == ["seat", "other", "theirs"]
                await other.execute(";".join(one["fix"] for one in told))
                live = LiveQueries(test.runner, stage.app.definitions())
                entries = [watched(live, one) for one in (stage.count, theirs)]
                for _ in range(2):
                    await settle(live)
                await sql(owner, "delete from seat", "delete from theirs")
                await settle(live)
                assert [(_answer(one), one.next_run_at) for one in entries] == [(0, math.inf)] * 2
        finally:
            await other.execute(f"drop owned by {name}; drop role {name}")


def notified(test: TestApp, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One item for each time that a process wakes the others."""
    told = list[str]()
    monkeypatch.setattr(test.engine.store.signals, "notify", lambda: told.append("told"))
    return told


async def test_only_writers_of_a_table_that_is_watched_wake_others(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Theatre()
    async with stage.captured(database_url) as (test, _live, _entry):
        told, signals = notified(test, monkeypatch), test.engine.store.signals
        signals.wrote({"other"})
        assert told == []
        signals.wrote({"other", "seat"})
        assert len(told) == 1


async def test_a_writer_wakes_who_watches_in_another_process(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if database_url.startswith("sqlite"):
        pytest.skip("each process looks at the version of the file")
    stage = Theatre()
    async with stage.captured(database_url), stage.open(database_url) as other:
        told, signals = notified(other, monkeypatch), other.engine.store.signals
        await stage.insert(other, Other())
        await signals._asker  # type: ignore[attr-defined]  # it asks once a second
        assert told == []
        await stage.insert(other, Seat())
        assert len(told) == 1
        signals._asked_at -= 1  # type: ignore[attr-defined]
        signals._watched_elsewhere = frozenset()  # type: ignore[attr-defined]  # as if they began just now
        await stage.insert(other, Seat())
        await signals._asker  # type: ignore[attr-defined]
        assert len(told) == 2


async def test_a_reader_knows_to_the_transaction_how_long_its_demand_holds(database_url: str) -> None:
    stage = Theatre()
    async with stage.open(database_url) as test:
        changes, demands = test.engine.store.changes, Demands()
        (number,) = [one.id for one in await test.engine.store.interests.list() if one.interest.table == "seat"]
        demands.add(await changes.demand([number], 5))

        async def missed() -> bool:
            session = await test.engine.store.begin_read()
            try:
                return number in demands.find_missed(await changes.end(session))
            finally:
                await session.rollback()

        assert await missed()  # whoever wrote before
        assert not await missed()
        noticed = False
        for name in range(20):
            before = await captured(test)
            await sql(test, insert(f"seat_{name}"))
            if await captured(test) == before:
                break
            noticed = await missed()  # on SQLite with the last one that is captured
        assert 2 < name < 7
        assert noticed or await missed()


@pytest.mark.parametrize("when", ["before the tick", "within the tick", "before it is prolonged"])
async def test_a_demand_that_ends_unseen_is_noticed(
    database_url: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Demands, "room", 8)
    stage = Theatre()
    async with stage.captured(database_url) as (test, live, entry):

        async def miss() -> None:
            await burn(test, 20)
            before = await captured(test)
            await sql(test, insert("seat_1"))
            assert await captured(test) == before

        if when == "before it is prolonged":
            await burn(test, 5)
            assert await live.tick() == 0  # to prolong it in the next tick
        if when != "within the tick":
            await miss()
        else:
            begin = test.engine.store.begin_read

            async def begin_late() -> Any:
                monkeypatch.setattr(test.engine.store, "begin_read", begin)
                await miss()
                return await begin()

            monkeypatch.setattr(test.engine.store, "begin_read", begin_late)
        await settle(live)
        assert _answer(entry) == 1
        await sql(test, insert("seat_2"))
        await settle(live)
        assert _answer(entry) == 2


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_a_process_that_watches_is_killed_or_stands_still(database_url: str, how: str) -> None:
    stage = Theatre()
    async with stage.open(database_url) as test:
        process = Process("watch", database_url, program="stage.theatre")
        try:
            process.expect("0")
            await sql(test, insert("seat_1"))
            process.expect("1")
            before = await captured(test)
            if how == "killed":
                process.kill()
            else:
                process.freeze()
            for number in range(2, 102):
                await sql(test, insert(f"seat_{number}"))
            assert await captured(test) - before <= ROOM + 2
            if how == "frozen":
                process.thaw()
                process.expect("101")
                await sql(test, insert("seat_102"))
                process.expect("102")
        finally:
            process.close()
