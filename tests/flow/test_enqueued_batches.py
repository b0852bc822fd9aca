"""Batches of work: stored as a whole or not at all whatever becomes of them, beside all else, from any thread."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from penstock import (
    ActionCtx,
    App,
    ArgumentsInvalid,
    Conflict,
    JobState,
    MutationCtx,
    Pending,
    QueryCtx,
    Table,
    sync,
)
from penstock.clock import SystemClock
from penstock.testing import TestApp

app = OPENED = App()
sms = app.workpool("sms", max_parallelism=0)
shared = app.workpool("shared", max_parallelism=9)

MANY = 2_500  # more than a piece on either store

raised: list[BaseException] = []
threads: set[threading.Thread] = set()
asked, go_on = threading.Event(), threading.Event()


class Number(Table, name="number"):
    value: int


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    raised.clear()
    threads.clear()
    asked.clear()
    go_on.clear()


@app.internal_action
async def send(ctx: ActionCtx, number: int) -> None:
    """Never runs."""


def each(many: int, error: Exception | None = None) -> Iterator[dict[str, Any]]:
    """The arguments of so many calls, and then perhaps an error."""
    for number in range(many):
        yield {"number": number}
    if error is not None:
        raise error


async def ready(backend: Any) -> int:
    found: int = (await backend.job_counts())["ready"]
    return found


# ----- all or none


@app.internal_mutation
async def catches_what_is_raised(ctx: MutationCtx, at: int) -> str:
    try:
        await sms.enqueue_batch(ctx, send, each(at, ValueError("no more")))
    except ValueError as error:
        await sms.enqueue(ctx, send, 0)
        return f"{error}"
    return ""


@app.internal_mutation
async def catches_what_is_refused(ctx: MutationCtx, at: int) -> str:
    try:
        await sms.enqueue_batch(ctx, send, [*each(at), {"number": "many"}])
    except ArgumentsInvalid:
        await sms.enqueue(ctx, send, 0)
        return "no more"
    return ""


@app.internal_mutation
def catches_in_a_thread(ctx: sync.MutationCtx, at: int) -> str:
    try:
        sms.enqueue_batch(ctx, send, [*each(at), {"number": "many"}])
    except ArgumentsInvalid:
        sms.enqueue(ctx, send, 0)
        return "no more"
    return ""


@app.internal_mutation
async def catches_an_end(ctx: MutationCtx) -> None:
    storing: list[asyncio.Future[Any]] = []

    def until_stopped() -> Iterator[dict[str, Any]]:
        for number in range(MANY):
            if number == MANY // 2:
                storing[0].cancel()
            yield {"number": number}

    storing.append(asyncio.ensure_future(sms.enqueue_batch(ctx, send, until_stopped())))
    with pytest.raises(asyncio.CancelledError):
        await storing[0]


@pytest.mark.parametrize("at", [3, 150, MANY])
@pytest.mark.parametrize("catches", [catches_what_is_raised, catches_what_is_refused, catches_in_a_thread])
async def test_a_mutation_that_goes_on_after_a_batch_that_failed_has_none_of_it(
    database_url: str, catches: Any, at: int
) -> None:
    async with TestApp(app, database_url) as backend:
        assert await backend.run_mutation(catches, at) == "no more"
        assert await ready(backend) == 1, "what it has enqueued afterwards"


async def test_a_mutation_that_goes_on_after_a_batch_was_cut_off_has_none_of_it(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        await backend.run_mutation(catches_an_end)
        assert await ready(backend) == 0


@pytest.mark.parametrize("many", [1, 3])
async def test_jobs_that_share_a_transaction_have_none_of_a_batch_that_failed(database_url: str, many: int) -> None:
    async with TestApp(app, database_url) as backend:
        works = [await shared.enqueue(backend, catches_what_is_raised, 6_000) for _ in range(many)]
        await backend.run_until_idle()
        found = [await backend.job(work) for work in works]
        assert [(job.state, job.result) for job in found if job] == [(JobState.SUCCESS, "no more")] * many
        assert await ready(backend) == many


@pytest.mark.parametrize("error", [Conflict("elsewhere"), TimeoutError("slow"), ConnectionError("gone")])
@pytest.mark.parametrize("at", [3, MANY])
async def test_what_arguments_raise_is_told_as_it_is_and_is_not_tried_again(
    database_url: str, at: int, error: Exception
) -> None:
    async with TestApp(app, database_url) as backend:
        with pytest.raises(type(error)) as told:
            await sms.enqueue_batch(backend, send, each(at, error))
        assert told.value is error
        assert await ready(backend) == 0


# ----- beside all else


async def test_while_a_batch_is_stored_all_else_has_its_turns(database_url: str) -> None:
    turns, seen, clock = count(1), set[int](), SystemClock()
    last = 0

    async def turn() -> None:
        nonlocal last
        while True:
            last = next(turns)
            await clock.sleep(0)

    def watched() -> Iterator[dict[str, Any]]:
        for arguments in each(5_000):
            seen.add(last)
            yield arguments

    async with TestApp(app, database_url) as backend:
        other = asyncio.ensure_future(turn())
        await sms.enqueue_batch(backend, send, watched())
        other.cancel()
        assert len(seen) >= 5
        assert await ready(backend) == 5_000


async def test_a_batch_can_be_stopped_while_it_is_stored(database_url: str) -> None:
    made: list[int] = []

    def until_stopped() -> Iterator[dict[str, Any]]:
        for arguments in each(20_000):
            made.append(arguments["number"])
            if len(made) == MANY:
                storing.cancel()
            yield arguments

    async with TestApp(app, database_url) as backend:
        storing = asyncio.ensure_future(sms.enqueue_batch(backend, send, until_stopped()))
        with pytest.raises(asyncio.CancelledError):
            await storing
        assert len(made) < 20_000
        assert await ready(backend) == 0
        await sms.enqueue_batch(backend, send, each(MANY))
        assert await ready(backend) == MANY


# ----- from threads


@app.query
async def value(ctx: QueryCtx, at: int) -> int:
    return (await ctx.db.query(Number).collect())[at].value


@app.mutation
def copy_numbers(ctx: sync.MutationCtx) -> int:
    ctx.db.insert_many(Number(value=number + ctx.db.query(Number).count()) for number in range(3))
    return len(sms.enqueue_batch(ctx, send, ({"number": ctx.run_query(value, number)} for number in range(3))))


@app.action
def read_slowly(ctx: sync.ActionCtx) -> int:
    def lines() -> Iterator[dict[str, Any]]:
        threads.update([threading.current_thread()])
        asked.set()
        assert go_on.wait(60)
        yield from each(5)

    work = sms.enqueue_batch(ctx, send, lines())
    assert threads == {threading.current_thread()}
    return len(work)


async def test_arguments_may_be_read_with_the_ctx_of_a_function_in_a_thread(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        assert await backend.run_mutation(copy_numbers) == 3
        assert await ready(backend) == 3


async def test_arguments_that_are_waited_for_in_a_thread_keep_nobody_else_waiting(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        reading = asyncio.ensure_future(backend.run_action(read_slowly))
        await asyncio.to_thread(asked.wait, 60)
        await sms.enqueue(backend, send, 0)  # on SQLite too: no transaction has begun
        assert await ready(backend) == 1
        go_on.set()
        assert await reading == 5
        assert await ready(backend) == 6


def test_arguments_may_be_what_belongs_to_the_thread_of_a_program(database_url: str) -> None:
    own = sqlite3.connect(":memory:")
    numbers = own.execute("select 1 union all select 2")
    same: dict[str, Any] = {}

    def again() -> Iterator[dict[str, Any]]:
        for number in (3, 4):
            same["number"] = number
            yield same

    with app.sync.open(database_url) as backend:
        sms.enqueue_batch(backend, send, ({"number": number} for (number,) in numbers))
        sms.enqueue_batch(backend, send, ({"number": backend.job_counts()["ready"]} for _ in range(2)))
        sms.enqueue_batch(backend, send, again())
        assert sorted(job.args["number"] for job in backend.jobs()) == [1, 2, 2, 2, 3, 4]
        assert (
            sms.status_batch(backend, (job.id for _ in range(2) for job in backend.jobs(limit=1))) == [Pending(0)] * 2
        )
        for wrong in (5, None, iter([{"number": 1}, 2])):
            with pytest.raises(ArgumentsInvalid):
                sms.enqueue_batch(backend, send, wrong)  # type: ignore[arg-type]
    own.close()
