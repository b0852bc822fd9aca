"""The audit of reactive tasks: after an hour rows and records are compared, and mended if they differ."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from stage.feed import write
from stage.reactive import Stage, record_of, settle, silence, task_row

from penstock import Table
from penstock.testing import TestApp

HOUR = timedelta(hours=1)


class Item(Table):
    number: int = 0
    state: str = "new"


def audited_stage() -> Stage:
    stage = Stage(Item)
    stage.task(Item, filter=lambda item: item.state == "new", watch=("number",))
    return stage


async def tamper(test: TestApp, sql: str) -> None:
    """Write records past penstock; `record` names their table."""
    name = "penstock.task_record" if test.engine.store.dialect.schemas else "penstock_task_record"
    await write(test.engine.store, sql.replace("record", name))


async def audit(test: TestApp) -> int:
    """Let the time for an audit come, and what it finds be run; how many attempts were made."""
    test.clock.advance(HOUR)
    attempts = 0
    for _ in range(5):
        attempts += await settle(test, timedelta(seconds=1))
    assert (await task_row(test)).reconciling is None, "it is through"
    return attempts


def found(test: TestApp, caplog: pytest.LogCaptureFixture) -> tuple[float, list[int]]:
    """What was counted and what was told of what audits have found."""
    meters = test.engine.journal.meters
    assert meters is not None
    told = [record for record in caplog.records if record.getMessage().startswith("task.audit_found")]
    assert all(record.levelno == logging.ERROR for record in told)
    return meters.counters["penstock_task_audit_found"]["react",], [_found_in(record.getMessage()) for record in told]


def _found_in(message: str) -> int:
    return int(message.partition("found=")[2].split()[0])


async def audited(
    url: str, caplog: pytest.LogCaptureFixture, sql: str, *, runs: Sequence[str] = (), mends: int = 1
) -> list[Any]:
    """Audit three rows whose records were tampered with; the state of the records of the first and the last."""
    stage = audited_stage()
    async with stage.open(url, metrics_token="let-me-in") as test:
        rows = await stage.insert(test, *(Item(number=number) for number in range(3)))
        await settle(test)
        stage.taken()
        await audit(test)
        assert found(test, caplog) == (0, []), "all is well"
        await tamper(test, sql.format(first=rows[0]))
        await audit(test)
        assert stage.changes() == [*runs]
        assert found(test, caplog) == (mends, [mends])
        await audit(test)
        assert found(test, caplog) == (mends, [mends]), "it is mended"
        return [await record_of(test, one) for one in (*rows, "item_none")]


async def test_a_record_that_is_missing_is_made_and_its_row_run(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    records = await audited(database_url, caplog, "delete from record where key = '[\"{first}\"]'", runs=["reconcile"])
    assert records[0].change == "reconcile"


async def test_a_record_of_a_row_that_never_was_is_noted_as_gone(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    job = "gen_random_uuid()" if database_url.startswith("postgres") else "randomblob(16)"
    columns = "generation, live, idle, change, before, after, changed_at, due_at"
    records = await audited(
        database_url,
        caplog,
        f"insert into record (task, key, id, {columns}) select task, '[\"item_none\"]', {job}, {columns} from record "
        "where key = '[\"{first}\"]'",
    )
    assert [record.gone for record in records] == [None, None, None, "deleted"]


@pytest.mark.parametrize("gone", ["left", "deleted"])
async def test_a_row_that_is_noted_as_gone_and_is_there_is_run(
    database_url: str, gone: str, caplog: pytest.LogCaptureFixture
) -> None:
    sql = f"update record set gone = '{gone}' where key = '[\"{{first}}\"]'"
    records = await audited(database_url, caplog, sql, runs=["reconcile"])
    assert [record.gone for record in records[:3]] == [None, None, None]


@pytest.mark.parametrize("seen", [True, False])
async def test_a_row_that_is_noted_as_left_and_is_deleted_is_noted_so_and_is_nothing_found(
    database_url: str, caplog: pytest.LogCaptureFixture, *, seen: bool
) -> None:
    stage = audited_stage()
    async with stage.open(database_url, metrics_token="let-me-in") as test:
        (left,) = await stage.insert(test, Item())
        await settle(test)
        await stage.patch(test, Item, left, state="old")
        await settle(test)
        record = await record_of(test, left)
        assert record is not None
        assert record.gone == "left"
        if not seen:
            await silence(test)
        await stage.delete(test, Item, left)
        stage.taken()
        await audit(test)
        record = await record_of(test, left)
        assert record is not None
        assert (stage.changes(), record.gone) == ([], "deleted")
        assert found(test, caplog) == (0, [])


async def test_the_audit_looks_an_hour_after_the_last_look_200_rows_a_second(database_url: str) -> None:
    stage = audited_stage()
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
