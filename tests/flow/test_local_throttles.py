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


LIMITS: dict[str, dict[str, Any]] = {
    "none": {},
    "limited": {"max_parallelism": 1},
    "keyed": {"max_parallelism": 4, "key_parallelism": 1},
    "rated": {"max_parallelism": 4, "rate_limit": TokenBucket(rate=1000, period=timedelta(seconds=1))},
}
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


HANDLERS: dict[str, Any] = {
    "mutation": mutation, "thread": thread, "batch": batch, "raises": raises, "breaker": alone,
}  # fmt: skip


def program(kind: str, pool: str) -> tuple[App, Any]:
    """An app with a task of some kind in some pool, and a mutation that inserts rows."""
    RAN.clear()
    app = App(tables=[Doc])
    options: dict[str, Any] = {"pool": app.workpool(pool, **LIMITS[pool])} if LIMITS[pool] else {}
    options |= {"key": "n"} if pool == "keyed" else {}
    options |= {"breaker": BREAKER} if kind == "breaker" else {}
    options |= {"batch": 2} if kind == "batch" else {}
    app.reactive_task(Doc, name="held", on=("enter",), **options)(HANDLERS[kind])

    @app.internal_mutation
    async def insert(ctx: MutationCtx) -> None:
        for n in range(ROWS):
            await ctx.db.insert(Doc(n=n % 2))

    return app, insert


@pytest.mark.parametrize("pool", LIMITS)
@pytest.mark.parametrize("kind", HANDLERS)
async def test_a_task_that_one_process_holds_runs_in_others_without_a_wait(
    database_url: str, kind: str, pool: str
) -> None:
    app, insert = program(kind, pool)
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
        behind = ROWS if pool == "keyed" else 1  # the one that raised waits for its next attempt, and its key with it
        assert len(RAN) >= 2 * ROWS - (behind if kind == "raises" else 0), left
        if pool == "none":
            await first.run_mutation(insert)
            await first.run_until_idle(raise_errors=False)
            assert len(RAN) >= 3 * ROWS - (kind == "raises"), "the process runs it again after that time"
