"""Workflows: the types of their steps, waits, events and results."""

import asyncio
import sqlite3
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, assert_type
from uuid import UUID

from samples.shop import Booking
from sqlalchemy.ext.asyncio import AsyncSession

from penstock import (
    ActionCtx,
    App,
    Backend,
    Event,
    Id,
    JobId,
    MutationCtx,
    QueryCtx,
    Retry,
    Success,
    WorkflowCtx,
    signed_in,
    sync,
)

app = App()
pool = app.workpool("flows")


@dataclass
class Card:
    number: str


card_added = app.event("card_added", Card)
called_off = app.event("called_off", str, access=signed_in)
assert_type(card_added, Event[Card])


@app.internal_query
async def count(ctx: QueryCtx) -> int:
    return 0


@app.internal_mutation
async def book(ctx: MutationCtx, name: str, seats: int = 1) -> Id[Booking]:
    raise NotImplementedError


@app.internal_mutation
async def refund(ctx: MutationCtx, booking: Id[Booking]) -> None: ...


@app.internal_action
async def charge(ctx: ActionCtx, booking: Id[Booking]) -> float:
    return 1.0


@app.workflow
async def child(ctx: WorkflowCtx, booking: Id[Booking]) -> list[str]:
    return []


@app.workflow(access=signed_in, name="orders")
async def order(ctx: WorkflowCtx, name: str) -> str:
    assert_type(await ctx.run_query(count), int)
    booking = await ctx.run_mutation(book, name, seats=2)
    assert_type(booking, Id[Booking])
    assert_type(await ctx.run_action(charge, booking), float)
    assert_type(await ctx.run_workflow(child, booking), list[str])
    patient = ctx.with_options(retry=Retry(max_attempts=3), timeout=timedelta(minutes=1), pool=pool)
    assert_type(patient, WorkflowCtx)
    both = await asyncio.gather(patient.run_action(charge, booking), ctx.run_query(count))
    assert_type(both, tuple[float, int])
    async with asyncio.TaskGroup() as group:
        task = group.create_task(ctx.run_action(charge, booking))
    assert_type(task.result(), float)
    assert_type(await ctx.wait_for(card_added, timeout=timedelta(days=2)), Card)
    assert_type(await ctx.wait_for(card_added, called_off), tuple[Event[Any], Any])
    assert_type((ctx.now(), ctx.uuid(), ctx.id, ctx.patched("tax", activate=False)), tuple[datetime, UUID, JobId, bool])
    ctx.compensate(refund, booking)
    await ctx.sleep(timedelta(days=1))
    await ctx.sleep_until(ctx.now())
    ctx.compensate(refund, 5)  # refused: arg-type
    ctx.compensate(count)  # refused: arg-type
    await ctx.run_mutation(book, 5)  # refused: arg-type
    await ctx.run_mutation(book)  # refused: call-arg
    await ctx.run_mutation(charge, booking)  # refused: arg-type
    await ctx.run_action(child, booking)  # refused: arg-type
    await ctx.sleep(5)  # refused: arg-type
    await ctx.wait_for()  # refused: call-overload
    await ctx.wait_for("card_added")  # refused: call-overload
    ctx.run_query(count)  # refused: unused-coroutine
    return name


@app.workflow
async def showing(ctx: WorkflowCtx[Card]) -> None:
    ctx.publish(Card("4242"))
    ctx.with_options(name="shown").publish("4242")  # refused: arg-type
    ctx.publish(5)  # refused: arg-type


@app.workflow
def showing_in_a_thread(ctx: sync.WorkflowCtx[Card]) -> None:
    ctx.publish(Card("4242"))
    ctx.publish(5)  # refused: arg-type


@app.internal_mutation
async def add_card(ctx: MutationCtx, run: JobId, number: str) -> None:
    await card_added.send(ctx, run, Card(number), key="card")
    await card_added.send(ctx, (order, "ada"), Card(number))
    await card_added.send(ctx, ("order", "ada"), Card(number))  # refused: arg-type
    await card_added.send(ctx, run, number)  # refused: call-overload
    card_added.send(ctx, run, Card(number))  # refused: unused-coroutine
    assert_type(await ctx.scheduler.run_after(timedelta(0), order, "Ada"), JobId[str])
    assert_type(await pool.enqueue(ctx, order, "Ada"), JobId[str])
    await pool.enqueue(ctx, order, 5)  # refused: call-overload


async def in_own_transactions(run: JobId, lite: sqlite3.Connection, orm: AsyncSession) -> None:
    card_added.send(lite, run, Card("4242"))
    assert_type(card_added.broadcast(lite, [run], Card("4242")), list[JobId])
    assert_type(await card_added.broadcast(orm, [run], Card("4242")), list[JobId])
    await card_added.send(lite, run, Card("4242"))  # refused: misc


async def outside(backend: Backend, booking: Id[Booking]) -> None:
    run = await pool.enqueue(backend, child, booking)
    assert_type(run, JobId[list[str]])
    match await pool.result(backend, run):
        case Success(value):
            assert_type(value, list[str])
    await card_added.send(backend, run, Card("4242"))
    await backend.run_mutation(order, "Ada")  # refused: arg-type


@app.workflow  # refused: arg-type
async def wrong_ctx(ctx: ActionCtx) -> None: ...
