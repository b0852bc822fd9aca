"""Runs of workflows: what commits with a step, what a query sees, payloads of null, options, and what is deleted."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from stage.faults import effects_in, run_with_crashes
from stage.waits import until

from penstock import ActionCtx, App, EventTimeout, JobId, MutationCtx, QueryCtx, Retry, Snooze, UsageError, WorkflowCtx
from penstock.jobs.job import job_uuid
from penstock.jobs.progress import Progress
from penstock.testing import TestApp

pytestmark = pytest.mark.both_stores

NOW, HOUR, DAY = timedelta(0), timedelta(hours=1), timedelta(days=1)
app = App()
do, done = effects_in(app)
pool = app.workpool("runs")
kind: Any = str | None
maybe: Any = app.event("maybe", kind)
shipped: list[int] = []
held: dict[str, asyncio.Event] = {}
tries: list[str] = []


@app.outbox("parcels")
async def ship(ctx: ActionCtx, payload: dict[str, int]) -> None:
    shipped.append(payload["number"])


@app.internal_mutation
async def pass_on(ctx: MutationCtx, run: JobId, number: int) -> None:
    await ctx.scheduler.run_after(NOW, do, f"job {number}")
    await maybe.send(ctx, run, f"event {number}")
    await ctx.outbox.send("parcels", {"number": number})


@app.internal_query
async def look_twice(ctx: QueryCtx) -> list[int]:
    return [len(await done.declared(ctx)), len(await done.declared(ctx))]


@app.workflow
async def passing(ctx: WorkflowCtx, number: int) -> list[Any]:
    await ctx.run_mutation(pass_on, ctx.id, number)
    heard = await ctx.wait_for(maybe)
    seen = await ctx.run_query(look_twice)
    await ctx.run_mutation(do, f"saw {number} {seen[0]}")
    return [heard, *seen]


async def test_a_step_commits_with_all_that_it_passes_on(database_url: str) -> None:
    """A crash at each moment: one job, event and message of each step, and one answer of a query (WF22, WF27)."""
    async with TestApp(app, database_url) as backend:
        shipped.clear()
        for number in range(1, 16):
            run = await backend.scheduler.run_after(NOW, passing, number)
            await run_with_crashes(backend, [number])
            await backend.run_until_idle()
            status = await backend.job(run)
            assert status is not None
            assert status.result is not None, status
            heard, first, second = status.result
            assert (heard, first) == (f"event {number}", second)
            found = await backend.run_query(done)
            assert found.count(f"job {number}") == 1
            assert [one for one in found if one.startswith(f"saw {number} ")] == [f"saw {number} {first}"]
        assert sorted(set(shipped)) == [*range(1, 16)]


@app.workflow
async def hear(ctx: WorkflowCtx) -> Any:
    ctx.publish("hears")
    try:
        return ["heard", await ctx.wait_for(maybe, timeout=HOUR)]
    except EventTimeout:
        return ["timeout"]


@pytest.mark.parametrize(("sends", "result"), [(True, ["heard", None]), (False, ["timeout"])])
async def test_a_payload_of_null_is_no_timeout(database_url: str, *, sends: bool, result: list[Any]) -> None:
    """(WF78)"""
    async with TestApp(app, database_url) as backend:
        run = await backend.scheduler.run_after(NOW, hear)
        if sends:
            await maybe.send(backend, run, None)
        await backend.run_until_idle()
        status = await backend.job(run)
        assert status is not None
        assert status.result == result


async def test_a_retry_of_a_run_is_refused(database_url: str) -> None:
    """(WF123)"""
    async with TestApp(app, database_url) as backend:
        for policy in (True, Retry()):
            with pytest.raises(UsageError, match="is not retried"):
                await pool.with_options(retry=policy).enqueue(backend, hear)


async def test_a_run_is_deleted_with_its_job(database_url: str) -> None:
    """(WF145)"""
    async with TestApp(app, database_url) as backend:
        run = await backend.scheduler.run_after(NOW, hear)
        for word in ("received", "left"):
            await maybe.send(backend, run, word)
        await backend.run_until_idle()
        store, uuid = backend.engine.store.workflows, job_uuid(run)
        assert await store.read_history(uuid)
        pruner = backend.make_service("pruner")
        for _ in range(12):
            backend.clock.advance(DAY)
            await pruner.tick()
        assert await backend.job(run) is None
        assert list(await store.read_history(uuid)) == []
        assert await store.read_inbox(uuid) == []


@app.internal_action
async def count_up(ctx: ActionCtx) -> int:
    for number in range(3):
        await ctx.work.progress(number + 1, 3, note="pages")
        if number == 1:
            held["reported"].set()
            await held["go on"].wait()
    return 3


@app.workflow
async def counting(ctx: WorkflowCtx, *, pooled: bool) -> int:
    return await (ctx.with_options(pool=pool) if pooled else ctx).run_action(count_up)


@pytest.mark.parametrize("pooled", [False, True])
async def test_the_progress_of_a_running_step_is_seen(database_url: str, *, pooled: bool) -> None:
    """In the status of its run, or of its job if it runs in a pool. (WF30)"""
    held.update({"reported": asyncio.Event(), "go on": asyncio.Event()})
    async with TestApp(app, database_url) as backend:
        run = await backend.scheduler.run_after(NOW, counting, pooled=pooled)
        work = asyncio.ensure_future(backend.run_until_idle())
        await held["reported"].wait()

        async def is_seen() -> bool:
            backend.clock.advance(timedelta(seconds=2))
            await backend.worker.tick()
            (running,) = await backend.jobs("running")
            return running.progress == Progress(2, 3, "pages") and (running.id == run) is not pooled

        await until(is_seen)
        held["go on"].set()
        await work
        status = await backend.job(run)
        assert status is not None
        assert (status.result, status.progress) == (3, None)


@app.internal_action
async def act_later(ctx: ActionCtx, key: str) -> str:
    tries.append(key)
    if len(tries) < 3:
        raise Snooze(HOUR)
    return "acted"


@app.internal_mutation
async def write_later(ctx: MutationCtx, key: str) -> str:
    tries.append(key)
    await do.declared(ctx, key)
    if len(tries) < 3:
        raise Snooze(HOUR)
    return "written"


@app.workflow
async def patient(ctx: WorkflowCtx, how: str) -> list[Any]:
    began = ctx.now()
    if how == "mutation":
        found = await ctx.run_mutation(write_later, how)
    else:
        found = await ctx.with_options(retry=False if how == "once" else None).run_action(act_later, how)
    return [found, (ctx.now() - began) / HOUR]


@pytest.mark.parametrize("how", ["action", "once", "mutation"])
@pytest.mark.parametrize("crashes", [[], [2], [1, 3]])
async def test_a_step_that_snoozes_begins_again_later(database_url: str, how: str, crashes: list[int]) -> None:
    """As a job does, and without one of its attempts; what a mutation wrote by then is undone."""
    async with TestApp(app, database_url) as backend:
        tries.clear()
        run = await backend.scheduler.run_after(NOW, patient, how)
        await run_with_crashes(backend, crashes)
        await backend.run_until_idle()
        status = await backend.job(run)
        assert status is not None
        if how != "once" or not crashes:
            assert status.result is not None, status
            assert status.result[1] >= 2
            assert await backend.run_query(done) == ([how] if how == "mutation" else [])
        else:
            assert status.finished_at is not None
