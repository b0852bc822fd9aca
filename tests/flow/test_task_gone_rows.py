"""Rows that are gone, and the audit that finds what nobody saw: what is done about them, and what is kept of them."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest
from stage.feed import write
from stage.stories import Stage, known_record, record_of, settle, silence, task_row

from penstock import Retry, Table
from penstock.testing import TestApp

SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)


class Item(Table):
    number: int = 0
    state: str = "new"


def items(on: tuple[str, ...] = ("enter", "change"), **options: Any) -> Stage:
    """A task about new items, which watches their number."""
    stage = Stage(Item)
    stage.task(Item, filter=lambda item: item.state == "new", on=on, **{"watch": ("number",)} | options)
    return stage


async def tamper(test: TestApp, sql: str) -> None:
    """Write records past penstock; `record` names their table."""
    name = "penstock.task_record" if test.engine.store.dialect.schemas else "penstock_task_record"
    await write(test.engine.store, sql.replace("record", name))


async def audit(test: TestApp) -> None:
    """Let the time for an audit come, and what it finds be run."""
    test.clock.advance(HOUR)
    for _ in range(12):
        await settle(test, SECOND)
    tasks = await test.engine.store.tasks.list()
    assert not any(task.reconciling for task in tasks), "it is through"


def found(test: TestApp, caplog: pytest.LogCaptureFixture) -> tuple[float, list[int]]:
    """What was counted and what was told of what audits have found."""
    meters = test.engine.journal.meters
    assert meters is not None
    told = [record for record in caplog.records if record.getMessage().startswith("task.audit_found")]
    assert all(record.levelno == logging.ERROR for record in told)
    counts = [int(record.getMessage().partition("found=")[2].split()[0]) for record in told]
    return meters.counters["penstock_task_audit_found"]["react",], counts


async def test_records_that_were_tampered_with_are_mended(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    job = "gen_random_uuid()" if database_url.startswith("postgres") else "randomblob(16)"
    columns = "generation, live, idle, change, before, after, changed_at, due_at"
    stage = items()
    async with stage.open(database_url, metrics_token="let-me-in") as test:
        rows = await stage.insert(test, *(Item(number=number) for number in range(3)))
        await settle(test)
        stage.taken()
        await audit(test)
        assert found(test, caplog) == (0, []), "all is well"
        where = f"where key = '[\"{rows[0]}\"]'"
        missing = f"insert into record (task, key, id, {columns}) select task, '[\"item_none\"]', {job}, {columns} "
        for number, (sql, runs) in enumerate(
            (
                (f"delete from record {where}", ["reconcile"]),
                (f"update record set gone = 'left' {where}", ["reconcile"]),
                (f"update record set gone = 'deleted' {where}", ["reconcile"]),
                (f"{missing} from record {where}", []),
            ),
            1,
        ):
            await tamper(test, sql)
            await audit(test)
            assert stage.changes() == runs, sql
            assert found(test, caplog) == (number, [1] * number), sql
            records = [await record_of(test, row) for row in rows]
            assert [record and record.gone for record in records] == [None] * 3, sql
            assert records[0] is not None
            assert records[0].change == "reconcile"
        never = await known_record(test, "item_none")
        assert never.gone == "deleted"
        await audit(test)
        assert found(test, caplog) == (4, [1] * 4), "it is mended"


async def test_a_row_that_is_noted_as_left_and_is_deleted_is_noted_so_and_is_nothing_found(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    stage = items()
    async with stage.open(database_url, metrics_token="let-me-in") as test:
        for seen in (True, False):
            (left,) = await stage.insert(test, Item())
            await settle(test)
            await stage.patch(test, Item, left, state="old")
            await settle(test)
            record = await known_record(test, left)
            assert record.gone == "left"
            if not seen:
                await silence(test)
            await stage.delete(test, Item, left)
            stage.taken()
            await audit(test)
            record = await known_record(test, left)
            assert (stage.changes(), record.gone) == ([], "deleted"), seen
            assert found(test, caplog) == (0, []), seen


async def test_the_audit_looks_an_hour_after_the_last_look_200_rows_a_second(database_url: str) -> None:
    stage = items()
    async with stage.open(database_url, metrics_token="let-me-in") as test:
        await stage.insert(test, *(Item(number=number) for number in range(450)))
        await settle(test)
        last = (await task_row(test)).reconciled_at
        assert last is not None
        test.clock.advance(last + HOUR - timedelta(seconds=1) - test.clock.now())
        await test.plan()
        assert (await task_row(test)).reconciling is None
        looked = []
        for _ in range(6):
            test.clock.advance(timedelta(seconds=1))
            await test.plan()
            await test.plan()
            at = (await task_row(test)).reconciling
            looked.append(None if at is None else (at.part, at.looked))
        rows = [("rows", 200), ("rows", 400), ("records", 450)]
        assert looked == [*rows, ("records", 650), ("records", 850), None]


# ----- looking at rows that are gone


@pytest.mark.parametrize("how", ["asked", "audit"])
async def test_a_run_for_a_row_that_left_is_still_to_come_when_that_is_deleted(database_url: str, how: str) -> None:
    stage, again = Stage(Item), Retry.fixed(7200, max_attempts=5)
    names = ("leave", "enter_leave", "enter_leave_delete")
    for name in names:
        on = tuple(name.split("_"))
        stage.task(Item, name, filter=lambda one: one.state == "new", on=on, watch=("number",), retry=again)
    async with stage.open(database_url) as test:
        (row,) = await stage.insert(test, Item(number=7))
        await settle(test)
        stage.taken()
        stage.error = ConnectionError("away")
        await stage.patch(test, Item, row, state="old")
        await test.run_until_idle(advance=False, raise_errors=False)
        stage.error = None
        await stage.delete(test, Item, row)
        if how == "asked":
            for name in names:
                await stage.app.tasks.reconcile(test, name)
            await test.run_until_idle(advance=False, raise_errors=False)
        else:
            await audit(test)
        for name in names:
            record = await known_record(test, row, name)
            assert (record.gone, record.live) == ("deleted", True), name
        await test.run_until_idle()
        assert {(one.task, one.change, one.attempt) for one in stage.taken()} == {(name, "leave", 2) for name in names}


async def test_a_row_that_left_and_is_deleted_is_forgotten_once_its_run_has_ended(database_url: str) -> None:
    stage = items(("leave",), keep_for=timedelta(0))
    async with stage.open(database_url) as test:
        (row,) = await stage.insert(test, Item())
        await settle(test)
        await stage.app.tasks.pause(test, "react")
        await stage.patch(test, Item, row, state="old")
        await stage.delete(test, Item, row)
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


@pytest.mark.parametrize("fails", [False, True])
async def test_a_higher_version_does_again_what_was_done_about_rows_that_went(
    database_url: str, *, fails: bool
) -> None:
    policies = {"none": False, "reprocess_failed": fails, "reprocess_all": True}
    first, second = Stage(Item), Stage(Item)
    for version, stage in enumerate((first, second), 1):
        for policy in policies:
            stage.task(Item, policy, filter=lambda one: one.state == "new", on=("enter", "leave", "delete"),
                       watch=("number",), retry=None, version=version, on_version_change=policy)  # fmt: skip
    async with first.open(database_url) as test:
        left, deleted, later = await first.insert(test, *(Item(number=7) for _ in range(3)))
        await settle(test)
        first.error = ConnectionError("wrong") if fails else None
        for row in (left, later):
            await first.patch(test, Item, row, state="old")
        await first.delete(test, Item, deleted)
        await settle(test)
        before = {(row, policy): await record_of(test, row, policy) for row in (left, deleted) for policy in policies}
        await first.delete(test, Item, later)
    async with second.open(database_url, clock=test.clock) as test:
        await settle(test)
        ran = second.taken()
        assert {repr(one.values) for one in ran} == {"{'number': 7}"}
        for policy, again in policies.items():
            found = sorted((one.doc_id, one.change) for one in ran if one.task == policy)
            went = [(left, "leave"), (deleted, "delete"), (later, "leave")]
            assert found == sorted(went if again else []), policy
            record = await known_record(test, later, policy)
            assert record.gone == ("left" if policy == "none" else "deleted"), policy
        for (row, policy), known in before.items():
            after = await record_of(test, row, policy)
            assert known is not None
            assert after is not None
            assert (after.before, after.after, after.gone) == (known.before, known.after, known.gone), policy


async def test_a_higher_version_that_hears_of_rows_that_leave_no_more_does_nothing_about_them(
    database_url: str,
) -> None:
    declared: dict[str, Any] = {"retry": None, "on_version_change": "reprocess_all"}
    first, second = items(("enter", "leave", "delete"), version=1, **declared), items(("enter",), version=2, **declared)
    async with first.open(database_url) as test:
        (row,) = await first.insert(test, Item())
        await settle(test)
        await first.patch(test, Item, row, state="old")
        await settle(test)
        assert first.changes() == ["enter", "leave"]
    async with second.open(database_url, clock=test.clock) as test:
        await settle(test)
        assert second.changes() == []


# ----- how long it is kept


async def test_cl1_cl2_cl4_cl5_cl6_cl7_cl8_cl9_cl10_cl11_rc6_what_is_kept_of_rows_that_are_gone(
    database_url: str,
) -> None:
    declared: dict[str, dict[str, Any]] = {
        "default": {"keep_for": HOUR},
        "left": {"keep_for": HOUR, "cleanup": "source_deleted_or_no_longer_matching"},
        "never": {"keep_for": HOUR, "cleanup": "never"},
        "at_once": {"keep_for": timedelta(0)},
        "days": {"keep_for": timedelta(days=3)},
    }
    stage = Stage()
    for name, options in declared.items():
        stage.task(Item, name, filter=lambda i: i.state == "new", **options)
    async with stage.open(database_url) as test:
        there, left, deleted = await stage.insert(test, Item(), Item(), Item())
        kept = {(name, row) for name in declared for row in (there, left, deleted)}
        await settle(test)
        for passing, forgotten in (
            (50 * HOUR, []),
            (SECOND, [("at_once", deleted)]),
            (HOUR - 2 * SECOND, []),
            (2 * SECOND, [("default", deleted), ("left", left), ("left", deleted)]),
            (timedelta(days=3) - HOUR - 2 * SECOND, []),
            (2 * SECOND, [("days", deleted)]),
            (500 * HOUR, []),
        ):
            await settle(test, passing)
            kept.difference_update(forgotten)
            found = {(name, row) for name, row in kept if await record_of(test, row, name) is not None}
            assert found == kept, passing
            assert (await test.job_counts())["success"] == len(kept), "a run is forgotten with its record"
            if passing == 50 * HOUR:
                await stage.patch(test, Item, left, state="old")
                await stage.delete(test, Item, deleted)
                await settle(test)
        assert len(stage.taken()) == 3 * len(declared)
        await stage.patch(test, Item, left, state="new")
        await settle(test)
        assert [(ran.doc_id, ran.change) for ran in stage.taken()] == [(left, "enter")] * len(declared)


async def test_a_row_that_comes_back_in_time_is_not_forgotten(database_url: str) -> None:
    stage = items(keep_for=HOUR, cleanup="source_deleted_or_no_longer_matching")
    async with stage.open(database_url) as test:
        (row,) = await stage.insert(test, Item())
        await settle(test)
        await stage.patch(test, Item, row, state="old")
        await settle(test, HOUR / 2)
        await stage.patch(test, Item, row, state="new")
        await settle(test)
        await settle(test, 5 * HOUR)
        assert await record_of(test, row) is not None


async def test_f10_fi6_a_row_that_leaves_or_is_deleted_during_its_debounce_does_not_run(
    database_url: str,
) -> None:
    stage = items(keep_for=HOUR, debounce=HOUR)
    async with stage.open(database_url) as test:
        one, two = await stage.insert(test, Item(), Item())
        await test.plan()
        await stage.delete(test, Item, one)
        await stage.patch(test, Item, two, state="old")
        await test.plan()
        for row, gone in ((one, "deleted"), (two, "left")):
            record = await known_record(test, row)
            assert (record.gone, record.live) == (gone, False)
        await stage.delete(test, Item, two)
        await settle(test)
        assert stage.taken() == [], "nothing is run for them"
        await settle(test, HOUR + SECOND)
        assert await record_of(test, one) is None


async def test_f1_rows_that_are_gone_are_forgotten_again_and_again(database_url: str) -> None:
    stage = items(keep_for=HOUR)
    async with stage.open(database_url) as test:
        for _ in range(2):
            rows = await stage.insert(test, *(Item() for _ in range(5)))
            await settle(test)
            for row in rows:
                await stage.delete(test, Item, row)
            await settle(test)
            await settle(test, HOUR + SECOND)
            assert [await record_of(test, row) for row in rows] == [None] * 5
        assert not (await test.job_counts()).get("success")
        assert len(stage.ran) == 10
