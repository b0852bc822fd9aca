"""A program whose reactive tasks and work kill their process."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from penstock import (
    ActionCtx,
    App,
    Id,
    MutationCtx,
    MutationTaskCtx,
    QueryCtx,
    Retry,
    Table,
    TaskCtx,
    WorkId,
    WorkResult,
)

app = App()
TWICE = Retry(max_attempts=2, initial_backoff=0.01, base=1)
deadly = app.workpool("deadly", max_parallelism=1, default_retry=TWICE)


class Victim(Table):
    kind: str
    folder: str


def die(folder: str) -> None:
    with (Path(folder) / "deaths").open("a") as trace:
        trace.write("x")
    os.kill(os.getpid(), signal.SIGKILL)


@app.reactive_task(Victim, filter=lambda v: v.kind == "action", retry=TWICE)
async def dies(ctx: TaskCtx[Victim]) -> None:
    die((await ctx.get_document()).folder)


@app.reactive_task(Victim, filter=lambda v: v.kind == "mutation", retry=TWICE)
async def dies_within(ctx: MutationTaskCtx[Victim]) -> None:
    die((await ctx.get_document()).folder)


@app.reactive_task(Victim, filter=lambda v: v.kind == "completed", retry=TWICE)
async def dies_completed(ctx: TaskCtx[Victim]) -> None:
    victim = await ctx.get_document()
    await ctx.mark_completed()
    die(victim.folder)


class Told(Table):
    work: str
    kind: str
    context: str


@app.internal_action
async def dies_at_work(ctx: ActionCtx, folder: str) -> None:
    die(folder)


@app.internal_action
async def works(ctx: ActionCtx) -> str:
    return "done"


@app.internal_mutation
async def tell(ctx: MutationCtx, work_id: WorkId, result: WorkResult[None], context: str) -> None:
    await ctx.db.insert(Told(work=work_id, kind=result.kind, context=context))


@app.query
async def told(ctx: QueryCtx) -> list[tuple[str, str, str]]:
    return [(row.work, row.kind, row.context) for row in await ctx.db.query(Told).collect()]


@app.mutation
async def add(ctx: MutationCtx, kind: str, folder: str) -> Id[Victim]:
    return await ctx.db.insert(Victim(kind=kind, folder=folder))
