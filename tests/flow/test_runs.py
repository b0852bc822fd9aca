"""Runs in development: one event for each call from outside, job and task run, with what it read and wrote."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest
from stage.reactive import Stage, settle
from stage.told import events

from penstock import ActionCtx, App, MutationCtx, NonRetryableError, QueryCtx, Retry, Table, public, sync
from penstock.testing import TestApp, TestClock

app = App()


class Seat(Table):
    name: str = ""


pool = app.workpool("seats", default_retry=Retry.fixed(timedelta(seconds=1), max_attempts=2))


@app.query(access=public)
async def seats(ctx: QueryCtx) -> int:
    return len(await ctx.db.query(Seat).take(10))


@app.mutation(access=public)
async def seat(ctx: MutationCtx, name: str) -> None:
    await ctx.db.insert(Seat(name=name))
    await ctx.run_query(seats)
    await pool.enqueue(ctx, tidy)
    await pool.with_options(retry=True).enqueue(ctx, fail)


@app.internal_action
def tidy(ctx: sync.ActionCtx) -> None:
    ctx.run_mutation(write_two)
    ctx.run_query(seats)


@app.internal_mutation
async def write_two(ctx: MutationCtx) -> None:
    await ctx.db.insert(Seat())
    await ctx.db.insert(Seat())


@app.internal_action
async def fail(ctx: ActionCtx) -> None:
    raise ValueError("full")


@app.mutation
async def refuse(ctx: MutationCtx) -> None:
    await ctx.db.insert(Seat())
    raise NonRetryableError("no")


def told(caplog: pytest.LogCaptureFixture, name: str, *facts: str) -> list[tuple[Any, ...]]:
    return [tuple(one.get(fact) for fact in facts) for one in events(caplog, name)]


async def test_each_call_and_each_job_is_told_once_with_its_rows(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock")
    async with TestApp(app, database_url, dev=True) as backend:
        await backend.with_identity(subject="ada").run_mutation(seat, "A1")
        with pytest.raises(NonRetryableError):
            await backend.run_mutation(refuse)
        cost = ("kind", "function", "status", "read", "written", "caller")
        assert told(caplog, "call.ran", *cost) == [
            ("mutation", "test_runs:seat", "success", 1, 1, "ada"),
            ("mutation", "test_runs:refuse", "failed", 0, 0, None),
        ], "its nested query is a part of it, and what is undone was not written"

        await backend.run_until_idle(raise_errors=False)
        assert sorted(told(caplog, "job.ran", "function", "status", "read", "written", "attempt")) == [
            ("test_runs:fail", "failed", 0, 0, 2),
            ("test_runs:fail", "retrying", 0, 0, 1),
            ("test_runs:tidy", "success", 3, 2, 1),
        ]
        assert told(caplog, "job.ran", "error")[-1] == ("ValueError: full",)
        assert len(events(caplog, "call.ran")) == 2, "calls of jobs are parts of these"
        assert backend.engine.journal.jobs_running() == 0

    caplog.clear()
    async with TestApp(app, database_url, clock=TestClock(seed=99)) as backend:
        await backend.run_query(seats)
        await backend.run_mutation(write_two)
    assert not events(caplog, "call.ran"), "in production nothing is told of calls that end well"


async def test_jobs_in_a_shared_transaction_and_task_runs_are_told(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock")
    stage = Stage()
    stage.task(Seat, filter=lambda one: one.name == "late", name="seating")
    async with stage.open(database_url, dev=True) as test:
        (row,) = await stage.insert(test, Seat(name="late"))
        await settle(test)
        assert told(caplog, "job.ran", "task", "key", "status", "kind") == [
            ("seating", f'["{row}"]', "success", "action")
        ]

    caplog.clear()
    async with TestApp(app, database_url, dev=True, clock=TestClock(seed=99)) as backend:
        await backend.run_mutation(enqueue_three)
        await backend.run_until_idle()
        assert told(caplog, "job.ran", "function", "written") == [("test_runs:write_two", 2)] * 3


@app.mutation
async def enqueue_three(ctx: MutationCtx) -> None:
    for _ in range(3):
        await ctx.scheduler.run_after(timedelta(0), write_two)
