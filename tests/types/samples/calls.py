"""Functions that call functions: nested, as plain helpers, and from the program around them."""

from datetime import datetime
from typing import assert_type

from samples.shop import Booking, Customer, book, confirm, fold, seats_of, upcoming

from penstock import (
    ActionCtx,
    App,
    Backend,
    CallerBackend,
    Id,
    Identity,
    JobId,
    JobState,
    JobStatus,
    MutationCtx,
    QueryCtx,
    sync,
)
from penstock.client import AsyncClient, Client

app = App()


@app.query
async def in_a_query(ctx: QueryCtx, customer: Id[Customer], booking: Id[Booking]) -> int:
    assert_type(await ctx.run_query(seats_of, customer), int)
    assert_type(await upcoming(ctx, customer, 5), list[Booking])
    await ctx.run_query(upcoming)  # refused: call-arg
    await ctx.run_query(upcoming, booking)  # refused: arg-type
    await ctx.run_mutation(book, customer, ctx.now())  # refused: attr-defined
    await ctx.run_action(confirm, booking)  # refused: attr-defined
    await book(ctx, customer, ctx.now())  # refused: arg-type
    await upcoming(ctx, booking)  # refused: arg-type
    ctx.run_query(upcoming, customer)  # refused: unused-coroutine
    return 1


@app.mutation
async def in_a_mutation(ctx: MutationCtx, customer: Id[Customer], booking: Id[Booking]) -> Id[Booking]:
    assert_type(await ctx.run_mutation(book, customer, ctx.now(), seats=2), Id[Booking])
    assert_type(await book(ctx, customer, ctx.now()), Id[Booking])
    await ctx.run_mutation(upcoming, customer)  # refused: arg-type
    await ctx.run_mutation(book, customer)  # refused: call-arg
    await ctx.run_action(confirm, booking)  # refused: attr-defined
    await confirm(ctx, booking)  # refused: arg-type
    return await ctx.run_query(upcoming, customer)  # refused: arg-type


@app.action
async def in_an_action(ctx: ActionCtx, customer: Id[Customer], booking: Id[Booking]) -> str:
    assert_type(await ctx.run_query(upcoming, customer), list[Booking])
    assert_type(await ctx.run_mutation(book, customer, ctx.now()), Id[Booking])
    assert_type(await ctx.run_action(confirm, booking, attempts=2), str)
    assert_type(await ctx.run_action(fold, "A"), str)
    assert_type(await ctx.wait_cancelled(), bool)
    await ctx.run_query(book, customer, ctx.now())  # refused: arg-type
    await ctx.db.get(Booking, booking)  # refused: attr-defined
    await book(ctx, customer, ctx.now())  # refused: arg-type
    return await confirm(ctx, booking)


async def from_the_program(backend: Backend, customer: Id[Customer], booking: Id[Booking], time: datetime) -> None:
    assert_type(await backend.run_query(upcoming, customer), list[Booking])
    assert_type(await backend.run_mutation(book, customer, time, seats=2), Id[Booking])
    await backend.run_query(upcoming, booking)  # refused: arg-type
    await backend.run_action(confirm, booking, attempts="2")  # refused: arg-type


async def of_jobs(backend: Backend, job: JobId, booking: Id[Booking]) -> None:
    assert_type(await backend.job(job), JobStatus | None)
    (status,) = await backend.jobs("failed", limit=1)
    assert_type(status.state, JobState)
    await backend.job(booking)  # refused: arg-type


async def opened() -> None:
    async with app.open("sqlite:///shop.db", services=["worker", "pruner"]) as backend:
        assert_type(backend, Backend)
    app.open(services=["cook"])  # refused: list-item


def for_a_user(backend: Backend, user: Identity) -> CallerBackend:
    for_the_program: CallerBackend = backend
    assert_type(for_the_program.with_identity(None), CallerBackend)
    waiting: sync.CallerBackend = app.sync.with_identity(user)
    assert_type(waiting.run_query(seats_of, Id[Customer]("x")), int)
    return backend.with_identity(user)


async def fetch_token() -> str:
    return "token"


def from_elsewhere() -> None:
    Client("http://shop", token=lambda: "token")
    AsyncClient("http://shop", token=fetch_token)
    Client("http://shop", token=fetch_token)  # refused: arg-type
    AsyncClient("http://shop", token=lambda: "token")  # refused: arg-type, return-value
