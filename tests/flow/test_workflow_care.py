"""What administrators do with runs of workflows: retry from a step, fork, and end by force."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from stage.faults import effects_in
from stage.stories import status_of

from penstock import ActionCtx, App, DataError, JobId, ValueInvalid
from penstock.calls.workflows.context import WorkflowCtx
from penstock.calls.workflows.manage import end_now, fork, look_back, retry_from
from penstock.jobs.job import job_uuid
from penstock.testing import TestApp

pytestmark = pytest.mark.both_stores

NOW, HOUR = timedelta(0), timedelta(hours=1)
app = App()
do, done = effects_in(app)
said = app.event("said", str)


broken: list[str] = []


@app.internal_action
async def act(ctx: ActionCtx, what: str) -> str:
    if what in broken:
        raise ConnectionError(what)
    return f"{what} {len(broken)}"


@app.workflow
async def child(ctx: WorkflowCtx, what: str) -> str:
    await ctx.run_mutation(do, what)
    await ctx.sleep(10 * HOUR)
    return what


@app.workflow
async def order(ctx: WorkflowCtx, name: str) -> list[Any]:
    found: list[Any] = [await ctx.run_mutation(do, f"{name} 1"), await ctx.wait_for(said)]
    both = await asyncio.gather(ctx.run_mutation(do, f"{name} a"), ctx.run_mutation(do, f"{name} b"))
    found += [*both, await ctx.wait_for(said), await ctx.run_action(act, "pay")]
    await ctx.sleep(HOUR)
    return [*found, await ctx.run_mutation(do, f"{name} 2")]


async def begin(backend: TestApp, name: str) -> JobId:
    run = await backend.scheduler.run_after(NOW, order, name)
    for word in ("first", "second"):
        await said.send(backend, run, word)
    await backend.run_until_idle(raise_errors=False)
    return run


async def test_a_failed_run_goes_on_from_a_step(database_url: str) -> None:
    """From the step that failed, and from the first wait: its event is received again, and later steps run again."""
    async with TestApp(app, database_url) as backend:
        broken[:] = ["pay"]
        run, calls = await begin(backend, "a"), backend.job_calls
        assert (await status_of(backend, run)).error == "ConnectionError: pay"
        kept, deleted = await look_back(calls, run, None)
        assert [one.number for one in deleted] == [6]
        assert sorted(one.number for one in kept) == [0, 1, 2, 3, 4, 5]
        with pytest.raises(ValueInvalid, match="has no step 99"):
            await retry_from(calls, run, 99)
        await retry_from(calls, run)
        await backend.run_until_idle(raise_errors=False)
        assert (await status_of(backend, run)).error == "ConnectionError: pay"
        broken.clear()
        await retry_from(calls, run, 2)
        await backend.run_until_idle()
        status = await status_of(backend, run)
        assert status.result == ["a 1", "first", "a a", "a b", "second", "pay 0", "a 2"], status
        assert sorted(await backend.run_query(done)) == ["a 1", "a 2", "a a", "a a", "a b", "a b"]
        with pytest.raises(DataError, match="is success"):
            await retry_from(calls, run, 2)
        with pytest.raises(DataError, match="no run of a workflow"):
            await retry_from(calls, await backend.scheduler.run_after(NOW, do, "no run"), 1)


async def test_a_canceled_run_goes_on_as_if_it_had_not_been(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        broken.clear()
        run = await backend.scheduler.run_after(NOW, order, "a")
        await backend.run_until_idle(advance=False)
        await backend.scheduler.cancel(run)
        await backend.run_until_idle(advance=False)
        assert (await status_of(backend, run)).state.value == "canceled"
        await retry_from(backend.job_calls, run, 1)
        await backend.run_until_idle(advance=False)
        for word in ("first", "second"):
            await said.send(backend, run, word)
        await backend.run_until_idle()
        assert (await status_of(backend, run)).state.value == "success"


async def test_a_fork_has_the_history_up_to_a_step(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        broken.clear()
        run = await begin(backend, "a")
        other = await fork(backend.job_calls, run, 6)
        assert other != run
        await backend.run_until_idle()
        assert (await status_of(backend, other)).result == (await status_of(backend, run)).result
        assert sorted(await backend.run_query(done)) == ["a 1", "a 2", "a 2", "a a", "a b"]
        third = await fork(backend.job_calls, run, 5)
        await backend.run_until_idle(advance=False)
        await said.send(backend, third, "third")
        await backend.run_until_idle()
        assert (await status_of(backend, third)).result[4] == "third"
        find = backend.engine.store.workflows.find
        begun = [await find(job_uuid(one), 0) for one in (run, other)]
        assert len({one.outcome for one in begun if one is not None}) == 2, "each has a secret of its own"


@app.workflow
async def stay(ctx: WorkflowCtx) -> None:
    ctx.compensate(do, "undone")
    try:
        await ctx.run_workflow(child, "child")
    finally:
        await ctx.run_mutation(do, "finally")


async def test_a_run_ends_by_force_without_its_code(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        run, waits = await backend.scheduler.run_after(NOW, stay), await backend.scheduler.run_after(HOUR, stay)
        await backend.run_until_idle(advance=False)
        for one in (run, waits):
            await end_now(backend.job_calls, one)
        await backend.run_until_idle(advance=False)
        for one in (run, waits):
            assert (await status_of(backend, one)).state.value == "canceled"
        assert await backend.run_query(done) == ["child"]
        jobs = await backend.jobs()
        assert {job.state.value for job in jobs} == {"canceled"}, jobs


old_app, new_app = App(), App()
for number, release in enumerate((old_app, new_app)):
    release.internal_mutation(name="care:do")(do.declared)
    release.registry.fingerprint = f"code {number}"


@old_app.workflow(name="care:flow")
async def old_flow(ctx: WorkflowCtx) -> None:
    await ctx.run_mutation(old_app.registry.find("care:do"), "old")  # type: ignore[arg-type]
    await ctx.sleep(HOUR)


@new_app.workflow(name="care:flow")
async def new_flow(ctx: WorkflowCtx) -> None:
    await ctx.sleep(HOUR)


async def test_a_parked_run_ends_by_force(database_url: str) -> None:
    async with TestApp(old_app, database_url) as old:
        run = await old.scheduler.run_after(NOW, old_flow)
        await old.run_until_idle(advance=False)
        old.clock.advance(HOUR)
        async with TestApp(new_app, database_url, clock=old.clock) as new:
            await new.run_until_idle(advance=False)
            assert "WorkflowParked" in ((await status_of(new, run)).error or "")
            await end_now(new.job_calls, run)
            await new.run_until_idle(advance=False)
            assert (await status_of(new, run)).state.value == "canceled"
