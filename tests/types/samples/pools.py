"""Pools: from where work may be enqueued, and what their words give there."""

import sqlite3
from datetime import timedelta
from typing import Any, assert_type

import aiosqlite
import psycopg
import sqlalchemy.ext.asyncio
import sqlalchemy.orm
from samples.shop import Booking, confirm, no_function_of_the_app

from penstock import (
    App,
    Backend,
    Id,
    JobId,
    MutationCtx,
    QueryCtx,
    Retry,
    Success,
    WorkResult,
    WorkStatus,
    sync,
)

app = App()
pool = app.workpool("mail")


async def awaited(
    ctx: MutationCtx,
    backend: Backend,
    modern: psycopg.AsyncConnection[Any],
    lite: aiosqlite.Connection,
    orm: sqlalchemy.ext.asyncio.AsyncSession,
    booking: Id[Booking],
) -> None:
    assert_type(await pool.enqueue(ctx, confirm, booking), JobId[str])
    assert_type(await pool.enqueue(backend, confirm, booking), JobId[str])
    assert_type(await pool.enqueue(modern, confirm, booking), JobId[str])
    assert_type(await pool.enqueue(lite, confirm, booking), JobId[str])
    job = await pool.enqueue(orm, confirm, booking)
    assert_type(await pool.enqueue_batch(orm, confirm, [{"booking": booking}]), list[JobId[str]])
    assert_type(await pool.status(orm, job), WorkStatus | None)
    assert_type(await pool.cancel_all(orm), int)
    assert_type(await pool.result(backend, job, timedelta(1)), WorkResult[str])
    match await pool.result(backend, job):
        case Success(value):
            assert_type(value, str)
    assert_type(await pool.result(backend, JobId("job_1")), WorkResult[Any])
    seated: JobId[int] = job  # refused: assignment
    print(seated)
    await pool.result(orm, job)  # refused: call-overload
    await pool.pause(orm)  # refused: call-overload
    pool.enqueue(orm, confirm, booking)  # refused: unused-coroutine
    await ctx.outbox.send("topic", {"to": "Ada"}, key="Ada")
    await ctx.outbox.send("topic", 5, key=5)  # refused: arg-type
    await app.outboxes.send(orm, "topic", 5)


def plain(
    ctx: sync.MutationCtx,
    backend: sync.Backend,
    modern: psycopg.Connection[Any],
    lite: sqlite3.Connection,
    scoped: sqlalchemy.orm.scoped_session[sqlalchemy.orm.Session],
    booking: Id[Booking],
) -> None:
    assert_type(pool.enqueue(ctx, confirm, booking), JobId[str])
    assert_type(pool.enqueue(backend, confirm, booking), JobId[str])
    assert_type(pool.enqueue(app.sync, confirm, booking), JobId[str])
    assert_type(pool.enqueue(modern, confirm, booking), JobId[str])
    assert_type(pool.enqueue(lite, confirm, booking), JobId[str])
    job = pool.enqueue(scoped, confirm, booking)
    pool.set_max_parallelism(app.sync, 5)
    app.outboxes.send(lite, "topic", 5)
    pool.result(lite, job)  # refused: call-overload
    # arguments and functions are checked as anywhere
    pool.enqueue(lite, confirm)  # refused: call-overload
    pool.enqueue(lite, no_function_of_the_app, booking)  # refused: call-overload


async def neither(ctx: QueryCtx, cursor: sqlite3.Cursor, booking: Id[Booking]) -> None:
    await pool.enqueue(ctx, confirm, booking)  # refused: call-overload
    pool.enqueue(cursor, confirm, booking)  # refused: call-overload
    await app.outboxes.send(ctx, "topic", 5)  # refused: call-overload


def with_options(other: dict[str, Any]) -> None:
    pool.with_options(retry=Retry(max_attempts=3), priority=5, run_after=timedelta(1), on_complete=noted, context=[1])
    pool.with_options(retry=False, on_duplicate="replace", key="ada", timeout=None, **other)
    pool.with_options(retries=True)  # refused: call-arg
    pool.with_options(on_duplicate="ignore")  # refused: arg-type
    pool.with_options(on_complete=confirm)  # refused: arg-type


@app.internal_mutation
async def noted(ctx: MutationCtx, work_id: JobId, result: WorkResult[str], context: Any) -> None: ...
