"""A table is captured while a live query reads it, and no change is missed when capturing begins, ends or lapses."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import pytest
from stage.databases import connected, run_sql, sql
from stage.processes import Process
from stage.watching import ROOM, Other, Seat, Theatre, insert, settle, watched

from penstock.changes.demand import Demands
from penstock.clock import random_of
from penstock.live.entry import Entry
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
