"""Functions to run later: what the scheduler takes with which arguments."""

from datetime import datetime, timedelta
from typing import assert_type

from samples.shop import Booking, Customer, book, confirm, fold, no_function_of_the_app, rename, upcoming

from penstock import ActionCtx, App, Backend, Id, JobId, JobStatus, MutationCtx, sync

app = App()
SOON = timedelta(seconds=5)


@app.mutation
async def schedule(ctx: MutationCtx, customer: Id[Customer], booking: Id[Booking], time: datetime) -> JobId:
    scheduler = ctx.scheduler
    assert_type(await scheduler.run_after(SOON, confirm, booking), JobId[str])
    assert_type(await scheduler.run_at(time, confirm, booking, attempts=3), JobId[str])
    assert_type(await scheduler.run_after(SOON, book, customer, time, seats=2), JobId[Id[Booking]])
    assert_type(await scheduler.run_at(time, rename, customer=customer, name="Eve"), JobId[Customer])
    assert_type(await scheduler.run_after(SOON, fold, "A"), JobId[str])
    # arguments that are wrong, missing, unknown, too many, or given by place where they have a name only
    await scheduler.run_after(SOON, confirm, customer)  # refused: arg-type
    await scheduler.run_after(SOON, confirm)  # refused: call-arg
    await scheduler.run_after(SOON, confirm, booking, attempt=3)  # refused: call-arg
    await scheduler.run_after(SOON, confirm, booking, 3, 3)  # refused: call-arg
    await scheduler.run_after(SOON, book, customer, time, 2)  # refused: call-arg
    await scheduler.run_at(time, confirm, booking, attempts="3")  # refused: arg-type
    await scheduler.run_at(time, confirm)  # refused: call-arg
    await scheduler.run_at(time, rename, customer=customer, nane="Eve")  # refused: call-arg
    # times of the wrong kind
    await scheduler.run_after(5, confirm, booking)  # refused: arg-type
    await scheduler.run_after(time, confirm, booking)  # refused: arg-type
    await scheduler.run_at(SOON, confirm, booking)  # refused: arg-type
    # what is no mutation and no action
    await scheduler.run_after(SOON, upcoming, customer)  # refused: arg-type
    await scheduler.run_at(time, no_function_of_the_app, booking)  # refused: arg-type
    await scheduler.run_after(SOON, "shop:confirm", booking)  # refused: arg-type
    # a job that nobody waits for
    scheduler.run_after(SOON, confirm, booking)  # refused: unused-coroutine
    return await scheduler.run_after(timedelta(0), confirm, booking)


@app.internal_action
async def look_after(ctx: ActionCtx, job: JobId, booking: Id[Booking]) -> None:
    assert_type(await ctx.scheduler.run_after(SOON, confirm, booking), JobId[str])
    assert_type(await ctx.scheduler.get(job), JobStatus | None)
    await ctx.scheduler.cancel(job)
    await ctx.scheduler.cancel("job_1")  # refused: arg-type
    await ctx.scheduler.get(booking)  # refused: arg-type
    await ctx.scheduler.run_after(SOON, look_after, booking, job)  # refused: arg-type


@app.internal_mutation
def schedule_in_a_thread(ctx: sync.MutationCtx, booking: Id[Booking], customer: Id[Customer]) -> JobId:
    assert_type(ctx.scheduler.get(JobId("x")), JobStatus | None)
    ctx.scheduler.run_at(ctx.now(), confirm, booking, 2)
    ctx.scheduler.run_after(SOON, confirm, customer)  # refused: arg-type
    ctx.scheduler.run_at(ctx.now(), confirm)  # refused: call-arg
    ctx.scheduler.run_after(SOON, upcoming, customer)  # refused: arg-type
    return ctx.scheduler.run_after(SOON, confirm, booking)


async def from_the_program(backend: Backend, booking: Id[Booking]) -> None:
    assert_type(await backend.scheduler.run_after(SOON, confirm, booking), JobId[str])
    await backend.scheduler.run_after(SOON, confirm, "booking_1")  # refused: arg-type
