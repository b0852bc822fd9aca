"""Workflows: steps that take effect once, waits without a slot, events, children, cancels; and what crashes leave."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest
from stage.flows import run_with_crashes

from penstock import (
    ActionCtx,
    App,
    ApplicationError,
    Conflict,
    JobId,
    MutationCtx,
    PenstockError,
    QueryCtx,
    Retry,
    Success,
    Table,
    WorkResult,
)
from penstock.calls.workflows.context import WorkflowCtx
from penstock.testing import TestApp

pytestmark = pytest.mark.both_stores

NOW = timedelta(0)
app = OPENED = App()


class Effect(Table):
    what: str


@app.internal_mutation
async def do(ctx: MutationCtx, what: str) -> str:
    await ctx.db.insert(Effect(what=what))
    return what.upper()


@app.internal_action
async def act(ctx: ActionCtx, what: str) -> str:
    await ctx.run_mutation(do, what)
    return what.upper()


@app.internal_query
async def count(ctx: QueryCtx) -> int:
    return len(await ctx.db.query(Effect).collect())


@app.internal_query
async def effects(ctx: QueryCtx) -> list[str]:
    return [one.what for one in await ctx.db.query(Effect).collect()]


@app.workflow
async def three_steps(ctx: WorkflowCtx, name: str) -> list[Any]:
    first = await ctx.run_mutation(do, f"{name} 1")
    seen = await ctx.run_query(count)
    second = await ctx.run_action(act, f"{name} 2")
    third = await ctx.run_mutation(do, f"{name} 3")
    return [first, seen, second, third]


async def run(backend: TestApp, workflow: Any, *args: Any) -> Any:
    job = await backend.scheduler.run_after(NOW, workflow, *args)
    await backend.run_until_idle()
    status = await backend.job(job)
    assert status is not None
    return status


async def test_steps_take_effect_in_order(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        status = await run(backend, three_steps, "a")
        assert status.result == ["A 1", 1, "A 2", "A 3"], status
        assert await backend.run_query(effects) == ["a 1", "a 2", "a 3"]


async def test_a_crash_at_each_moment_changes_nothing(database_url: str) -> None:
    """Each moment of a step, one after another; the fourth argument is an action, which may run twice."""
    async with TestApp(app, database_url) as backend:
        seen = set()
        for at in range(1, 40):
            name = f"n{at}"
            job = await backend.scheduler.run_after(NOW, three_steps, name)
            moments = await run_with_crashes(backend, [at])
            status = await backend.job(job)
            assert status is not None
            assert status.state.value == "success", (at, moments, status)
            assert status.result[0::2][0] == f"{name} 1".upper(), (at, moments)
            assert status.result[2:] == [f"{name} 2".upper(), f"{name} 3".upper()], (at, moments)
            done = [one for one in await backend.run_query(effects) if one.startswith(f"{name} ")]
            assert done.count(f"{name} 1") == done.count(f"{name} 3") == 1, (at, moments, done)
            assert 1 <= done.count(f"{name} 2") <= 2, (at, moments, done)
            seen.update(moments)
            if not moments:
                break
        assert seen == {"commit.before", "commit.after", "workflow.step_ran", "workflow.recorded"}
        assert not moments, "there are more moments"


class CardDeclined(Exception):
    pass


class Refused(ApplicationError):
    pass


@app.internal_mutation
async def refuse(ctx: MutationCtx, how: str) -> None:
    await ctx.db.insert(Effect(what="never"))
    if how == "own":
        raise CardDeclined("no", 7)
    if how == "application":
        raise Refused({"card": 7})
    if how == "stop":
        raise StopIteration
    if how == "local":

        class Local(KeyError):
            pass

        raise Local("key")
    if how == "unknown":

        class Unknown(Exception):
            pass

        raise Unknown("what")
    raise Conflict("mine")


@app.internal_action
async def give_too_much(ctx: ActionCtx) -> str:
    return "x" * 2_000_000


@app.internal_action
async def give_a_set(ctx: ActionCtx) -> Any:
    return {1, 2}


@app.workflow
async def catch(ctx: WorkflowCtx) -> list[str]:
    said = []
    for how in ("own", "application", "stop", "local", "unknown", "conflict"):
        try:
            await ctx.run_mutation(refuse, how)
        except Exception as error:
            data = getattr(error, "data", None) or getattr(error, "facts", None)
            said.append(f"{type(error).__name__} {error.args} {data}")
    for much in (give_too_much, give_a_set):
        try:
            await ctx.run_action(much)
        except PenstockError as error:
            said.append(type(error).__name__)
    await ctx.sleep(timedelta(days=1))  # all of it is replayed
    return said


async def test_errors_of_steps_are_caught_as_what_they_were(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        status = await run(backend, catch)
        assert status.result == [
            "CardDeclined ('no', 7) None",
            "Refused (\"{'card': 7}\",) {'card': 7}",
            "RuntimeError ('coroutine raised StopIteration',) None",
            "KeyError ('key',) None",
            "StepFailed ('A step raised test_workflows:refuse.<locals>.Unknown: what',) "
            "{'type': 'test_workflows:refuse.<locals>.Unknown', 'text': 'what'}",
            "Conflict ('mine',) {}",
            "LimitExceeded",
            "ResultInvalid",
        ], status
        assert await backend.run_query(effects) == []


@app.workflow
async def fail(ctx: WorkflowCtx) -> None:
    await ctx.run_mutation(do, "before")
    raise CardDeclined("after all")


@app.workflow
async def repeat_chance(ctx: WorkflowCtx) -> list[Any]:
    began = ctx.now()
    told = [str(ctx.uuid()), ctx.random.random()]
    await ctx.run_mutation(do, json.dumps(told))
    await ctx.sleep(timedelta(days=1))
    woken = ctx.now()
    return [told, str(ctx.uuid()), (woken - began).total_seconds()]


ended: list[Any] = []


@app.internal_mutation
async def note_end(ctx: MutationCtx, work_id: JobId, result: WorkResult[Any], context: str) -> None:
    await ctx.db.insert(Effect(what=f"{context}: {result.kind}"))


pool = app.workpool("flows", max_parallelism=1)
steps_pool = app.workpool("steps", max_parallelism=1, default_retry=Retry(max_attempts=3, initial_backoff=1, base=1))


async def test_a_run_is_a_job(database_url: str) -> None:
    """It ends as jobs do: with a result, an error with the body's traceback, and an on_complete, in its pool."""
    async with TestApp(app, database_url) as backend:
        enqueue = pool.with_options(on_complete=note_end, context="end").enqueue
        good, bad = await enqueue(backend, repeat_chance), await enqueue(backend, fail)
        await backend.run_until_idle(raise_errors=False, advance=False)
        status = await backend.job(bad)
        await backend.run_until_idle()
        found = await pool.result(backend, good)
        assert isinstance(found, Success)
        (first, chance), then, seconds = found.value
        assert first != then
        assert 86400 <= seconds < 86410
        assert status is not None
        assert status.error == "CardDeclined: after all"
        assert "in fail" in (status.traceback or "")
        said = await backend.run_query(effects)
        assert sorted(said) == sorted([json.dumps([first, chance]), "before", "end: failed", "end: success"])
        assert status.attempts[0].number == status.attempt == 1


