"""A worker dies around the call of an on_complete: it takes effect exactly once, with the end of the job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from stage.waits import SOON

from penstock import ActionCtx, App, Finished, MutationCtx, QueryCtx, Retry, Success, Table, WorkId, WorkResult
from penstock.app import Backend
from penstock.services.worker.worker import Worker
from penstock.testing import TestClock, gate

app = OPENED = App()
pool = app.workpool("work", max_parallelism=2)

MORE_THAN_A_LEASE = timedelta(seconds=31)


class Told(Table):
    work: str
    kind: str


@app.internal_action
async def act(ctx: ActionCtx) -> str:
    return "done"


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


def failures(caplog: pytest.LogCaptureFixture) -> list[Any]:
    """What was told of attempts that failed."""
    found = [record for record in caplog.records if getattr(record, "event", "") == "job.failed"]
    return [vars(record)["facts"]["error"] for record in found]


@asynccontextmanager
async def two_workers(url: str) -> AsyncIterator[tuple[Backend, Worker, Worker, TestClock]]:
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


CASES = [
    (act, None, "failed"),  # whether it reached the outside world is not known
    (act, Retry(max_attempts=3, initial_backoff=0), "success"),
    (write, None, "success"),  # its ending is kept with its effects
]


@pytest.mark.parametrize(("function", "retry", "kind"), CASES, ids=["action", "retried action", "mutation"])
@pytest.mark.parametrize("moment", ["mutation.ran", "commit.before", "commit.after"])
async def test_a_worker_that_dies_around_an_on_complete(
    database_url: str, function: Any, retry: Retry | None, kind: str, moment: str
) -> None:
    async with two_workers(database_url) as (backend, dying, other, clock):
        work = await pool.with_options(on_complete=tell, retry=retry).enqueue(backend, function)

        def is_the_call(**facts: Any) -> bool:
            if moment == "mutation.ran":
                return bool(facts["function"] == tell.name)
            return bool(facts["transaction"]._rows_written)

        with gate(moment, when=is_the_call, most=1) as held:
            arrival = asyncio.create_task(held.arrived())
            while not arrival.done():
                await dying.tick()
                await asyncio.wait([arrival], timeout=0.01)
            await dying.kill()
        result = await finish(backend, other, clock, work)
        expected = "success" if moment == "commit.after" else kind
        assert await backend.run_query(told) == [expected], "once"
        assert result.kind == expected
        if expected == "success":
            assert result == Success("done")
        clock.advance(MORE_THAN_A_LEASE)
        await other.tick()
        assert await backend.run_query(told) == [expected], "and never again"


def writes(**facts: Any) -> bool:
    return bool(facts["transaction"]._rows_written)


async def test_a_failure_is_told_once_it_is_written(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with two_workers(database_url) as (backend, worker, _other, _clock):
        await pool.with_options(on_complete=tell).enqueue(backend, refuse)
        with gate("commit.before", when=writes, most=1) as held:
            await worker.tick()
            await held.arrived()
            assert failures(caplog) == []
        await worker.wait_for_jobs()
        assert failures(caplog) == ["ValueError: refused"]


async def test_a_failure_that_a_dying_worker_has_not_written_is_not_told(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with two_workers(database_url) as (backend, dying, other, clock):
        work = await pool.with_options(on_complete=tell).enqueue(backend, refuse)
        with gate("commit.before", when=writes, most=1) as held:
            await dying.tick()
            await held.arrived()
            await dying.kill()
        result = await finish(backend, other, clock, work)
        assert result.error.startswith("WorkerLost")
        assert "ValueError: refused" not in failures(caplog)


async def test_a_failure_is_told_once_if_its_on_complete_raises(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with two_workers(database_url) as (backend, worker, _other, clock):
        options = pool.with_options(on_complete=break_off, on_complete_retry=Retry(max_attempts=3, initial_backoff=1))
        work = await options.enqueue(backend, refuse)
        result = await finish(backend, worker, clock, work)
        assert result.error == "ValueError: refused"
        assert failures(caplog) == ["ValueError: refused"]
