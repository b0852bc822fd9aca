"""What a function raises is its outcome, whatever its class: the transaction and the lease say what happened."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections import Counter
from typing import Any

import pytest

from penstock import (
    ActionCtx,
    App,
    MutationCtx,
    MutationTaskCtx,
    QueryCtx,
    Retry,
    Table,
    TaskCtx,
    WorkId,
    WorkResult,
    errors,
    sync,
)
from penstock.testing import TestApp

ONCE = Retry(max_attempts=1)
WORDS: dict[str, Any] = {"RateLimited": (1.0,), "NotSignedIn": ()}


def classes(root: type[errors.PenstockError]) -> list[type[errors.PenstockError]]:
    return [
        root,
        *(one for child in root.__subclasses__() if child.__module__ == root.__module__ for one in classes(child)),
    ]


class Odd(BaseException):
    """Neither an exit nor an error."""


PROMISED = {errors.NonRetryableError, errors.Snooze}
ERRORS: list[type[BaseException]] = [
    ValueError,
    *(one for one in classes(errors.PenstockError) if one not in PROMISED),
    TimeoutError,
    StopIteration,
    StopAsyncIteration,
    asyncio.CancelledError,
    concurrent.futures.CancelledError,
    GeneratorExit,
    SystemExit,
    KeyboardInterrupt,
    Odd,
]
EXITS = ERRORS.index(asyncio.CancelledError)
SHARED = {"mutation", "nested"}
MOST = 5  # runs in shared transactions: one without savepoints, three until the exits have left (1, 2, 4), and the last
app = App()
pool = app.workpool("raising")
runs: Counter[tuple[str, int]] = Counter()


def fail(kind: str, number: int) -> None:
    runs[kind, number] += 1
    raise make(number)


def make(number: int) -> BaseException:
    error = ERRORS[number]
    try:
        return error("of the test")
    except TypeError:
        return error(*WORDS[error.__name__])


class Written(Table):
    kind: str
    number: int


class Row(Table):
    kind: str
    number: int


@app.internal_query
async def look(ctx: QueryCtx, number: int) -> None:
    fail("query", number)


@app.internal_mutation
async def enter(ctx: MutationCtx, number: int) -> None:
    await ctx.db.insert(Written(kind="mutation", number=number))
    fail("mutation", number)


@app.internal_mutation
async def enter_within(ctx: MutationCtx, number: int) -> None:
    await ctx.run_mutation(enter_nested, number)


@app.internal_mutation
async def enter_nested(ctx: MutationCtx, number: int) -> None:
    await ctx.db.insert(Written(kind="nested", number=number))
    fail("nested", number)


@app.internal_mutation
def enter_in_thread(ctx: sync.MutationCtx, number: int) -> None:
    ctx.db.insert(Written(kind="mutation_thread", number=number))
    fail("mutation_thread", number)


@app.internal_action
async def act(ctx: ActionCtx, number: int) -> None:
    fail("action", number)


@app.internal_action
def act_in_thread(ctx: sync.ActionCtx, number: int) -> None:
    fail("action_thread", number)


@app.internal_action
async def act_on_mutation(ctx: ActionCtx, number: int) -> None:
    await ctx.run_mutation(enter_for_action, number)


@app.internal_mutation
async def enter_for_action(ctx: MutationCtx, number: int) -> None:
    await ctx.db.insert(Written(kind="mutation_of_action", number=number))
    fail("mutation_of_action", number)


@app.internal_mutation
async def neighbour(ctx: MutationCtx) -> None:
    await ctx.db.insert(Written(kind="neighbour", number=0))


@app.internal_action
async def nothing(ctx: ActionCtx) -> None:
    pass


@app.internal_mutation
async def complete(ctx: MutationCtx, work_id: WorkId, result: WorkResult[None], context: int) -> None:
    await ctx.db.insert(Written(kind="on_complete", number=context))
    fail("on_complete", context)


@app.reactive_task(Row, filter=lambda row: row.kind == "task", retry=ONCE)
async def follow(ctx: TaskCtx[Row]) -> None:
    fail("task", (await ctx.get_document()).number)


@app.reactive_task(Row, filter=lambda row: row.kind == "mutation_task", retry=ONCE)
async def follow_within(ctx: MutationTaskCtx[Row]) -> None:
    row = await ctx.get_document()
    await ctx.db.insert(Written(kind="mutation_task", number=row.number))
    fail("mutation_task", row.number)


@app.outbox("acted", on_failure="park", retry=ONCE)
async def deliver(ctx: ActionCtx, number: int) -> None:
    fail("outbox", number)


@app.outbox("entered", on_failure="park", retry=ONCE)
async def deliver_within(ctx: MutationCtx, number: int) -> None:
    await ctx.db.insert(Written(kind="mutation_outbox", number=number))
    fail("mutation_outbox", number)


@app.internal_mutation
async def add(ctx: MutationCtx, kind: str, number: int) -> None:
    await ctx.db.insert(Row(kind=kind, number=number))


@app.internal_mutation
async def send(ctx: MutationCtx, topic: str, number: int) -> None:
    await ctx.outbox.send(topic, number)


@app.internal_query
async def written(ctx: QueryCtx) -> list[str]:
    return [row.kind for row in await ctx.db.query(Written).collect()]


JOBS: dict[str, Any] = {
    "query": look,
    "mutation": enter,
    "nested": enter_within,
    "mutation_thread": enter_in_thread,
    "action": act,
    "action_thread": act_in_thread,
    "mutation_of_action": act_on_mutation,
}


@pytest.mark.parametrize("kind", JOBS)
async def test_a_job_that_raises_fails_whatever_it_raises(database_url: str, kind: str) -> None:
    runs.clear()
    async with TestApp(app, database_url) as backend:
        jobs = []
        for numbers in (range(EXITS), range(EXITS, len(ERRORS))):  # an exit has jobs of its transaction run again
            jobs += [await pool.enqueue(backend, JOBS[kind], number) for number in numbers]
            await pool.enqueue(backend, neighbour)
            async with asyncio.timeout(60):
                await backend.run_until_idle(raise_errors=False)
        for number, job in enumerate(jobs):
            found = await backend.job(job)
            assert found is not None
            assert (found.state.value, found.attempt) == ("failed", 1), (ERRORS[number], found)
            assert 1 <= runs[kind, number] <= (MOST if kind in SHARED else 1 + (number >= EXITS)), ERRORS[number]
        assert await backend.run_query(written) == ["neighbour"] * 2


@pytest.mark.parametrize("kind", ["task", "mutation_task", "on_complete", "outbox", "mutation_outbox"])
async def test_a_handler_that_raises_fails_whatever_it_raises(database_url: str, kind: str) -> None:
    runs.clear()
    async with TestApp(app, database_url) as backend:
        for number in range(len(ERRORS)):
            if kind == "on_complete":
                options: dict[str, Any] = {"on_complete": complete, "on_complete_retry": ONCE, "context": number}
                await pool.with_options(**options).enqueue(backend, nothing)
            elif "task" in kind:
                await backend.run_mutation(add, kind, number)
            else:
                await backend.run_mutation(send, "acted" if kind == "outbox" else "entered", number)
        async with asyncio.timeout(60):
            await backend.run_until_idle(raise_errors=False)
        ran = {ERRORS[number].__name__: runs[kind, number] for number in range(len(ERRORS))}
        most = MOST if "mutation" in kind else 1
        assert all(1 <= times <= most for times in ran.values()), ran
        assert await backend.run_query(written) == []
        if "task" in kind:
            failed = await backend.jobs("failed", 1000)
            assert len(failed) == len(ERRORS), {name: ran[name] for name in ran}


@pytest.mark.parametrize("function", [look, enter, act, enter_within, act_on_mutation])
async def test_a_call_raises_what_its_function_raises(database_url: str, function: Any) -> None:
    runs.clear()
    async with TestApp(app, database_url) as backend:
        run: Any = getattr(backend, f"run_{function.kind.value}")
        for number, error in enumerate(ERRORS):
            if not issubclass(error, Exception):
                continue
            try:
                await run(function, number)
            except (error, RuntimeError):  # no coroutine raises StopIteration
                pass
            else:
                raise AssertionError(error)
        assert set(runs.values()) == {1}
        assert await backend.run_query(written) == []