@app.workflow
async def sleep_long(ctx: WorkflowCtx) -> str:
    await asyncio.sleep(3600)
    try:
        async with asyncio.timeout(60):
            await asyncio.sleep(3600)
    except TimeoutError:
        await ctx.run_mutation(do, "late")
    until = ctx.now() + timedelta(days=300)
    await ctx.sleep_until(until)
    await ctx.sleep(timedelta(seconds=-1))
    await ctx.sleep_until(until)
    assert ctx.now() >= until
    return "rested"


@app.internal_mutation
async def tick(ctx: MutationCtx) -> None:
    await ctx.db.insert(Effect(what="tick"))


async def test_a_sleeping_run_holds_no_slot_and_wakes_before_newer_jobs(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        job = await pool.enqueue(backend, sleep_long)
        await backend.run_until_idle(advance=False)
        status = await backend.job(job)
        assert status is not None
        assert (status.state.value, status.attempt) == ("pending", 0)
        assert status.error == "Waits until 2030-01-01T01:00:00+00:00", status.error
        assert not backend.worker.running
        backend.clock.advance(timedelta(hours=1))
        for _ in range(6):
            await pool.enqueue(backend, tick)
        started = list[str]()
        claimed = backend.worker.on_claimed

        def note(jobs: Any) -> None:
            started.extend(one.function.partition(":")[2] for one in jobs)
            claimed(jobs)

        backend.worker.on_claimed = note
        await backend.run_until_idle(advance=False)
        assert started.index("sleep_long") <= 1  # a place that is free goes to what is ready at once
        await backend.run_until_idle()
        found = await pool.result(backend, job)
        assert found == Success("rested")
        assert sorted(await backend.run_query(effects)) == ["late", *["tick"] * 6]
