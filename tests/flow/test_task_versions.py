"""A program is stopped, and its next version started on the same data."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest
from stage.reactive import Stage, known_record, record_of, settle, silence

from penstock import JobState, Retry, Table
from penstock.testing import gate

HOUR = timedelta(hours=1)
TWICE = Retry.fixed(timedelta(seconds=1), max_attempts=2)


class Print(Table):
    state: str = "new"
    size: int = 0
    note: str = ""


def version(**options: Any) -> Stage:
    """A version of the program."""
    stage = Stage()
    stage.task(Print, retry=TWICE, **options)
    return stage


async def test_ev1_another_filter_runs_rows_that_matter_now_and_leaves_those_that_matter_no_more(
    database_url: str,
) -> None:
    first = version(filter=lambda j: j.size > 10, watch=("note",))
    async with first.open(database_url) as test:
        small, large = await first.insert(test, Print(size=5), Print(size=50))
        await settle(test)
        assert first.ids() == [large]
    second = version(filter=lambda j: j.size > 1, watch=("note",), debounce=timedelta(minutes=1))
    async with second.open(database_url) as test:
        await settle(test)
        assert second.ids() == [small], "what had run is left alone"
        await second.patch(test, Print, small, note="x")
        await settle(test)
        assert second.ids() == [small]
        smaller, larger = await second.insert(test, Print(size=5), Print(size=50))
        await test.plan()
    third = version(filter=lambda j: j.size > 10, watch=("note",))
    async with third.open(database_url) as test:
        await settle(test)
        assert third.ids() == [larger]
        record = await known_record(test, smaller)
        assert (record.gone, record.live) == ("left", False)


async def test_ev2_ev3_f16_a_higher_version_runs_again_what_it_says_and_a_lower_one_nothing(database_url: str) -> None:
    first = version()
    async with first.open(database_url) as test:
        (done,) = await first.insert(test, Print())
        await settle(test)
        first.error = RuntimeError("a fault in version 1")
        (failed,) = await first.insert(test, Print())
        await settle(test)
        assert (await test.job_counts())["failed"] == 1
    for number, policy, again in (
        (2, "none", []),
        (3, "reprocess_failed", [failed]),
        (4, "reprocess_failed", []),
        (5, "reprocess_all", [done, failed]),
        (5, "reprocess_all", []),
        (4, "reprocess_all", []),
    ):
        stage = version(version=number, on_version_change=policy)
        async with stage.open(database_url) as test:
            await settle(test)
            ran = stage.taken()
            assert sorted(run.doc_id for run in ran) == sorted(again), (number, policy)
            assert {(run.change, run.attempt) for run in ran} <= {("reconcile", 1)}, "attempts are counted anew"
            record = await known_record(test, failed)
            job = await test.job_calls.find(record.job)
            assert job is not None
            assert job.state is (JobState.FAILED if number == 2 else JobState.SUCCESS)


async def test_ev4_a_wider_watch_runs_rows_whose_field_had_changed_unseen(database_url: str) -> None:
    first = version(watch=("state",))
    async with first.open(database_url) as test:
        (row,) = await first.insert(test, Print(note="a"))
        await settle(test)
        first.taken()
        await first.patch(test, Print, row, note="b")
        assert await settle(test) == 0
    second = version(watch=("state", "note"))
    async with second.open(database_url) as test:
        await settle(test)
        (ran,) = second.taken()
        assert (ran.doc_id, ran.values) == (row, {"state": "new", "note": "b"})
        await second.patch(test, Print, row, note="c")
        await settle(test)
        assert second.ids() == [row]


async def test_ev5_older_rows_are_left_if_that_is_asked_for(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = version(filter=lambda j: j.size > 10)
    async with first.open(database_url) as test:
        older, _ = await first.insert(test, Print(size=5), Print(size=50))
        await settle(test)
    second = version(filter=lambda j: j.size > 1, reconcile_on_trigger_change=False)
    async with second.open(database_url) as test:
        assert await settle(test) == 0
        test.clock.advance(HOUR)
        for _ in range(5):  # the audit leaves them, too
            assert await settle(test, timedelta(seconds=1)) == 0
        (new,) = await second.insert(test, Print(size=5))
        await settle(test)
        assert second.ids() == [new]
        await second.patch(test, Print, older, note="touched")
        await settle(test)
        assert second.ids() == [older]
        assert not [one for one in caplog.records if one.levelno >= logging.ERROR]


async def test_ev5_the_audit_leaves_rows_that_match_no_more_and_finds_those_that_are_gone(database_url: str) -> None:
    on = ("enter", "leave", "delete")
    first = version(filter=lambda j: j.size > 1, on=on)
    async with first.open(database_url) as test:
        smaller, larger, gone = await first.insert(test, Print(size=5), Print(size=50), Print(size=60))
        await settle(test)
    second = version(filter=lambda j: j.size > 10, on=on, reconcile_on_trigger_change=False)
    async with second.open(database_url, clock=test.clock) as test:
        await silence(test, "print")
        await second.delete(test, Print, gone)
        test.clock.advance(HOUR)
        for _ in range(5):
            await settle(test, timedelta(seconds=1))
        assert [(one.doc_id, one.change) for one in second.taken()] == [(gone, "delete")]
        records = [await record_of(test, row) for row in (smaller, larger, gone)]
        assert [None if one is None else one.gone for one in records] == [None, None, "deleted"]


# ----- reprocess_all: each row once for the new version


async def test_a_row_that_the_new_version_has_run_already_is_not_reprocessed(database_url: str) -> None:
    first = version(filter=lambda j: j.size > 10)
    async with first.open(database_url) as test:
        outside, *inside = await first.insert(test, Print(size=5), Print(size=50), Print(size=60))
        await settle(test)
    second = version(filter=lambda j: j.size > 1, version=2, on_version_change="reprocess_all")
    async with second.open(database_url, clock=test.clock) as test:
        new = await second.insert(test, Print(size=70))
        await test.planner.tick()
        await test.run_until_idle(plan=False)
        assert set(second.ids()) == {outside, *new}, "these are planned before the records of version 1 are looked at"
        await settle(test)
        assert sorted(second.ids()) == sorted(inside)


async def test_a_version_that_leaves_older_rows_alone_reprocesses_what_was_run_only(database_url: str) -> None:
    first = version(filter=lambda j: j.size > 10)
    async with first.open(database_url) as test:
        _outside, left, inside = await first.insert(test, Print(size=5), Print(size=50), Print(size=60))
        await settle(test)
        await first.patch(test, Print, left, size=5)
        await settle(test)
    declared: dict[str, Any] = {"on_version_change": "reprocess_all", "reconcile_on_trigger_change": False}
    second = version(filter=lambda j: j.size > 1, version=2, **declared)
    async with second.open(database_url, clock=test.clock) as test:
        await settle(test)
        assert second.ids() == [inside], "the others are outside the filter of version 1"


@pytest.mark.parametrize("which", ["old", "new"])
async def test_a_row_that_runs_while_all_are_reprocessed_runs_once_by_the_new_version(
    database_url: str, which: str
) -> None:
    first, second = version(), version(version=2, on_version_change="reprocess_all")
    async with first.open(database_url) as test:
        (row,) = await first.insert(test, Print())
        await settle(test)
        async with second.open(database_url, clock=test.clock) as other:
            stage, runner = (first, test) if which == "old" else (second, other)
            stage.taken()
            await stage.patch(runner, Print, row, note="x")
            with gate("task.begun") as held:
                await test.planner.tick()  # which has not heard of version 2
                run = asyncio.create_task(runner.run_until_idle(plan=False, advance=False))
                await held.arrived()
                test.clock.advance(timedelta(seconds=10))
                await test.plan()
                held.open()
                await run
            await settle(other, timedelta(minutes=1))
            assert second.ids() == [row]


async def test_a_process_of_the_old_version_leaves_what_is_reprocessed_to_the_new_one(database_url: str) -> None:
    first, second = version(), version(version=2, on_version_change="reprocess_all")
    async with first.open(database_url) as test:
        (row,) = await first.insert(test, Print())
        await settle(test)
        first.taken()
        async with second.open(database_url, clock=test.clock) as other:
            test.clock.advance(timedelta(seconds=10))
            await test.plan()
            await test.run_until_idle(plan=False, advance=False)
            assert (first.ids(), second.ids()) == ([], [])
            await settle(other, timedelta(minutes=1))
            assert (first.ids(), second.ids()) == ([], [row])


async def test_a_process_of_the_old_version_runs_a_row_that_changes_before_it_was_reprocessed(
    database_url: str,
) -> None:
    first, second = version(), version(version=2, on_version_change="reprocess_all")
    async with first.open(database_url) as test:
        (row,) = await first.insert(test, Print())
        await settle(test)
        first.taken()
        async with second.open(database_url, clock=test.clock):
            test.clock.advance(timedelta(seconds=10))
            await test.plan()
        await first.patch(test, Print, row, note="x")
        await settle(test)
        assert first.ids() == [row], "there may be no process of the new version any more"
