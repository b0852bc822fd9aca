"""Work that has failed is run again when somebody asks: as it was, its attempts counted anew and all of them kept."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from penstock import (
    ActionCtx,
    App,
    ContextError,
    Failed,
    Finished,
    IdInvalid,
    JobFilter,
    JobId,
    JobState,
    MutationCtx,
    Pending,
    QueryCtx,
    Retry,
    Success,
    Table,
    UsageError,
    ValueInvalid,
    WorkId,
    WorkResult,
)
from penstock.calls.run.syncctx import SyncActionCtx
from penstock.testing import TestApp

app = OPENED = App()
mail = app.workpool("mail", default_retry=Retry(max_attempts=2, initial_backoff=10))
other = app.workpool("other")

broken: list[bool] = []


class Told(Table, name="retries_told"):
    kind: str


@pytest.fixture(autouse=True)
def _whole() -> Iterator[None]:
    yield
    broken.clear()


@app.internal_action
async def send(ctx: ActionCtx, to: str) -> str:
    if broken:
        raise ConnectionError(f"no way to {to}")
    return f"sent {to}"


@app.internal_mutation
async def told(ctx: MutationCtx, work_id: WorkId, result: WorkResult[Any], context: Any) -> None:
    await ctx.db.insert(Told(kind=result.kind))


@app.query
async def all_told(ctx: QueryCtx) -> list[str]:
    return [row.kind async for row in ctx.db.query(Told)]


@app.mutation
async def retry_in_a_mutation(ctx: MutationCtx, work: JobId) -> bool:
    return await mail.retry(ctx, work)  # type: ignore[call-overload, no-any-return]


@app.mutation
async def schedule_retry_in_a_mutation(ctx: MutationCtx, work: JobId) -> bool:
    return await ctx.scheduler.retry(work)


@app.action
async def retry_in_an_action(ctx: ActionCtx, work: JobId) -> bool:
    return await mail.retry(ctx, work)


@app.action
def retry_in_a_thread(ctx: SyncActionCtx) -> int:
    return mail.retry_all(ctx, send, error="user2")


@app.mutation
async def cancel_pending_mail(ctx: MutationCtx, before: datetime) -> int:
    return await mail.cancel_all(ctx, state="pending", name="greet", before=before)


async def test_failed_work_is_retried_and_its_end_is_told_again(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        broken.append(True)
        work = await mail.with_options(retry=True, on_complete=told).enqueue(backend, send, "user1")
        await backend.run_until_idle(raise_errors=False)
        assert await mail.status(backend, work) == Finished(Failed("ConnectionError: no way to user1"))
        broken.clear()
        assert await mail.retry(backend, work)
        assert not await mail.retry(backend, work), "it is pending already"
        assert await mail.status(backend, work) == Pending(0)
        await backend.run_until_idle(raise_errors=False)
        assert await mail.status(backend, work) == Finished(Success("sent user1"))
        assert not await mail.retry(backend, work), "what has succeeded is not run again"
        assert await backend.run_query(all_told) == ["failed", "success"]
        status = await backend.job(work)
        assert status is not None
        assert (status.attempt, status.state) == (1, JobState.SUCCESS)
        assert [(one.number, one.what) for one in status.attempts] == [(1, "raised"), (2, "exhausted")]
        assert all("in send" in (one.traceback or "") for one in status.attempts)


async def test_many_are_retried_by_what_they_are_outside_of_transactions(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        broken.append(True)
        works = await mail.enqueue_batch(backend, send, [{"to": f"user{number}"} for number in range(5)])
        elsewhere = await other.enqueue(backend, send, "user2")
        await backend.run_until_idle(raise_errors=False)
        for function in (retry_in_a_mutation, schedule_retry_in_a_mutation):
            with pytest.raises(ContextError, match="outside of queries and mutations"):
                await backend.run_mutation(function, works[4])
        assert await mail.status(backend, works[4]) == Finished(Failed("ConnectionError: no way to user4"))
        assert await backend.run_action(retry_in_an_action, works[4])
        assert await backend.run_action(retry_in_a_thread) == 1
        assert await mail.status(backend, works[2]) == Pending(0)
        assert await mail.retry_all(backend, since=backend.clock.now() + timedelta(hours=1)) == 0
        assert await mail.retry_all(backend) == 3
        assert len(await backend.jobs("failed")) == 1
        found = await backend.jobs(where=JobFilter(pool="other", state="failed", error="user2"))
        assert [job.id for job in found] == [elsewhere]
        won = await asyncio.gather(*(backend.scheduler.retry(elsewhere) for _ in range(5)))
        assert sorted(won) == [False] * 4 + [True]


async def test_a_canceled_one_is_retried_if_it_is_asked_for(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        later = mail.with_options(run_after=timedelta(hours=1), name="greet")
        first = await later.enqueue(backend, send, "user1")
        unnamed = await mail.with_options(run_after=timedelta(hours=1)).enqueue(backend, send, "user2")
        assert await backend.run_mutation(cancel_pending_mail, backend.clock.now()) == 0
        assert await backend.run_mutation(cancel_pending_mail, backend.clock.now() + timedelta(days=1)) == 1
        await backend.run_until_idle(advance=False)
        assert await mail.status(backend, unnamed) == Pending(0)
        assert await mail.retry_all(backend) == 0, "only what has failed, unless it says otherwise"
        assert await mail.retry_all(backend, state="canceled") == 1
        await backend.run_until_idle(advance=False)
        assert await mail.status(backend, first) == Finished(Success("sent user1"))


async def test_bad_filters_are_refused(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        wrong: Any
        for wrong in (
            {"state": "success"}, {"state": "gone"}, {"error": "\0"}, {"error": 5}, {"since": datetime(2030, 1, 1)},  # noqa: DTZ001
        ):  # fmt: skip
            with pytest.raises(ValueInvalid):
                await mail.retry_all(backend, **wrong)
        for wrong in (-1, 0, 10_001, 10**30, "5", 2.0, True):
            with pytest.raises(ValueInvalid, match="limit is an integer from 1 to 10000"):
                await backend.jobs(limit=wrong)
        with pytest.raises(ValueInvalid):
            await mail.cancel_all(backend, state="failed")
        wrong = {"colour": "red"}
        with pytest.raises(UsageError, match="no property colour"):
            await mail.retry_all(backend, **wrong)
        with pytest.raises(ContextError):
            await mail.retry_all(backend, "send")  # type: ignore[call-overload]
        with pytest.raises(IdInvalid):
            await mail.retry(backend, "x")  # type: ignore[call-overload]
        assert not await mail.retry(backend, JobId("job_01jd3k4v5w6x7y8z9a0b1c2d3e"))
