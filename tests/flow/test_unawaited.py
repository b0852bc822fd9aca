"""Calls that nobody awaited: named, undone, and told apart from those that run side by side."""

from __future__ import annotations

import asyncio
import gc
import warnings
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from stage.stories import tell_in

from penstock import ActionCtx, App, ContextError, Id, Index, JobId, MutationCtx, Table, UnawaitedCall
from penstock.testing import TestApp

NO_JOB = JobId("job_01jd3k4v5w6x7y8z9a0b1c2d3e")
NO_NOTE = "note_01jd3k4v5w6x7y8z9a0b1c2d3e"


class Note(Table):
    text: str
    number: int = 0

    by_text = Index("text", "number")


app = App()
write, read, act = tell_in(app)


@app.internal_mutation
async def add(ctx: MutationCtx, text: str) -> None:
    """Insert a note."""
    await ctx.db.insert(Note(text=text))


async def count(backend: TestApp) -> int:
    found: int = await backend.run_query(read, lambda ctx: ctx.db.query(Note).count())
    return found


READS: dict[str, Callable[[Any], Any]] = {
    "ctx.db.get": lambda ctx: ctx.db.get(Note, NO_NOTE),
    "ctx.db.query(…).collect": lambda ctx: ctx.db.query(Note).collect(),
    "ctx.db.query(…).take": lambda ctx: ctx.db.query(Note).take(1),
    "ctx.db.query(…).first": lambda ctx: ctx.db.query(Note).with_index(Note.by_text).first(),
    "ctx.db.query(…).unique": lambda ctx: ctx.db.query(Note).unique(),
    "ctx.db.query(…).paginate": lambda ctx: ctx.db.query(Note).paginate(),
    "ctx.db.query(…).count": lambda ctx: ctx.db.query(Note).count(),
    "ctx.sql": lambda ctx: ctx.sql("select 1"),
    "ctx.run_query": lambda ctx: ctx.run_query(read, None),
}
WRITES: dict[str, Callable[[Any], Any]] = {
    "ctx.db.insert": lambda ctx: ctx.db.insert(Note(text="x")),
    "ctx.db.insert_many": lambda ctx: ctx.db.insert_many([Note(text="x")]),
    "ctx.db.patch": lambda ctx: ctx.db.patch(Note, NO_NOTE, text="x"),
    "ctx.db.replace": lambda ctx: ctx.db.replace(Note, NO_NOTE, Note(text="x")),
    "ctx.db.delete": lambda ctx: ctx.db.delete(Note, NO_NOTE),
    "ctx.scheduler.run_after": lambda ctx: ctx.scheduler.run_after(timedelta(0), add, text="x"),
    "ctx.scheduler.run_at": lambda ctx: ctx.scheduler.run_at(ctx.now(), add, text="x"),
    "ctx.scheduler.cancel": lambda ctx: ctx.scheduler.cancel(NO_JOB),
    "ctx.scheduler.get": lambda ctx: ctx.scheduler.get(NO_JOB),
    "ctx.run_mutation": lambda ctx: ctx.run_mutation(add, "x"),
}
ACTS = {name: call for name, call in (READS | WRITES).items() if name.startswith(("ctx.run_", "ctx.scheduler"))}


@pytest.mark.parametrize(("runs", "calls"), [("query", READS), ("mutation", READS | WRITES), ("action", ACTS)])
async def test_each_call_that_is_not_awaited_is_named(
    sqlite_url: str, runs: str, calls: dict[str, Callable[[Any], Any]]
) -> None:
    async with TestApp(app, sqlite_url) as backend:
        run: Any = {
            "query": lambda story: backend.run_query(read, story),
            "mutation": lambda story: backend.run_mutation(write, story),
            "action": lambda story: backend.run_action(act, story),
        }[runs]
        for name, call in calls.items():

            async def story(ctx: Any, call: Callable[[Any], Any] = call) -> None:
                call(ctx)

            with pytest.raises(UnawaitedCall) as caught:
                await run(story)
            assert f"not awaited: {name}. " in str(caught.value)
            assert caught.value.facts["calls"] == name
        assert await count(backend) == 0
        assert await backend.jobs() == []


