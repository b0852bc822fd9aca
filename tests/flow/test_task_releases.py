"""Releases of a program: one is stopped and the next started on the same data, or both run at once on one database."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from stage.stories import Stage, known_record, record_of, settle, silence

from penstock import App, JobState, MutationTaskCtx, Retry, Table, TaskBatchCtx, TaskCtx, TokenBucket
from penstock.testing import TestApp, gate

MINUTE = timedelta(minutes=1)


class Item(Table):
    number: int = 0
    owner: str = "a"
    state: str = "new"
    at: datetime | None = None
    other_at: datetime | None = None


class Other(Table):
    number: int = 0


def release(**options: Any) -> Stage:
    """A release of the program, whose handler reads the row."""
    stage = Stage(Item)

    async def handler(ctx: TaskCtx[Item]) -> None:
        await ctx.get_document()

    stage.task(Item, handler=handler, **{"watch": ("number",), **options})
    return stage


def in_pool(name: str | None, pool: dict[str, Any] | None = None, **options: Any) -> Stage:
    """A release whose task is in a pool, or in none."""
    stage = Stage(Item)
    if name is not None:
        options["pool"] = stage.app.workpool(name, **(pool or {}))
    stage.task(Item, **{"watch": ("number",), **options})
    return stage


def of_an_action(app: App, ran: list[Any], **options: Any) -> None:
    """A task whose rows are read one at a time, and some of their columns."""

    @app.reactive_task(Item, watch=("number",), **options)
    async def react(ctx: TaskCtx[Item]) -> None:
        await ctx.get_document(fields=("number",))
        ran.append(ctx.doc_id)


def of_a_mutation(app: App, ran: list[Any], **options: Any) -> None:
    """A task whose rows are read in the transaction of the run."""

    @app.reactive_task(Item, watch=("number",), **options)
    async def react(ctx: MutationTaskCtx[Item]) -> None:
        await ctx.get_document()
        if ctx.doc_id not in ran:  # its body runs again if another one of its shared transaction has to be undone
            ran.append(ctx.doc_id)


def of_batches(app: App, ran: list[Any], **options: Any) -> None:
    """A task whose rows are read together."""

    @app.reactive_task(Item, watch=("number",), batch=5, **options)
    async def react(ctx: TaskBatchCtx[Item]) -> None:
        ran.extend(run.doc_id for run in await ctx.get_documents())


async def capture(test: TestApp, stage: Stage) -> None:
    """Have captured what another release declares, which has come no further."""
    (declared,) = stage.app.tasks
    store = test.engine.store
    await store.interests.declare([declared.interest(store.dialect)], test.clock.now())


async def declare_only(test: TestApp, stage: Stage) -> None:
    """The same, and make its task known: it dies before it lets go what was captured before."""
    await capture(test, stage)
    (declared,) = stage.app.tasks
    store = test.engine.store
    await store.tasks.declare([declared.plan(store.dialect)], test.clock.now())


async def plan_later(test: TestApp) -> None:
    """Let planners notice what was declared, and plan."""
    test.clock.advance(timedelta(seconds=6))
    await test.plan()


async def work(test: TestApp) -> None:
    """Let a worker of one release run what is planned already."""
    await test.run_until_idle(plan=False, advance=False, raise_errors=False)


# ----- a worker of the release before


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("declare", [of_an_action, of_a_mutation, of_batches])
async def test_runs_that_only_the_filter_of_the_next_release_calls_for_are_left_to_it(
    database_url: str, declare: Callable[..., None], version: int
) -> None:
    first, second, first_ran, second_ran = Stage(Item), Stage(Item), list[Any](), list[Any]()
    declare(first.app, first_ran, filter=lambda i: i.state == "new")
    declare(second.app, second_ran, filter=lambda i: i.state != "closed", version=version)
    async with first.open(database_url) as old:
        older, known = await first.insert(old, Item(state="paid"), Item())
        await settle(old)
        assert first_ran == [known]
        async with second.open(database_url, clock=old.clock) as new:
            later, common = await second.insert(new, Item(state="paid"), Item())
            await plan_later(old)
            await work(old)
            assert first_ran == [known, common], "what both know may be run by either"
            assert not second_ran
            explained = await second.app.tasks.explain(new, "react", later)
            assert "Another release has declared the task otherwise" in str(explained)
            old.clock.advance(timedelta(seconds=29))
            await work(new)
            assert not second_ran, "it is not tried over and over"
            old.clock.advance(timedelta(seconds=1))
            await work(new)
            assert sorted(second_ran) == sorted([older, later])
            assert await new.job_counts() == {"ready": 0, "scheduled": 0, "retrying": 0, "running": 0, "success": 4}


async def test_a_worker_before_a_narrower_filter_ends_as_skipped_what_has_left_both(database_url: str) -> None:
    first, second = release(filter=lambda i: i.state != "closed"), release(filter=lambda i: i.state == "new")
    async with first.open(database_url) as old, second.open(database_url, clock=old.clock) as new:
        stays, leaves, closes = await second.insert(new, Item(), Item(), Item())
        await new.plan()
        await second.patch(new, Item, leaves, state="paid")
        await second.patch(new, Item, closes, state="closed")
        await work(old)
        assert sorted(first.ids()) == sorted([stays, leaves]), "it has not left the filter of its release"
        await settle(new, MINUTE)
        assert not second.ids()
        assert (await new.job_counts())["skipped"] == 1


@pytest.mark.parametrize("on", [("enter", "change"), ("enter", "change", "leave")])
async def test_a_change_that_only_the_release_before_watches_is_no_reason_to_skip_a_run(
    database_url: str, on: tuple[str, ...]
) -> None:
    first, second = release(watch=("number", "owner"), on=on), release(on=on)
    async with first.open(database_url) as old, second.open(database_url, clock=old.clock) as new:
        (row,) = await second.insert(new, Item())
        await new.plan()
        await second.patch(new, Item, row, owner="b")
        await new.plan()
        await work(old)
        await settle(new, MINUTE)
        assert first.ids() + second.ids() == [row]
    third = release(on=on, debounce=MINUTE)
    fourth = release(watch=("number", "state"), on=on, reconcile_on_trigger_change=False)
    async with third.open(database_url, clock=old.clock) as test:
        (row,) = await third.insert(test, Item())
        await test.plan()
    async with fourth.open(database_url, clock=old.clock) as test:
        await settle(test, MINUTE)
        assert fourth.ids() == [row], "what was not captured when a run was planned is no change"


_BUCKET = TokenBucket(rate=100, period=timedelta(seconds=1))


MOVES: dict[str, tuple[dict[str, Any] | None, dict[str, Any] | None]] = {
    "bounded": ({"max_parallelism": 3}, {"max_parallelism": 3}),
    "limited_before": ({"rate_limit": _BUCKET}, {}),
    "limited_after": ({}, {"rate_limit": _BUCKET}),
    "none_before": (None, {}),
    "none_after": ({}, None),
}


# ----- another pool


@pytest.mark.parametrize("debounce", [timedelta(0), MINUTE])
async def test_pending_runs_move_to_the_pool_that_is_declared_now(database_url: str, debounce: timedelta) -> None:
    first, second = Stage(Item), Stage(Item)
    for name, pools in MOVES.items():
        for stage, which, pool in zip((first, second), "ab", pools, strict=True):
            options: dict[str, Any] = {"watch": ("number",), "debounce": debounce}
            if pool is not None:
                options["pool"] = stage.app.workpool(f"{name}_{which}", **pool)
            stage.task(Item, name, **options)
    async with first.open(database_url) as test:
        rows = await first.insert(test, Item(), Item())
        await test.plan()
    async with second.open(database_url, clock=test.clock) as test:
        await test.run_until_idle()
        ran = sorted((one.task, one.doc_id) for one in second.taken())
        assert ran == sorted((name, row) for name in MOVES for row in rows)


async def test_a_run_that_began_before_goes_on_in_the_pool_and_with_the_priority_that_are_declared_now(
    database_url: str,
) -> None:
    again = Retry.fixed(MINUTE, max_attempts=3)
    first, second = in_pool("a", retry=again), in_pool("b", retry=again, priority=5)
    first.error = ConnectionError("down")
    async with first.open(database_url) as old:
        (row,) = await first.insert(old, Item())
        await old.plan()
        with gate("task.begun") as held:
            await old.worker.tick()
            await held.arrived()
            async with second.open(database_url, clock=old.clock) as new:
                held.open()
                await work(old)
                assert not first.ids()
                (job,) = await new.jobs("pending")
                assert (job.attempt, job.priority) == (1, 5)
                await settle(new, 2 * MINUTE)
                (ran,) = second.taken()
                assert (ran.doc_id, ran.attempt) == (row, 2)


async def test_runs_move_with_their_keys_and_stay_in_their_order(database_url: str) -> None:
    keyed = {"key_parallelism": 1}
    first, second = in_pool("a", keyed, key="owner"), in_pool("b", keyed, key="owner")
    async with first.open(database_url) as test:
        rows = [row for number in range(4) for row in await first.insert(test, Item(number=number))]
        await test.plan()
    async with second.open(database_url, clock=test.clock) as test:
        with gate("task.begun") as held:
            for _ in range(4):
                await test.worker.tick()
            assert (await test.job_counts())["running"] == 1
            held.open()
            await settle(test)
        assert second.ids() == rows


@pytest.mark.parametrize("key", [None, "owner", "state"])
async def test_another_key_holds_for_pending_runs_too(database_url: str, key: str | None) -> None:
    def made(key: str | None, name: str) -> Stage:
        return in_pool(name, {"key_parallelism": 1}, debounce=MINUTE, **({"key": key} if key else {}))

    first, second = made("owner" if key != "owner" else None, "p"), made(key, "p")
    async with first.open(database_url) as test:
        await first.insert(test, *(Item(number=n, owner=f"{n % 2}", state=f"{n // 3}") for n in range(6)))
        await test.plan()
    async with second.open(database_url, clock=test.clock) as test:
        await test.plan()
        test.clock.advance(2 * MINUTE)
        with gate("task.begun") as held:
            for _ in range(4):
                await test.worker.tick()
            assert (await test.job_counts())["running"] == (6 if key is None else 2)
            held.open()
            await settle(test)
        assert len(second.ids()) == 6


async def test_another_key_holds_for_runs_that_were_due_and_have_not_begun(database_url: str) -> None:
    first = in_pool("first", {"key_parallelism": 1})
    second = in_pool("first", {"key_parallelism": 1}, key="owner")
    async with first.open(database_url) as test:
        await first.insert(test, *(Item(number=n, owner=f"{n % 2}") for n in range(6)))
        await test.plan()
    async with second.open(database_url, clock=test.clock, worker_jobs=1) as test:
        with gate("task.begun") as held:
            await test.worker.tick()  # which makes all of them ready
            assert (await test.job_counts())["ready"] == 6
            await test.plan()
            assert (await test.job_counts())["ready"] == 0, "they wait at the gate of their key now"
            held.open()
            await settle(test)
        assert len(second.ids()) == 6


# ----- a release that comes half of the way


async def test_a_run_keeps_its_time_while_the_column_before_is_captured_still(database_url: str) -> None:
    first, second = release(run_at="at"), release(run_at="other_at")
    async with first.open(database_url) as test:
        begun = test.clock.now()
        (row,) = await first.insert(test, Item(at=begun + 50 * MINUTE, other_at=begun + 30 * MINUTE))
        await settle(test, MINUTE)
        await declare_only(test, second)
        await plan_later(test)
        await first.patch(test, Item, row, number=1)
        await plan_later(test)
    async with second.open(database_url, clock=test.clock) as test:
        await test.run_until(begun + 29 * MINUTE)
        assert not second.ids()
        await test.run_until(begun + 30 * MINUTE)
        assert second.ids() == [row]


# ----- what was written before a release, and not planned


async def test_what_was_written_before_and_not_planned_is_planned_by_the_next_release(database_url: str) -> None:
    first = release(filter=lambda i: i.number > 10)
    second = release(filter=lambda i: i.number > 1, reconcile_on_trigger_change=False)
    async with first.open(database_url) as test:
        await settle(test)
        await first.insert(test, Item(number=5))
        (row,) = await first.insert(test, Item(number=50))
    async with second.open(database_url, clock=test.clock) as test:
        await settle(test)
        assert second.ids() == [row]


async def test_another_table_of_the_same_task_has_nothing_of_what_was_written_to_the_first(database_url: str) -> None:
    first, second = release(), Stage(Item, Other)
    second.task(Other, watch=("number",))
    async with first.open(database_url) as test:
        await settle(test)
        await first.insert(test, Item())
    async with second.open(database_url, clock=test.clock) as test:
        await settle(test)
        assert not second.ids()


# ----- another filter, watch or version

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


async def test_a_process_of_the_old_version_leaves_what_is_reprocessed_to_the_new_one_and_runs_what_changes(
    database_url: str,
) -> None:
    first, second, third = (version(version=number, on_version_change="reprocess_all") for number in (1, 2, 3))
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
        async with third.open(database_url, clock=test.clock):
            test.clock.advance(timedelta(seconds=10))
            await test.plan()
        await first.patch(test, Print, row, note="x")
        await settle(test)
        assert first.ids() == [row], "there may be no process of the new version any more"
