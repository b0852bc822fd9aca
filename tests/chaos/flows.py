"""Runs of a workflow under faults: steps of each kind, waits, events, cancels and compensations, and what they leave.

Each run has a number, and `shape_of` says how it goes. Its mutations leave rows, in order; its actions leave lines.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from penstock import ActionCtx, App, Index, JobId, MutationCtx, Retry, Table, WorkId, WorkResult
from penstock.calls.enqueue.jobs import calls_of
from penstock.calls.workflows.context import WorkflowCtx
from penstock.clock import SystemClock
from penstock.errors import StepLost
from penstock.jobs.job import job_uuid

SHAPES = ("ends", "ends", "ends", "fails", "is canceled", "is canceled early")
IS_OLDER = os.environ.get("CHAOS_RELEASE") == "older"  # this process runs the code from before a change
NOW, MOMENT, AWHILE = timedelta(0), timedelta(milliseconds=20), timedelta(seconds=1.1)

app = App()
patience = Retry(max_attempts=None, initial_backoff=0.05, max_backoff=1)
flows = app.workpool("flows", max_parallelism=40, default_retry=patience)
said = app.event("said", str)
never = app.event("never", str)


around_effects: dict[str, Callable[[], Awaitable[None]]] = {}  # called ``before`` or ``after`` that of an action


class Flowed(Table):
    """One row for each time that a step of a run took effect; `place` counts those of the run."""

    number: int
    place: int
    what: str

    by_number = Index("number", "place")


class RefusedError(Exception):
    pass


def note(file: str, *words: object) -> None:
    line = " ".join(map(str, (f"{SystemClock().monotonic():.6f}", os.getpid(), *words)))
    target = os.open(Path(os.environ["CHAOS_FOLDER"]) / file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(target, f"{line}\n".encode())
    finally:
        os.close(target)


def shape_of(number: int) -> str:
    return SHAPES[number % len(SHAPES)]


@app.internal_mutation
async def step(ctx: MutationCtx, number: int, what: str) -> None:
    last = await ctx.db.query(Flowed).with_index(Flowed.by_number, number=number).order("desc").first()
    await ctx.db.insert(Flowed(number=number, what=what, place=0 if last is None else last.place + 1))


@app.internal_mutation
async def refuse(ctx: MutationCtx, number: int) -> None:
    await step(ctx, number, "refused")
    raise RefusedError(number)


@app.internal_action
async def reach_out(ctx: ActionCtx, number: int, what: str) -> str:
    """Say whether the step is known to have ended, which must not begin then."""
    run, _, place = ctx.work.key.partition("/")
    runner, uuid = calls_of(ctx, writes=False).runner, job_uuid(JobId(run))
    find = runner.engine.store.workflows.find  # again, while the database is away: that is no failure of the step
    record = await runner.attempt(lambda: find(uuid, int(place)), for_ever=True)
    await come("before")
    note("flowed", number, what, "again" if record is not None and record.outcome is not None else "runs")
    await come("after")
    return what


async def come(moment: str) -> None:
    if (hold := around_effects.get(moment)) is not None:
        await hold()


@app.internal_action
async def refund(ctx: ActionCtx, number: int) -> None:
    await ctx.run_mutation(step, number, "refunded")


@app.internal_mutation
async def say(ctx: MutationCtx, run: JobId, what: str) -> None:
    await said.send(ctx, run, what, key=what)


@app.internal_mutation
async def call_off(ctx: MutationCtx, run: WorkId) -> None:
    await flows.cancel(ctx, run)


@app.internal_mutation
async def over(ctx: MutationCtx, work_id: WorkId, result: WorkResult[Any], context: int) -> None:
    await step(ctx, context, f"is over: {result.kind}")


@app.internal_mutation
async def begin_flow(ctx: MutationCtx, number: int) -> None:
    """Start a run, send one event at once and one later, and call it off if its shape says so."""
    pool = flows.with_options(on_complete=over, on_complete_retry=patience, context=number)
    run = await pool.enqueue(ctx, flow, number)
    await say(ctx, run, "first")
    await ctx.scheduler.run_after(2 * AWHILE, say, run, "second")
    if shape_of(number) == "is canceled early":
        await ctx.scheduler.run_after(timedelta(milliseconds=number * 37 % 1500), call_off, run)


@app.workflow
async def part(ctx: WorkflowCtx, number: int) -> str:
    await ctx.sleep(MOMENT)
    await ctx.run_mutation(step, number, "part")
    return "part"


@app.workflow
async def flow(ctx: WorkflowCtx, number: int) -> str:
    await ctx.run_mutation(step, number, "reserved")
    ctx.compensate(step, number, "given back")
    await ctx.with_options(retry=True).run_action(reach_out, number, "paid")
    ctx.with_options(retry=patience).compensate(refund, number)
    left, _, right = await asyncio.gather(
        ctx.run_mutation(step, number, "left"), refused(ctx, number), ctx.run_action(reach_out, number, "right")
    )
    assert (left, right) == (None, "right")
    await check(ctx, number)
    async with asyncio.TaskGroup() as group:
        words = group.create_task(hear(ctx))
        group.create_task(ctx.run_workflow(part, number))
        group.create_task(ctx.with_options(pool=flows).run_mutation(step, number, "pooled"))
    await ctx.run_mutation(step, number, f"heard {words.result()}")
    try:
        await ctx.with_options(retry=False).run_action(reach_out, number, "once")
    except StepLost:
        await ctx.run_mutation(step, number, "lost")
    if shape_of(number) == "fails":
        raise RefusedError(number)
    if shape_of(number) == "is canceled":
        await ctx.with_options(pool=flows).run_mutation(call_off, ctx.id)
        await ctx.wait_for(never)
    await ctx.run_mutation(step, number, "finished")
    return "done"


if IS_OLDER:

    async def check(ctx: WorkflowCtx, number: int) -> None:
        """Do nothing: the step came with the change."""

else:

    async def check(ctx: WorkflowCtx, number: int) -> None:
        if ctx.patched("checked"):
            await ctx.run_mutation(step, number, "checked")


async def hear(ctx: WorkflowCtx) -> str:
    """Receive one event that was sent before, and one that comes meanwhile."""
    first = await ctx.wait_for(said, timeout=timedelta(days=1))
    await ctx.sleep(AWHILE)
    _, second = await ctx.wait_for(said, never)
    return f"{first} {second}"


async def refused(ctx: WorkflowCtx, number: int) -> None:
    try:
        await ctx.run_mutation(refuse, number)
    except RefusedError:
        await ctx.sleep(MOMENT)


# ----- what they leave

_ENDS = {"ends": "success", "fails": "failed", "is canceled": "canceled", "is canceled early": "canceled"}
_APART = {"part", "pooled"}  # in jobs of their own, which a canceled run does not wait for
_BODY = {"reserved", "left", "heard first second", *_APART}
_UNDONE = ["refunded", "given back"]


def faults_of(number: int, rows: Sequence[str], lines: Iterable[str]) -> Mapping[str, set[str]]:
    """What is wrong with the traces of a run that is over: what it lost, did twice, or did in another order."""
    shape, counts = shape_of(number), Counter(rows)
    is_early, end = shape == "is canceled early", f"is over: {_ENDS[shape]}"
    wanted = {end} | (set() if is_early else _BODY) | ({"finished"} if shape == "ends" else set())
    if shape != "ends":
        wanted |= {undone for undone, done in zip(_UNDONE, ("left", "reserved"), strict=True) if done in counts}
    known = (
        wanted | {"checked"} | (_BODY if is_early else {"lost"}) | ({"refunded", "lost"} if shape != "ends" else set())
    )
    twice = {one for one, count in counts.items() if (count > 1 and one != "refunded") or one not in known}
    twice |= {one for one, count in Counter(lines).items() if one == "once runs" and count > 1}
    ordered = [one for one in dict.fromkeys(rows) if one not in _APART]
    last = [*(one for one in _UNDONE if one in counts), end]
    out_of_order = set() if ordered[-len(last) :] == last else {" > ".join(rows)}
    return {"lost": wanted - counts.keys(), "twice": twice, "out of order": out_of_order}
