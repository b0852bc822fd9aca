"""Retry policies of reactive tasks: after which waits a row is run again, when it has failed, and what is kept."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from stage.reactive import Stage, record_of, settle

from penstock import JobState, MutationTaskCtx, Retry, Table, TaskCtx
from penstock.jobs.job import JobStatus
from penstock.testing import TestApp, TestClock

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


class Parcel(Table, name="retried_parcel"):
    number: int = 0


def failing(*, mutates: bool = False, **options: Any) -> Stage:
    """A program whose task fails each time."""
    stage = Stage()
    stage.error = ConnectionError("no way")

    async def write(ctx: MutationTaskCtx[Any]) -> None:
        raise ConnectionError("no way")

    if mutates:
        stage.app.reactive_task(Parcel, name="react", **options)(write)
    else:
        stage.task(Parcel, **options)
    return stage


async def job_of(test: TestApp, row: Any) -> JobStatus:
    record = await record_of(test, row)
    assert record is not None
    job = await test.job_calls.find(record.job)
    assert job is not None
    return job


async def tried(url: str, stage: Stage, **settings: Any) -> JobStatus:
    """A run that fails each time, once there is no attempt left."""
    async with stage.open(url, **settings) as test:
        (row,) = await stage.insert(test, Parcel())
        await settle(test)
        job = await job_of(test, row)
        assert (job.state, job.error) == (JobState.FAILED, "ConnectionError: no way")
        return job


def waits(job: JobStatus) -> list[float]:
    """Seconds between its attempts."""
    return [(after.started_at - before.ended_at).total_seconds() for before, after in pairwise(job.attempts)]


async def test_rp1_a_linear_policy_waits_before_each_run(database_url: str) -> None:
    job = await tried(database_url, failing(retry=Retry.linear(MINUTE, max_attempts=4, jitter=0)))
    assert waits(job) == [60, 120, 180]


@pytest.mark.parametrize("mutates", [False, True], ids=["action", "mutation"])
async def test_rp2_a_row_has_failed_when_its_attempts_are_used_up(database_url: str, *, mutates: bool) -> None:
    job = await tried(database_url, failing(mutates=mutates, retry=Retry.fixed(5, max_attempts=3)))
    assert job.attempt == 3
    assert [one.what for one in job.attempts] == ["raised", "raised", "exhausted"]


async def test_rp3_a_row_has_failed_when_its_time_is_over(database_url: str) -> None:
    job = await tried(database_url, failing(retry=Retry.fixed(10 * MINUTE, max_duration=HOUR, jitter=0)))
    assert job.attempt == 8, "the seventh failed after an hour, and not later"
    last = job.attempts[-1]
    assert last.failing_since is not None
    assert last.ended_at - last.failing_since == 70 * MINUTE


@pytest.mark.parametrize("mutates", [False, True], ids=["action", "mutation"])
async def test_rp4_without_a_policy_a_row_waits_ten_seconds_and_then_twice_as_long(
    database_url: str, *, mutates: bool
) -> None:
    stage = failing(mutates=mutates)
    async with stage.open(database_url) as test:
        (row,) = await stage.insert(test, Parcel())
        for wait in (10, 20, 40, 80):
            await test.run_until_idle(advance=False, raise_errors=False)
            job = await job_of(test, row)
            ahead = (job.run_at - test.clock.now()).total_seconds()
            assert job.state is JobState.PENDING
            assert 0.5 * wait <= ahead < 1.5 * wait, "half as long to half as long again"
            test.clock.advance(timedelta(seconds=ahead))
        await test.run_until_idle(advance=False, raise_errors=False)
        job = await job_of(test, row)
        assert (job.state, job.attempt) == (JobState.FAILED, 5)


async def test_rp6_a_series_waits_as_listed(database_url: str) -> None:
    job = await tried(database_url, failing(retry=Retry.series([1, 10, MINUTE], max_attempts=4, jitter=0)))
    assert waits(job) == [1, 10, 60]
    assert job.attempt == 4


async def test_rp7_a_series_waits_for_its_last_again_and_again(database_url: str) -> None:
    job = await tried(database_url, failing(retry=Retry.series([1, 2], max_attempts=6, jitter=0)))
    assert waits(job) == [1, 2, 2, 2, 2]


async def test_rp8_a_cron_runs_it_again_when_it_is_due(database_url: str) -> None:
    clock = TestClock(datetime(2030, 1, 1, 12, 34, 56, tzinfo=UTC), seed=7)
    job = await tried(database_url, failing(retry=Retry.cron("*/10 * * * *", max_attempts=4)), clock=clock)
    started = [one.started_at.strftime("%H:%M:%S") for one in job.attempts]
    assert started == ["12:34:56", "12:40:00", "12:50:00", "13:00:00"]


async def test_no_policy_at_all_is_one_attempt(database_url: str) -> None:
    job = await tried(database_url, failing(retry=None))
    assert (job.attempt, len(job.attempts)) == (1, 1)


@pytest.mark.parametrize(("history", "kept"), [(0, []), (2, [2, 3])])
async def test_attempts_of_a_run_are_kept_until_the_next_one_and_of_runs_before_as_many_as_history_says(
    database_url: str, history: int, kept: list[int]
) -> None:
    stage = failing(retry=Retry.fixed(MINUTE, max_attempts=3), history=history)
    async with stage.open(database_url) as test:
        (row,) = await stage.insert(test, Parcel())
        await settle(test)
        job = await job_of(test, row)
        assert [one.number for one in job.attempts] == [1, 2, 3], "of the last run all are kept"
        assert all("no way" in (one.traceback or "") for one in job.attempts)
        await stage.patch(test, Parcel, row, number=1)
        await test.plan()
        assert [one.number for one in (await job_of(test, row)).attempts] == kept
        stage.error = None
        await settle(test)
        job = await job_of(test, row)
        assert (job.state, [one.number for one in job.attempts]) == (JobState.SUCCESS, kept)


async def test_a_handler_of_leave_and_delete_that_reads_the_row_first_ends_as_skipped(database_url: str) -> None:
    """As the docs say: `previous` is what there is then."""
    stage, seen = Stage(), list[tuple[str, int | None]]()

    async def read(ctx: TaskCtx[Any]) -> None:
        if ctx.change in {"leave", "delete"}:
            assert ctx.previous is not None
            seen.append((ctx.change, ctx.previous.number))
        await ctx.get_document()

    every: Any = ("enter", "leave", "delete")
    stage.task(Parcel, filter=lambda parcel: parcel.number > 0, on=every, handler=read)
    async with stage.open(database_url) as test:
        left, deleted = await stage.insert(test, Parcel(number=1), Parcel(number=2))
        await settle(test)
        await stage.patch(test, Parcel, left, number=0)
        await stage.delete(test, Parcel, deleted)
        await settle(test)
        assert sorted(seen) == [("delete", 2), ("leave", 1)]
        assert {(await job_of(test, row)).state for row in (left, deleted)} == {JobState.SKIPPED}
