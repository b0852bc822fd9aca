"""Work, or its on_complete, that has failed is run again when somebody asks: as it was, with all attempts kept."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from stage.logs import events
from stage.stories import tell_in

from penstock import (
    ActionCtx,
    App,
    Canceled,
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
    Running,
    Success,
    Table,
    UsageError,
    ValueInvalid,
    WorkId,
    WorkResult,
)
from penstock.app import Backend
from penstock.calls.run.syncctx import SyncActionCtx
from penstock.jobs.job import Attempt, JobStatus
from penstock.testing import TestApp

app = OPENED = App()
write, _, act = tell_in(app)
TWICE = Retry(max_attempts=2, initial_backoff=10)
mail = app.workpool("mail", default_retry=TWICE)
other = app.workpool("other")

down: list[bool] = []  # whether nobody can be reached
broken: list[Exception] = []  # what an on_complete raises


class Told(Table, name="retries_told"):
    kind: str
    context: str


@pytest.fixture(autouse=True)
def _whole() -> Iterator[None]:
    yield
    down.clear()
    broken.clear()


@app.internal_action
async def send(ctx: ActionCtx, to: str) -> str:
    if down or to == "nobody":
        raise ConnectionError(f"no way to {to}")
    return f"sent {to}"


@app.internal_mutation
async def tell(ctx: MutationCtx, work_id: WorkId, result: WorkResult[str], context: Any) -> None:
    await ctx.db.insert(Told(kind=result.kind, context=str(context)))
    if broken:
        raise broken[0]


@app.internal_query
async def told(ctx: QueryCtx) -> list[tuple[str, str]]:
    return [(row.kind, row.context) for row in await ctx.db.query(Told).collect()]


@app.action
def retry_in_a_thread(ctx: SyncActionCtx) -> int:
    return mail.retry_all(ctx, send, error="user2")


async def test_failed_work_is_retried_and_its_end_is_told_again(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        down.append(True)
        work = await mail.with_options(retry=True, on_complete=tell).enqueue(backend, send, "user1")
        await backend.run_until_idle(raise_errors=False)
        assert await mail.status(backend, work) == Finished(Failed("ConnectionError: no way to user1"))
        down.clear()
        assert await mail.retry(backend, work)
        assert not await mail.retry(backend, work), "it is pending already"
        assert await mail.status(backend, work) == Pending(0)
        await backend.run_until_idle(raise_errors=False)
        assert await mail.status(backend, work) == Finished(Success("sent user1"))
        assert not await mail.retry(backend, work), "what has succeeded is not run again"
        assert [kind for kind, _ in await backend.run_query(told)] == ["failed", "success"]
        status = await backend.job(work)
        assert status is not None
        assert (status.attempt, status.state) == (1, JobState.SUCCESS)
        assert [(one.number, one.what) for one in status.attempts] == [(1, "raised"), (2, "exhausted")]
        assert all("in send" in (one.traceback or "") for one in status.attempts)


async def test_many_are_retried_by_what_they_are_outside_of_transactions(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        down.append(True)
        works = await mail.enqueue_batch(backend, send, [{"to": f"user{number}"} for number in range(5)])
        elsewhere = await other.enqueue(backend, send, "user2")
        await backend.run_until_idle(raise_errors=False)
        for retry in (lambda ctx: mail.retry(ctx, works[4]), lambda ctx: ctx.scheduler.retry(works[4])):
            with pytest.raises(ContextError, match="outside of queries and mutations"):
                await backend.run_mutation(write, retry)
        assert await mail.status(backend, works[4]) == Finished(Failed("ConnectionError: no way to user4"))
        assert await backend.run_action(act, lambda ctx: mail.retry(ctx, works[4]))
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
        for before, canceled in ((backend.clock.now(), 0), (backend.clock.now() + timedelta(days=1), 1)):
            which: Any = {"state": "pending", "name": "greet", "before": before}
            assert await backend.run_mutation(write, lambda ctx, which=which: mail.cancel_all(ctx, **which)) == canceled
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


async def known(backend: Backend, work: JobId) -> JobStatus:
    found = await backend.job(work)
    assert found is not None
    return found


async def give_up(backend: TestApp, to: str = "Ada") -> JobId:
    """Work that has ended, and whose on_complete has raised twice."""
    broken[:] = [ValueError("callback broke")]
    pool = mail.with_options(on_complete=tell, on_complete_retry=TWICE, context="of " + to)
    work = await pool.enqueue(backend, send, to)
    if to == "gone":
        await mail.cancel(backend, work)
    await backend.run_until_idle(raise_errors=False)
    return work


async def test_what_failed_is_kept_and_shown_and_how_the_work_ended_stays(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with TestApp(app, database_url) as backend:
        enqueued = backend.clock.now()
        work = await give_up(backend)
        found = await known(backend, work)
        assert (found.state, found.result, found.error, found.traceback) == (JobState.SUCCESS, "sent Ada", None, None)
        assert found.on_complete_error == "ValueError: callback broke"
        assert found.attempts == (), "the work itself has not failed"
        assert [(one.number, one.what, one.error) for one in found.on_complete_attempts] == [
            (1, "raised", "ValueError: callback broke"), (2, "exhausted", "ValueError: callback broke"),
        ]  # fmt: skip
        first, second = found.on_complete_attempts
        assert "raise broken[0]" in (first.traceback or "")
        assert "raise broken[0]" in (second.traceback or "")
        assert found.run_at == found.started_at == found.finished_at == enqueued, "as it was before its on_complete"
        assert first.started_at == first.ended_at == enqueued
        assert timedelta(seconds=5) <= second.started_at - first.ended_at < timedelta(seconds=15)
        assert not events(caplog, "job.failed"), "the job succeeded"
        assert [one["error"] for one in events(caplog, "job.on_complete_failed")] == ["ValueError: callback broke"] * 2
        assert await backend.run_query(told) == []

        with pytest.raises(ContextError):
            await backend.run_mutation(write, lambda ctx: mail.retry_on_complete(ctx, work))
        with pytest.raises(ValueInvalid, match="'pending' have not ended"):
            await mail.retry_all_on_complete(backend, state="pending")
        with pytest.raises(ValueInvalid, match="have ended"):
            await mail.cancel_all(backend, on_complete_error="")
        with pytest.raises(UsageError):
            await mail.retry_all_on_complete(backend, color="red")  # type: ignore[call-overload]
        with pytest.raises(ValueInvalid):
            JobFilter(on_complete_error=1)  # type: ignore[arg-type]


async def test_each_call_shows_and_of_many_the_last_are_kept(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        broken[:] = [ValueError("callback broke")]
        pool = mail.with_options(on_complete=tell, on_complete_retry=Retry.fixed(1, max_attempts=25))
        work, began = await pool.enqueue(backend, send, "Ada"), backend.clock.now()
        await backend.run_until_idle(advance=False, raise_errors=False)
        found = await known(backend, work)
        assert (found.state, found.started_at, found.on_complete_error) == (JobState.COMPLETING, began, None)
        assert [(one.number, one.what) for one in found.on_complete_attempts] == [(1, "raised")]
        assert await backend.jobs("completing") == [found]
        assert await backend.jobs(where=JobFilter(on_complete_error="")) == [], "it has not failed for good"
        await backend.run_until_idle(raise_errors=False)
        calls: tuple[Attempt, ...] = (await known(backend, work)).on_complete_attempts
        assert [one.number for one in calls] == list(range(6, 26))


async def test_it_is_called_again_when_asked_for(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock")
    ends: dict[str, Any] = {
        "Ada": Success("sent Ada"),
        "nobody": Failed("ConnectionError: no way to nobody"),
        "gone": Canceled(),
    }
    async with TestApp(app, database_url) as backend:
        for to, end in ends.items():
            work = await give_up(backend, to)
            before = await known(backend, work)
            broken.clear()
            backend.clock.advance(timedelta(hours=1))
            assert await mail.retry_on_complete(backend, work)
            assert not await mail.retry_on_complete(backend, work), "it waits already"
            assert isinstance(await mail.status(backend, work), Running)
            await mail.cancel(backend, work)
            await backend.run_until_idle(raise_errors=False)
            assert await mail.status(backend, work) == Finished(end), "how it ended stays, whatever is asked for"
            assert (await backend.run_query(told))[-1] == (end.kind, f"of {to}")
            after = await known(backend, work)
            assert after.on_complete_error is None, to
            assert after.on_complete_attempts == before.on_complete_attempts, "what failed before is still shown"
            assert (after.started_at, after.finished_at, after.run_at, after.attempt, after.error, after.attempts) == (
                before.started_at, before.finished_at, before.run_at, before.attempt, before.error, before.attempts,
            )  # fmt: skip
            assert not await mail.retry_on_complete(backend, work), "it has been called"
            assert events(caplog, "job.on_complete_retried")[-1]["job"] == work
        assert not await other.retry_on_complete(backend, JobId("job_01jd3k4v5w6x7y8z9a0b1c2d3e")), "it is unknown"

        work = await give_up(backend)
        assert await mail.retry_on_complete(backend, work)
        await backend.run_until_idle(raise_errors=False)
        found = await known(backend, work)
        assert (found.state, found.on_complete_error) == (JobState.SUCCESS, "ValueError: callback broke")
        assert [(one.number, one.what) for one in found.on_complete_attempts] == [
            (1, "raised"), (2, "exhausted"), (1, "raised"), (2, "exhausted"),
        ]  # fmt: skip

        work = await give_up(backend, "nobody")
        broken.clear()
        assert await mail.retry_all(backend, on_complete_error="broke", state="failed") == 1
        await backend.run_until_idle(raise_errors=False)
        found = await known(backend, work)
        assert (found.state, found.on_complete_error, found.on_complete_attempts) == (JobState.FAILED, None, ())
        assert (await backend.run_query(told))[-1] == ("failed", "of nobody")


async def test_all_that_failed_are_found_and_called_again_together(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        works = [await give_up(backend, to) for to in ("Ada", "nobody", "gone")]
        broken.clear()
        await mail.with_options(on_complete=tell).enqueue(backend, send, "Bob")
        await backend.run_until_idle(raise_errors=False)

        async def found(**where: Any) -> list[JobId]:
            return [job.id for job in await backend.jobs(where=JobFilter(**where))][::-1]

        assert await found(on_complete_error="callback broke") == works
        assert await found(on_complete_error="") == works
        assert await found(on_complete_error="callback broke", state="success") == works[:1]
        assert await found(on_complete_error="something else") == []
        assert await found(error="callback broke") == [], "that is the error of the work"
        assert await other.retry_all_on_complete(backend) == 0
        assert await mail.retry_all_on_complete(backend, send, state="canceled") == 1
        assert await mail.retry_all_on_complete(backend, on_complete_error="broke") == 2
        await backend.run_until_idle(raise_errors=False)
        assert sorted(kind for kind, _ in await backend.run_query(told)) == ["canceled", "failed", "success", "success"]
