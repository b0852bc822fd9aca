"""Who plans, and how all rows of a task are looked at: those older than it, and those whose changes were lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from stage.stories import Stage, known_record, lose, record_of, settle, silence, task_row
from stage.waits import events

from penstock import DatabaseUnavailable, Table, TaskCtx
from penstock.api.tasks.tasks import READER
from penstock.reactive.reconciling import compare_rows
from penstock.services import reconciler
from penstock.services.service import Service
from penstock.testing import TestApp, gate, raising

HOUR = timedelta(hours=1)


class Item(Table, live=False):
    number: int = 0
    state: str = "new"


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ten rows at a time are looked at; these are their keys."""
    seen: list[str] = []
    compare = compare_rows

    def look(task: Any, rows: Iterable[Any], *others: Any) -> Any:
        found = list(rows)
        seen.extend(row.key for row in found)
        return compare(task, found, *others)

    monkeypatch.setattr(reconciler, "_AT_ONCE", 10)
    monkeypatch.setattr(reconciler, "compare_rows", look)
    return seen


async def older(url: str, count: int, state: str = "new") -> list[Any]:
    """Rows that were there before any task was."""
    stage = Stage(Item)
    async with stage.open(url) as test:
        return await stage.insert(test, *(Item(number=number, state=state) for number in range(count)))


# ----- rows that are older than a task


async def test_rc1_rt12_older_rows_run_if_they_match_and_that_is_told(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "penstock")
    rows = await older(database_url, 3)
    await older(database_url, 4, "other")
    stage = Stage()
    stage.task(Item, filter=lambda i: i.state == "new")
    async with stage.open(database_url) as test:
        assert (await task_row(test)).reconciling is not None
        await settle(test)
        assert set(stage.ids()) == set(rows)
        task = await task_row(test)
        assert (task.reconciling, task.reconciled_at) == (None, test.clock.now())
        assert len(events(caplog, "planner.started")) == 1
        assert [(one["task"], one["found"]) for one in events(caplog, "task.reconciled")] == [("react", 3)]
        assert await settle(test, HOUR * 30) == 0, "and once only"


async def test_rc2_rc3_it_goes_on_after_the_last_row_that_it_had_looked_at(
    database_url: str, looked_at: list[str]
) -> None:
    await older(database_url, 50)
    stage = Stage()
    stage.task(Item)
    async with stage.open(database_url) as test:
        for looked in (10, 20):
            await test.planner.tick()
            at = (await task_row(test)).reconciling
            assert at is not None
            assert (at.looked, at.found, at.after) == (looked, looked, looked_at[-1])
    async with stage.open(database_url) as test:
        await settle(test)
        assert len(looked_at) == len(set(looked_at)) == 50, "none twice"
        assert len(set(stage.ids())) == 50
        assert (await task_row(test)).reconciling is None


async def test_rc4_f19_for_another_filter_all_rows_are_looked_at(database_url: str, looked_at: list[str]) -> None:
    rows = await older(database_url, 30)
    first = Stage()
    first.task(Item, filter=lambda i: i.number >= 15)
    async with first.open(database_url) as test:
        await test.planner.tick()
        assert len(looked_at) == 10
        assert (await task_row(test)).reconciling is not None
    looked_at.clear()
    stage = Stage()
    stage.task(Item, filter=lambda i: i.number < 15)
    async with stage.open(database_url) as test:
        await settle(test)
        assert len(looked_at) >= 15
        assert set(rows[:15]) == set(stage.ids()), "those before the place that it had come to, too"


async def test_rc5_rc7_rc8_f4_changes_that_were_lost_have_all_rows_looked_at(database_url: str) -> None:
    stage = Stage()
    stage.task(Item, filter=lambda i: i.state != "done", watch=("state",), keep_for=timedelta(0))
    async with stage.open(database_url) as test:
        changed, other, deleted, left, leaves = await stage.insert(test, *(Item() for _ in range(5)))
        await settle(test)
        await stage.patch(test, Item, left, state="done")
        await settle(test)
        stage.taken()
        (interest,) = await test.engine.store.interests.list()
        await silence(test)
        await stage.patch(test, Item, changed, state="lost")
        await stage.patch(test, Item, other, number=5)
        await stage.patch(test, Item, leaves, state="done")
        await stage.delete(test, Item, deleted)
        (entered,) = await stage.insert(test, Item())
        assert await settle(test) == 0
        await lose(test, interest.id)
        await settle(test)
        assert {(ran.doc_id, ran.change) for ran in stage.taken()} == {(changed, "reconcile"), (entered, "reconcile")}
        record = await known_record(test, deleted)
        assert record.gone == "deleted"
        await lose(test, interest.id)
        assert await settle(test) == 0, "nothing more was lost"
        await settle(test, timedelta(seconds=5))
        assert await record_of(test, deleted) is None
        await settle(test, HOUR)
        records = [await record_of(test, row) for row in (changed, other, left, leaves)]
        assert [record and record.gone for record in records] == [None, None, "left", "left"]


