"""``throttle_all(local=True)``: a task that one process holds runs in the others at once, of any kind, in any pool."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from penstock import (
    App,
    CircuitBreaker,
    MutationCtx,
    MutationTaskCtx,
    SyncTaskCtx,
    Table,
    TaskBatchCtx,
    TaskCtx,
    TokenBucket,
)
from penstock.testing import TestApp

MINUTE = timedelta(minutes=1)
ROWS = 5


class Doc(Table):
    n: int = 0


BREAKER = CircuitBreaker(failures=5, within=MINUTE, open_for=MINUTE)


RAN: list[Any] = []


def note(ctx: Any, *ids: Any) -> bool:
    """Note a run; the first one throttles its task. Whether it is that one."""
    first = not RAN
    if first:
        ctx.throttle_all(MINUTE, local=True)
    RAN.extend(ids)
    return first


async def alone(ctx: TaskCtx[Doc]) -> None:
    note(ctx, ctx.doc_id)


async def mutation(ctx: MutationTaskCtx[Doc]) -> None:
    note(ctx, ctx.doc_id)


def thread(ctx: SyncTaskCtx[Doc]) -> None:
    note(ctx, ctx.doc_id)


async def batch(ctx: TaskBatchCtx[Doc]) -> None:
    note(ctx, *(run.doc_id for run in ctx.runs))


async def raises(ctx: TaskCtx[Doc]) -> None:
    if note(ctx, ctx.doc_id):
        raise ConnectionError


KINDS: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {  # handlers, and what limits their pools and tasks
    "mutation": (mutation, {}, {}),
    "thread": (thread, {"max_parallelism": 1}, {}),
    "batch": (batch, {"max_parallelism": 4, "rate_limit": TokenBucket(1000, timedelta(seconds=1))}, {"batch": 2}),
    "raises": (raises, {"max_parallelism": 4, "key_parallelism": 1}, {"key": "n"}),
    "breaker": (alone, {}, {"breaker": BREAKER}),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_task_that_one_process_holds_runs_in_others_without_a_wait(database_url: str, kind: str) -> None:
    RAN.clear()
    app, (handler, limits, options) = App(tables=[Doc]), KINDS[kind]
    pool: dict[str, Any] = {"pool": app.workpool("limited", **limits)} if limits else {}
    app.reactive_task(Doc, name="held", on=("enter",), **pool, **options)(handler)

    @app.internal_mutation
    async def insert(ctx: MutationCtx) -> None:
        for n in range(ROWS):
            await ctx.db.insert(Doc(n=n % 2))

    async with TestApp(app, database_url) as first, TestApp(app, database_url, clock=first.clock) as other:
        await first.run_mutation(insert)
        await first.plan()
        await first.run_until_idle(advance=False, raise_errors=False)  # it may have claimed others with its first run
        began = len(RAN)
        assert began in {1, 2}, "the others are given back"
        await first.run_mutation(insert)
        await first.run_until_idle(advance=False, raise_errors=False)
        assert len(RAN) == began
        for _ in range(4):  # a slot changes hands: one asks for it, and the other gives it back
            for one in (first, other):
                one.clock.advance(timedelta(milliseconds=150))
                await one.worker.tick()
        await other.run_until_idle(advance=False, raise_errors=False)
        left = {str(job.run_at - other.clock.now()) for job in await first.jobs("pending")}
        behind = ROWS if kind == "raises" else 0  # the one that raised waits for its next attempt, and its key with it
        assert len(RAN) >= 2 * ROWS - behind, left
        if not limits:
            await first.run_mutation(insert)
            await first.run_until_idle(raise_errors=False)
            assert len(RAN) >= 3 * ROWS, "the process runs it again after that time"
