"""Children of runs: their errors, cancels, restarts and statuses, and how many there may be, beside and below."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest
from stage.faults import effects_in, run_with_crashes
from stage.stories import status_of

from penstock import App
from penstock.calls.workflows.context import WorkflowCtx
from penstock.errors import DatabaseUnavailable
from penstock.store.nouns.workflows import Write
from penstock.testing import TestApp
from penstock.workflows.record import Record

pytestmark = pytest.mark.both_stores

NOW, HOUR, DAY = timedelta(0), timedelta(hours=1), timedelta(days=1)
app = OPENED = App()
do, effects = effects_in(app)
brief = app.workpool("brief", status_ttl=timedelta(seconds=1))
told = app.event("told", str)


class Odd(Exception):
    pass


@app.workflow
async def leaf(ctx: WorkflowCtx, how: str) -> str:
    if how == "raises":
        raise Odd("as asked")
    if how.startswith("again"):
        await ctx.sleep(HOUR)
        left = int(how.removeprefix("again"))
        return "at last" if left == 0 else ctx.restart(f"again{left - 1}")
    if how == "waits":
        try:
            await ctx.sleep(DAY)
        finally:
            await ctx.run_mutation(do, "cleaned up")
    return how


@app.workflow
async def stem(ctx: WorkflowCtx, how: str) -> str:
    return await ctx.run_workflow(leaf, how)


async def fail(ctx: WorkflowCtx) -> None:
    await ctx.sleep(HOUR)
    raise Odd("beside a child")


@app.workflow
async def fail_beside(ctx: WorkflowCtx, how: str) -> None:
    if how == "gather":
        await asyncio.gather(ctx.run_workflow(stem, "waits"), fail(ctx))
    async with asyncio.TaskGroup() as group:
        group.create_task(ctx.run_workflow(stem, "waits"))
        group.create_task(fail(ctx))


@app.workflow
async def root(ctx: WorkflowCtx, how: str) -> str:
    try:
        return await ctx.run_workflow(stem, how)
    except Odd as error:
        return f"caught {error}"


@pytest.mark.parametrize(("how", "result"), [("raises", "caught as asked"), ("again2", "at last"), ("plain", "plain")])
async def test_the_end_of_a_child_reaches_its_parents(database_url: str, how: str, result: str) -> None:
    """(WF92, WF93, WF99)"""
    async with TestApp(app, database_url) as backend:
        run = await backend.scheduler.run_after(NOW, root, how)
        await backend.run_until_idle(raise_errors=False)
        assert (await status_of(backend, run)).result == result


async def test_a_cancel_reaches_children_of_children(database_url: str) -> None:
    """(WF95)"""
    async with TestApp(app, database_url) as backend:
        run = await backend.scheduler.run_after(NOW, root, "waits")
        await backend.run_until_idle(advance=False)
        await backend.scheduler.cancel(run)
        await backend.run_until_idle(advance=False)
        assert {one.state.value for one in await backend.jobs() if one.function != do.name} == {"canceled"}
        assert await backend.run_query(effects) == ["cleaned up"]


@pytest.mark.parametrize("how", ["gather", "group"])
@pytest.mark.parametrize("crashes", [[], [1], [2], [3], [4]])
async def test_a_run_that_fails_cancels_the_children_it_waits_for(
    database_url: str, how: str, crashes: list[int]
) -> None:
    """(WF84, WF95)"""
    async with TestApp(app, database_url) as backend:
        run = await backend.scheduler.run_after(NOW, fail_beside, how)
        await backend.run_until_idle(advance=False)
        backend.clock.advance(HOUR)
        await run_with_crashes(backend, crashes, advance=False)
        assert (await status_of(backend, run)).state.value == "failed"
        assert {one.state.value for one in await backend.jobs() if one.id != run} == {"canceled"}
        assert await backend.run_query(effects) == ["cleaned up"]


@app.workflow
async def read_late(ctx: WorkflowCtx) -> str:
    child = asyncio.create_task(ctx.with_options(pool=brief).run_workflow(leaf, "kept"))
    await ctx.wait_for(told)
    return await child


async def test_the_result_of_a_child_is_kept_for_its_parent_however_long(database_url: str) -> None:
    """(WF101)"""
    async with TestApp(app, database_url) as backend:
        run = await backend.scheduler.run_after(NOW, read_late)
        await backend.run_until_idle(advance=False)
        backend.clock.advance(30 * DAY)
        await backend.run_until_idle(advance=False)  # prunes
        assert [one.function for one in await backend.jobs()] == [read_late.name]
        await told.send(backend, run, "now")
        await backend.run_until_idle(advance=False)
        assert (await status_of(backend, run)).result == "kept"


@pytest.mark.parametrize("how", ["at once", "has ended", "late"])
async def test_a_child_begins_once_though_the_answer_of_its_commit_is_lost(database_url: str, how: str) -> None:
    """(WF28, WF94)"""
    async with TestApp(app, database_url) as backend, TestApp(app, database_url, clock=backend.clock) as other:
        store, left = backend.engine.store.workflows, 1
        write, find = store.write, store.find

        async def lose(run: Any, lease: int, given: Write, now: datetime) -> None:
            nonlocal left
            await write(run, lease, given, now)
            if given.jobs and left:
                left = 0
                if how == "has ended":
                    await other.run_until_idle(advance=False)
                raise DatabaseUnavailable("The connection was lost.", uncertain=True)

        async def find_late(run: Any, number: int) -> Record | None:
            patches.setattr(store, "find", find)
            return None

        with pytest.MonkeyPatch.context() as patches:
            patches.setattr(store, "write", lose)
            if how == "late":  # the commit is not to be seen yet
                patches.setattr(store, "find", find_late)
            run = await backend.scheduler.run_after(NOW, stem, "plain")
            await backend.run_until_idle()
        assert (await status_of(backend, run)).result == "plain", await status_of(backend, run)
        assert len([one for one in await backend.jobs() if one.function == leaf.name]) == 1


@app.workflow
async def endless(ctx: WorkflowCtx, depth: int) -> int:
    return await ctx.run_workflow(endless, depth + 1)


async def test_children_go_so_deep_at_most(database_url: str) -> None:
    """(WF149)"""
    async with TestApp(app, database_url) as backend:
        run = await backend.scheduler.run_after(NOW, endless, 0)
        await backend.run_until_idle(raise_errors=False)
        status = await status_of(backend, run)
        assert (status.state.value, "LimitExceeded" in (status.error or "")) == ("failed", True)
        assert len(await backend.jobs(limit=1_000)) == 65


@app.workflow
async def fan_out(ctx: WorkflowCtx, parts: int) -> int:
    few, found = asyncio.Semaphore(20), list[Any]()

    async def part(number: int) -> None:
        async with few:
            found.append(await ctx.run_mutation(do, str(number)))

    async with asyncio.TaskGroup() as group:
        for number in range(parts):
            group.create_task(part(number))
    return len(found)


async def test_many_steps_run_beside_each_other_within_a_semaphore(database_url: str) -> None:
    """(WF86)"""
    async with TestApp(app, database_url) as backend:
        run = await backend.scheduler.run_after(NOW, fan_out, 200)
        await backend.run_until_idle()
        assert (await status_of(backend, run)).result == 200
        assert sorted(map(int, await backend.run_query(effects))) == list(range(200))


@app.workflow
async def hear_two(ctx: WorkflowCtx) -> list[str]:
    return [*await asyncio.gather(ctx.wait_for(told), ctx.wait_for(told))]


@pytest.mark.parametrize("before", [True, False])
async def test_two_branches_that_wait_for_one_event_get_one_each_in_order(database_url: str, *, before: bool) -> None:
    """(WF63, WF68)"""
    async with TestApp(app, database_url) as backend:
        run = await backend.scheduler.run_after(NOW, hear_two)
        if not before:
            await backend.run_until_idle(advance=False)
        for word in ("first", "second", "third"):
            await told.send(backend, run, word)
        await backend.run_until_idle(advance=False)
        assert (await status_of(backend, run)).result == ["first", "second"]


async def test_a_key_that_is_used_again_begins_without_records(database_url: str) -> None:
    """(WF2, WF146)"""
    keyed = brief.with_options(key="order-7")
    async with TestApp(app, database_url) as backend:
        first = await keyed.enqueue(backend, hear_two)
        assert await keyed.enqueue(backend, hear_two) == first
        for word in "ab":
            await told.send(backend, first, word)
        await backend.run_until_idle(advance=False)
        again = await keyed.enqueue(backend, hear_two)
        await backend.run_until_idle(advance=False)
        assert again != first
        assert (await status_of(backend, again)).error == "Waits for told, told"
