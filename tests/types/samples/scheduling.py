"""Functions to run later: what the scheduler takes with which arguments."""

from datetime import datetime, timedelta
from typing import assert_type

from samples.shop import Booking, Customer, book, confirm, fold, no_function_of_the_app

from penstock import ActionCtx, App, Backend, Id, JobId, JobStatus, MutationCtx, sync

app = App()
SOON = timedelta(seconds=5)


@app.mutation
async def schedule(ctx: MutationCtx, customer: Id[Customer], booking: Id[Booking], time: datetime) -> JobId:
    scheduler = ctx.scheduler
    assert_type(await scheduler.run_after(SOON, confirm, booking), JobId[str])
    assert_type(await scheduler.run_at(time, confirm, booking, attempts=3), JobId[str])
    assert_type(await scheduler.run_after(SOON, book, customer, time, seats=2), JobId[Id[Booking]])
    assert_type(await scheduler.run_after(SOON, fold, "A"), JobId[str])
    await scheduler.run_after(SOON, confirm, booking, attempt=3)  # refused: call-arg
    await scheduler.run_at(time, confirm, booking, attempts="3")  # refused: arg-type
    await scheduler.run_at(SOON, confirm, booking)  # refused: arg-type
    await scheduler.run_at(time, no_function_of_the_app, booking)  # refused: arg-type
    scheduler.run_after(SOON, confirm, booking)  # refused: unused-coroutine
    return await scheduler.run_after(timedelta(0), confirm, booking)


@app.internal_action
async def look_after(ctx: ActionCtx, job: JobId, booking: Id[Booking]) -> None:
    assert_type(await ctx.scheduler.run_after(SOON, confirm, booking), JobId[str])
    assert_type(await ctx.scheduler.get(job), JobStatus | None)
    await ctx.scheduler.cancel(job)
    await ctx.scheduler.cancel("job_1")  # refused: arg-type


@app.internal_mutation
def schedule_in_a_thread(ctx: sync.MutationCtx, booking: Id[Booking], customer: Id[Customer]) -> JobId:
    assert_type(ctx.scheduler.get(JobId("x")), JobStatus | None)
    ctx.scheduler.run_after(SOON, confirm, customer)  # refused: arg-type
    return ctx.scheduler.run_after(SOON, confirm, booking)


async def from_the_program(backend: Backend, booking: Id[Booking]) -> None:
    assert_type(await backend.scheduler.run_after(SOON, confirm, booking), JobId[str])
