"""Retries of work in pools, by its policy or when somebody asks for one, and what each store keeps of them.

The names rp1 to rp8 are those of behaviours that are promised of reactive tasks.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from stage.databases import run_sql
from stage.stories import tell_in
from stage.waits import events

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
    Snooze,
    Success,
    Table,
    UsageError,
    ValueInvalid,
    WorkId,
    WorkResult,
)
from penstock.calls.run.syncctx import SyncActionCtx
from penstock.jobs.job import JobStatus
from penstock.testing import TestApp, TestClock

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
app = OPENED = App()
write, _, act = tell_in(app)
pool = app.workpool("pool")
keyed = app.workpool("keyed", key_parallelism=1)
steps = app.workpool("steps", default_retry=Retry.series([1, MINUTE], max_attempts=3, jitter=0))

outcomes: list[Exception | None] = []  # of the next attempts; then all fail
told: list[str] = []


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    for left in (outcomes, told, down, broken):
        left.clear()


@app.internal_action
async def send(ctx: ActionCtx, number: int = 0) -> int:
    outcome = outcomes.pop(0) if outcomes else ConnectionError("no way")
    if outcome is not None:
        raise outcome
    return number


@app.internal_mutation
async def tell(ctx: MutationCtx, work_id: WorkId, result: WorkResult[Any], context: Any) -> None:
    told.append(ctx.now().isoformat())
    raise RuntimeError("not heard")


async def known(backend: TestApp, work: WorkId) -> JobStatus:
    status = await backend.job(work)
    assert status is not None
    return status


async def tried(backend: TestApp, retry: Retry, **options: Any) -> JobStatus:
    """Work that fails each time, once there is no attempt left."""
    work = await pool.with_options(retry=retry, **options).enqueue(backend, send)
    await backend.run_until_idle(raise_errors=False)
    return await known(backend, work)


def waits(status: JobStatus) -> list[float]:
    """Seconds between its attempts that failed."""
    return [(after.started_at - before.ended_at).total_seconds() for before, after in pairwise(status.attempts)]


WAITS: list[tuple[Retry, list[float]]] = [
    (Retry.linear(MINUTE, max_attempts=4, jitter=0), [60, 120, 180]),
    (Retry.series([1, 10, MINUTE], max_attempts=4, jitter=0), [1, 10, 60]),
    (Retry.series([1, 2], max_attempts=6, jitter=0), [1, 2, 2, 2, 2]),
]


async def test_rp1_rp2_rp6_rp7_work_waits_as_it_says_and_has_failed_when_its_attempts_are_used_up(
    database_url: str,
) -> None:
    async with TestApp(app, database_url) as backend:
        for retry, expected in WAITS:
            status = await tried(backend, retry)
            assert waits(status) == expected
            assert (status.state, status.error) == (JobState.FAILED, "ConnectionError: no way")
            assert (status.attempt, [one.what for one in status.attempts]) == (
                retry.max_attempts, ["raised"] * len(expected) + ["exhausted"],
            )  # fmt: skip


async def test_rp3_work_has_failed_when_its_time_is_over(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        status = await tried(backend, Retry.fixed(SECOND, max_duration=0.05))
        assert (status.state, status.attempt) == (JobState.FAILED, 2)
        status = await tried(backend, Retry.fixed(MINUTE, max_duration=HOUR, jitter=0))
        assert (status.state, status.attempt) == (JobState.FAILED, 62), "the 61st failed after an hour, and not later"
        last = status.attempts[-1]
        assert last.failing_since is not None
        assert last.ended_at - last.failing_since == 61 * MINUTE
        assert len(status.attempts) == 20


async def test_rp4_without_a_policy_of_its_own_work_waits_as_its_pool_says(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        work = await pool.with_options(retry=True).enqueue(backend, send)
        await backend.run_until_idle(advance=False)
        status = await known(backend, work)
        assert (status.state, status.attempt) == (JobState.PENDING, 1)
        assert 0.125 <= (status.run_at - backend.clock.now()).total_seconds() < 0.375
        await backend.run_until_idle(raise_errors=False)
        assert (await known(backend, work)).attempt == 5
        work = await steps.with_options(retry=True).enqueue(backend, send)
        await backend.run_until_idle(raise_errors=False)
        assert waits(await known(backend, work)) == [1, 60]


async def test_rp8_cron_tries_again_when_it_is_due(database_url: str) -> None:
    async with TestApp(app, database_url, clock=TestClock(datetime(2030, 1, 1, 12, 34, 56, tzinfo=UTC))) as backend:
        status = await tried(backend, Retry.cron("*/10 * * * *", max_attempts=4))
        assert [one.started_at.strftime("%H:%M:%S") for one in status.attempts] == [
            "12:34:56", "12:40:00", "12:50:00", "13:00:00",
        ]  # fmt: skip
        assert (status.state, status.attempt) == (JobState.FAILED, 4)


async def test_how_long_it_fails_counts_from_the_first_failure_and_again_after_a_retry_by_hand(
    database_url: str,
) -> None:
    policy = Retry.fixed(10 * MINUTE, max_duration=HOUR, jitter=0)
    async with TestApp(app, database_url) as backend:
        outcomes.extend([ConnectionError("first"), Snooze(50 * MINUTE), Snooze(30 * MINUTE)])
        began = backend.clock.now()
        status = await tried(backend, policy)
        assert (status.state, status.attempt, len(status.attempts)) == (JobState.FAILED, 2, 2)
        assert [one.failing_since for one in status.attempts] == [began, began], "what uses no attempt changes nothing"
        assert status.attempts[-1].ended_at == began + 90 * MINUTE

        works = [
            await keyed.with_options(retry=policy, concurrency_key="a").enqueue(backend, send, number)
            for number in range(2)
        ]
        await backend.run_until_idle(raise_errors=False)
        assert [(await known(backend, work)).attempt for work in works] == [8, 8], "behind a gate, too"

        backend.clock.advance(5 * HOUR)
        assert await pool.retry(backend, works[0])
        await backend.run_until_idle(raise_errors=False)
        again = await known(backend, works[0])
        assert (again.state, again.attempt, len(again.attempts)) == (JobState.FAILED, 8, 16)
        assert len({one.failing_since for one in again.attempts}) == 2


async def test_on_complete_is_called_again_as_its_policy_says(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        began = backend.clock.now()
        outcomes.append(None)
        again = Retry.series([MINUTE, HOUR], max_duration=2 * HOUR, jitter=0)
        work = await pool.with_options(on_complete=tell, on_complete_retry=again).enqueue(backend, send, 7)
        await backend.run_until_idle(raise_errors=False)
        minutes = [(datetime.fromisoformat(time) - began) // MINUTE for time in told]
        assert minutes == [0, 1, 61, 121]
        status = await known(backend, work)
        assert (status.state, status.result, status.on_complete_error) == (
            JobState.SUCCESS, 7, "RuntimeError: not heard",
        )  # fmt: skip


async def change_options(url: str, lite: str, postgres: str) -> None:
    """Ask for something else for all jobs that have not begun, as another version might have done."""
    for place in ("ready", "scheduled"):
        sqlite = f"penstock_{place}_job set options = {lite}"
        made = sqlite if url.startswith("sqlite") else f"penstock.{place}_job set options = ({postgres})::text"
        await run_sql(url, "update " + made)


LATER: list[dict[str, Any]] = [
    {"retry": {"type": "fibonacci", "max_duration": 5}}, {"retry": [3, 1, 2, None, "new"]},
    {"on_complete_retry": {"type": "fibonacci"}}, {"lane": 7},
]  # fmt: skip


async def test_what_a_later_version_asks_for_waits_for_a_worker_that_knows_it(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        for form in LATER:
            outcomes[:] = [None, None]
            work = await pool.with_options(name="a").enqueue(backend, send, 1)
            mutation = await pool.enqueue(backend, tell, work, Success(1), None)
            text, old = json.dumps(form), "coalesce(options, '{}')"
            await change_options(database_url, f"json_patch({old}, '{text}')", f"{old}::jsonb || '{text}'")
            other = await pool.enqueue(backend, send, 2)
            await backend.run_until_idle(advance=False)
            assert await pool.status(backend, other) == Finished(Success(2)), "the worker goes on"
            for parked in (work, mutation):
                status = await known(backend, parked)
                assert (status.state, status.attempt, status.attempts) == (JobState.PENDING, 0, ()), form
                assert json.loads(status.options.unread or "") == form
                assert "OptionsUnread: " in (status.error or "")
                assert next(iter(form)) in (status.error or "")
                assert status.run_at - backend.clock.now() == 30 * SECOND
            await pool.cancel(backend, mutation)
            name = next(iter(form))
            await change_options(database_url, f"json_remove(options, '$.{name}')", f"options::jsonb - '{name}'")
            await backend.run_until_idle()
            assert await pool.status(backend, work) == Finished(Success(1)), form


# ----- retries that are asked for


TWICE = Retry(max_attempts=2, initial_backoff=10)
mail = app.workpool("mail", default_retry=TWICE)

down: list[bool] = []  # whether nobody can be reached
broken: list[Exception] = []  # what an on_complete raises


class Told(Table, name="retries_told"):
    kind: str
    context: str


@app.internal_action
async def mail_to(ctx: ActionCtx, to: str) -> str:
    if down or to == "nobody":
        raise ConnectionError(f"no way to {to}")
    return f"sent {to}"


@app.internal_mutation
async def hear(ctx: MutationCtx, work_id: WorkId, result: WorkResult[str], context: Any) -> None:
    await ctx.db.insert(Told(kind=result.kind, context=str(context)))
    if broken:
        raise broken[0]


@app.internal_query
async def heard(ctx: QueryCtx) -> list[tuple[str, str]]:
    return [(row.kind, row.context) for row in await ctx.db.query(Told).collect()]


@app.action
def retry_in_a_thread(ctx: SyncActionCtx) -> int:
    return mail.retry_all(ctx, mail_to, error="user2")


async def test_failed_work_is_retried_and_its_end_is_told_again(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        down.append(True)
        work = await mail.with_options(retry=True, on_complete=hear).enqueue(backend, mail_to, "user1")
        await backend.run_until_idle(raise_errors=False)
        assert await mail.status(backend, work) == Finished(Failed("ConnectionError: no way to user1"))
        down.clear()
        assert await mail.retry(backend, work)
        assert not await mail.retry(backend, work), "it is pending already"
        assert await mail.status(backend, work) == Pending(0)
        await backend.run_until_idle(raise_errors=False)
        assert await mail.status(backend, work) == Finished(Success("sent user1"))
        assert not await mail.retry(backend, work), "what has succeeded is not run again"
        assert [kind for kind, _ in await backend.run_query(heard)] == ["failed", "success"]
        status: Any = await backend.job(work)
        assert (status.attempt, status.state) == (1, JobState.SUCCESS)
        assert [(one.number, one.what) for one in status.attempts] == [(1, "raised"), (2, "exhausted")]
        assert all("in mail_to" in (one.traceback or "") for one in status.attempts)


async def test_many_are_retried_by_what_they_are_outside_of_transactions(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        down.append(True)
        works = await mail.enqueue_batch(backend, mail_to, [{"to": f"user{number}"} for number in range(5)])
        elsewhere = await pool.enqueue(backend, mail_to, "user2")
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
        found = await backend.jobs(where=JobFilter(pool="pool", state="failed", error="user2"))
        assert [job.id for job in found] == [elsewhere]
        later = mail.with_options(run_after=timedelta(hours=1), name="greet")
        first = await later.enqueue(backend, mail_to, "user1")
        which: Any = {"state": "pending", "name": "greet", "before": backend.clock.now() + timedelta(days=1)}
        assert await backend.run_mutation(write, lambda ctx: mail.cancel_all(ctx, **which)) == 1
        await backend.run_until_idle(advance=False, raise_errors=False)
        assert await mail.status(backend, first) == Finished(Canceled())
        assert await mail.retry_all(backend, state="canceled") == 1, "only what has failed, unless it says otherwise"
        won = await asyncio.gather(*(backend.scheduler.retry(elsewhere) for _ in range(5)))
        assert sorted(won) == [False] * 4 + [True]


async def test_bad_filters_are_refused(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        wrong: Any
        for wrong in ({"state": "success"}, {"error": "\0"}, {"error": 5}, {"since": datetime(2030, 1, 1)}):  # noqa: DTZ001
            with pytest.raises(ValueInvalid):
                await mail.retry_all(backend, **wrong)
        for wrong in (0, 10_001, 2.0, True):
            with pytest.raises(ValueInvalid, match="limit is an integer from 1 to 10000"):
                await backend.jobs(limit=wrong)
        with pytest.raises(ValueInvalid, match="'pending' have not ended"):
            await mail.retry_all_on_complete(backend, state="pending")
        with pytest.raises(ValueInvalid, match="have ended"):
            await mail.cancel_all(backend, on_complete_error="")
        with pytest.raises(UsageError, match="no property colour"):
            await mail.retry_all(backend, colour="red")  # type: ignore[call-overload]
        with pytest.raises(ContextError):
            await mail.retry_all(backend, "mail_to")  # type: ignore[call-overload]
        with pytest.raises(IdInvalid):
            await mail.retry(backend, "x")  # type: ignore[call-overload]
        unknown = JobId("job_01jd3k4v5w6x7y8z9a0b1c2d3e")
        assert not await mail.retry(backend, unknown)
        assert not await mail.retry_on_complete(backend, unknown)


async def give_up(backend: TestApp, to: str = "Ada") -> JobId:
    """Work that has ended, and whose on_complete has raised twice."""
    broken[:] = [ValueError("callback broke")]
    pool = mail.with_options(on_complete=hear, on_complete_retry=TWICE, context="of " + to)
    work = await pool.enqueue(backend, mail_to, to)
    if to == "gone":
        await mail.cancel(backend, work)
    await backend.run_until_idle(raise_errors=False)
    return work


ENDS: dict[str, Any] = {
    "Ada": Success("sent Ada"),
    "nobody": Failed("ConnectionError: no way to nobody"),
    "gone": Canceled(),
}


async def test_an_on_complete_that_failed_is_shown_and_called_again_when_asked_for(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock")
    failed = [(1, "raised"), (2, "exhausted")]
    async with TestApp(app, database_url) as backend:
        for to, end in ENDS.items():
            enqueued, work = backend.clock.now(), await give_up(backend, to)
            before = await known(backend, work)
            assert before.on_complete_error == "ValueError: callback broke"
            calls = before.on_complete_attempts
            assert [(one.number, one.what) for one in calls] == failed
            assert all("raise broken[0]" in (one.traceback or "") for one in calls)
            assert before.run_at == before.finished_at == enqueued, "as it was before its on_complete"
            assert timedelta(seconds=5) <= calls[1].started_at - calls[0].ended_at < timedelta(seconds=15)

            broken.clear()
            backend.clock.advance(timedelta(hours=1))
            with pytest.raises(ContextError):
                await backend.run_mutation(write, partial(mail.retry_on_complete, work=work))
            assert await mail.retry_on_complete(backend, work)
            assert not await mail.retry_on_complete(backend, work), "it waits already"
            assert isinstance(await mail.status(backend, work), Running)
            await mail.cancel(backend, work)
            await backend.run_until_idle(raise_errors=False)
            assert await mail.status(backend, work) == Finished(end), "how it ended stays, whatever is asked for"
            assert (await backend.run_query(heard))[-1] == (end.kind, f"of {to}")
            after = await known(backend, work)
            assert after == replace(before, on_complete_error=None), "what failed before is still shown"
            assert not await mail.retry_on_complete(backend, work), "it has been called"
            assert events(caplog, "job.on_complete_retried")[-1]["job"] == work
        errors = [one["error"] for one in events(caplog, "job.on_complete_failed")]
        assert errors == ["ValueError: callback broke"] * 6
        assert len(events(caplog, "job.failed")) == 1, "of the work itself"

        work = await give_up(backend)
        assert await mail.retry_on_complete(backend, work)
        await backend.run_until_idle(raise_errors=False)
        found = await known(backend, work)
        assert (found.state, found.on_complete_error) == (JobState.SUCCESS, "ValueError: callback broke")
        assert [(one.number, one.what) for one in found.on_complete_attempts] == failed * 2


async def test_all_that_failed_are_found_and_called_again_together(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        works = [await give_up(backend, to) for to in ("Ada", "nobody", "gone")]
        broken.clear()
        await mail.with_options(on_complete=hear).enqueue(backend, mail_to, "Bob")
        await backend.run_until_idle(raise_errors=False)

        async def found(**where: Any) -> list[JobId]:
            return [job.id for job in await backend.jobs(where=JobFilter(**where))][::-1]

        assert await found(on_complete_error="callback broke") == works
        assert await found(on_complete_error="callback broke", state="success") == works[:1]
        assert await found(error="callback broke") == [], "that is the error of the work"
        assert await pool.retry_all_on_complete(backend) == 0
        assert await mail.retry_all_on_complete(backend, mail_to, state="canceled") == 1
        assert await mail.retry_all_on_complete(backend, on_complete_error="broke") == 2
        await backend.run_until_idle(raise_errors=False)
        kinds = [kind for kind, _ in await backend.run_query(heard)]
        assert sorted(kinds) == ["canceled", "failed", "success", "success"]
