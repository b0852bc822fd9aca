"""When and where runs of a reactive task start: at the time in a column, in a pool of its own, by their priority."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import Any

import pytest
from stage.reactive import Stage, lose, record_of, settle, silence

from penstock import ActionCtx, Table, TaskCtx
from penstock.testing import TestApp, gate

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


class Reminder(Table):
    at: datetime | None = None
    sooner: datetime | None = None
    state: str = "open"
    note: str = ""


def reminders(**options: Any) -> Stage:
    """A task that runs open reminders at their time, and nothing else of which it watches."""
    stage = Stage(Reminder)
    stage.task(Reminder, filter=lambda one: one.state == "open", watch=("note",), on=("enter",), run_at="at", **options)
    return stage


async def ran_within(stage: Stage, test: TestApp, passing: timedelta) -> list[str]:
    """Why reminders ran while a time has passed."""
    await test.run_until(test.clock.now() + passing)
    return stage.changes()


# ----- run_at


async def test_a_row_runs_when_its_time_comes_and_once(database_url: str) -> None:
    stage = reminders()
    async with stage.open(database_url) as test:
        (row,) = await stage.insert(test, Reminder(at=test.clock.now() + HOUR))
        assert await ran_within(stage, test, HOUR - MINUTE) == []
        assert await ran_within(stage, test, MINUTE) == ["enter"]
        assert await ran_within(stage, test, 30 * HOUR) == []
        record = await record_of(test, row)
        assert record is not None
        assert not record.live


async def test_the_clock_of_the_testing_kit_goes_to_the_time_of_a_row(database_url: str) -> None:
    stage = reminders()
    async with stage.open(database_url) as test:
        at = test.clock.now() + 5 * HOUR
        await stage.insert(test, Reminder(at=at))
        assert await test.run_until_idle() == 1
        assert (stage.changes(), test.clock.now()) == (["enter"], at)


async def test_a_run_moves_when_its_time_does(database_url: str) -> None:
    stage = reminders()
    async with stage.open(database_url) as test:
        begun = test.clock.now()
        later, sooner = await stage.insert(test, Reminder(at=begun + HOUR), Reminder(at=begun + 5 * HOUR))
        await test.plan()
        await stage.patch(test, Reminder, later, at=begun + 3 * HOUR)
        await stage.patch(test, Reminder, sooner, at=begun + 2 * HOUR)
        assert await ran_within(stage, test, 2 * HOUR - MINUTE) == []
        await test.run_until(begun + 2 * HOUR)
        assert stage.ids() == [sooner]
        await test.run_until(begun + 3 * HOUR)
        assert stage.ids() == [later]


async def test_a_row_runs_again_if_it_gets_another_time_after_its_run(database_url: str) -> None:
    stage = reminders()
    async with stage.open(database_url) as test:
        (row,) = await stage.insert(test, Reminder(at=test.clock.now() + HOUR))
        assert await ran_within(stage, test, HOUR) == ["enter"]
        await stage.patch(test, Reminder, row, note="nothing of its time")
        assert await ran_within(stage, test, HOUR) == []
        await stage.patch(test, Reminder, row, at=test.clock.now() + HOUR)
        assert await ran_within(stage, test, HOUR - MINUTE) == []
        assert await ran_within(stage, test, MINUTE) == ["change"]


async def test_a_row_whose_time_is_past_runs_at_once(database_url: str) -> None:
    stage = reminders()
    async with stage.open(database_url) as test:
        await stage.insert(test, Reminder(at=test.clock.now() - 1000 * HOUR))
        await settle_now(test)
        assert stage.changes() == ["enter"]


async def test_a_row_without_a_time_does_not_run_until_it_has_one(database_url: str) -> None:
    stage = reminders()
    async with stage.open(database_url) as test:
        (row,) = await stage.insert(test, Reminder())
        assert await ran_within(stage, test, HOUR) == []
        await stage.patch(test, Reminder, row, at=test.clock.now() + HOUR)
        assert await ran_within(stage, test, HOUR) == ["change"]


async def test_a_row_whose_time_is_taken_away_does_not_run(database_url: str) -> None:
    stage = reminders()
    async with stage.open(database_url) as test:
        (row,) = await stage.insert(test, Reminder(at=test.clock.now() + HOUR))
        await test.plan()
        await stage.patch(test, Reminder, row, at=None)
        assert await ran_within(stage, test, 2 * HOUR) == []
        counts = await test.job_counts()
        assert (counts["skipped"], counts["scheduled"]) == (1, 0)


async def test_a_row_that_leaves_before_its_time_runs_only_if_it_comes_back(database_url: str) -> None:
    stage = reminders()
    async with stage.open(database_url) as test:
        begun = test.clock.now()
        gone, back = await stage.insert(test, *(Reminder(at=begun + HOUR) for _ in range(2)))
        await test.plan()
        for row in (gone, back):
            await stage.patch(test, Reminder, row, state="closed")
        await settle(test, MINUTE)
        await stage.patch(test, Reminder, back, state="open")
        await test.run_until(begun + HOUR - MINUTE)
        assert stage.ids() == []
        await test.run_until(begun + 9 * HOUR)
        assert stage.ids() == [back]


async def test_a_time_outlives_a_restart(database_url: str) -> None:
    first = reminders()
    async with first.open(database_url) as test:
        clock = test.clock
        (row,) = await first.insert(test, Reminder(at=clock.now() + HOUR))
        await test.plan()
    second = reminders()
    async with second.open(database_url, clock=clock) as test:
        assert await ran_within(second, test, HOUR - MINUTE) == []
        await test.run_until(clock.now() + MINUTE)
        assert second.ids() == [row]
    assert first.ids() == []


# ----- run_at, where nobody captured what has changed


async def patch_unseen(stage: Stage, test: TestApp, row: Any, how: str = "asked", **fields: Any) -> None:
    """Change a row while nobody captures it, and have all rows looked at."""
    (interest, *_) = await test.engine.store.interests.list()
    await silence(test, "reminder")
    await stage.patch(test, Reminder, row, **fields)
    if how == "lost":
        await lose(test, interest.id)
    else:
        await stage.app.tasks.reconcile(test, "react")
    await test.plan()


def timed(**options: Any) -> Stage:
    """A task that runs reminders at a time."""
    stage = Stage(Reminder)
    stage.task(Reminder, **{"watch": ("note",), "run_at": "at"} | options)
    return stage


@pytest.mark.parametrize("how", ["lost", "asked"])
@pytest.mark.parametrize("on", [("enter",), ("enter", "change"), ("enter", "leave")])
async def test_a_time_that_moved_unseen_is_found(database_url: str, how: str, on: tuple[str, ...]) -> None:
    stage = timed(on=on)
    async with stage.open(database_url) as test:
        begun = test.clock.now()
        (row,) = await stage.insert(test, Reminder(at=begun + 5 * HOUR))
        await test.plan()
        await patch_unseen(stage, test, row, how, at=begun + HOUR)
        assert await ran_within(stage, test, HOUR - MINUTE) == []
        await test.run_until(begun + HOUR)
        assert stage.ids() == [row]
        assert await ran_within(stage, test, 9 * HOUR) == [], "and once"


@pytest.mark.parametrize("on", [("enter",), ("enter", "change")])
async def test_a_time_that_was_taken_away_unseen_is_found_once(
    database_url: str, on: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    stage = timed(on=on)
    async with stage.open(database_url) as test:
        (row,) = await stage.insert(test, Reminder(at=test.clock.now() + HOUR))
        await test.plan()
        await patch_unseen(stage, test, row, at=None)
        counts = await test.job_counts()
        assert (counts["skipped"], counts["scheduled"]) == (1, 0)
        for _ in range(3):
            await settle(test, 2 * HOUR)
        assert stage.changes() == []
        assert not [one for one in caplog.records if one.levelno >= logging.ERROR], "audits find nothing"


async def test_a_time_that_is_taken_away_and_given_back_unseen_counts(database_url: str) -> None:
    stage = timed(on=("enter",))
    async with stage.open(database_url) as test:
        at = test.clock.now() + HOUR
        (row,) = await stage.insert(test, Reminder(at=at))
        await test.plan()
        await stage.patch(test, Reminder, row, at=None)
        await test.plan()
        assert (await test.job_counts())["scheduled"] == 0
        await patch_unseen(stage, test, row, "lost", at=at)
        assert await ran_within(stage, test, HOUR) == ["reconcile"]


async def test_of_a_task_that_runs_rows_at_their_time_only_nothing_else_is_found(database_url: str) -> None:
    stage = timed(on=("enter",))
    async with stage.open(database_url) as test:
        (row,) = await stage.insert(test, Reminder(at=test.clock.now() + HOUR))
        assert await ran_within(stage, test, HOUR) == ["enter"]
        await patch_unseen(stage, test, row, note="unseen")
        assert await ran_within(stage, test, HOUR) == []


@pytest.mark.parametrize("watch", [("note",), ("note", "at", "sooner")])
@pytest.mark.parametrize("on", [("enter",), ("enter", "change"), ("enter", "leave")])
@pytest.mark.parametrize("planned", [True, False])
@pytest.mark.parametrize("then", ["sooner", None])
async def test_a_program_that_declares_another_run_at_moves_what_waits(
    database_url: str, watch: tuple[str, ...], on: tuple[str, ...], *, planned: bool, then: str | None
) -> None:
    first, second = timed(watch=watch, on=on), timed(watch=watch, on=on, run_at=then)
    async with first.open(database_url) as test:
        begun = test.clock.now()
        (row,) = await first.insert(test, Reminder(at=begun + 50 * HOUR, sooner=begun + HOUR))
        if planned:
            await test.plan()
    async with second.open(database_url, clock=test.clock) as test:
        await test.plan()
        assert await ran_within(second, test, HOUR - MINUTE) == (["reconcile"] if then is None else [])
        assert await ran_within(second, test, MINUTE) == ([] if then is None else ["reconcile"])
        assert await ran_within(second, test, 99 * HOUR) == [], "and once"
        record = await record_of(test, row)
        assert record is not None
        assert not record.live


async def test_what_has_run_is_left_alone_by_another_run_at(database_url: str) -> None:
    first, second = timed(watch=("at", "sooner")), timed(watch=("at", "sooner"), run_at="sooner")
    async with first.open(database_url) as test:
        await first.insert(test, Reminder(at=test.clock.now(), sooner=test.clock.now() + HOUR))
        assert await ran_within(first, test, MINUTE) == ["enter"]
    async with second.open(database_url, clock=test.clock) as test:
        assert await ran_within(second, test, 2 * HOUR) == []


@pytest.mark.parametrize("changes", [False, True])
async def test_what_is_being_run_is_left_alone_by_another_run_at(database_url: str, *, changes: bool) -> None:
    first, second = timed(watch=("at", "sooner")), timed(watch=("at", "sooner"), run_at="sooner")
    async with first.open(database_url) as test:
        begun = test.clock.now()
        (row,) = await first.insert(test, Reminder(at=begun, sooner=begun + 5 * HOUR))
        await test.plan()
        with gate("task.begun") as held:
            await test.worker.tick()
            await held.arrived()
            if changes:
                await first.patch(test, Reminder, row, at=begun + 9 * HOUR)
                await test.plan()
            async with second.open(database_url, clock=test.clock) as other:
                test.clock.advance(timedelta(seconds=6))  # so that who plans for both hears of it
                for backend in (test, other):
                    await backend.plan()
                held.open()
                await settle_now(test)
                assert first.changes() == ["enter"]
                assert await ran_within(second, other, begun + 5 * HOUR - MINUTE - test.clock.now()) == []
                assert await ran_within(second, other, MINUTE) == ["reconcile"] * changes, "what is still to come"
                assert await ran_within(second, other, 9 * HOUR) == []


async def test_rows_that_have_no_time_for_another_run_at_wait_for_nothing(database_url: str) -> None:
    first, second = timed(watch=("at", "sooner")), timed(watch=("at", "sooner"), run_at="sooner")
    async with first.open(database_url) as test:
        (row,) = await first.insert(test, Reminder(at=test.clock.now() + HOUR))
        await test.plan()
    async with second.open(database_url, clock=test.clock) as test:
        assert await ran_within(second, test, 2 * HOUR) == []
        await second.patch(test, Reminder, row, sooner=test.clock.now() + HOUR)
        assert await ran_within(second, test, HOUR) == ["change"]


async def test_another_run_at_is_for_changes_to_come_if_that_is_asked_for(database_url: str) -> None:
    first, second = timed(), timed(run_at="sooner", reconcile_on_trigger_change=False)
    async with first.open(database_url) as test:
        begun = test.clock.now()
        (row,) = await first.insert(test, Reminder(at=begun + 5 * HOUR, sooner=begun + HOUR))
        await test.plan()
    async with second.open(database_url, clock=test.clock) as test:
        for _ in range(4):  # with an audit each time
            assert await ran_within(second, test, HOUR) == []
            for _ in range(5):
                await settle(test, timedelta(seconds=1))
        assert await ran_within(second, test, begun + 5 * HOUR - MINUTE - test.clock.now()) == []
        await test.run_until(begun + 5 * HOUR)
        assert second.ids() == [row]


async def test_rows_of_a_key_run_in_the_order_of_their_times(database_url: str) -> None:
    stage = Stage(Reminder)
    pool = stage.app.workpool("reminders", key_parallelism=1)
    stage.task(Reminder, run_at="at", key="state", pool=pool)
    async with stage.open(database_url) as test:
        begun = test.clock.now()
        rows = await stage.insert(test, *(Reminder(at=begun + hours * HOUR) for hours in (3, 1, 2)))
        await test.plan()
        test.clock.advance(4 * HOUR)
        await settle_now(test)
        assert stage.ids() == [rows[1], rows[2], rows[0]]


async def settle_now(test: TestApp) -> None:
    """Plan and run what is due now."""
    await test.run_until_idle(advance=False)


# ----- pool and priority


async def test_rows_share_the_limit_of_a_pool_with_its_other_work(database_url: str) -> None:
    stage = Stage(Reminder)
    pool = stage.app.workpool("narrow", max_parallelism=3)
    begun: list[str] = []
    under_way, most = 0, 0

    async def take_a_while(name: str) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        begun.append(name)
        await test.job_counts()  # others may begin meanwhile
        under_way -= 1

    @stage.app.action
    async def work(ctx: ActionCtx) -> None:
        await take_a_while("work")

    async def handler(ctx: TaskCtx[Any]) -> None:
        await take_a_while("row")

    stage.task(Reminder, handler=handler, pool=pool)
    async with stage.open(database_url) as test:
        await stage.insert(test, *(Reminder() for _ in range(8)))
        await test.plan()
        for _ in range(8):
            await pool.enqueue(test, work)
        with gate("task.begun") as held:
            for _ in range(3):
                await test.worker.tick()
            await held.arrived(3)
            assert (await test.job_counts())["running"] == 3, "rows that run leave no place for work"
            held.open()
            await settle_now(test)
        assert (begun.count("row"), begun.count("work"), most) == (8, 8, 3)


async def test_a_task_of_higher_priority_goes_before_rows_that_wait(database_url: str) -> None:
    stage = Stage(Reminder)
    pool = stage.app.workpool("one", max_parallelism=1)
    stage.task(Reminder, "slow", filter=lambda one: one.state == "open", pool=pool)
    stage.task(Reminder, "quick", filter=lambda one: one.state == "urgent", pool=pool, priority=5)
    async with stage.open(database_url) as test:
        await stage.insert(test, *(Reminder() for _ in range(3)))
        await test.plan()
        with gate("task.begun", most=1) as held:
            await test.worker.tick()
            await held.arrived()
            test.clock.advance(HOUR)
            await stage.insert(test, Reminder(state="urgent"))
            await test.plan()
            held.open()
            await settle_now(test)
        assert [ran.task for ran in stage.taken()] == ["slow", "quick", "slow", "slow"]