# ----- beside all else


async def test_gp1_rows_written_while_others_are_looked_at_all_run(database_url: str, looked_at: list[str]) -> None:
    rows = await older(database_url, 40)
    stage, pieces = Stage(), 0
    stage.task(Item)
    async with stage.open(database_url) as test:
        while await test.planner.tick() == 0 or pieces < 5:
            pieces += 1
            if pieces < 5:
                rows += await stage.insert(test, *(Item(number=-number) for number in range(10)))
                await stage.patch(test, Item, rows[pieces], number=-1)
        await settle(test)
        assert len(rows) >= 80
        assert looked_at
        for row in rows[::10]:
            record = await known_record(test, row)
            assert not record.live
        assert set(stage.ids()) == set(rows)
        assert (await test.job_counts())["success"] == len(rows)


async def test_f13_neither_starts_nor_workers_wait_and_nobody_else_plans(
    database_url: str, looked_at: list[str]
) -> None:
    await older(database_url, 70)
    stage = Stage()
    stage.task(Item)
    async with stage.open(database_url) as one, stage.open(database_url, clock=one.clock) as two:
        assert not looked_at, "it has started before it looks at any row"
        lease, at_work = timedelta(seconds=one.config.lease), set[int]()
        while await one.planner.tick() == 0:
            await two.worker.tick()
            await two.worker.wait_for_jobs()
            at_work.add(len(stage.ran))
            before = len(looked_at)
            assert await two.planner.tick() > 0
            assert len(looked_at) == before, "another does not plan"
            one.clock.advance(lease / 5)
        assert len(at_work) > 5, "runs go on meanwhile"
        assert one.clock.now() - lease > (await task_row(one)).declared_at, "for longer than a lease"
        assert len(looked_at) == len(set(looked_at)) == 70


