"""What is to be done about rows that are gone: it is done though all rows are looked at, and again if asked for."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from stage.reactive import Stage, record_of, settle, silence

from penstock import Retry, Table
from penstock.testing import TestApp

SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)


class Thing(Table):
    number: int = 0
    state: str = "new"


def things(on: tuple[str, ...] = ("enter", "leave", "delete"), **options: Any) -> Stage:
    """A task about new things, which watches their number."""
    stage = Stage(Thing)
    stage.task(Thing, filter=lambda one: one.state == "new", on=on, **{"watch": ("number",)} | options)
    return stage


async def audit(test: TestApp) -> None:
    """Let an hour pass, and the audit that comes then."""
    test.clock.advance(HOUR)
    for _ in range(5):
        await settle(test, SECOND)


# ----- looking at rows that are gone


@pytest.mark.parametrize("how", ["asked", "audit"])
@pytest.mark.parametrize("on", [("leave",), ("enter", "leave"), ("enter", "leave", "delete")])
async def test_a_run_for_a_row_that_left_is_still_to_come_when_that_is_deleted(
    database_url: str, on: tuple[str, ...], how: str
) -> None:
    stage = things(on, retry=Retry.fixed(7200, max_attempts=5))
    async with stage.open(database_url) as test:
        (row,) = await stage.insert(test, Thing(number=7))
        await settle(test)
        stage.taken()
        stage.error = ConnectionError("away")
        await stage.patch(test, Thing, row, state="old")
        await test.run_until_idle(advance=False, raise_errors=False)
        stage.error = None
        await stage.delete(test, Thing, row)
        if how == "asked":
            await stage.app.tasks.reconcile(test, "react")
            await test.run_until_idle(advance=False, raise_errors=False)
        else:
            await audit(test)
        record = await record_of(test, row)
        assert record is not None
        assert (record.gone, record.live) == ("deleted", True)
        await test.run_until_idle()
        assert [(one.change, one.attempt) for one in stage.taken()] == [("leave", 2)]


async def test_a_row_that_left_and_is_deleted_is_forgotten_once_its_run_has_ended(database_url: str) -> None:
    stage = things(("leave",), keep_for=timedelta(0))
    async with stage.open(database_url) as test:
        (row,) = await stage.insert(test, Thing())
        await settle(test)
        await stage.app.tasks.pause(test, "react")
        await stage.patch(test, Thing, row, state="old")
        await stage.delete(test, Thing, row)
        await settle(test)
        await stage.app.tasks.reconcile(test, "react")
        await settle(test)
        assert await record_of(test, row) is not None
        await stage.app.tasks.resume(test, "react")
        await settle(test, SECOND)
        assert stage.changes() == ["leave"]
        await settle(test, 2 * SECOND)
        assert await record_of(test, row) is None


# ----- a higher version


@pytest.mark.parametrize("how", ["none", "reprocess_failed", "reprocess_all"])
@pytest.mark.parametrize("kind", ["leave", "delete"])
@pytest.mark.parametrize("fails", [False, True])
async def test_a_higher_version_does_again_what_was_done_about_rows_that_went(
    database_url: str, how: str, kind: str, *, fails: bool
) -> None:
    declared: dict[str, Any] = {"retry": None, "on_version_change": how}
    first, second = things(version=1, **declared), things(version=2, **declared)
    async with first.open(database_url) as test:
        (row,) = await first.insert(test, Thing(number=7))
        await settle(test)
        first.error = ConnectionError("wrong") if fails else None
        if kind == "leave":
            await first.patch(test, Thing, row, state="old")
        else:
            await first.delete(test, Thing, row)
        await settle(test)
        before = await record_of(test, row)
    again = how == "reprocess_all" or (how == "reprocess_failed" and fails)
    async with second.open(database_url, clock=test.clock) as test:
        await settle(test)
        assert [(one.change, one.values) for one in second.taken()] == ([(kind, {"number": 7})] if again else [])
        after = await record_of(test, row)
        assert before is not None
        assert after is not None
        assert (after.before, after.after, after.gone) == (before.before, before.after, before.gone)


async def test_a_higher_version_knows_that_a_row_that_left_is_deleted_by_now(database_url: str) -> None:
    declared: dict[str, Any] = {"retry": None, "on_version_change": "reprocess_failed"}
    first, second = things(version=1, **declared), things(version=2, **declared)
    async with first.open(database_url) as test:
        (row,) = await first.insert(test, Thing())
        await settle(test)
        first.error = ConnectionError("wrong")
        await first.patch(test, Thing, row, state="old")
        await settle(test)
        await first.delete(test, Thing, row)
    async with second.open(database_url, clock=test.clock) as test:
        await settle(test)
        record = await record_of(test, row)
        assert record is not None
        assert (second.changes(), record.gone) == (["leave"], "deleted")


async def test_a_higher_version_that_hears_of_rows_that_leave_no_more_does_nothing_about_them(
    database_url: str,
) -> None:
    declared: dict[str, Any] = {"retry": None, "on_version_change": "reprocess_all"}
    first, second = things(version=1, **declared), things(("enter",), version=2, **declared)
    async with first.open(database_url) as test:
        (row,) = await first.insert(test, Thing())
        await settle(test)
        await first.patch(test, Thing, row, state="old")
        await settle(test)
        assert first.changes() == ["enter", "leave"]
    async with second.open(database_url, clock=test.clock) as test:
        await settle(test)
        assert second.changes() == []


async def test_deleted_rows_that_nobody_saw_go_are_still_found(database_url: str) -> None:
    stage = things()
    async with stage.open(database_url) as test:
        (row,) = await stage.insert(test, Thing())
        await settle(test)
        await silence(test, "thing")
        await stage.delete(test, Thing, row)
        await audit(test)
        assert stage.changes() == ["enter", "delete"]
