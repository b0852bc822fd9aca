"""Looking at all rows of a task: those that are older than it, and those whose changes were lost."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest
from stage.feed import write
from stage.outboxes import run_sql
from stage.reactive import Stage, lose, record_of, settle, silence, task_row

from penstock import App, DatabaseUnavailable, MutationTaskCtx, Table, TaskNotFound
from penstock.reactive.reconciling import compare_rows
from penstock.services import reconciler
from penstock.services.service import Service
from penstock.testing import TestApp, TestClock, raising

HOUR = timedelta(hours=1)


class Item(Table, live=False):
    number: int = 0
    state: str = "new"


class Plain(Table, source="plain", key="key", managed=False):
    key: int


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


async def test_rc1_older_rows_run_if_they_match(database_url: str) -> None:
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


async def test_f19_who_still_plans_for_the_filter_before_does_not_end_what_another_one_has_begun(
    database_url: str, looked_at: list[str]
) -> None:
    rows = await older(database_url, 30)
    first, second = Stage(), Stage()
    first.task(Item, filter=lambda i: i.number >= 15)
    second.task(Item, filter=lambda i: i.number < 15)
    async with first.open(database_url) as test:
        await test.planner.tick()
        assert looked_at
        test.clock.advance(timedelta(seconds=1))
        async with second.open(database_url, clock=test.clock) as other:
            await test.plan()  # it has not heard of it
            await settle(other)
            test.clock.advance(timedelta(seconds=10))
            await test.plan()
            await settle(other)
            assert set(rows[:15]) <= {run.doc_id for run in second.ran}
            assert (await task_row(other)).reconciling is None


# ----- changes that were lost


async def test_rc5_f4_changes_that_were_lost_have_all_rows_looked_at(database_url: str) -> None:
    stage = Stage()
    stage.task(Item, watch=("state",))
    async with stage.open(database_url) as test:
        one, two, three = await stage.insert(test, Item(), Item(), Item())
        await settle(test)
        stage.taken()
        (interest,) = await test.engine.store.interests.list()
        await silence(test)
        await stage.patch(test, Item, one, state="lost")
        await stage.patch(test, Item, two, number=5)
        await stage.delete(test, Item, three)
        (four,) = await stage.insert(test, Item())
        assert await settle(test) == 0
        await lose(test, interest.id)
        await settle(test)
        assert {(ran.doc_id, ran.change) for ran in stage.taken()} == {(one, "reconcile"), (four, "reconcile")}
        record = await record_of(test, three)
        assert record is not None
        assert record.gone == "deleted"
        await lose(test, interest.id)
        assert await settle(test) == 0, "nothing more was lost"


async def test_f19_a_loss_while_rows_are_looked_at_begins_anew_and_keeps_what_is_to_be_run_again(
    database_url: str, looked_at: list[str]
) -> None:
    rows = await older(database_url, 30)
    first = Stage()
    first.task(Item)
    async with first.open(database_url) as test:
        await settle(test)
    stage = Stage()
    stage.task(Item, version=2, on_version_change="reprocess_all")
    async with stage.open(database_url) as test:
        looked_at.clear()
        await test.planner.tick()
        await test.planner.tick()
        assert len(looked_at) == 20
        (interest,) = await test.engine.store.interests.list()
        await lose(test, interest.id)
        looked_at.clear()
        await settle(test)
        assert len(looked_at) == 30, "from the beginning"
        assert sorted(stage.ids()) == sorted(rows), "and all run for the new version"


async def test_all_rows_are_looked_at_when_somebody_asks_for_it(
    database_url: str, looked_at: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock")
    stage = Stage()
    stage.task(Item, watch=("state",))
    async with stage.open(database_url) as test:
        first, *_ = await stage.insert(test, *(Item(number=number) for number in range(30)))
        await settle(test)
        stage.taken()
        await silence(test)
        await stage.patch(test, Item, first, state="unseen")
        assert await settle(test) == 0
        await stage.app.tasks.reconcile(test, "react")
        assert "task.reconcile_asked" in caplog.text
        await settle(test)
        assert [(ran.doc_id, ran.change) for ran in stage.taken()] == [(first, "reconcile")]
        assert (await task_row(test)).reconciling is None
        with pytest.raises(TaskNotFound, match="no reactive task 'reactt'"):
            await stage.app.tasks.reconcile(test, "reactt")


async def test_who_goes_on_with_an_earlier_look_does_not_end_one_that_is_asked_for(
    database_url: str, looked_at: list[str]
) -> None:
    await older(database_url, 40)
    stage = Stage()
    stage.task(Item)
    async with stage.open(database_url) as test, stage.open(database_url, clock=test.clock) as other:
        for _ in range(2):
            await test.planner.tick()
        before = list(looked_at)
        assert len(before) == 20
        await stage.app.tasks.reconcile(other, "react")
        at = (await task_row(test)).reconciling
        assert at is not None
        assert (at.looked, at.after) == (0, None)
        await settle(test)
        assert {key: looked_at[20:].count(key) for key in before} == dict.fromkeys(before, 1), "once more"
        assert (await task_row(test)).reconciling is None
        ids = stage.ids()
        assert len(set(ids)) == len(ids) == 40, "but nothing is run twice"


async def test_a_trigger_that_was_dropped_is_found_by_the_audit(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage()
    stage.task(Item)
    async with stage.open(database_url) as test:
        await stage.insert(test, Item())
        await settle(test)
        await silence(test)
        (missed,) = await stage.insert(test, Item())
        stage.taken()
        for _ in range(5):
            await settle(test, HOUR)
        assert stage.ids() == [missed]
        assert [one.levelno for one in caplog.records if one.getMessage().startswith("task.audit_found")] == [
            logging.ERROR
        ]


# ----- rows that went


async def test_rc7_a_row_that_went_unseen_is_found(database_url: str) -> None:
    stage = Stage()
    stage.task(Item, keep_for=timedelta(0))
    async with stage.open(database_url) as test:
        one, two = await stage.insert(test, Item(), Item())
        await settle(test)
        await silence(test)
        await stage.delete(test, Item, one)
        (interest,) = await test.engine.store.interests.list()
        await lose(test, interest.id)
        await settle(test)
        await settle(test, timedelta(seconds=5))
        assert await record_of(test, one) is None
        assert await record_of(test, two) is not None


async def test_rc8_the_record_of_a_row_that_matches_no_more_is_kept(database_url: str) -> None:
    stage = Stage()
    stage.task(Item, filter=lambda i: i.state == "new", keep_for=timedelta(0))
    async with stage.open(database_url) as test:
        seen, unseen = await stage.insert(test, Item(), Item())
        await settle(test)
        await stage.patch(test, Item, seen, state="done")
        await settle(test)
        await silence(test)
        await stage.patch(test, Item, unseen, state="done")
        (interest,) = await test.engine.store.interests.list()
        await lose(test, interest.id)
        await settle(test)
        await settle(test, HOUR)
        for row in (seen, unseen):
            record = await record_of(test, row)
            assert record is not None
            assert record.gone == "left"


# ----- beside all else


async def test_gp1_rows_written_while_others_are_looked_at_all_run(database_url: str) -> None:
    rows = await older(database_url, 1000)
    stage, count = Stage(), 0

    @stage.app.reactive_task(Item)
    async def react(ctx: MutationTaskCtx[Item]) -> None:
        nonlocal count
        count += 1

    reconciler_pieces = 0
    async with stage.open(database_url) as test:
        while await test.planner.tick() == 0 or reconciler_pieces < 5:
            reconciler_pieces += 1
            rows += await stage.insert(test, *(Item(number=-number) for number in range(100)))
            await stage.patch(test, Item, rows[reconciler_pieces], number=-1)
        await settle(test)
        assert len(rows) >= 1500
        name = next(iter(stage.app.tasks)).task.name
        for row in rows[::10]:
            record = await record_of(test, row, name)
            assert record is not None
            assert not record.live
        assert (await test.job_counts())["success"] == len(rows)


async def test_f13_neither_starts_nor_workers_wait_and_nobody_else_plans(
    database_url: str, looked_at: list[str]
) -> None:
    await older(database_url, 100)
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
        assert len(looked_at) == len(set(looked_at)) == 100


@pytest.mark.parametrize(
    ("error", "level"), [(DatabaseUnavailable("away"), logging.WARNING), (RuntimeError("odd"), logging.ERROR)]
)
async def test_rz1_an_error_is_told_and_the_next_row_runs(
    database_url: str, caplog: pytest.LogCaptureFixture, error: Exception, level: int
) -> None:
    stage = Stage()
    stage.task(Item)
    async with stage.open(database_url) as test:
        await settle(test)
        with raising("planner.read", error):
            rows = await stage.insert(test, Item())
            assert await Service._safe_tick(test.planner) > 0
        (told,) = [one for one in caplog.records if vars(one).get("event") == "planner.tick_failed"]
        assert (told.levelno, vars(told)["facts"]["error"]) == (level, f"{type(error).__name__}: {error}")
        rows += await stage.insert(test, Item())
        await settle(test)
        assert sorted(stage.ids()) == sorted(rows)


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


class Own(Table, source="own", key="nr", managed=False):
    nr: int
    name: str | None


async def test_f20_a_table_that_is_away_was_not_looked_at(database_url: str) -> None:
    make = "create table own (nr integer primary key, name text)"
    await run_sql(database_url, make)
    stage = Stage()
    stage.task(Own)
    async with stage.open(database_url) as test:
        await run_sql(database_url, "insert into own values (1, 'a')")
        await settle(test)
        await run_sql(database_url, "drop table own")
        await stage.app.tasks.reconcile(test, "react")
        for _ in range(3):
            await settle(test)
            assert (await task_row(test)).reconciling is not None
            test.clock.advance(timedelta(seconds=61))
        await run_sql(database_url, make, "insert into own values (7, 'x'), (8, 'y')")
        stage.taken()
        await settle(test)
        assert (await task_row(test)).reconciling is None
        assert sorted(stage.ids()) == [7, 8]


async def test_f21_it_goes_on_after_integer_keys(database_url: str, looked_at: list[str]) -> None:
    keys = sorted({0, -1, 1, -(2**40), 2**40, *range(-30, 30)})
    app, ran = App(), list[Any]()

    @app.reactive_task(Plain, name="react")
    async def react(ctx: MutationTaskCtx[Plain]) -> None:
        ran.append(ctx.doc_id)

    plain = Stage()
    async with plain.open(database_url) as test:
        values = ", ".join(f"({key})" for key in keys)
        await write(
            test.engine.store, "create table plain (key bigint primary key)", f"insert into plain values {values}"
        )
    for seed in range(len(keys)):
        async with TestApp(app, database_url, clock=TestClock(seed=seed)) as test:  # each time by another process
            await test.planner.tick()
            if (await task_row(test)).reconciling is None:
                break
    async with TestApp(app, database_url) as test:
        await test.run_until_idle()
    assert sorted(ran) == keys
    assert len(looked_at) == len(keys), "each once"