async def test_f20_looking_that_failed_is_not_taken_for_done(
    database_url: str, monkeypatch: pytest.MonkeyPatch, looked_at: list[str]
) -> None:
    rows = await older(database_url, 30)
    stage = Stage()
    stage.task(Item)
    async with stage.open(database_url) as test:
        plan, calls = test.engine.store.tasks.plan, 0

        async def fail(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls % 2 == 0:
                raise DatabaseUnavailable("away")
            return await plan(*args)

        monkeypatch.setattr(test.engine.store.tasks, "plan", fail, raising=False)
        for _ in range(40):
            await test.planner._safe_tick()
            at = (await task_row(test)).reconciling
            if calls < 5:
                assert at is not None
        assert calls > 5
        assert (await task_row(test)).reconciling is None
        await settle(test)
        assert sorted(stage.ids()) == sorted(rows)


SECOND = timedelta(seconds=1)


class Row(Table):
    number: int = 0


@asynccontextmanager
async def two_on(url: str, **settings: Any) -> AsyncIterator[tuple[Stage, TestApp, TestApp]]:
    """Two processes of one program."""
    stage = Stage()
    stage.task(Row)
    async with (
        stage.open(url, **settings) as one,
        stage.open(url, clock=one.clock, **settings) as two,
    ):
        yield stage, one, two


async def planner_of(test: TestApp) -> int | None:
    """The lease of whoever plans."""
    (reader,) = [row for row in await test.engine.store.changes.readers() if row.name == "tasks"]
    return reader.lease


async def test_le2_le10_the_lease_is_renewed_while_it_plans(database_url: str) -> None:
    async with two_on(database_url, lease=8.0) as (_, one, two):
        await one.plan()
        lease = await planner_of(one)
        for _ in range(20):
            one.clock.advance(2 * SECOND)
            await one.plan()
            await two.worker.tick()  # who takes over what has run out
            await two.plan()
            assert await planner_of(one) == lease
        one.clock.advance(5 * SECOND)
        await two.worker.tick()
        await two.plan()
        assert await planner_of(one) == lease, "it has not run out yet"
        one.clock.advance(4 * SECOND)
        await two.worker.tick()
        await two.plan()
        assert await planner_of(one) not in {lease, None}, "and now it has"


async def test_rt8_le1_le3_le5_le9_who_comes_first_plans_and_leaves_it_to_the_next_when_it_stops(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "penstock")
    async with two_on(database_url) as (stage, one, two):
        await one.plan()
        lease = await planner_of(one)
        assert lease is not None
        await stage.insert(one, Row())
        await two.plan()
        assert await planner_of(two) == lease
        assert not (await two.job_counts())["ready"]
        await one.plan()
        assert await settle(two) == 1, "who runs need not plan"
        assert len(events(caplog, "planner.started")) == 1
        await stage.insert(one, Row())
        await one.planner.finish()
        await settle(two)
        assert len(stage.taken()) == 2
        await stage.insert(one, Row())
        await settle(one)
        assert stage.taken() == []


async def test_le8_le12_f3_rz1_an_error_while_planning_loses_nothing(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with two_on(database_url) as (stage, one, _):
        rows = await stage.insert(one, Row())
        error = DatabaseUnavailable("away")
        for moment in ("planner.read", "planner.planned"):
            rows += await stage.insert(one, Row())
            with raising(moment, error, times=2):
                for _ in range(2):
                    assert await Service._safe_tick(one.planner) > 0
            assert not (await one.job_counts())["ready"]
            await one.plan()
            assert (await one.job_counts())["ready"] == len(rows)
            await settle(one)
            assert sorted(stage.ids()) == sorted(rows)
            rows = []
        assert sum(record.getMessage().startswith("planner.tick_failed") for record in caplog.records) == 4


async def test_le11_le13_stopping_ends_though_the_lease_cannot_be_given_back(
    database_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_on(database_url) as (stage, one, two):
        await one.plan()

        async def fail(*_: Any) -> None:
            raise DatabaseUnavailable("away")

        with monkeypatch.context() as patched:
            patched.setattr(one.engine.store.leases, "give_back", fail, raising=False)
            await one.planner.stop()
            await one.planner.finish()
            await one.planner.stop()
        assert sum(record.getMessage().startswith("planner.lease_kept") for record in caplog.records) == 1
        rows = await stage.insert(one, Row())
        one.clock.advance(timedelta(seconds=one.config.lease * 2))
        await two.worker.tick()
        await settle(two)
        assert stage.ids() == rows


async def test_rows_written_while_the_reader_was_dropped_are_run_as_well(database_url: str) -> None:
    async with two_on(database_url) as (stage, one, two):
        first = await stage.insert(one, Row())
        await settle(one)
        await one.planner.finish()
        assert await one.engine.store.changes.forget(READER)
        second = await stage.insert(one, Row())
        async with stage.open(database_url, clock=two.clock) as three:
            await settle(three)
        assert [(one.doc_id, one.change) for one in stage.taken()] == [(*first, "enter"), (*second, "reconcile")]


async def test_runs_that_wait_are_those_of_a_handler_that_has_another_name_now(database_url: str) -> None:
    before, after, ran = Stage(Row), Stage(Row), list[Any]()

    @before.app.reactive_task(Row, name="weigh")
    async def weigh(ctx: TaskCtx[Row]) -> None:
        ran.append("weigh")

    @after.app.reactive_task(Row, name="weigh")
    async def weigh_again(ctx: TaskCtx[Row]) -> None:
        ran.append(ctx.doc_id)

    async with before.open(database_url) as test:
        rows = await before.insert(test, Row())
        await test.plan()
    async with after.open(database_url, clock=test.clock) as test:
        await settle(test)
    assert ran == rows


async def test_le4_le6_a_planner_that_stands_by_takes_over_and_who_lost_the_lease_notices(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with two_on(database_url) as (stage, one, two):
        await one.plan()
        dead = await planner_of(one)
        await stage.insert(one, Row())
        one.clock.advance(timedelta(seconds=one.config.lease * 0.5))
        await two.plan()
        assert await planner_of(two) == dead, "it may still be there"
        with gate("planner.planned", most=1) as held:
            late = asyncio.create_task(one.planner.tick())
            await held.arrived()
            one.clock.advance(timedelta(seconds=one.config.lease * 2))
            await two.plan()
            assert await planner_of(two) not in {dead, None}, "though there is no worker"
            held.open()
            await late
        assert "planner.reader_lost" in caplog.text
        assert (await two.job_counts())["ready"] == 1
        await stage.insert(one, Row())
        await one.plan()
        assert (await two.job_counts())["ready"] == 1, "it plans nothing any more"
