"""Rows that were due and had not begun, and are due later now: they run then, and let others of their key go first."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from stage.reactive import Stage, settle

from penstock import Table
from penstock.testing import TestApp, gate

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


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


async def now(test: TestApp) -> None:
    """Plan and run what is due now."""
    await test.run_until_idle(advance=False)


@pytest.mark.parametrize("gated", [False, True])
async def test_a_row_that_was_due_runs_at_its_later_time_and_once(database_url: str, *, gated: bool) -> None:
    stage = calls(gated=gated)
    async with stage.open(database_url) as test:
        begun = test.clock.now()
        (row,) = await stage.insert(test, Call(at=begun))
        await test.plan()
        await stage.patch(test, Call, row, at=begun + 10 * HOUR, number=1)
        await test.plan()
        assert f"due at {begun + 10 * HOUR}" in str(await stage.app.tasks.explain(test, "react", row))
        await test.run_until(begun + 10 * HOUR - MINUTE)
        assert stage.changes() == []
        await test.run_until(begun + 20 * HOUR)
        assert [(one.change, one.values) for one in stage.taken()] == [("enter", {"number": 1})]


@pytest.mark.parametrize("gated", [False, True])
async def test_a_row_that_changes_after_it_was_due_and_keeps_its_time_runs_now(
    database_url: str, *, gated: bool
) -> None:
    stage = calls(gated=gated)
    async with stage.open(database_url) as test:
        (row,) = await stage.insert(test, Call(at=test.clock.now()))
        await test.plan()
        test.clock.advance(HOUR)
        await stage.patch(test, Call, row, number=1)
        await now(test)
        assert stage.ids() == [row]


@pytest.mark.parametrize("gated", [False, True])
async def test_a_row_that_was_due_before_its_task_was_held_waits_for_its_later_time(
    database_url: str, *, gated: bool
) -> None:
    stage = calls(gated=gated)
    async with stage.open(database_url) as test:
        begun = test.clock.now()
        (row,) = await stage.insert(test, Call(at=begun))
        await stage.app.tasks.pause(test, "react")
        await settle(test, MINUTE)
        await stage.patch(test, Call, row, at=begun + 10 * HOUR)
        await test.plan()
        await stage.app.tasks.resume(test, "react")
        await test.run_until(begun + 10 * HOUR - MINUTE)
        assert stage.ids() == []
        await test.run_until(begun + 10 * HOUR)
        assert stage.ids() == [row]


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
            await now(test)
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
        await now(test)
        assert sorted(stage.ids()) == sorted([second, third])
        await test.run_until(begun + HOUR)
        assert stage.ids() == [first]
