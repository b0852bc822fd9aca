"""Batches of work: stored as a whole or not at all whatever becomes of them, beside all else, from any thread."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import tracemalloc
from collections.abc import Iterable, Iterator
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
    sync,
)
from penstock.clock import SystemClock
from penstock.testing import TestApp, raising

app = OPENED = App()
sms = app.workpool("sms", max_parallelism=0)
shared = app.workpool("shared", max_parallelism=9)

MANY = 2_500  # more than a piece on either store

threads: set[threading.Thread] = set()
asked, go_on = threading.Event(), threading.Event()


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    threads.clear()
    asked.clear()
    go_on.clear()


@app.internal_action
async def send(ctx: ActionCtx, number: int, text: str = "") -> None:
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


def broken(at: int, *, refused: bool) -> Iterable[dict[str, Any]]:
    """The arguments of so many calls, and then what cannot be enqueued, or an error."""
    return [*each(at), {"number": "many"}] if refused else each(at, ValueError("no more"))


@app.internal_mutation
async def go_on_behind(ctx: MutationCtx, at: int, *, refused: bool = False) -> None:
    with pytest.raises(ArgumentsInvalid if refused else ValueError):
        await sms.enqueue_batch(ctx, send, broken(at, refused=refused))
    await sms.enqueue(ctx, send, 0)


@app.internal_mutation
def go_on_in_a_thread(ctx: sync.MutationCtx, at: int) -> None:
    with pytest.raises(ArgumentsInvalid):
        sms.enqueue_batch(ctx, send, broken(at, refused=True))
    sms.enqueue(ctx, send, 0)


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


async def test_who_goes_on_after_a_batch_that_failed_has_none_of_it(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        for at in (3, MANY):
            await backend.run_mutation(go_on_behind, at)
            await backend.run_mutation(go_on_behind, at, refused=True)
            await backend.run_mutation(go_on_in_a_thread, at)
        assert await ready(backend) == 6, "what they have enqueued afterwards"
        await backend.run_mutation(catches_an_end)
        for many in (1, 3):  # which share a transaction
            works = [await shared.enqueue(backend, go_on_behind, 6_000) for _ in range(many)]
            await backend.run_until_idle()
            assert {job.state for job in [await backend.job(work) for work in works] if job} == {JobState.SUCCESS}
        assert await ready(backend) == 6 + 1 + 3


async def test_what_arguments_raise_is_told_as_it_is_and_is_not_tried_again(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        for error in (Conflict("elsewhere"), TimeoutError("slow")):
            for at in (0, MANY):
                with pytest.raises(type(error)) as told:
                    await sms.enqueue_batch(backend, send, each(at, error))
                assert told.value is error
                assert await ready(backend) == 0, (error, at)
        for at in (0, MANY):
            with pytest.raises(ArgumentsInvalid, match="number"):  # others are on their way to the database
                await sms.enqueue_batch(backend, send, [*each(at), {"number": "x"}, *each(MANY)])
            assert await ready(backend) == 0
        assert await sms.enqueue_batch(backend, send, []) == []
        ids = await sms.enqueue_batch(backend, send, each(MANY))
        assert len(set(ids)) == MANY
        assert ids == sorted(ids)
        assert await ready(backend) == MANY


async def test_a_batch_that_conflicts_is_stored_again_as_it_was(database_url: str) -> None:
    made, many = list[int](), 1_200  # they fill a piece, which is kept compressed

    def once() -> Iterator[dict[str, Any]]:
        for number in range(many):
            made.append(number)
            yield {"number": number, "text": "two\nlines"}

    async with TestApp(app, database_url) as backend:
        with raising("commit.before", Conflict("staged"), times=2):
            ids = await sms.enqueue_batch(backend, send, once())
        assert made == list(range(many))
        found = (await backend.jobs(limit=many))[::-1]
        assert [job.id for job in found] == ids
        assert [job.args for job in found] == [{"number": number, "text": "two\nlines"} for number in range(many)]


async def test_what_is_kept_of_a_batch_is_small(database_url: str) -> None:
    many, long = 8_000, "x" * 1_000
    async with TestApp(app, database_url) as backend:
        await sms.enqueue_batch(backend, send, [{"number": 0, "text": "all is loaded"}])
        tracemalloc.start()
        try:
            await sms.enqueue_batch(backend, send, ({"number": one, "text": f"{one}{long}"} for one in range(many)))
            kept = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert kept < many * len(long), "not all arguments"


async def test_while_a_batch_is_stored_all_else_has_its_turns(database_url: str) -> None:
    turns, seen, clock = count(1), set[int](), SystemClock()
    last = 0

    async def turn() -> None:
        nonlocal last
        while True:
            last = next(turns)
            await clock.sleep(0)

    def watched() -> Iterator[dict[str, Any]]:
        for arguments in each(MANY):
            seen.add(last)
            yield arguments

    async with TestApp(app, database_url) as backend:
        other = asyncio.ensure_future(turn())
        await sms.enqueue_batch(backend, send, watched())
        other.cancel()
        assert len(seen) >= 3
        assert await ready(backend) == MANY


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
    own.close()
