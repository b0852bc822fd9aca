"""Reactive tasks: which handlers there are, and what their ctx gives."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, assert_type

from penstock import (
    App,
    CircuitBreaker,
    MutationTaskCtx,
    SyncTaskBatchCtx,
    SyncTaskBatchRun,
    SyncTaskCtx,
    Table,
    TaskBatchCtx,
    TaskBatchRun,
    TaskCtx,
)

app = App()


class Order(Table):
    status: str
    amount: int


class Other(Table):
    name: str


@app.reactive_task(
    Order, filter=lambda o: (o.status == "paid") & (o.amount > 1), watch=("amount", lambda o: o.amount * 2)
)
async def act(ctx: TaskCtx[Order]) -> None:
    assert_type(await ctx.get_document(), Order)
    assert_type(ctx.previous, Order | None)
    assert_type(ctx.watched_values, dict[str, Any])
    await ctx.mark_completed(object())
    ctx.defer_current(timedelta(minutes=1))
    ctx.defer_current("soon")  # refused: arg-type
    await ctx.get_document("amount", 1)  # refused: call-arg
    assert (await ctx.get_document()).name  # refused: attr-defined


@app.reactive_task(Order)
async def write(ctx: MutationTaskCtx[Order]) -> None:
    assert_type(await ctx.get_document(), Order)
    await ctx.db.insert(Other(name="x"))
    await ctx.mark_completed()  # refused: attr-defined


@app.reactive_task(Order)
def act_in_thread(ctx: SyncTaskCtx[Order]) -> None:
    assert_type(ctx.get_document(), Order)
    ctx.mark_completed(object())


@app.reactive_task(Order, batch=10, linger=timedelta(seconds=1), breaker=CircuitBreaker(failures=3))
async def many(ctx: TaskBatchCtx[Order]) -> None:
    assert_type(await ctx.get_documents(), dict[TaskBatchRun[Order], Order])
    for run in ctx.runs:
        assert_type(await run.get_document(), Order)
        run.fail(ConnectionError())
        run.fail("busy")  # refused: arg-type


@app.reactive_task(Order, batch=10)
def many_in_thread(ctx: SyncTaskBatchCtx[Order]) -> None:
    assert_type(ctx.get_documents(), dict[SyncTaskBatchRun[Order], Order])
    for run in ctx.runs:
        assert_type(run.get_document(), Order)


@app.reactive_task(Order)  # refused: arg-type
async def of_another_table(ctx: TaskCtx[Other]) -> None: ...


@app.reactive_task(Order)  # refused: arg-type
async def takes_more(ctx: TaskCtx[Order], amount: int) -> None: ...


@app.reactive_task(Order)  # refused: arg-type
async def in_thread_but_async(ctx: SyncTaskCtx[Order]) -> None: ...


@app.reactive_task(Order, breaker=3)  # refused: arg-type
async def breaks(ctx: TaskCtx[Order]) -> None: ...


@app.reactive_task(Order, filter=lambda o: o.nonsense == 1)  # refused: attr-defined
async def filters_nothing(ctx: TaskCtx[Order]) -> None: ...