async def test_what_was_awaited_beside_a_forgotten_call_is_undone(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:

        async def story(ctx: MutationCtx) -> None:
            await ctx.db.insert(Note(text="awaited"))
            await ctx.scheduler.run_after(timedelta(0), add, text="awaited")
            ctx.db.insert(Note(text="forgotten"))  # type: ignore[unused-coroutine]  # what is tested
            ctx.run_mutation(add, "forgotten")  # type: ignore[unused-coroutine]

        with pytest.raises(UnawaitedCall, match=r"not awaited: ctx\.db\.insert, ctx\.run_mutation\."):
            await backend.run_mutation(write, story)
        assert await count(backend) == 0
        assert await backend.jobs() == []


async def test_a_part_that_forgets_a_call_is_undone_alone(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:

        async def part(ctx: MutationCtx) -> None:
            await ctx.db.insert(Note(text="part"))
            ctx.db.query(Note).count()  # type: ignore[unused-coroutine]  # what is tested

        async def story(ctx: MutationCtx) -> None:
            with pytest.raises(UnawaitedCall):
                await ctx.run_mutation(write, part)
            await ctx.db.insert(Note(text="kept"))

        await backend.run_mutation(write, story)
        assert await count(backend) == 1


async def test_calls_that_run_side_by_side_and_are_awaited_are_fine(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:

        async def helper(ctx: MutationCtx, text: str) -> None:
            await ctx.db.insert(Note(text=text))

        async def story(ctx: MutationCtx) -> None:
            await asyncio.gather(*(ctx.db.insert(Note(text=f"gathered {n}")) for n in range(20)))
            tasks = [asyncio.create_task(ctx.db.insert(Note(text=f"task {n}"))) for n in range(3)]
            await asyncio.wait(tasks)
            async with asyncio.TaskGroup() as group:
                group.create_task(helper(ctx, "group"))
                group.create_task(ctx.run_mutation(add, "part"))
            await asyncio.wait_for(ctx.db.insert(Note(text="in time")), 10)
            await asyncio.shield(ctx.db.insert(Note(text="shielded")))
            later = ctx.db.insert(Note(text="kept for later"))
            await ctx.db.query(Note).count()
            await later
            async for _ in ctx.db.query(Note):
                break
            beside = ctx.db.insert(Note(text="beside")), ctx.db.delete(Note, Id("x"))
            outcomes = await asyncio.gather(*beside, return_exceptions=True)
            assert [type(outcome).__name__ for outcome in outcomes] == ["Id", "IdInvalid"]

        await backend.run_mutation(write, story)
        assert await count(backend) == 20 + 3 + 2 + 1 + 1 + 1 + 1


async def test_a_task_that_still_runs_at_the_end_is_a_forgotten_call(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        tasks: list[asyncio.Task[Any]] = []

        async def not_begun(ctx: MutationCtx) -> None:
            tasks.append(asyncio.create_task(ctx.db.insert(Note(text="late"))))

        async def begun(ctx: MutationCtx) -> None:
            inside, go_on = asyncio.Event(), asyncio.Event()

            async def part(inner: MutationCtx) -> None:
                await inner.db.insert(Note(text="part"))
                inside.set()
                await go_on.wait()
                await inner.db.insert(Note(text="too late"))

            tasks.append(asyncio.create_task(ctx.run_mutation(write, part)))
            await inside.wait()
            go_on.set()

        for story in (not_begun, begun):
            with pytest.raises(UnawaitedCall):
                await backend.run_mutation(write, story)
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(outcome, Exception) for outcome in outcomes)
        assert await count(backend) == 0


async def test_a_task_that_goes_on_after_the_end_is_refused(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        ended = asyncio.Event()
        tasks: list[asyncio.Task[Any]] = []

        async def stray(ctx: Any, call: Callable[[Any], Any]) -> None:
            await ended.wait()
            await call(ctx)

        async def story(ctx: Any) -> None:
            calls = ACTS if isinstance(ctx, ActionCtx) else READS | WRITES if isinstance(ctx, MutationCtx) else READS
            tasks.extend(asyncio.create_task(stray(ctx, call)) for call in calls.values())

        await backend.run_mutation(write, story)
        await backend.run_query(read, story)
        await backend.run_action(act, story)
        ended.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {ContextError}
        assert all("has ended; its ctx cannot be used any more" in str(outcome) for outcome in outcomes)
        assert await count(backend) == 0
        assert await backend.jobs() == []


async def test_a_function_that_fails_tells_its_own_error_and_nothing_else(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:

        async def story(ctx: Any) -> None:
            calls = ACTS if isinstance(ctx, ActionCtx) else READS | WRITES if isinstance(ctx, MutationCtx) else READS
            for call in calls.values():
                call(ctx)
            raise KeyError("its own")

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            runs = [backend.run_mutation(write, story), backend.run_query(read, story), backend.run_action(act, story)]
            for run in runs:
                with pytest.raises(KeyError, match="its own"):
                    await run
            gc.collect()
        assert [str(warning.message) for warning in caught] == []


async def test_calls_that_have_ended_are_not_kept(sqlite_url: str) -> None:
    async with TestApp(app, sqlite_url, max_rows_read=100_000) as backend:
        note = await backend.run_mutation(write, lambda ctx: ctx.db.insert(Note(text="x")))

        async def many(ctx: Any) -> None:
            for _ in range(2_000):
                await ctx.run_query(read, lambda inner: inner.db.get(Note, note))
            calls = ctx._calls._calls if isinstance(ctx, ActionCtx) else ctx._scope._calls
            assert len(calls) <= 600

        await backend.run_query(read, many)
        await backend.run_action(act, many)
        call = backend.scheduler.get(NO_JOB)
        kept = weakref.ref(call)
        await call
        del call
        assert kept() is None, "the backend's own scheduler lives long, and keeps none"
