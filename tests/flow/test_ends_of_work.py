"""How work ends: after which ends its on_complete is called, and what becomes of an action whose worker is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from stage.waits import SOON

from penstock import ActionCtx, App, DeclarationError, MutationCtx, UsageError, ValueInvalid, WorkId, WorkResult
from penstock.app import Backend
from penstock.dashboard.pages.timeline import _of_job
from penstock.jobs.settle import MAX_LOSSES
from penstock.pools.options import End
from penstock.services.worker.worker import Worker
from penstock.testing import TestApp, TestClock

app = App()
pool = app.workpool("ends", max_parallelism=4)
CALLED: list[tuple[str, Any]] = []
BEGUN: list[int] = []
LEASE = timedelta(minutes=1)


@app.internal_action
async def act(ctx: ActionCtx, raises: bool = False) -> str:
    if raises:
        raise ConnectionError("down")
    return "done"


@app.internal_mutation
async def write(ctx: MutationCtx, raises: bool = False) -> str:
    if raises:
        raise ValueError("refused")
    return "done"


@app.internal_mutation
async def ended(ctx: MutationCtx, work_id: WorkId, result: WorkResult[str], context: Any) -> None:
    CALLED.append((result.kind, context))


@app.internal_action(restartable=True)
async def hang(ctx: ActionCtx, times: int) -> str:
    BEGUN.append(ctx.work.attempt)
    if len(BEGUN) <= times:
        await asyncio.Event().wait()
    return "done"


@app.internal_action
async def hang_once(ctx: ActionCtx, times: int) -> str:
    BEGUN.append(ctx.work.attempt)
    await asyncio.Event().wait()
    return "never"


@pytest.fixture(autouse=True)
def nothing_was_called() -> None:
    CALLED.clear()
    BEGUN.clear()


@pytest.mark.both_stores
@pytest.mark.parametrize("function", [act, write], ids=["action", "mutation"])
async def test_an_on_complete_is_called_after_the_ends_that_are_named(database_url: str, function: Any) -> None:
    async with TestApp(app, database_url) as backend:
        choices: tuple[tuple[End, ...] | None, ...] = ("failed",), ("canceled", "success"), ("failed", "canceled"), None
        for only in choices:
            CALLED.clear()
            some = pool.with_options(on_complete=ended, context="x", on_complete_only=only, key="the only one")
            for raises in (False, True):
                await some.enqueue(backend, function, raises)
                await backend.run_until_idle(raise_errors=False)
            canceled = await some.enqueue(backend, function)
            await some.cancel(backend, canceled)
            await backend.run_until_idle()
            ends = ("success", "failed", "canceled")
            assert [(end, "x") for end in ends if only is None or end in only] == CALLED, (
                "and its key was free each time"
            )
            states = [job.state.value for job in await backend.run_query(last)]
            assert states == ["canceled", "failed", "success"]


@app.internal_query
async def last(ctx: Any) -> Any:
    return await ctx.jobs.list(limit=3, pool="ends")


@pytest.mark.both_stores
async def test_a_job_that_failed_and_succeeds_later_is_followed_by_what_was_asked_for(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        some = pool.with_options(on_complete=ended, on_complete_only=("failed",))
        work = await some.enqueue(backend, act, raises=True)
        await backend.run_until_idle(raise_errors=False)
        await some.retry(backend, work)
        await backend.run_until_idle(raise_errors=False)
        assert CALLED == [("failed", None)] * 2
        job = await backend.job(work)
        assert job is not None
        assert job.options.on_complete_only == "failed"
        fine = await backend.job(await some.enqueue(backend, act))
        await backend.run_until_idle()
        for one, called in ((job, 1), (fine, 0)):
            assert one is not None
            now = await backend.job(one.id)
            assert now is not None
            assert [step.kind for step in _of_job(now, {})].count("on_complete") == called, "as its timeline shows"


@pytest.mark.parametrize("only", [(), "failed", ["failed"], ("fialed",), (["failed"],), 3])
def test_ends_that_there_are_not_are_refused(only: Any) -> None:
    with pytest.raises(ValueInvalid, match="on_complete_only takes a tuple of some of success, failed, canceled"):
        pool.with_options(on_complete=ended, on_complete_only=only)
    with pytest.raises(UsageError, match="on_complete_only needs an on_complete"):
        pool.with_options(on_complete_only=("failed",))


# ----- an action whose worker is lost


@asynccontextmanager
async def workers(url: str) -> AsyncIterator[tuple[Backend, TestClock]]:
    clock = TestClock()
    async with app.open(url, clock=clock) as backend:
        yield backend, clock


async def lose(backend: Backend, clock: TestClock, how: str) -> None:
    """Let a worker take what is there, and lose it in the middle."""
    worker = backend.make_service("worker")
    assert isinstance(worker, Worker)
    before = len(BEGUN)
    async with asyncio.timeout(SOON):
        while len(BEGUN) == before:
            await worker.tick()
            clock.advance(timedelta(seconds=10))
    if how == "killed":
        await worker.kill()
        clock.advance(LEASE)
    else:
        backend.engine.begin_stop()
        await worker.finish()
        backend.engine._stop_by = None


async def end(backend: Backend, clock: TestClock, work: WorkId) -> tuple[str, str | None]:
    worker = backend.make_service("worker")
    assert isinstance(worker, Worker)
    while (job := await backend.job(work)) is not None and job.finished_at is None:
        await worker.tick()
        await worker.wait_for_jobs()
        clock.advance(LEASE)
    await worker.finish()
    assert job is not None
    return job.state.value, job.error


@pytest.mark.both_stores
@pytest.mark.parametrize("where", ["pool", "scheduler", "cron"])
@pytest.mark.parametrize("how", ["killed", "stopped"])
async def test_an_interrupted_action_goes_back_to_its_queue_if_it_is_restartable(
    database_url: str, how: str, where: str
) -> None:
    async with workers(database_url) as (backend, clock):
        if where == "pool":
            work: Any = await pool.with_options(retry=False).enqueue(backend, hang, 1)
        elif where == "scheduler":
            work = await backend.scheduler.run_after(timedelta(0), hang, 1)
        else:
            await app.crons.create(backend, "hangs", timedelta(days=1), hang, {"times": 1})
            work = await app.crons.run(backend, "hangs")
        await lose(backend, clock, how)
        assert await end(backend, clock, work) == ("success", None)
        assert ([1, 2] if how == "killed" else [1, 1]) == BEGUN, "a clean stop uses no attempt"


@pytest.mark.both_stores
@pytest.mark.parametrize("how", ["killed", "stopped"])
async def test_an_interrupted_action_has_failed_if_it_does_not_say_so(database_url: str, how: str) -> None:
    async with workers(database_url) as (backend, clock):
        work = await pool.with_options(retry=False, on_complete=ended).enqueue(backend, hang_once, 1)
        await lose(backend, clock, how)
        state, error = await end(backend, clock, work)
        assert (state, str(error)[:10], BEGUN, CALLED) == ("failed", "WorkerLost", [1], [("failed", None)])


async def test_an_action_that_kills_each_of_its_workers_fails_in_the_end(database_url: str) -> None:
    async with workers(database_url) as (backend, clock):
        work = await pool.enqueue(backend, hang, 100)
        for _ in range(MAX_LOSSES):
            await lose(backend, clock, "killed")
        state, error = await end(backend, clock, work)
        assert (state, str(error)[:10], BEGUN) == ("failed", "WorkerLost", [1, 2, 3, 4, 5])


def test_what_is_restartable_is_an_action_and_says_so_with_a_bool() -> None:
    with pytest.raises(DeclarationError, match="restartable is True or False, not 1"):

        @App().internal_action(restartable=1)  # type: ignore[call-overload, untyped-decorator]
        async def of_number(ctx: ActionCtx) -> None: ...

    with pytest.raises(DeclarationError, match="there is no option restartable"):

        @App().internal_mutation(restartable=True)  # type: ignore[call-overload, untyped-decorator]
        async def of_mutation(ctx: MutationCtx) -> None: ...
