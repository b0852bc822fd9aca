"""`ctx.patched` under runs that wait: the new code is not for a run that had passed its place before the change."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from stage.faults import run_with_crashes

from penstock import ActionCtx, App, JobId, MutationCtx, Retry
from penstock.calls.workflows.context import WorkflowCtx
from penstock.testing import TestApp

pytestmark = pytest.mark.both_stores

NOW, HOUR = timedelta(0), timedelta(hours=1)
WAITS = ("sleep", "event", "any event", "child", "retry", "pool", "branch")

old_app, new_app = App(), App()
PARTS: dict[App, dict[str, Any]] = {}


def deploy(app: App, *, patches: bool) -> None:  # noqa: C901 - a whole program
    """Declare one release of the same program."""
    told, pool = app.event("told", str), app.workpool("few", max_parallelism=1)

    @app.internal_action(name="release:act")
    async def act(ctx: ActionCtx) -> None:
        if not patches:
            raise LookupError

    @app.internal_mutation(name="release:tell")
    async def tell(ctx: MutationCtx, run: JobId) -> None:
        await told.send(ctx, run, "word")

    @app.internal_mutation(name="release:nothing")
    async def nothing(ctx: MutationCtx) -> None:
        pass

    @app.workflow(name="release:rest")
    async def rest(ctx: WorkflowCtx) -> None:
        await ctx.sleep(HOUR)

    async def wait(ctx: WorkflowCtx, how: str) -> None:
        if how == "event":
            await ctx.wait_for(told, timeout=HOUR)
        elif how == "any event":
            await ctx.wait_for(told)
        elif how == "child":
            await ctx.run_workflow(rest)
        elif how == "retry":
            await ctx.with_options(retry=Retry(max_attempts=2, initial_backoff=3600)).run_action(act)
        elif how == "pool":
            await ctx.with_options(pool=pool, retry=Retry(max_attempts=2, initial_backoff=3600)).run_action(act)
        else:
            await ctx.sleep(HOUR)

    async def branch(ctx: WorkflowCtx) -> bool:
        await ctx.run_mutation(nothing)
        found = patches and ctx.patched("branch")
        await ctx.sleep(HOUR)
        return found

    @app.workflow(name="release:flow")
    async def flow(ctx: WorkflowCtx, how: str, *, first: bool) -> list[bool]:
        if not first:
            await ctx.run_mutation(nothing)
        found = [ctx.patched("before")] if patches else []
        if how == "branch":
            assert not (await asyncio.gather(branch(ctx), ctx.run_mutation(nothing)))[0]
        await wait(ctx, how)
        return [*found, ctx.patched("after")] if patches else []

    PARTS[app] = {"flow": flow, "tell": tell}
    app.registry.fingerprint = f"code {patches}"


deploy(old_app, patches=False)
deploy(new_app, patches=True)


@pytest.mark.parametrize("how", WAITS)
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("crashes", [[], [1], [2, 1]])
async def test_a_run_that_waits_has_passed(database_url: str, how: str, *, first: bool, crashes: list[int]) -> None:
    """(WF130)"""
    async with TestApp(old_app, database_url) as old:
        run = await old.scheduler.run_after(NOW, PARTS[old_app]["flow"], how, first=first)
        await old.run_until_idle(advance=False, raise_errors=False)
        async with TestApp(new_app, database_url, clock=old.clock) as new:
            if "event" in how:
                await new.run_mutation(PARTS[new_app]["tell"], run)
            await run_with_crashes(new, crashes)
            status = await new.job(run)
            assert status is not None
            assert status.result == [False, True], status


@pytest.mark.parametrize("how", ["sleep", "event"])
async def test_a_run_that_took_up_a_change_waits_for_a_worker_that_has_it(database_url: str, how: str) -> None:
    """(WF131, WF132, WF137)"""
    async with TestApp(old_app, database_url) as old, TestApp(new_app, database_url, clock=old.clock) as new:
        run = await new.scheduler.run_after(NOW, PARTS[new_app]["flow"], how, first=False)
        await new.run_until_idle(advance=False)
        if how == "event":
            await new.run_mutation(PARTS[new_app]["tell"], run)
        old.clock.advance(HOUR)
        await old.run_until_idle(advance=False)
        status = await old.job(run)
        assert status is not None
        assert status.error is not None
        assert status.error.endswith(
            "does not fit it: call 2 was patch before, and the code now "
            + ("does not make it" if how == "sleep" else "makes event told")
        )
        await old.run_until_idle(advance=False)  # and leaves it alone from then on
        await new.run_until_idle()
        status = await new.job(run)
        assert status is not None
        assert status.result == [True, True]


def rename(*, before: bool) -> tuple[App, Any]:
    """A program before its functions were renamed, or after that: they keep their names."""
    app = App()

    if before:

        @app.internal_mutation(name="shop:write")
        async def write(ctx: MutationCtx) -> str:
            return "before"

        @app.workflow(name="shop:sell")
        async def sell(ctx: WorkflowCtx, thing: str) -> list[str]:
            first = await ctx.run_mutation(write)
            await ctx.sleep(HOUR)
            return [thing, first, await ctx.run_mutation(write)]

        return app, sell

    @app.internal_mutation(name="shop:write")
    async def note_sale(ctx: MutationCtx) -> str:
        return "after"

    @app.workflow(name="shop:sell")
    async def sell_thing(ctx: WorkflowCtx, thing: str) -> list[str]:
        first = await ctx.run_mutation(note_sale)
        await ctx.sleep(HOUR)
        return [thing, first, await ctx.run_mutation(note_sale)]

    return app, sell_thing


@pytest.mark.parametrize("keeps_name", [True, False])
async def test_a_renamed_workflow_keeps_its_runs(database_url: str, *, keeps_name: bool) -> None:
    """If it keeps its name; otherwise they wait for a program that has it, and are listed meanwhile. (WF10, WF136)"""
    (old_shop, sell), (new_shop, _) = rename(before=True), rename(before=False) if keeps_name else (App(), None)
    async with TestApp(old_shop, database_url) as old, TestApp(new_shop, database_url, clock=old.clock) as new:
        run = await old.scheduler.run_after(NOW, sell, "tea")
        await old.run_until_idle(advance=False)
        new.clock.advance(2 * HOUR)
        await new.run_until_idle(advance=False)
        status = await new.job(run)
        assert status is not None
        assert status.result == (["tea", "before", "after"] if keeps_name else None)
        if not keeps_name:
            assert [one.id for one in await new.jobs("pending")] == [run]
            await old.run_until_idle(advance=False)
            status = await old.job(run)
            assert status is not None
            assert status.result == ["tea", "before", "before"]
