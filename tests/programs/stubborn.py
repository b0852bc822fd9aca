"""A program whose functions do not end when they are asked to: they swallow that, or block the event loop."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from contextlib import suppress
from datetime import timedelta
from typing import Any

from penstock import (
    ActionCtx,
    App,
    MutationCtx,
    MutationTaskCtx,
    QueryCtx,
    Table,
    TaskCtx,
    WorkId,
    WorkResult,
    public,
    sync,
)

app = App(grace=float(os.environ.get("STUBBORN_GRACE", "0.2")))
pool = app.workpool("stubborn")
begun, end = threading.Event(), threading.Event()
NOW = timedelta(0)


class Row(Table):
    kind: str


def begin() -> None:
    begun.set()
    print("begun", flush=True)  # noqa: T201 - the test waits for it


async def swallow() -> None:
    """Go on, whatever is raised."""
    begin()
    while not end.is_set():
        with suppress(BaseException):
            await asyncio.Event().wait()


@app.action(access=public)
async def act(ctx: ActionCtx) -> None:
    await swallow()


@app.mutation(access=public)
async def enter(ctx: MutationCtx) -> None:
    await ctx.db.insert(Row(kind="none"))
    await swallow()


@app.query(access=public)
async def look(ctx: QueryCtx) -> int:
    await swallow()
    return 0


@app.query(access=public)
async def rows(ctx: QueryCtx) -> str:
    return "x" * 900_000 + str(await ctx.db.query(Row).count())


@app.action(access=public)
def act_in_thread(ctx: sync.ActionCtx) -> None:
    begin()
    while not end.wait(0.1):
        pass


@app.mutation(access=public)
def enter_in_thread(ctx: sync.MutationCtx) -> None:
    ctx.db.insert(Row(kind="none"))
    begin()
    while not end.wait(0.1):
        pass


@app.internal_action(runtime="process")
def act_apart(ctx: Any) -> None:
    begin()
    while True:
        with suppress(BaseException):
            threading.Event().wait()


@app.internal_action
async def act_apart_begun(ctx: ActionCtx) -> None:
    begin()
    await ctx.run_action(act_apart)


@app.internal_action
async def block(ctx: ActionCtx) -> None:
    begin()
    end.wait()


@app.internal_action
async def keep_interpreter(ctx: ActionCtx) -> None:
    begin()
    re.match(r"(a+)+$", "a" * 60 + "b")


@app.internal_action
async def shield(ctx: ActionCtx) -> None:
    begin()
    task = asyncio.create_task(swallow())
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.shield(task)


@app.internal_action
async def nothing(ctx: ActionCtx) -> None:
    pass


@app.internal_mutation
async def complete(ctx: MutationCtx, work_id: WorkId, result: WorkResult[None], context: None) -> None:
    await swallow()


@app.reactive_task(Row, filter=lambda row: row.kind == "task")
async def follow(ctx: TaskCtx[Row]) -> None:
    await swallow()


@app.reactive_task(Row, filter=lambda row: row.kind == "task_within")
async def follow_within(ctx: MutationTaskCtx[Row]) -> None:
    await swallow()


@app.outbox("acted")
async def deliver(ctx: ActionCtx, said: str) -> None:
    await swallow()


@app.outbox("entered")
async def deliver_within(ctx: MutationCtx, said: str) -> None:
    await swallow()


@app.internal_mutation
async def begin_work(ctx: MutationCtx, kind: str) -> None:
    """Have services run a function that does not end."""
    match kind:
        case "task" | "task_within":
            await ctx.db.insert(Row(kind=kind))
        case "acted" | "entered":
            await ctx.outbox.send(kind, "x")
        case "on_complete":
            await pool.with_options(on_complete=complete).enqueue(ctx, nothing)
        case _:
            await ctx.scheduler.run_after(NOW, JOBS[kind])


JOBS: dict[str, Any] = {
    "action": act,
    "mutation": enter,
    "thread": act_in_thread,
    "mutation_thread": enter_in_thread,
    "process": act_apart_begun,
    "shield": shield,
    "block": block,
    "keep_interpreter": keep_interpreter,
}
KINDS = (*JOBS, "on_complete", "task", "task_within", "acted", "entered")
