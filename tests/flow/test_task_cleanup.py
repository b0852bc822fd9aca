"""What is kept of rows that are gone, and for how long."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from stage.reactive import Stage, record_of, settle

from penstock import DeclarationError, JobState, Table
from penstock.testing import TestApp

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)


class Doc(Table):
    open: bool = True
    number: int = 0


async def is_kept(test: TestApp, row: Any) -> bool:
    """Whether there is a record of a row, and how its job stands with it."""
    record = await record_of(test, row)
    if record is None:
        assert not await test.jobs("success"), "what became of it is forgotten too"
        return False
    assert (await test.job_calls.find(record.job)) is not None
    return True


def task(**options: Any) -> Stage:
    stage = Stage()
    stage.task(Doc, filter=lambda d: d.open, keep_for=HOUR, **options)
    return stage


# ----- source_deleted_or_no_longer_matching


async def test_cl1_cl2_a_row_that_left_is_forgotten_after_keep_for_and_not_before(database_url: str) -> None:
    stage = task(cleanup="source_deleted_or_no_longer_matching")
    async with stage.open(database_url) as test:
        (row,) = await stage.insert(test, Doc())
        await settle(test)
        await settle(test, 5 * HOUR)
        assert await is_kept(test, row), "it is not gone"
        await stage.patch(test, Doc, row, open=False)
        await settle(test)
        await settle(test, HOUR - SECOND)
        assert await is_kept(test, row)
        await settle(test, SECOND * 2)
        assert not await is_kept(test, row)
        await stage.patch(test, Doc, row, open=True)
        await settle(test)
        assert [ran.change for ran in stage.taken()] == ["enter", "enter"]


async def test_a_row_that_comes_back_in_time_is_not_forgotten(database_url: str) -> None:
    stage = task(cleanup="source_deleted_or_no_longer_matching")
    async with stage.open(database_url) as test:
        (row,) = await stage.insert(test, Doc())
        await settle(test)
        await stage.patch(test, Doc, row, open=False)
        await settle(test, HOUR / 2)
        await stage.patch(test, Doc, row, open=True)
        await settle(test)
        await settle(test, 5 * HOUR)
        assert await is_kept(test, row)


# ----- source_deleted


async def test_cl4_cl7_cl9_a_deleted_row_is_forgotten_so_long_after_it_went(database_url: str) -> None:
    stage = task()
    async with stage.open(database_url) as test:
        (row,) = await stage.insert(test, Doc())
        await settle(test)
        await settle(test, 50 * HOUR)
        await stage.delete(test, Doc, row)
        await settle(test)
        assert await is_kept(test, row), "what became of it can still be read, however old it is"
        record = await record_of(test, row)
        assert record is not None
        job = await test.job_calls.find(record.job)
        assert job is not None
        assert job.state is JobState.SUCCESS
        await settle(test, HOUR - SECOND)
        assert await is_kept(test, row)
        await settle(test, SECOND * 2)
        assert not await is_kept(test, row)


async def test_cl5_cl8_a_row_that_left_is_not_forgotten_by_default(database_url: str) -> None:
    stage = task()
    async with stage.open(database_url) as test:
        (row,) = await stage.insert(test, Doc())
        await settle(test)
        await stage.patch(test, Doc, row, open=False)
        await settle(test)
        await settle(test, 50 * HOUR)
        assert await is_kept(test, row)


async def test_f10_a_deleted_row_of_a_task_with_a_filter_is_noticed_at_once(database_url: str) -> None:
    stage = task(debounce=HOUR)
    async with stage.open(database_url) as test:
        one, two = await stage.insert(test, Doc(), Doc())
        await test.plan()
        await stage.delete(test, Doc, one)
        await stage.patch(test, Doc, two, open=False)
        await test.plan()
        for row, gone in ((one, "deleted"), (two, "left")):
            record = await record_of(test, row)
            assert record is not None
            assert (record.gone, record.live) == (gone, False)
        await stage.delete(test, Doc, two)
        await settle(test)
        assert stage.taken() == [], "nothing is run for them"
        await settle(test, HOUR + SECOND)
        assert await record_of(test, one) is None


async def test_a_row_that_left_and_is_then_deleted_is_forgotten(database_url: str) -> None:
    stage = task()
    async with stage.open(database_url) as test:
        (row,) = await stage.insert(test, Doc())
        await settle(test)
        await stage.patch(test, Doc, row, open=False)
        await settle(test)
        await stage.delete(test, Doc, row)
        for _ in range(8):  # a look at all rows, every hour, finds what has no row any more
            await settle(test, HOUR / 2)
            await settle(test, SECOND * 2)
        assert await record_of(test, row) is None


# ----- never


async def test_cl6_cl10_with_never_nothing_is_forgotten(database_url: str) -> None:
    stage = task(cleanup="never")
    async with stage.open(database_url) as test:
        (row,) = await stage.insert(test, Doc())
        await settle(test)
        await stage.delete(test, Doc, row)
        await settle(test)
        assert await is_kept(test, row)
        await settle(test, 500 * HOUR)
        assert await is_kept(test, row)


# ----- again and again


async def test_f1_rows_that_are_gone_are_forgotten_again_and_again(database_url: str) -> None:
    stage = task()
    async with stage.open(database_url) as test:
        for _ in range(5):
            rows = await stage.insert(test, *(Doc() for _ in range(20)))
            await settle(test)
            for row in rows:
                await stage.delete(test, Doc, row)
            await settle(test)
            await settle(test, HOUR + SECOND)
            assert [await record_of(test, row) for row in rows] == [None] * 20
        assert not (await test.job_counts()).get("success")
        assert len(stage.ran) == 100


async def test_rc6_with_no_keep_for_a_deleted_row_is_forgotten_at_once(database_url: str) -> None:
    stage = Stage()
    stage.task(Doc, keep_for=timedelta(0))
    async with stage.open(database_url) as test:
        (row,) = await stage.insert(test, Doc())
        await settle(test)
        await stage.delete(test, Doc, row)
        await settle(test, SECOND)
        assert await record_of(test, row) is None


@pytest.mark.parametrize("keep_for", [timedelta(minutes=1), timedelta(days=3)])
async def test_cl11_keep_for_says_when(database_url: str, keep_for: timedelta) -> None:
    stage = Stage()
    stage.task(Doc, keep_for=keep_for)
    async with stage.open(database_url) as test:
        (row,) = await stage.insert(test, Doc())
        await settle(test)
        await stage.delete(test, Doc, row)
        await settle(test)
        await settle(test, keep_for - SECOND)
        assert await record_of(test, row) is not None
        await settle(test, SECOND * 2)
        assert await record_of(test, row) is None


@pytest.mark.parametrize("keep_for", [-HOUR, "24h", "soon", 500, timedelta(days=500), None])
def test_cl15_a_keep_for_that_is_none_is_refused(keep_for: Any) -> None:
    with pytest.raises(DeclarationError, match="keep_for is a timedelta"):
        Stage().task(Doc, keep_for=keep_for)


def test_a_cleanup_that_is_none_is_refused() -> None:
    with pytest.raises(DeclarationError, match="cleanup is one of"):
        Stage().task(Doc, cleanup="sometimes")
