"""The program under faults: seventeen kinds of jobs, outboxes, a reactive task and a live query.

Each kind of work leaves a trace, as rows or as lines of a file, by which `chaos.outcome` counts what was lost and what
was done twice. `chaos.roles` has the processes that run it.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from chaos.flows import app as app  # noqa: PLC0414 - others take it from here, with all that is declared
from chaos.flows import begin_flow, note, patience

from penstock import (
    ActionCtx,
    Index,
    MutationCtx,
    MutationTaskCtx,
    NonRetryableError,
    QueryCtx,
    Retry,
    Table,
    WorkId,
    WorkResult,
    public,
)
from penstock.api.pools.workpool import Workpool
from penstock.clock import SystemClock
from penstock.outbox.message import Message
from penstock.services.service import ServiceName
from penstock.sync import ActionCtx as SyncActionCtx

LIMIT, KEYS, WRITERS = 6, 8, 24
SHORTLY = 0.01  # seconds that an action takes which holds a slot
SERVICES: tuple[ServiceName, ...] = ("worker", "planner", "relay", "scheduler", "indexer", "pruner")
JUMP = timedelta(minutes=10)  # of a clock, once
JUMP_OF_ALL = timedelta(seconds=20)  # of the clock that all processes on one file share: work waits for it

plain = app.workpool("plain", max_parallelism=40, default_retry=patience)
narrow = app.workpool("narrow", max_parallelism=LIMIT, default_retry=patience)
keyed = app.workpool("keyed", max_parallelism=40, key_parallelism=1, default_retry=patience)


class Parcel(Table):
    """What the writers write, once for each writer and number."""

    writer: int
    number: int

    by_writer = Index("writer", "number", unique=True)


class State(Table):
    """One row for each writer: how many parcels it has written."""

    writer: int
    count: int

    by_writer = Index("writer", unique=True)


class Ran(Table):
    """One row for each time that something took effect."""

    what: str
    number: int

    by_what = Index("what", "number")


class Sorted(Table):
    """One row for each parcel that the outbox with a mutation has handled; `place` counts them."""

    writer: int
    number: int
    place: int

    by_place = Index("place")


# ----- the work


@app.internal_mutation
async def enter(ctx: MutationCtx, what: str, number: int) -> None:
    await ctx.db.insert(Ran(what=what, number=number))


@app.internal_mutation
async def enter_and_pass_on(ctx: MutationCtx, number: int) -> None:
    await enter(ctx, "chain", number)
    await ctx.scheduler.run_after(timedelta(0), enter, what="chained", number=number)


@app.internal_mutation
async def enter_and_raise(ctx: MutationCtx, number: int) -> None:
    await enter(ctx, "raised", number)
    raise NonRetryableError("as asked")


@app.internal_mutation
async def ended(ctx: MutationCtx, work_id: WorkId, result: WorkResult[Any], context: dict[str, Any]) -> None:
    await enter(ctx, f"{context['what']} {result.kind}", context["number"])


@app.internal_action
async def act(ctx: ActionCtx, what: str, number: int) -> None:
    note("ran", what, number, "begins")
    try:
        await SystemClock().sleep(SHORTLY)
    finally:
        note("ran", what, number, "ends")


@app.internal_action
async def act_and_fail(ctx: ActionCtx, what: str, number: int) -> None:
    note("ran", what, number, "begins")
    note("ran", what, number, "ends")
    raise ConnectionError("as asked")


@app.internal_action
def act_in_thread(ctx: SyncActionCtx, what: str, number: int) -> None:
    note("ran", what, number, "begins")
    note("ran", what, number, "ends")


@dataclass
class Call:
    what: str
    number: int


@app.internal_action(batch=20, of=Call)
async def act_on_many(ctx: ActionCtx, calls: list[Call]) -> list[None]:
    for call in calls:
        note("ran", call.what, call.number, "begins")
        note("ran", call.what, call.number, "ends")
    return [None] * len(calls)


async def enqueue(ctx: MutationCtx, kind: int, number: int) -> None:
    at_once, again = timedelta(0), plain.with_options(retry=True)
    works: list[Callable[[], Awaitable[object]]] = [
        lambda: ctx.scheduler.run_after(at_once, enter, what="scheduled", number=number),
        lambda: ctx.scheduler.run_after(timedelta(seconds=1), enter, what="delayed", number=number),
        lambda: ctx.scheduler.run_after(at_once, act, what="action", number=number),
        lambda: plain.enqueue(ctx, enter, what="pooled", number=number),
        lambda: plain.with_options(retry=False).enqueue(ctx, act, what="pooled-action", number=number),
        lambda: again.enqueue(ctx, act, what="retried", number=number),
        lambda: completing("failing", number, retry=Retry(2, 0.05)).enqueue(ctx, act_and_fail, "failing", number),
        lambda: completing("completed", number).enqueue(ctx, enter, "completed", number),
        lambda: completing("acted", number, retry=True).enqueue(ctx, act, "acted", number),
        lambda: completing("raised", number).enqueue(ctx, enter_and_raise, number),
        lambda: narrow.with_options(retry=True).enqueue(ctx, act, what="limited", number=number),
        lambda: keyed.with_options(retry=True, concurrency_key=str(number % KEYS)).enqueue(ctx, act, "keyed", number),
        lambda: enqueue_and_cancel(ctx, number),
        lambda: again.enqueue(ctx, act_in_thread, what="thread", number=number),
        lambda: again.enqueue(ctx, act_on_many, what="batched", number=number),
        lambda: ctx.scheduler.run_after(at_once, enter_and_pass_on, number=number),
        lambda: begin_flow(ctx, number),
    ]
    await works[kind]()


def completing(what: str, number: int, **options: Any) -> Workpool:
    """The pool, with an `on_complete` that enters how the work has ended."""
    context = {"what": what, "number": number}
    return plain.with_options(on_complete=ended, on_complete_retry=patience, context=context, **options)


async def enqueue_and_cancel(ctx: MutationCtx, number: int) -> None:
    pool = completing("dropped", number, run_after=timedelta(hours=1))
    await pool.cancel(ctx, await pool.enqueue(ctx, enter, what="dropped", number=number))


KINDS = 17
FLOW = KINDS - 1


def kind_of(number: int) -> int:
    """The kind of a job: each in turn, or always a run of a workflow."""
    return FLOW if "CHAOS_FLOWS" in os.environ else number % KINDS


# ----- what is written, sent and watched


@app.mutation(access=public)
async def put(ctx: MutationCtx, writer: int, number: int, jobs: int) -> None:
    """Write one parcel with its jobs and its message, unless that is done."""
    if await ctx.db.query(Parcel).with_index(Parcel.by_writer, writer=writer, number=number).first():
        return
    await ctx.db.insert(Parcel(writer=writer, number=number))
    state = await ctx.db.query(State).with_index(State.by_writer, writer=writer).first()
    if state is None:
        await ctx.db.insert(State(writer=writer, count=1))
    else:
        await ctx.db.patch(State, state.id, count=state.count + 1)
    for one in job_numbers(writer, number, jobs):
        await enqueue(ctx, kind_of(one), one)
    if number % 2:
        await ctx.outbox.send("said", {"writer": writer, "number": number}, key=str(writer))


def job_numbers(writer: int, number: int, jobs: int) -> range:
    """The numbers of the jobs of one parcel; over all parcels, each kind comes about as often."""
    first = (number * WRITERS + writer) * jobs
    return range(first, first + jobs)


@app.query(access=public)
async def totals(ctx: QueryCtx) -> list[int]:
    """How many parcels there are, and how many the states count: the same in each snapshot."""
    states = await ctx.db.query(State).with_index(State.by_writer).collect()
    return [await ctx.db.query(Parcel).count(), sum(state.count for state in states)]


@app.outbox(Parcel, name="sorted")
async def sort(ctx: MutationCtx, parcel: Parcel) -> None:
    last = await ctx.db.query(Sorted).with_index(Sorted.by_place).order("desc").first()
    place = 0 if last is None else last.place + 1
    await ctx.db.insert(Sorted(writer=parcel.writer, number=parcel.number, place=place))


@app.outbox(Parcel, name="sent")
async def send(ctx: ActionCtx, message: Message[Parcel]) -> None:
    assert message.row is not None
    note("sent", message.row.writer, message.row.number)


@app.outbox("said")
async def say_on(ctx: ActionCtx, said: dict[str, int]) -> None:
    note("said", said["writer"], said["number"])


@app.reactive_task(State, name="follow", retry=patience)
async def follow(ctx: MutationTaskCtx[State]) -> None:
    state = await ctx.get_document()
    await ctx.db.insert(Ran(what=f"state {state.writer}", number=state.count))
