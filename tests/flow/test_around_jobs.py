"""A program's wrapper around its jobs: what it sees, what it may not do, and where it is not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from penstock import ActionCtx, App, MutationCtx, Retry, Table, TaskBatchCtx, TaskCtx, Work, sync
from penstock.testing import TestApp

SCOPE: ContextVar[str] = ContextVar("scope", default="")
SEEN: list[tuple[str, list[int], str]] = []
INSIDE: list[str] = []
BROKEN: list[str] = []


@asynccontextmanager
async def scope(function: str, works: Sequence[Work]) -> AsyncIterator[None]:
    name = function.rpartition(":")[2]
    if "enter" in BROKEN:
        raise RuntimeError("no scope")
    token = SCOPE.set(name)
    try:
        yield
        SEEN.append((name, [work.attempt for work in works], "ok"))
    except Exception as error:
        SEEN.append((name, [work.attempt for work in works], type(error).__name__))
        if "swallow" not in BROKEN:
            raise
    finally:
        SCOPE.reset(token)


app = App(around_jobs=scope)
pool = app.workpool("scoped")


class Leaf(Table, name="leaf_of_scopes"):
    name: str


@dataclass
class Item:
    n: int


@app.internal_query
async def inner(ctx: Any) -> str:
    return SCOPE.get()


@app.internal_action
async def act(ctx: ActionCtx, fails: int = 0) -> str:
    INSIDE.append(SCOPE.get())
    assert await ctx.run_query(inner) == "act", "a call inside has the scope of its job"
    if ctx.work.attempt <= fails:
        raise ConnectionError("down")
    return "done"


@app.internal_action
def act_in_thread(ctx: sync.ActionCtx) -> None:
    INSIDE.append(SCOPE.get())


@app.internal_mutation
async def write(ctx: MutationCtx) -> None:
    INSIDE.append(SCOPE.get())


@app.internal_action(batch=10, of=Item)
async def many(ctx: ActionCtx, calls: list[Item]) -> list[None]:
    INSIDE.append(SCOPE.get())
    return [None] * len(calls)


@app.reactive_task(Leaf)
async def rake(ctx: TaskCtx[Leaf]) -> None:
    INSIDE.append(SCOPE.get())


@app.reactive_task(Leaf, batch=10)
async def burn(ctx: TaskBatchCtx[Leaf]) -> None:
    INSIDE.append(SCOPE.get())


@app.internal_mutation
async def fall(ctx: MutationCtx) -> None:
    await ctx.db.insert(Leaf(name="a"))


@pytest.fixture(autouse=True)
def nothing_was_seen() -> None:
    for one in (SEEN, INSIDE, BROKEN):
        one.clear()


@pytest.mark.both_stores
async def test_each_attempt_at_a_job_or_a_run_is_wrapped_and_nothing_else(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        await backend.run_mutation(fall)
        assert SEEN == [], "no job has run"
        await backend.run_until_idle()
        assert sorted(SEEN) == [("burn", [1], "ok"), ("rake", [1], "ok")]
        SEEN.clear()
        for function in (act, act_in_thread, write):
            await pool.enqueue(backend, function)
        await pool.enqueue_batch(backend, many, [{"n": 1}, {"n": 2}])
        await backend.run_until_idle()
        assert sorted(SEEN) == [
            ("act", [1], "ok"), ("act_in_thread", [1], "ok"), ("many", [1, 1], "ok"), ("write", [1], "ok"),
        ]  # fmt: skip
        assert sorted(INSIDE) == ["act", "act_in_thread", "burn", "many", "rake", "write"]
        assert SCOPE.get() == ""


async def test_it_learns_of_errors_and_cannot_swallow_them(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        retried = pool.with_options(retry=Retry(max_attempts=2, initial_backoff=1))
        work = await retried.enqueue(backend, act, 1)
        await backend.run_until_idle()
        assert SEEN == [("act", [1], "ConnectionError"), ("act", [2], "ok")]
        BROKEN.append("swallow")
        work = await pool.enqueue(backend, act, 1)
        await backend.run_until_idle(raise_errors=False)
        job = await backend.job(work)
        assert job is not None
        assert (job.state.value, job.error) == ("failed", "ConnectionError: down")


async def test_a_job_whose_wrapper_raises_has_raised(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        BROKEN.append("enter")
        job_id = await backend.scheduler.run_after(timedelta(0), act)
        await backend.run_until_idle(raise_errors=False)
        job = await backend.job(job_id)
        assert job is not None
        assert (job.state.value, job.error, INSIDE) == ("failed", "RuntimeError: no scope", [])
