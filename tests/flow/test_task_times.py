"""When and where runs of a reactive task start: at the time in a column, in a pool of its own, by their priority."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import Any

import pytest
from stage.stories import Ran, Stage, known_record, lose, settle, silence

from penstock import Table
from penstock.testing import TestApp, gate

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


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


async def test_rows_run_at_their_time_and_once(database_url: str) -> None:
    first = reminders()
    async with first.open(database_url) as test:
        clock, begun = test.clock, test.clock.now()
        times = (begun + HOUR, begun - 1000 * HOUR, None, *[begun + HOUR] * 4, begun + 5 * HOUR)
        rows = await first.insert(test, *(Reminder(at=at) for at in times))
        plain, past, never, cleared, closed, reopened, later, sooner = rows
        await settle_now(test)
        assert first.ids() == [past]
        await first.patch(test, Reminder, cleared, at=None)
        for row in (closed, reopened):
            await first.patch(test, Reminder, row, state="closed")
        await first.patch(test, Reminder, later, at=begun + 3 * HOUR)
        await first.patch(test, Reminder, sooner, at=begun + 2 * HOUR)
        await settle(test, MINUTE)
        await first.patch(test, Reminder, reopened, state="open")
        await test.plan()
    second = reminders()
    async with second.open(database_url, clock=clock) as test:
        for at, expected in (
            (HOUR - MINUTE, []),
            (HOUR, [plain, reopened]),
            (2 * HOUR - MINUTE, []),
            (2 * HOUR, [sooner]),
            (3 * HOUR - MINUTE, []),
            (3 * HOUR, [later]),
            (30 * HOUR, []),
        ):
            await test.run_until(begun + at)
            assert sorted(second.ids()) == sorted(expected), at
        record = await known_record(test, plain)
        assert not record.live
        counts = await test.job_counts()
        assert (counts["skipped"], counts["scheduled"]) == (2, 0)
        await second.patch(test, Reminder, plain, note="nothing of its time")
        assert await ran_within(second, test, HOUR) == []
        again = clock.now() + HOUR
        for row in (plain, never, past):
            await second.patch(test, Reminder, row, at=again)
        assert await test.run_until_idle() == 3
        assert clock.now() == again, "the clock of the testing kit has gone there"
        assert sorted(second.taken(), key=lambda one: str(one.doc_id)) == sorted(
            (Ran("react", row, "change", 1, {"note": note}) for row, note in
             ((plain, "nothing of its time"), (never, ""), (past, ""))),
            key=lambda one: str(one.doc_id),
        )  # fmt: skip


# ----- run_at, where nobody captured what has changed

ON: dict[str, tuple[str, ...]] = {
    "enter": ("enter",),
    "change": ("enter", "change"),
    "leave": ("enter", "leave"),
}


def timed(**options: Any) -> Stage:
    """Tasks that run reminders at a time, and hear of different changes."""
    stage = Stage(Reminder)
    for name, on in ON.items():
        stage.task(Reminder, name, **{"watch": ("note",), "run_at": "at", "on": on} | options)
    return stage


def each(stage: Stage, *rows: Any) -> bool:
    """Whether these rows were run by each task, and no other ones."""
    ran = sorted((one.task, one.doc_id) for one in stage.taken())
    return ran == sorted((name, row) for name in ON for row in rows)


@pytest.mark.parametrize("how", ["lost", "asked"])
async def test_a_time_that_changed_unseen_is_found(
    database_url: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    stage = timed()
    async with stage.open(database_url) as test:
        begun = test.clock.now()
        times = (begun + 5 * HOUR, begun + 2 * HOUR, begun + 3 * HOUR, begun)
        moved, cleared, restored, noted = await stage.insert(test, *(Reminder(at=at) for at in times))
        await settle_now(test)
        assert each(stage, noted)
        await stage.patch(test, Reminder, restored, at=None)
        await test.plan()
        interests = await test.engine.store.interests.list()
        await silence(test, "reminder")
        await stage.patch(test, Reminder, moved, at=begun + HOUR)
        await stage.patch(test, Reminder, cleared, at=None)
        await stage.patch(test, Reminder, restored, at=begun + 3 * HOUR)
        await stage.patch(test, Reminder, noted, note="unseen")
        if how == "lost":
            for interest in interests:
                await lose(test, interest.id)
        else:
            for name in ON:
                await stage.app.tasks.reconcile(test, name)
        await settle_now(test)
        assert [(one.task, one.doc_id) for one in stage.taken()] == [("change", noted)], "who hears of times alone"
        await test.run_until(begun + HOUR - MINUTE)
        assert each(stage)
        await test.run_until(begun + HOUR)
        assert each(stage, moved)
        await test.run_until(begun + 3 * HOUR - MINUTE)
        assert each(stage)
        await test.run_until(begun + 3 * HOUR)
        assert {one.change for one in stage.ran} == {"reconcile"}
        assert each(stage, restored)
        for _ in range(3):
            await settle(test, 2 * HOUR)
        assert each(stage)
        assert not [one for one in caplog.records if one.levelno >= logging.ERROR], "audits find nothing"


# ----- another run_at


@pytest.mark.parametrize("watch", [("note",), ("note", "at", "sooner")])
@pytest.mark.parametrize("planned", [True, False])
@pytest.mark.parametrize("then", ["sooner", None])
async def test_a_program_that_declares_another_run_at_moves_what_waits(
    database_url: str, watch: tuple[str, ...], *, planned: bool, then: str | None
) -> None:
    first, second = timed(watch=watch), timed(watch=watch, run_at=then)
    async with first.open(database_url) as test:
        begun = test.clock.now()
        (row,) = await first.insert(test, Reminder(at=begun + 50 * HOUR, sooner=begun + HOUR))
        if planned:
            await test.plan()
    async with second.open(database_url, clock=test.clock) as test:
        await test.plan()
        for at, runs in ((HOUR - MINUTE, then is None), (HOUR, then is not None), (99 * HOUR, False)):
            await test.run_until(begun + at)
            assert {one.change for one in second.ran} <= {"reconcile"}
            assert each(second, *[row] * runs), at
        for name in ON:
            record = await known_record(test, row, name)
            assert not record.live


async def test_what_has_run_or_has_no_time_is_left_alone_by_another_run_at(database_url: str) -> None:
    first, second = timed(watch=("at", "sooner")), timed(watch=("at", "sooner"), run_at="sooner")
    async with first.open(database_url) as test:
        begun = test.clock.now()
        rows = (Reminder(at=begun, sooner=begun + HOUR), Reminder(at=begun + HOUR))
        done, without = await first.insert(test, *rows)
        await settle_now(test)
        assert each(first, done)
    async with second.open(database_url, clock=test.clock) as test:
        await test.run_until(begun + 2 * HOUR)
        assert each(second)
        await second.patch(test, Reminder, without, sooner=begun + 3 * HOUR)
        await test.run_until(begun + 3 * HOUR)
        assert each(second, without)


@pytest.mark.parametrize("changes", [False, True])
async def test_what_is_being_run_is_left_alone_by_another_run_at(database_url: str, *, changes: bool) -> None:
    first, second = Stage(Reminder), Stage(Reminder)
    first.task(Reminder, watch=("at", "sooner"), run_at="at")
    second.task(Reminder, watch=("at", "sooner"), run_at="sooner")
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


async def test_another_run_at_is_for_changes_to_come_if_that_is_asked_for(database_url: str) -> None:
    first, second = timed(), timed(run_at="sooner", reconcile_on_trigger_change=False)
    async with first.open(database_url) as test:
        begun = test.clock.now()
        (row,) = await first.insert(test, Reminder(at=begun + 5 * HOUR, sooner=begun + HOUR))
        await test.plan()
    async with second.open(database_url, clock=test.clock) as test:
        for _ in range(4):  # with an audit each time
            await test.run_until(test.clock.now() + HOUR)
            for _ in range(5):
                await settle(test, timedelta(seconds=1))
        await test.run_until(begun + 5 * HOUR - MINUTE)
        assert each(second)
        await test.run_until(begun + 5 * HOUR)
        assert each(second, row)


async def settle_now(test: TestApp) -> None:
    """Plan and run what is due now."""
    await test.run_until_idle(advance=False)


# ----- pool and priority


# ----- rows that were due and had not begun, and are due later now


class Call(Table):
    at: datetime | None = None
    other: datetime | None = None
    owner: str = "a"
    number: int = 0


def calls(*, gated: bool = False, **options: Any) -> Stage:
    """A task that makes calls at their time, one at a time if they pass a gate."""
    stage = Stage(Call)
    more: dict[str, Any] = {"key": "owner", "pool": stage.app.workpool("line", key_parallelism=1)} if gated else {}
    stage.task(Call, **{"watch": ("number",), "run_at": "at"} | more | options)
    return stage


@pytest.mark.parametrize("gated", [False, True])
async def test_a_row_that_was_due_runs_at_its_later_time_and_once(database_url: str, *, gated: bool) -> None:
    stage = calls(gated=gated)
    async with stage.open(database_url) as test:
        for paused in (False, True):
            begun = test.clock.now()
            (row,) = await stage.insert(test, Call(at=begun))
            if paused:
                await stage.app.tasks.pause(test, "react")
                await settle(test, MINUTE)
            else:
                await test.plan()
            await stage.patch(test, Call, row, at=begun + 10 * HOUR, number=1)
            await test.plan()
            assert f"due at {begun + 10 * HOUR}" in str(await stage.app.tasks.explain(test, "react", row))
            if paused:
                await stage.app.tasks.resume(test, "react")
            await test.run_until(begun + 10 * HOUR - MINUTE)
            assert stage.changes() == [], paused
            await test.run_until(begun + 20 * HOUR)
            assert [(one.change, one.values) for one in stage.taken()] == [("enter", {"number": 1})], paused
        (row,) = await stage.insert(test, Call(at=test.clock.now()))
        await test.plan()
        test.clock.advance(HOUR)
        await stage.patch(test, Call, row, number=1)
        await settle_now(test)
        assert stage.ids() == [row], "a row that keeps its time runs now"


@pytest.mark.parametrize("gated", [False, True])
async def test_a_program_that_declares_a_later_time_moves_what_was_due(database_url: str, *, gated: bool) -> None:
    first, second = calls(gated=gated), calls(gated=gated, run_at="other")
    async with first.open(database_url) as test:
        begun = test.clock.now()
        (row,) = await first.insert(test, Call(at=begun, other=begun + 10 * HOUR))
        await test.plan()
    async with second.open(database_url, clock=test.clock) as test:
        await test.plan()
        await test.run_until(begun + 10 * HOUR - MINUTE)
        assert second.ids() == []
        await test.run_until(begun + 10 * HOUR)
        assert second.ids() == [row]


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("max_wait", "due"), [(None, 20 * SECOND), (15 * SECOND, 15 * SECOND)])
async def test_a_row_that_changes_while_it_waits_for_a_place_is_debounced(
    database_url: str, max_wait: timedelta | None, due: timedelta, *, gated: bool
) -> None:
    stage = calls(gated=gated, run_at=None, debounce=10 * SECOND, max_wait=max_wait)
    async with stage.open(database_url, worker_jobs=1) as test:
        begun = test.clock.now()
        rows = await stage.insert(test, Call(number=1), Call(number=2))
        await test.plan()
        test.clock.advance(10 * SECOND)
        with gate("task.begun", most=1) as held:
            for _ in range(3):  # slots of the pool are taken first
                await test.worker.tick()
            await held.arrived()
            late = rows[1] if "being run" in str(await stage.app.tasks.explain(test, "react", rows[0])) else rows[0]
            await stage.patch(test, Call, late, number=99)
            await test.plan()
            held.open()
            await settle_now(test)
        assert late not in stage.ids()
        await test.run_until(begun + due - SECOND)
        assert stage.ids() == []
        await test.run_until(begun + due)
        assert [(one.doc_id, one.values["number"]) for one in stage.taken()] == [(late, 99)]


async def test_a_row_that_is_due_later_lets_those_of_its_key_go(database_url: str) -> None:
    stage = calls(gated=True)
    async with stage.open(database_url) as test:
        begun = test.clock.now()
        first, second = await stage.insert(test, Call(at=begun), Call(at=begun))
        await test.plan()
        await stage.patch(test, Call, first, at=begun + HOUR, owner="b")
        (third,) = await stage.insert(test, Call(at=begun, owner="b"))
        await settle_now(test)
        assert sorted(stage.ids()) == sorted([second, third])
        await test.run_until(begun + HOUR)
        assert stage.ids() == [first]
