"""The testing kit: a clock that the test moves, jobs that run when it says so, and gates that hold a moment."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import ActionCtx, App, Id, MutationCtx, QueryCtx, Retry, SyncTaskCtx, Table, TaskCtx
from penstock.testing import JobsFailed, TestApp, TestClock, gate, raising

NOW = timedelta(0)
app = OPENED = App()


class Ping(Table):
    number: int


@app.mutation
async def ping(ctx: MutationCtx, number: int) -> datetime:
    await ctx.db.insert(Ping(number=number))
    return ctx.now()


@app.query
async def pings(ctx: QueryCtx) -> list[int]:
    return [row.number for row in await ctx.db.query(Ping).collect()]


@app.mutation
async def ping_daily(ctx: MutationCtx, days: int) -> None:
    await ctx.db.insert(Ping(number=days))
    if days:
        await ctx.scheduler.run_after(timedelta(days=1), ping_daily, days=days - 1)


@app.mutation
async def ping_for_ever(ctx: MutationCtx) -> None:
    await ctx.scheduler.run_after(NOW, ping_for_ever)


@app.action
async def fall(ctx: ActionCtx, where: str) -> None:
    raise LookupError(f"fell {where}")


class Note(Table):
    text: str = ""
    copies: int = 0


copied: list[str] = []


@app.reactive_task(Note, watch=("text",), debounce=timedelta(minutes=1), retry=Retry(max_attempts=3))
async def copy(ctx: TaskCtx[Note]) -> None:
    note = await ctx.get_document()
    copied.append(note.text)
    await ctx.run_mutation(count_copy, note=note.id)


@app.reactive_task(Note, filter=lambda note: note.copies > 1, on=("enter",))
def celebrate(ctx: SyncTaskCtx[Note]) -> None:
    copied.append("twice")


@app.internal_mutation
async def count_copy(ctx: MutationCtx, note: Id[Note]) -> None:
    found: Any = await ctx.db.get(Note, note)
    await ctx.db.patch(Note, note, copies=found.copies + 1)


@app.mutation
async def write(ctx: MutationCtx, text: str, note: Id[Note] | None = None) -> Id[Note]:
    if note is None:
        return await ctx.db.insert(Note(text=text))
    await ctx.db.patch(Note, note, text=text)
    return note


@pytest.fixture(autouse=True)
def _nothing_copied() -> None:
    copied.clear()


def is_there(path: Path) -> bool:
    return path.exists()


# ----- the app


async def test_a_test_without_a_database_has_one_of_its_own_and_ids_are_the_same_in_each_run(tmp_path: Path) -> None:
    made = []
    for number in range(2):
        url = f"sqlite:///{tmp_path / f'{number}.db'}"
        async with TestApp(app, max_jobs_scheduled=3) as own, TestApp(app, url) as first, TestApp(app, url) as second:
            file = Path(own.config.database.removeprefix("sqlite:///"))
            assert is_there(file)
            assert own.config.max_jobs_scheduled == 3
            made.append([await test.run_mutation(write, text="a") for test in (own, first, second)])
            times = [await own.run_mutation(ping, number=number) for number in range(2)]
            assert times == [datetime(2030, 1, 1, tzinfo=UTC)] * 2, "time stands still"
            assert await first.run_query(pings) == []
            own.clock.advance(timedelta(minutes=90))
            assert await own.run_mutation(ping, number=3) == datetime(2030, 1, 1, 1, 30, tzinfo=UTC)
        assert not is_there(file.parent), "nothing is left"
    assert made[0] == made[1]
    assert made[0][0] == made[0][1] != made[0][2]


# ----- jobs


async def test_jobs_run_with_what_they_schedule_and_time_moves_along_or_is_left_alone(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        await test.scheduler.run_after(NOW, ping_daily, days=4)
        assert await test.run_until_idle() == 5
        assert test.clock.now() == datetime(2030, 1, 5, tzinfo=UTC)
        assert await test.run_query(pings) == [4, 3, 2, 1, 0]
        assert await test.run_until_idle() == 0
        await test.scheduler.run_after(NOW, ping_daily, days=4)
        assert await test.run_until_idle(advance=False) == 1
        assert test.clock.now() == datetime(2030, 1, 5, tzinfo=UTC)
        await test.run_until_idle()
        await test.scheduler.run_after(timedelta(days=400), ping, number=1)
        assert await test.run_until_idle() == 0, "jobs beyond a year are left"
        test.clock.advance(timedelta(days=100))
        assert await test.run_until_idle() == 1


async def test_jobs_are_found_by_their_arguments_and_fail_the_test_if_they_fail_or_go_on_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with TestApp(app) as test:
        job = await test.scheduler.run_after(NOW, ping, number=2)
        assert (await test.assert_scheduled(ping, number=2)).id == job
        with pytest.raises(AssertionError, match="no pending job of test_testing_kit:ping with"):
            await test.assert_scheduled(ping, number=3)
        await test.scheduler.run_after(NOW, fall, where="down the stairs")
        with pytest.raises(
            JobsFailed, match=r"(?s)1 job\(s\) failed.*test_testing_kit:fall.*raise LookupError"
        ) as caught:
            await test.run_until_idle()
        assert [failed.error for failed in caught.value.jobs] == ["LookupError: fell down the stairs"]
        await test.run_until_idle()  # it is told once
        with pytest.raises(AssertionError):
            await test.assert_scheduled(ping, number=2)
        monkeypatch.setattr("penstock.testing.app._MOST_JOBS", 50)
        await test.scheduler.run_after(NOW, ping_for_ever)
        with pytest.raises(AssertionError, match="no end in sight"):
            await test.run_until_idle()


# ----- reactive tasks


async def test_it_is_idle_once_debounces_retries_and_cascades_are_over(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        note = await test.run_mutation(write, "one")
        await test.plan()
        assert (await test.assert_scheduled(copy)).args["key"] == f'["{note}"]'
        assert await test.run_until_idle(advance=False) == 0
        with pytest.raises(AssertionError, match="did not run"):
            test.assert_task_ran(copy)
        with raising("task.begun", ConnectionError("no"), times=2, when=lambda task, **_: task.endswith("copy")):
            assert await test.run_until_idle() == 3, "two attempts that failed, and one that did not"
        test.assert_task_ran(celebrate, times=0)
        await test.run_mutation(write, "two", note)
        await test.run_until_idle()
        assert copied == ["one", "two", "twice"], "what a run has written has called for another task"
        assert [run.attempt for run in test.assert_task_ran(copy, note, times=4)] == [1, 2, 3, 1]
        (run,) = test.assert_task_ran("test_testing_kit:copy", note, change="change")
        assert (run.task, run.doc_id) == ("test_testing_kit:copy", note)
        for doc_id, times, change in ((note, 2, None), (None, None, "delete"), ("note_0", None, None)):
            with pytest.raises(AssertionError):
                test.assert_task_ran(copy, doc_id, times=times, change=change)
        with pytest.raises(ValueError, match="no reactive task"):
            test.assert_task_ran("nothing")
        assert test.clock.now() > datetime(2030, 1, 1, 0, 2, tzinfo=UTC), "it has moved with the debounces"
        with raising("task.begun", ConnectionError("pulled the plug"), times=3):
            await test.run_mutation(write, "three", note)
            with pytest.raises(JobsFailed, match="pulled the plug"):
                await test.run_until_idle()
        assert await test.run_until_idle() == 0


async def test_what_waits_for_a_paused_task_is_left_and_moves_no_clock(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        await app.tasks.pause(test, "copy")
        begun = test.clock.now()
        await test.run_mutation(write, text="a")
        for _ in range(2):
            assert await test.run_until_idle() == 0
            assert test.clock.now() - begun <= timedelta(minutes=2), "no further than to when it would have run"
        begun = test.clock.now()
        await test.run_mutation(ping_daily, days=3)
        assert await test.run_until_idle() == 3, "others run when they are due"
        assert test.clock.now() - begun == timedelta(days=3)
        assert await test.run_until(begun + timedelta(days=9)) == 0
        await app.tasks.resume(test, "copy")
        await test.run_until_idle()
        test.assert_task_ran(copy, times=1)
        assert copied == ["a"]


# ----- the clock, and moments


async def test_a_gate_or_an_error_is_at_a_moment_that_there_is() -> None:
    async with TestApp(app) as test:
        with gate("mutation.ran", when=lambda function: function.endswith("ping_daily")) as held:
            await test.run_mutation(ping, number=1)
            assert held.arrivals == [], "it holds others"
            daily = asyncio.create_task(test.run_mutation(ping_daily, days=0))
            await held.arrived()
            assert held.arrivals[0]["function"] == "test_testing_kit:ping_daily"
        await daily  # the end of the block opens it
        with raising("commit.before", ConnectionError("pulled the plug"), times=1):
            with pytest.raises(ConnectionError):
                await test.run_mutation(ping, number=3)
            await test.run_mutation(ping, number=4)
        assert await test.run_query(pings) == [1, 0, 4]
    with pytest.raises(KeyError), gate("coffee.break"):
        pass


def test_a_clock_moves_forwards_only_and_repeats_its_chance() -> None:
    clock, twin, other = TestClock(seed=1), TestClock(seed=1), TestClock(seed=2)
    with pytest.raises(ValueError, match="forwards"):
        clock.advance(timedelta(seconds=-1))
    assert [clock.random() for _ in range(5)] == [twin.random() for _ in range(5)]
    assert clock.seed() != other.seed()
    ids = [clock.uuid7() for _ in range(100)]
    assert ids == sorted(set(ids))
