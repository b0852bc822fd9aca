"""A table is captured while a live query reads it, and no change is missed when capturing begins, ends or lapses."""

from __future__ import annotations

import math
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest
from stage.databases import as_user, connected
from stage.logs import events
from stage.outboxes import run_sql, sql
from stage.processes import Process
from stage.watching import ROOM, Other, Seat, Theatre, insert, settle, watched

from penstock import QueryCtx, Table
from penstock.changes.demand import Demands
from penstock.clock import random_of
from penstock.live.entry import Entry
from penstock.services.live.live import LiveQueries
from penstock.testing import TestApp


async def captured(test: TestApp) -> int:
    feed = "penstock_change" if test.config.database.startswith("sqlite") else "penstock.change"
    ((number,),) = await sql(test, f"select count(*) from {feed}")
    return int(number)


def _answer(entry: Entry) -> Any:
    assert entry.answer is not None
    return entry.answer.result


async def test_writes_of_a_table_that_nobody_watches_are_not_captured_unless_a_task_wants_them(
    database_url: str,
) -> None:
    stage, tasks = Theatre(), Theatre()
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
    tasks.task(Seat)
    async with tasks.open(database_url) as test:
        live, entry = tasks.watching(test)
        for count in (3, 4):
            await tasks.insert(test, Seat())
            await test.run_until_idle()
            assert len(tasks.taken()) >= 1
            await settle(live)
            await settle(live)
            assert _answer(entry) == count


@pytest.mark.parametrize("how", ["commit", "rollback"])
@pytest.mark.parametrize("level", ["read committed", "serializable"])
async def test_who_wrote_before_a_table_was_watched_and_commits_later_is_seen(
    postgres_url: str, how: str, level: str
) -> None:
    """On SQLite nobody writes while another one does."""
    stage = Theatre()
    async with (
        stage.open(postgres_url) as test,
        connected(postgres_url) as first,
        connected(postgres_url) as second,
    ):
        await first.execute(f"begin isolation level {level}; {insert('seat_1')}")
        live, entry = stage.watching(test)
        await settle(live)
        await second.execute(f"begin isolation level {level}; {insert('seat_2')}")
        await settle(live)
        assert (_answer(entry), await captured(test)) == (0, 0)
        await sql(test, insert("seat_3"))
        await settle(live)
        runs = entry.runs
        await settle(live)
        assert (_answer(entry), entry.runs) == (1, runs)
        answers = []
        for one in (second, first):
            await one.execute(how)
            await settle(live)
            answers.append(_answer(entry))
        assert answers == ([2, 3] if how == "commit" else [1, 1])
        runs = entry.runs
        await settle(live)
        assert entry.runs == runs


async def test_a_transaction_from_before_tells_what_it_writes_later(postgres_url: str) -> None:
    """The number of a transaction, and not its snapshot, decides whether it is captured."""
    stage = Theatre()
    async with stage.open(postgres_url) as test, connected(postgres_url) as other:
        await other.execute("begin isolation level serializable; select count(*) from seat")
        live, entry = stage.watching(test)
        await settle(live)
        await settle(live)
        await other.execute(f"{insert('seat_1')}; commit")
        assert await captured(test) == 1
        await settle(live)
        assert _answer(entry) == 1


async def test_no_way_to_write_is_missed(postgres_url: str) -> None:
    """SQLite has neither COPY nor TRUNCATE."""
    stage = Theatre()
    async with stage.open(postgres_url) as test, connected(postgres_url) as other:
        await sql(test, insert("seat_1"))
        live, entry = stage.watching(test)
        await settle(live)
        for captures in (False, True):
            for write in ("update", "copy", "truncate", "delete"):
                if captures:
                    await settle(live)
                before = await captured(test)
                match write:
                    case "copy":
                        rows = [(f"seat_{captures}", test.clock.now(), 0)]
                        await other.copy_records_to_table("seat", records=rows, columns=["id", "creation_time", "row"])
                    case "update":
                        await other.execute("update seat set id = id || 'x'")
                    case _:
                        await other.execute("truncate seat" if write == "truncate" else "delete from seat")
                assert (await captured(test) > before) is captures, write
                if captures:
                    await settle(live)
                    assert _answer(entry) == await test.run_query(stage.count), write
                await sql(test, insert(f"seat_again{captures}{write}"))
            await settle(live)
            assert _answer(entry) == await test.run_query(stage.count)


async def test_a_demand_is_prolonged_before_it_ends(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Demands, "room", 20)
    stage = Theatre()
    async with stage.captured(database_url) as (test, live, entry):
        for number in range(50):
            await sql(test, insert(f"seat_{number}"))
            await settle(live)
            assert (_answer(entry), entry.causes[-1][:11]) == (number + 1, "seat: enter")


@pytest.mark.parametrize("seed", range(3))
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
        for number in range(150):
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


async def test_only_writers_of_a_table_that_is_watched_here_or_elsewhere_wake_others(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On SQLite each process looks at the version of the file."""
    stage, told = Theatre(), list[str]()
    async with stage.captured(postgres_url) as (test, _live, _entry), stage.open(postgres_url) as other:
        for one in (test, other):
            monkeypatch.setattr(one.engine.store.signals, "notify", lambda: told.append("told"))
        test.engine.store.signals.wrote({"other"})
        assert told == []
        test.engine.store.signals.wrote({"other", "seat"})
        assert len(told) == 1
        signals: Any = other.engine.store.signals
        await stage.insert(other, Other())
        await signals._asker  # it asks once a second
        assert len(told) == 1
        await stage.insert(other, Seat())
        assert len(told) == 2
        signals._asked_at -= 1
        signals._watched_elsewhere = frozenset()  # as if they began just now
        await stage.insert(other, Seat())
        await signals._asker
        assert len(told) == 3


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


async def test_a_process_that_watches_stands_still_or_is_killed(database_url: str) -> None:
    stage = Theatre()
    async with stage.open(database_url) as test:
        process = Process("watch", database_url, program="stage.watching")
        try:
            process.expect("0")
            for seats in (1, 102):
                await sql(test, insert(f"seat_{seats}"))
                process.expect(str(seats))
                before = await captured(test)
                if seats == 1:
                    process.freeze()
                else:
                    process.kill()
                for number in range(seats + 1, seats + 101):
                    await sql(test, insert(f"seat_{number}"))
                assert await captured(test) - before <= ROOM + 2
                if seats == 1:
                    process.thaw()
                    process.expect("101")
        finally:
            process.close()
