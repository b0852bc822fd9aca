"""Random programs as workflows: crashes at any moment change neither their ends nor their effects.

Programs whose end depends on which of two steps is faster are left out: they may end otherwise each time. For the order
in which a body learns things see `tests/rules/test_workflow_bodies.py`.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stage.examples import examples
from stage.flows import run_with_crashes
from stage.stories import one_backend

from penstock import ActionCtx, App, Id, JobId, MutationCtx, QueryCtx, Retry, Table
from penstock.calls.workflows.context import WorkflowCtx
from penstock.testing import TestApp

pytestmark = pytest.mark.both_stores

app = App()
pool = app.workpool("few", max_parallelism=2)
said = app.event("said", str)


class Done(Table):
    what: str
    program: str


class Failing(Exception):
    pass


@app.internal_mutation
async def write(ctx: MutationCtx, program: str, what: str) -> str:
    await ctx.db.insert(Done(what=f"write {what}", program=program))
    return what


@app.internal_mutation
async def refuse(ctx: MutationCtx, program: str, what: str) -> None:
    await ctx.db.insert(Done(what=f"never {what}", program=program))
    raise Failing(what)


@app.internal_action
async def act(ctx: ActionCtx, program: str, what: str) -> str:
    await ctx.run_mutation(note, program, f"act {what}")
    return what


@app.internal_mutation
async def note(ctx: MutationCtx, program: str, what: str) -> None:
    await ctx.db.insert(Done(what=what, program=program))


@app.internal_mutation
async def say(ctx: MutationCtx, run: JobId, what: str) -> Id[Done]:
    await said.send(ctx, run, what)
    return await ctx.db.insert(Done(what=f"say {what}", program="said"))


@app.internal_query
async def look(ctx: QueryCtx, program: str) -> list[str]:
    rows = await ctx.db.query(Done).collect()
    return sorted(row.what for row in rows if row.program == program)


@app.workflow
async def part(ctx: WorkflowCtx, name: str, program: Any, path: str) -> Any:
    return await play(ctx, name, program, path)


@app.workflow
async def whole(ctx: WorkflowCtx, name: str, program: Any) -> Any:
    return await play(ctx, name, program, "")


STEPS = ("write", "act", "retried", "pooled", "refuse", "look", "event", "undone")
WORDS = ("seq", "gather", "group", "late", "race", "finally", "catch", "child", "set")
PROGRAMS = st.recursive(
    st.one_of(
        st.tuples(st.sampled_from(STEPS)),
        st.tuples(st.just("sleep"), st.sampled_from([0, 1, 30, 3600])),
    ),
    lambda parts: st.tuples(st.sampled_from(WORDS), st.lists(parts, min_size=1, max_size=3)).map(
        lambda found: (found[0], *found[1])
    ),
    max_leaves=8,
)


async def play(ctx: WorkflowCtx, name: str, program: Any, path: str) -> Any:  # noqa: C901, PLR0911, PLR0912 - an interpreter
    word, *parts = program

    async def each(number: int) -> Any:
        return await play(ctx, name, parts[number], f"{path}{number}")

    async def safely(number: int) -> Any:
        try:
            return await each(number)
        except Failing as error:
            return f"failed {error}"

    match word:
        case "write":
            return await ctx.run_mutation(write, name, path)
        case "act":
            return await ctx.run_action(act, name, path)
        case "retried":
            retry = Retry(max_attempts=2, initial_backoff=1)
            return await ctx.with_options(retry=retry).run_action(act, name, path)
        case "pooled":
            return await ctx.with_options(pool=pool).run_mutation(write, name, path)
        case "refuse":
            return await ctx.run_mutation(refuse, name, path)
        case "look":
            return type(await ctx.run_query(look, name)).__name__
        case "undone":
            ctx.compensate(note, name, f"undo {path}")
            return None
        case "event":
            await ctx.run_mutation(say, ctx.id, "word")
            return await ctx.wait_for(said)
        case "sleep":
            await asyncio.sleep(parts[0])
            return "slept"
        case "seq":
            return [await each(number) for number in range(len(parts))]
        case "catch":
            return [await safely(number) for number in range(len(parts))]
        case "gather":
            return await asyncio.gather(*(safely(number) for number in range(len(parts))))
        case "group":
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(safely(number)) for number in range(len(parts))]
            return [task.result() for task in tasks]
        case "set":
            return sorted([str(await one) for one in {asyncio.create_task(safely(n)) for n in range(len(parts))}])
        case "late":
            try:
                async with asyncio.timeout(100):
                    await asyncio.sleep(200)
            except TimeoutError:
                return ["late", await each(0)]
        case "race":
            pending = {asyncio.create_task(asyncio.sleep(seconds, seconds)) for seconds in (50, 10, 7000)}
            done, left = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for one in left:
                one.cancel()
            return [one.result() for one in done] + [await each(0)]
        case "finally":
            try:
                return await each(0)
            finally:
                await ctx.run_mutation(write, name, f"{path} finally")
        case "child":
            return await ctx.run_workflow(part, name, parts[0], f"{path}c")
    raise AssertionError(word)


numbers = iter(range(10**6))


async def run(backend: TestApp, program: Any, crashes: list[int]) -> tuple[str, Any, list[str]]:
    """The state and the result of a program, and its effects; those of actions, which may repeat, once."""
    name = f"p{next(numbers)}"
    job = await pool.enqueue(backend, whole, name, json.loads(json.dumps(program)))
    await run_with_crashes(backend, crashes)
    status = await backend.job(job)
    assert status is not None
    assert status.finished_at is not None, (program, crashes, status)
    found = await backend.run_query(look, name)
    once = sorted({one for one in found if one.startswith("act ")})
    return status.state.value, status.result or status.error, [*once, *(one for one in found if one[:4] != "act ")]


@settings(max_examples=examples(150))
@given(program=PROGRAMS, crashes=st.lists(st.integers(1, 12), min_size=1, max_size=4))
def check(tell: Any, program: Any, crashes: list[int]) -> None:
    async def story(backend: TestApp) -> None:
        expected = await run(backend, program, [])
        assert await run(backend, program, crashes) == expected

    tell(story)


def test_crashes_change_neither_the_end_nor_the_effects_of_a_program(database_url: str) -> None:
    with one_backend(app, database_url) as tell:
        check(tell)
