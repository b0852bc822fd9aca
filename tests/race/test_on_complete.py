"""A worker dies around the call of an on_complete: it takes effect exactly once, with the end of the job."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from stage.waits import SOON, events, until

from penstock import ActionCtx, App, Finished, MutationCtx, QueryCtx, Retry, Table, WorkId, WorkResult
from penstock.app import Backend
from penstock.observe import points
from penstock.services.worker.worker import Worker
from penstock.testing import TestApp, TestClock, gate

app = OPENED = App()
pool = app.workpool("work", max_parallelism=20)

MORE_THAN_A_LEASE = timedelta(seconds=61)
WHY = "WorkerLost: the worker that ran this job died or lost its lease"
begun: list[str] = []


class Told(Table):
    work: str
    kind: str


@app.internal_action
async def act(ctx: ActionCtx) -> str:
    return "done"


@app.internal_action
async def hang(ctx: ActionCtx, what: str) -> str:
    begun.append(what)
    if ctx.work.attempt == 1:
        await asyncio.Event().wait()
    return what


@app.internal_action
async def refuse(ctx: ActionCtx) -> str:
    raise ValueError("refused")


@app.internal_mutation
async def write(ctx: MutationCtx) -> str:
    return "done"


@app.internal_mutation
async def tell(ctx: MutationCtx, work_id: WorkId, result: WorkResult[Any], context: Any) -> None:
    await ctx.db.insert(Told(work=work_id, kind=result.kind))


@app.internal_mutation
async def break_off(ctx: MutationCtx, work_id: WorkId, result: WorkResult[Any], context: Any) -> None:
    raise KeyError("no such thing")


@app.query
async def told(ctx: QueryCtx) -> list[str]:
    return [row.kind async for row in ctx.db.query(Told)]


@pytest.fixture(autouse=True)
def nothing_has_begun() -> None:
    begun.clear()


def failures(caplog: pytest.LogCaptureFixture) -> list[Any]:
    """What was told of attempts that failed."""
    return [one["error"] for one in events(caplog, "job.failed")]


def writes(**facts: Any) -> bool:
    return bool(facts["transaction"]._rows_written)


@asynccontextmanager
async def two_workers(url: str, app: App = app) -> AsyncIterator[tuple[Backend, Worker, Worker, TestClock]]:
    """Two workers of two backends with one clock."""
    clock = TestClock()
    async with app.open(url, clock=clock) as first, app.open(url, clock=clock) as second:
        workers = [backend.make_service("worker") for backend in (first, second)]
        yield second, *workers, clock  # type: ignore[misc]
        for worker in workers:
            await worker.kill()


async def finish(backend: Backend, worker: Worker, clock: TestClock, work: WorkId) -> Any:
    """Let a worker do what is left; how the work has ended."""
    async with asyncio.timeout(SOON):
        while not isinstance(status := await pool.status(backend, work), Finished):
            clock.advance(MORE_THAN_A_LEASE)
            await worker.tick()
            if worker.running:
                await worker.wait_for_jobs()
    return status.result


CASES: dict[str, tuple[Any, Retry | None, str]] = {
    "action": (act, None, "failed"),  # whether it reached the outside world is not known
    "retried action": (act, Retry(max_attempts=3, initial_backoff=0), "success"),
    "mutation": (write, None, "success"),  # its ending is kept with its effects
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("moment", ["mutation.ran", "commit.before", "commit.after"])
async def test_a_worker_that_dies_around_an_on_complete(database_url: str, case: str, moment: str) -> None:
    function, retry, kind = CASES[case]
    async with two_workers(database_url) as (backend, dying, other, clock):
        work = await pool.with_options(on_complete=tell, retry=retry).enqueue(backend, function)

        def is_the_call(**facts: Any) -> bool:
            return bool(facts["function"] == tell.name) if moment == "mutation.ran" else writes(**facts)

        with gate(moment, when=is_the_call, most=1) as held:
            arrival = asyncio.create_task(held.arrived())
            while not arrival.done():
                await dying.tick()
                await asyncio.wait([arrival], timeout=0.01)
            await dying.kill()
        result = await finish(backend, other, clock, work)
        expected = "success" if moment == "commit.after" else kind
        assert await backend.run_query(told) == [expected], "once"
        assert (result.kind, getattr(result, "value", None)) == (expected, "done" if expected == "success" else None)
        clock.advance(MORE_THAN_A_LEASE)
        await other.tick()
        assert await backend.run_query(told) == [expected], "and never again"


async def test_a_failure_is_told_once_and_when_it_is_written(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with two_workers(database_url) as (backend, worker, other, clock):
        await pool.with_options(on_complete=tell).enqueue(backend, refuse)
        with gate("commit.before", when=writes, most=1) as held:
            await worker.tick()
            await held.arrived()
            assert failures(caplog) == []
        await worker.wait_for_jobs()
        assert failures(caplog) == ["ValueError: refused"]
        caplog.clear()
        options = pool.with_options(on_complete=break_off, on_complete_retry=Retry(max_attempts=3, initial_backoff=1))
        result = await finish(backend, worker, clock, await options.enqueue(backend, refuse))
        assert failures(caplog) == [result.error] == ["ValueError: refused"], "once, though its on_complete raises"
        caplog.clear()
        work = await pool.with_options(on_complete=tell).enqueue(backend, refuse)
        with gate("commit.before", when=writes, most=1) as held:
            await worker.tick()
            await held.arrived()
            await worker.kill()
        result = await finish(backend, other, clock, work)
        assert result.error == WHY
        assert "ValueError: refused" not in failures(caplog), "who has died has not told it"


async def test_on_completes_share_a_transaction_and_one_that_fails_is_called_alone(database_url: str) -> None:
    commits = Counter[int]()

    async def count(**facts: Any) -> None:
        commits[id(facts["transaction"].session)] += writes(**facts)

    async with TestApp(app, database_url) as test:
        works = await pool.with_options(on_complete=tell).enqueue_batch(test, act, [{}] * 15)
        works += await pool.with_options(on_complete=tell).enqueue_batch(test, refuse, [{}] * 4)
        broken = pool.with_options(on_complete=break_off, on_complete_retry=Retry(max_attempts=2, initial_backoff=1))
        last = await broken.enqueue(test, act)
        points.arm("commit.before", count)
        try:
            await test.run_until_idle(raise_errors=False)
        finally:
            points.disarm("commit.before")
        assert sorted(await test.run_query(told)) == ["failed"] * 4 + ["success"] * 15, "once for each"
        assert commits.total() < 10, "many in one commit"
        found = await test.job(last)
        assert found is not None
        assert (found.state.value, len(found.on_complete_attempts)) == ("success", 2)


async def test_a_job_is_stored_at_its_end_as_one_without_on_complete_is(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        plain = await pool.enqueue_batch(test, act, [{}] * 5)
        followed = await pool.with_options(on_complete=tell).enqueue_batch(test, act, [{}] * 5)
        keyed = [await pool.with_options(on_complete=tell, key=f"k{one}").enqueue(test, act) for one in range(5)]
        await test.run_until_idle()
        statuses = [await test.job(work) for work in (*plain, *followed, *keyed)]
        ends = {(one.state, one.attempt, one.result, one.error, one.attempts) for one in statuses if one}
        times = {(one.run_at, one.enqueued_at, one.started_at, one.finished_at) for one in statuses if one}
        assert [len(ends), len(times), None in statuses] == [1, 1, False]
        assert await test.run_query(told) == ["success"] * 10
        again = [await pool.with_options(key=f"k{one}").enqueue(test, act) for one in range(5)]
        assert not set(again) & set(keyed), "their keys are free"


async def begin_and_die(test: TestApp, count: int) -> None:
    """Let a worker begin until so much has begun, and kill it."""
    worker = test.make_service("worker")
    assert isinstance(worker, Worker)

    async def enough() -> bool:
        await worker.tick()
        return len(begun) == count

    await until(enough)
    await worker.kill()
    test.clock.advance(MORE_THAN_A_LEASE)
    await test.run_until_idle(raise_errors=False)


async def test_each_that_is_lost_with_its_worker_is_told(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with TestApp(app, database_url) as test:
        works = [
            await pool.enqueue(test, hang, "once"),
            await pool.with_options(on_complete=tell).enqueue(test, hang, "told of"),
            await pool.with_options(retry=Retry(3, 0.01, 1)).enqueue(test, hang, "again"),
        ]
        await begin_and_die(test, 3)
        found = {one.pop("job"): one for one in events(caplog, "job.failed")}
        lost = {"function": hang.name, "attempt": 1, "seconds": 61.0, "error": WHY}
        assert found == dict.fromkeys(works, lost)
        assert len(events(caplog, "job.failed")) == 3, "each once"
        assert sorted(begun) == ["again", "again", "once", "told of"]
        assert await test.run_query(told) == ["failed"]
