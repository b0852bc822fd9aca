"""Retry policies of work in pools: after which waits it is tried again, for how long, and what each store keeps of it.

The names rp1 to rp8 are those of behaviours that are promised of reactive tasks.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from stage.outboxes import run_sql

from penstock import (
    ActionCtx,
    App,
    Finished,
    JobState,
    MutationCtx,
    Pending,
    Retry,
    Snooze,
    Success,
    WorkId,
    WorkResult,
)
from penstock.jobs.job import JobStatus
from penstock.services.worker.worker import Worker
from penstock.testing import TestApp, TestClock

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
app = OPENED = App()
pool = app.workpool("pool")
keyed = app.workpool("keyed", key_parallelism=1)
steps = app.workpool("steps", default_retry=Retry.series([1, MINUTE], max_attempts=3, jitter=0))

outcomes: list[Exception | None] = []  # of the next attempts; then all fail
told: list[str] = []
begun, may_end = asyncio.Event(), asyncio.Event()


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    global begun, may_end
    begun, may_end = asyncio.Event(), asyncio.Event()
    yield
    outcomes.clear()
    told.clear()


@app.internal_action
async def send(ctx: ActionCtx, number: int = 0) -> int:
    outcome = outcomes.pop(0) if outcomes else ConnectionError("no way")
    if outcome is not None:
        raise outcome
    return number


@app.internal_action
async def hang(ctx: ActionCtx) -> None:
    begun.set()
    await may_end.wait()


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


async def start(backend: TestApp) -> None:
    """Have the worker begin what it finds, which hangs; at first it may find what another one has lost."""
    while not backend.worker.running:
        await backend.worker.tick()
    await begun.wait()
    begun.clear()


async def lose_worker(backend: TestApp) -> None:
    """Have the worker die of what it runs, and another one take that over."""
    if not backend.worker.running:
        await start(backend)
    await backend.worker.kill()
    backend.clock.advance(2 * MINUTE)
    worker = backend.make_service("worker")
    assert isinstance(worker, Worker)
    backend.worker = worker


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


async def add_options(url: str, form: str) -> None:
    """Ask for something else for all jobs that have not ended, as another version might have done."""
    for place in ("ready", "scheduled", "running"):
        if url.startswith("sqlite"):
            made = f"penstock_{place}_job set options = json_patch(coalesce(options, '{{}}'), '{form}')"
        else:
            made = f"penstock.{place}_job set options = (coalesce(options, '{{}}')::jsonb || '{form}')::text"
        await run_sql(url, "update " + made)


async def drop_option(url: str, name: str) -> None:
    """Ask no more for one thing."""
    for place in ("ready", "scheduled"):
        lite = f"penstock_{place}_job set options = json_remove(options, '$.{name}')"
        postgres = f"penstock.{place}_job set options = (options::jsonb - '{name}')::text"
        await run_sql(url, f"update {lite if url.startswith('sqlite') else postgres}")


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
            await add_options(database_url, json.dumps(form))
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
            await drop_option(database_url, next(iter(form)))
            await backend.run_until_idle()
            assert await pool.status(backend, work) == Finished(Success(1)), form

        hanging = await pool.with_options(retry=Retry(1)).enqueue(backend, hang)
        await start(backend)
        await add_options(database_url, json.dumps(LATER[0]))
        await lose_worker(backend)
        await backend.run_until_idle(advance=False)
        assert await pool.status(backend, hanging) == Pending(1), "how many attempts it has, only the other one knows"
