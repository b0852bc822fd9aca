"""What pools tell: an event for each step of a job, a report each minute, and monitors that read both."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from importlib.resources import files
from typing import Any

import pytest
from stage.monitors import (
    apl,
    apl_queries,
    failure_ratio,
    flat,
    max_backlog,
    messages,
    permanent_failure_rate,
    start_lag_seconds,
)
from stage.monitors import streamed as stream

from penstock import ActionCtx, App, MutationCtx, Retry, WorkId, WorkResult
from penstock.store.nouns.jobs import Room
from penstock.testing import TestApp, TestClock
from penstock.transaction.transaction import Transaction

app = OPENED = App()
once = Retry(max_attempts=2, initial_backoff=10, base=2)
loud = app.workpool("loud", max_parallelism=3, default_retry=once, log_level="info")
plain = app.workpool("plain", default_retry=once)
mute = app.workpool("mute", log_level="warning")

MONITORS = (max_backlog, permanent_failure_rate, failure_ratio, start_lag_seconds)
QUERIES = apl_queries((files("penstock.observe") / "monitoring" / "axiom.apl").read_text("utf-8"))

failures: list[Exception] = []
callback_failures: list[Exception] = []


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    failures.clear()
    callback_failures.clear()


@app.internal_action
async def send(ctx: ActionCtx, text: str) -> str:
    if failures:
        raise failures.pop(0)
    return text


@app.internal_mutation
async def note(ctx: MutationCtx) -> None:
    if failures:
        raise failures.pop(0)


@app.internal_mutation
async def told(ctx: MutationCtx, work_id: WorkId, result: WorkResult[Any], context: Any) -> None:
    if callback_failures:
        raise callback_failures.pop(0)


@app.mutation
async def book(ctx: MutationCtx, fail: bool = False) -> WorkId:
    work = await loud.enqueue(ctx, send, text="a")
    if fail:
        raise RuntimeError("never mind")
    return work


@app.mutation
async def book_in_vain(ctx: MutationCtx) -> None:
    try:
        await ctx.run_mutation(book, fail=True)
    except RuntimeError:
        return


def by_name(lines: list[str], name: str) -> list[dict[str, Any]]:
    return [message for message in messages(lines) if message["event"] == name]


def ms(clock: TestClock) -> int:
    return int(clock.now().timestamp() * 1000)


# ----- events


async def test_each_step_of_a_job_is_told_with_the_names_of_workpool(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        with stream(backend.clock) as lines:
            begun = ms(backend.clock)
            work = await backend.run_mutation(book)
            backend.clock.advance(timedelta(seconds=2))
            await backend.run_until_idle()
        function = "test_pool_events:send"
        known = {"component": "workpool", "pool": "loud", "workId": work, "fnName": function}
        assert messages(lines) == [
            known | {"event": "enqueued", "runAt": begun, "enqueuedAt": begun},
            known
            | {
                "event": "started",
                "enqueuedAt": begun,
                "startedAt": begun + 2000,
                "startLag": 2000,
                "attempt": 1,
            },
            known | {"event": "completed", "completedAt": begun + 2000, "attempts": 1, "status": "success"},
        ]
        row = flat(lines[0])
        assert row["data.function.component_path"] == "loud"
        assert (row["event"], row["level"], row["workId"]) == ("workpool.enqueued", "info", work)


async def test_lag_counts_from_when_work_is_due_and_retries_are_told_as_such(database_url: str) -> None:
    failures[:] = [ValueError("no"), ValueError("no")]
    async with TestApp(app, database_url) as backend:
        with stream(backend.clock) as lines:
            pool = loud.with_options(run_after=timedelta(hours=1), retry=True, name="later")
            await pool.enqueue(backend, send, "a")
            await backend.run_until_idle(raise_errors=False)
        started, completed = by_name(lines, "started"), by_name(lines, "completed")
        assert [(one["fnName"], one["startLag"], one["attempt"]) for one in started] == [
            ("later", 0, 1),
            ("later", 0, 2),
        ]
        assert [(one["status"], one["attempts"]) for one in completed] == [("retrying", 1), ("failed", 2)]
        (enqueued,) = by_name(lines, "enqueued")
        assert enqueued["runAt"] - enqueued["enqueuedAt"] == 3_600_000


async def test_what_was_not_committed_is_not_told(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        with stream() as lines:
            with pytest.raises(RuntimeError, match="never mind"):
                await backend.run_mutation(book, fail=True)
            await backend.run_mutation(book_in_vain)
            await backend.run_until_idle()
        assert messages(lines) == []


@pytest.mark.parametrize("function", [send, note])
@pytest.mark.parametrize("fails", [False, True])
async def test_a_job_is_completed_once_with_its_on_complete(database_url: str, function: Any, fails: bool) -> None:
    failures[:] = [ValueError("no")] if fails else []
    callback_failures[:] = [ValueError("not now"), ValueError("not now")]
    async with TestApp(app, database_url) as backend:
        with stream() as lines:
            given = {"text": "a"} if function is send else {}
            await loud.with_options(on_complete=told).enqueue(backend, function, **given)
            await backend.run_until_idle(raise_errors=False)
        status = "failed" if fails else "success"
        assert [one["status"] for one in by_name(lines, "completed")] == [status]
        assert len(by_name(lines, "started")) == 1


async def test_a_batch_and_a_cancel_are_told(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        with stream() as lines:
            works = await loud.enqueue_batch(backend, send, [{"text": str(number)} for number in range(3)])
            await loud.cancel(backend, works[1])
            await backend.run_until_idle()
        assert [one["workId"] for one in by_name(lines, "enqueued")] == works
        ended = {one["workId"]: one["status"] for one in by_name(lines, "completed")}
        assert ended == {works[0]: "success", works[1]: "canceled", works[2]: "success"}


async def test_a_lost_job_is_told_by_who_takes_it_over(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        with stream() as lines:
            await loud.enqueue(backend, send, "a")
            lease = await backend.engine.store.leases.take("gone", timedelta(seconds=1), backend.clock.now())
            await backend.engine.store.pools.acquire(lease, "loud", 1)
            view = (await backend.engine.store.pools.look(lease, ["loud"], 1))[0]
            await take(backend, lease, view.epoch)
            backend.clock.advance(timedelta(seconds=60))
            await backend.run_until_idle(raise_errors=False)
        assert [one["status"] for one in by_name(lines, "completed")] == ["failed"]


async def take(backend: TestApp, lease: int, epoch: int) -> None:
    claim = await backend.engine.store.jobs.claim(lease, 1, [Room("loud", 1, epoch)], backend.clock.now())
    assert len(claim.jobs) == 1


# ----- levels


async def test_a_pool_tells_no_more_than_its_level(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        with stream(backend.clock) as lines:
            for pool in (plain, mute):
                await pool.enqueue(backend, send, "a")
            await backend.run_until_idle()
            await a_minute(backend)
        assert [(one["event"], one["pool"]) for one in messages(lines)] == [("report", "plain")]


async def test_nothing_is_gathered_for_events_that_nobody_hears(database_url: str) -> None:
    noted: list[Transaction] = []
    async with TestApp(app, database_url) as backend:
        for pool, level in ((plain, logging.INFO), (loud, logging.WARNING)):
            with stream(level=level) as lines:
                await backend.runner.write(partial(enqueue, backend, pool.name, noted))
            assert messages(lines) == []
        assert [transaction.committed for transaction in noted] == [[], []]


async def enqueue(backend: TestApp, pool: str, noted: list[Transaction], transaction: Transaction) -> None:
    job = backend.job_calls.new_job(note, {}, backend.clock.now(), pool=pool)
    backend.engine.journal.sending(transaction, job)
    noted.append(transaction)


# ----- reports


async def a_minute(backend: TestApp) -> None:
    backend.clock.advance(timedelta(seconds=60))
    await backend.worker.tick()


async def test_an_active_pool_is_reported_on_each_minute(database_url: str) -> None:
    failures[:] = [ValueError("no"), ValueError("no"), ValueError("no")]
    async with TestApp(app, database_url) as backend:
        with stream(backend.clock) as lines:
            begun = ms(backend.clock)
            work = await plain.enqueue(backend, send, "never")
            await plain.cancel(backend, work)
            await plain.with_options(retry=True).enqueue(backend, send, "twice")
            await plain.enqueue(backend, send, "not at all")
            await plain.enqueue_batch(backend, send, [{"text": "well"}] * 2)
            await backend.run_until_idle(raise_errors=False)
            await a_minute(backend)
            await a_minute(backend)
            await a_minute(backend)
        (report,) = messages(lines)
        assert report == {
            "component": "workpool",
            "event": "report",
            "pool": "plain",
            "completed": 6,
            "succeeded": 2 + (1 if failures else 0),
            "failed": 2,
            "retries": 1,
            "canceled": 1,
            "lastReportTs": begun,
            "running": 0,
            "backlog": 0,
            "failureRate": 0.5,
            "permanentFailureRate": 0.4,
        }


async def test_a_pool_for_which_nobody_works_is_reported_on(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        await plain.pause(backend)
        await plain.enqueue_batch(backend, send, [{"text": "a"}] * 5)
        await plain.with_options(run_after=timedelta(hours=1)).enqueue(backend, send, "later")
        with stream(backend.clock) as lines:
            await backend.worker.tick()
            await a_minute(backend)
        (report,) = messages(lines)
        assert (report["backlog"], report["completed"], report["failureRate"]) == (5, 0, None)


# ----- the monitors of Workpool's README


async def test_the_four_monitors_see_what_happens(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        with stream(backend.clock) as lines:
            await loud.enqueue_batch(backend, send, [{"text": "a"}] * 3)
            await loud.enqueue(backend, note)
            failures[:] = [ValueError("no")]
            backend.clock.advance(timedelta(seconds=4))
            await backend.run_until_idle(raise_errors=False)
            await loud.pause(backend)
            await loud.enqueue_batch(backend, note, [{}] * 7)
            await a_minute(backend)
        at = {loud.name, send.name, note.name}
        assert {name for _, name in (*max_backlog(lines), *failure_ratio(lines), *start_lag_seconds(lines))} == at
        assert list(max_backlog(lines).values()) == [7]
        assert list(permanent_failure_rate(lines).values()) == [0.25]
        ratios = {function: ratio for (_, function), ratio in failure_ratio(lines).items()}
        assert sorted(ratios.values()) in ([0.0, 1 / 3], [0.0, 1.0])
        assert set(start_lag_seconds(lines).values()) == {4.0}
        assert [apl(query, lines) for query in QUERIES] == [monitor(lines) for monitor in MONITORS]


async def test_a_monitor_is_told_of_retries_as_failures_and_of_cancels_not_at_all(database_url: str) -> None:
    failures[:] = [ValueError("no")]
    async with TestApp(app, database_url) as backend:
        with stream(backend.clock) as lines:
            await loud.with_options(retry=True).enqueue(backend, send, "a")
            await loud.cancel(
                backend, await loud.with_options(run_after=timedelta(hours=1)).enqueue(backend, send, "b")
            )
            await backend.run_until_idle()
        assert list(failure_ratio(lines).values()) == [0.5]
        assert apl(QUERIES[2], lines) == failure_ratio(lines)
