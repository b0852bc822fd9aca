"""What pools tell: an event for each step of a job, a report each minute, and monitors that read both."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta
from importlib.resources import files
from typing import Any

import pytest
from stage.stories import tell_in
from stage.waits import apl, apl_queries, events, flat, messages
from stage.waits import streamed as stream

from penstock import (
    ActionCtx,
    App,
    MutationCtx,
    NonRetryableError,
    QueryCtx,
    Retry,
    Table,
    TaskCtx,
    WorkId,
    WorkResult,
    public,
    sync,
)
from penstock.store.nouns.jobs import Room
from penstock.testing import TestApp, TestClock

app = OPENED = App()
write, _, _ = tell_in(app)
once = Retry(max_attempts=2, initial_backoff=10, base=2)
loud = app.workpool("loud", max_parallelism=3, default_retry=once, log_level="info")
plain = app.workpool("plain", default_retry=once)
mute = app.workpool("mute", log_level="warning")

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


def by_name(lines: list[str], name: str) -> list[dict[str, Any]]:
    return [message for message in messages(lines) if message["event"] == name]


def ms(clock: TestClock) -> int:
    return int(clock.now().timestamp() * 1000)


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
            | {"event": "started", "enqueuedAt": begun, "startedAt": begun + 2000, "startLag": 2000, "attempt": 1},
            known | {"event": "completed", "completedAt": begun + 2000, "attempts": 1, "status": "success"},
        ]
        assert flat(lines[0])["data.function.component_path"] == "loud"


async def test_lag_counts_from_when_work_is_due_and_retries_are_told_as_such(database_url: str) -> None:
    failures[:] = [ValueError("no"), ValueError("no")]
    async with TestApp(app, database_url) as backend:
        with stream(backend.clock) as lines:
            pool = loud.with_options(run_after=timedelta(hours=1), retry=True, name="later")
            await pool.enqueue(backend, send, "a")
            await backend.run_until_idle(raise_errors=False)
        started, completed = by_name(lines, "started"), by_name(lines, "completed")
        assert [(one["startLag"], one["attempt"]) for one in started] == [(0, 1), (0, 2)]
        assert [(one["status"], one["attempts"]) for one in completed] == [("retrying", 1), ("failed", 2)]
        (enqueued,) = by_name(lines, "enqueued")
        assert enqueued["runAt"] - enqueued["enqueuedAt"] == 3_600_000


async def test_a_job_ends_once_with_its_on_complete_and_what_was_not_committed_is_not_told(database_url: str) -> None:
    async def in_vain(ctx: MutationCtx) -> None:
        with pytest.raises(RuntimeError, match="never mind"):
            await ctx.run_mutation(book, fail=True)

    async with TestApp(app, database_url) as backend:
        for function, given in ((send, {"text": "a"}), (note, {})):
            for fails in (False, True):
                failures[:] = [ValueError("no")] if fails else []
                callback_failures[:] = [ValueError("not now"), ValueError("not now")]
                with stream() as lines:
                    pool = loud.with_options(on_complete=told)
                    await pool.enqueue(backend, function, **given)
                    await backend.run_until_idle(raise_errors=False)
                status = "failed" if fails else "success"
                assert [one["status"] for one in by_name(lines, "completed")] == [status], (function.name, fails)
                assert len(by_name(lines, "started")) == 1
        with stream() as lines:
            with pytest.raises(RuntimeError, match="never mind"):
                await backend.run_mutation(book, fail=True)
            await backend.run_mutation(write, in_vain)
            await backend.run_until_idle()
        assert messages(lines) == []


async def test_a_batch_a_cancel_and_a_lost_job_are_told(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        with stream() as lines:
            works = await loud.enqueue_batch(backend, send, [{"text": str(number)} for number in range(3)])
            await loud.cancel(backend, works[1])
            await backend.run_until_idle()
        assert [one["workId"] for one in by_name(lines, "enqueued")] == works
        ended = {one["workId"]: one["status"] for one in by_name(lines, "completed")}
        assert ended == {works[0]: "success", works[1]: "canceled", works[2]: "success"}
        with stream() as lines:
            await loud.enqueue(backend, send, "a")
            store = backend.engine.store
            lease = await store.leases.take("gone", timedelta(seconds=1), backend.clock.now())
            await store.pools.acquire(lease, "loud", 1)
            view = (await store.pools.look(lease, ["loud"], 1))[0]
            assert (await store.jobs.claim(lease, 1, [Room("loud", 1, view.epoch)], backend.clock.now())).jobs
            backend.clock.advance(timedelta(seconds=60))
            await backend.run_until_idle(raise_errors=False)
        assert [one["status"] for one in by_name(lines, "completed")] == ["failed"], "by who takes it over"


async def a_minute(backend: TestApp) -> None:
    backend.clock.advance(timedelta(seconds=60))
    await backend.worker.tick()


async def test_an_active_pool_is_reported_on_each_minute(database_url: str) -> None:
    failures[:] = [ValueError("no"), ValueError("no"), ValueError("no")]
    async with TestApp(app, database_url) as backend:
        with stream(backend.clock) as lines:
            begun = ms(backend.clock)
            await mute.enqueue(backend, write_two)  # this pool tells of warnings only
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
            "component": "workpool", "event": "report", "pool": "plain", "lastReportTs": begun, "running": 0,
            "backlog": 0, "completed": 6, "succeeded": 2, "failed": 2, "retries": 1, "canceled": 1,
            "failureRate": 0.5, "permanentFailureRate": 0.4,
        }  # fmt: skip

        await plain.pause(backend)
        await plain.enqueue_batch(backend, send, [{"text": "a"}] * 5)
        await plain.with_options(run_after=timedelta(hours=1)).enqueue(backend, send, "later")
        with stream(backend.clock) as lines:
            await a_minute(backend)
            await a_minute(backend)
        report = messages(lines)[-1]
        assert (report["backlog"], report["completed"], report["failureRate"]) == (5, 0, None), "nobody works for it"


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
        backlog, permanent, ratio, lag = (
            {name: value for (_, name), value in apl(one, lines).items()} for one in QUERIES
        )
        assert (backlog, permanent) == ({"loud": 7}, {"loud": 0.25})
        assert lag == {send.name: 4.0, note.name: 4.0}
        assert sorted(ratio.values()) in ([0.0, 1 / 3], [0.0, 1.0])
        assert set(ratio) == {send.name, note.name}


class Seat(Table):
    name: str = ""


hall = app.workpool("hall", default_retry=Retry.fixed(timedelta(seconds=1), max_attempts=2))


@app.query(access=public)
async def seats(ctx: QueryCtx) -> int:
    return len(await ctx.db.query(Seat).take(10))


@app.mutation(access=public)
async def seat(ctx: MutationCtx, name: str) -> None:
    await ctx.db.insert(Seat(name=name))
    await ctx.run_query(seats)
    await hall.enqueue(ctx, tidy)
    await hall.with_options(retry=True).enqueue(ctx, fail)


@app.internal_action
def tidy(ctx: sync.ActionCtx) -> None:
    ctx.run_mutation(write_two)
    ctx.run_query(seats)


@app.internal_mutation
async def write_two(ctx: MutationCtx) -> None:
    await ctx.db.insert(Seat())
    await ctx.db.insert(Seat())


@app.internal_action
async def fail(ctx: ActionCtx) -> None:
    raise ValueError("full")


@app.mutation
async def refuse(ctx: MutationCtx) -> None:
    await ctx.db.insert(Seat())
    raise NonRetryableError("no")


def told_of(caplog: pytest.LogCaptureFixture, name: str, *facts: str) -> list[tuple[Any, ...]]:
    return [tuple(one.get(fact) for fact in facts) for one in events(caplog, name)]


async def test_each_call_and_each_job_is_told_once_with_its_rows(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock")
    async with TestApp(app, database_url, dev=True) as backend:
        await backend.with_identity(subject="ada").run_mutation(seat, "A1")
        with pytest.raises(NonRetryableError):
            await backend.run_mutation(refuse)
        cost = ("kind", "function", "status", "read", "written", "caller")
        assert told_of(caplog, "call.ran", *cost) == [
            ("mutation", "test_pool_events:seat", "success", 1, 1, "ada"),
            ("mutation", "test_pool_events:refuse", "failed", 0, 0, None),
        ], "its nested query is a part of it, and what is undone was not written"

        await backend.run_until_idle(raise_errors=False)
        assert sorted(told_of(caplog, "job.ran", "function", "status", "read", "written", "attempt")) == [
            ("test_pool_events:fail", "failed", 0, 0, 2),
            ("test_pool_events:fail", "retrying", 0, 0, 1),
            ("test_pool_events:tidy", "success", 3, 2, 1),
        ]
        assert len(events(caplog, "call.ran")) == 2, "calls of jobs are parts of these"
        assert backend.engine.journal.jobs_running() == 0

    caplog.clear()
    async with TestApp(app, database_url, clock=TestClock(seed=99)) as backend:
        await backend.run_query(seats)
        await backend.run_mutation(write_two)
    assert not events(caplog, "call.ran"), "in production nothing is told of calls that end well"


@app.reactive_task(Seat, filter=lambda one: one.name == "late", name="seating")
async def be_late(ctx: TaskCtx[Seat]) -> None: ...


async def test_jobs_in_a_shared_transaction_and_task_runs_are_told(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock")
    async with TestApp(app, database_url, dev=True) as test:
        row = await test.run_mutation(write, lambda ctx: ctx.db.insert(Seat(name="late")))
        await test.run_until_idle()
        expected = ("seating", f'["{row}"]', "success", "action")
        assert told_of(caplog, "job.ran", "task", "key", "status", "kind") == [expected]
        caplog.clear()
        await hall.enqueue_batch(test, write_two, [{}] * 3)
        await test.run_until_idle()
        assert told_of(caplog, "job.ran", "function", "written") == [("test_pool_events:write_two", 2)] * 3
