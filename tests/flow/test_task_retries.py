"""Retry policies of reactive tasks: after which waits a row is run again, when it has failed, and what is kept."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from stage.reactive import Stage, known_record, settle

from penstock import JobState, MutationTaskCtx, Retry, Table, TaskCtx
from penstock.jobs.job import JobStatus
from penstock.testing import TestApp, TestClock

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


class Parcel(Table, name="retried_parcel"):
    number: int = 0


async def fail(ctx: MutationTaskCtx[Any]) -> None:
    raise ConnectionError("no way")


async def job_of(test: TestApp, row: Any, name: str = "react") -> JobStatus:
    record = await known_record(test, row, name)
    job = await test.job_calls.find(record.job)
    assert job is not None
    return job


async def test_rp1_rp2_rp3_rp6_rp7_rp8_a_row_is_tried_as_its_policy_says(database_url: str) -> None:
    policies: dict[str, tuple[Retry | None, list[float]]] = {  # and seconds between attempts
        "linear": (Retry.linear(MINUTE, max_attempts=4, jitter=0), [60, 120, 180]),
        "fixed": (Retry.fixed(5, max_attempts=3, jitter=0), [5, 5]),
        "for_an_hour": (Retry.fixed(10 * MINUTE, max_duration=HOUR, jitter=0), [600] * 7),
        "series": (Retry.series([1, 10, MINUTE], max_attempts=4, jitter=0), [1, 10, 60]),
        "last_again": (Retry.series([1, 2], max_attempts=6, jitter=0), [1, 2, 2, 2, 2]),
        "cron": (Retry.cron("*/10 * * * *", max_attempts=4), [304, 600, 600]),
        "none": (None, []),
    }
    stage = Stage(Parcel)
    stage.error = ConnectionError("no way")
    for name, (retry, _) in policies.items():
        stage.task(Parcel, name, retry=retry)
    stage.app.reactive_task(Parcel, name="mutation", retry=policies["fixed"][0])(fail)
    policies["mutation"] = policies["fixed"]
    async with stage.open(database_url, clock=TestClock(datetime(2030, 1, 1, 12, 34, 56, tzinfo=UTC), seed=7)) as test:
        (row,) = await stage.insert(test, Parcel())
        await settle(test)
        for name, (_, expected) in policies.items():
            job = await job_of(test, row, name)
            assert (job.state, job.error) == (JobState.FAILED, "ConnectionError: no way"), name
            assert job.attempt == len(expected) + 1, name
            assert [one.what for one in job.attempts] == [*["raised"] * len(expected), "exhausted"], name
            waits = [(then.started_at - before.ended_at).total_seconds() for before, then in pairwise(job.attempts)]
            assert waits == expected, name


async def test_rp4_rd1_without_a_policy_a_row_waits_ten_seconds_and_then_twice_as_long(database_url: str) -> None:
    stage = Stage(Parcel)
    stage.error = ConnectionError("no way")
    stage.task(Parcel)
    stage.app.reactive_task(Parcel, name="mutation")(fail)
    async with stage.open(database_url) as test:
        (row,) = await stage.insert(test, Parcel())
        await settle(test)
        for name in ("react", "mutation"):
            job = await job_of(test, row, name)
            assert (job.state, job.attempt) == (JobState.FAILED, 5), name
            waits = [(then.started_at - before.ended_at).total_seconds() for before, then in pairwise(job.attempts)]
            for wait, waited in zip((10, 20, 40, 80), waits, strict=True):
                assert 0.5 * wait <= waited < 1.5 * wait, "half as long to half as long again"


@pytest.mark.parametrize(("history", "kept"), [(0, []), (2, [2, 3])])
async def test_attempts_of_a_run_are_kept_until_the_next_one_and_of_runs_before_as_many_as_history_says(
    database_url: str, history: int, kept: list[int]
) -> None:
    stage = Stage(Parcel)
    stage.error = ConnectionError("no way")
    stage.task(Parcel, retry=Retry.fixed(MINUTE, max_attempts=3), history=history)
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
