"""Reactive tasks that take many rows at once, and circuit breakers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from stage.stories import TaskApp, two_on

from penstock import (
    App,
    CircuitBreaker,
    DeclarationError,
    Id,
    MutationCtx,
    MutationTaskCtx,
    NonRetryableError,
    Retry,
    SyncTaskBatchCtx,
    Table,
    TaskBatchCtx,
    TaskConditionFailed,
    TaskCtx,
)

app = OPENED = App()
AT_ONCE = Retry(max_attempts=3, initial_backoff=0.001, base=1)
MINUTE = timedelta(minutes=1)


class Order(Table):
    status: str = "paid"
    number: int = 0
    note: str = ""


seen: list[Any] = []
broken: list[bool] = []


@app.reactive_task(Order, filter=lambda o: o.status == "paid", watch=("number",), batch=10, retry=AT_ONCE)
async def sync(ctx: TaskBatchCtx[Order]) -> None:
    """Handle rows; their notes say what becomes of each."""
    orders = await ctx.get_documents(fields=("number", "note"))
    seen.append(sorted(order.number for order in orders.values()))
    for run, order in orders.items():
        if order.note == "fail":
            run.fail(ConnectionError(f"{order.number} on attempt {run.attempt}"))
        elif order.note == "never":
            run.fail(NonRetryableError("never"))
        elif order.note == "skip":
            run.fail(TaskConditionFailed("no use"))
        elif order.note == "defer" and run.work.attempt == 1 and len(seen) == 1:
            run.defer_current(MINUTE)
        elif order.note == "mark":
            await run.mark_completed()
    ctx.log("handled", rows=len(orders))
    if any(order.note == "mark" for order in orders.values()):
        raise ConnectionError("all fail")


@app.reactive_task(Order, filter=lambda o: o.status == "sync", batch=5, linger=timedelta(milliseconds=50))
def in_thread(ctx: SyncTaskBatchCtx[Order]) -> None:
    orders = ctx.get_documents()
    seen.append([order.number for order in orders.values()])
    for run in ctx.runs:
        if run.attempt == 1 and orders[run].number == 3:
            assert not run.cancelled
            run.fail(ConnectionError("once"))


@app.reactive_task(
    Order,
    filter=lambda o: o.status == "fragile",
    retry=None,
    breaker=CircuitBreaker(failures=3, within=timedelta(minutes=1), open_for=timedelta(minutes=5)),
)
async def fragile(ctx: TaskCtx[Order]) -> None:
    seen.append((await ctx.get_document()).number)
    if broken:
        raise ConnectionError("down")


@app.mutation
async def place(ctx: MutationCtx, status: str, notes: list[str]) -> list[Id[Order]]:
    return await ctx.db.insert_many(
        [Order(status=status, number=number, note=note) for number, note in enumerate(notes)]
    )


@app.mutation
async def leave(ctx: MutationCtx, order_id: Id[Order]) -> None:
    await ctx.db.patch(Order, order_id, status="off")


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    seen.clear()
    broken.clear()


async def ends(t: TaskApp, orders: list[Id[Order]]) -> list[tuple[str, int]]:
    """How the run of each order has ended, and after how many attempts."""
    found = {job.args["key"]: (job.state.value, job.attempt) for job in await t.jobs(limit=1000)}
    return [next(end for key, end in found.items() if str(order) in key) for order in orders]


async def test_many_rows_are_one_call(database_url: str) -> None:
    async with TaskApp(app, database_url) as t:
        orders = await t.run_mutation(place, "paid", [""] * 25)
        assert await t.settle_down(raise_errors=True) == 25
        assert sorted(map(len, seen)) == [5, 10, 10]
        assert await ends(t, orders) == [("success", 1)] * 25


async def test_each_row_has_an_end_of_its_own(database_url: str) -> None:
    async with TaskApp(app, database_url) as t:
        orders = await t.run_mutation(place, "paid", ["", "fail", "never", "skip", "defer", ""])
        await t.plan()
        await t.run_mutation(leave, orders[5])
        begun = t.clock.now()
        await t.run_until_idle(raise_errors=False, plan=False)  # the planner has not heard of that
        await t.settle_down()
        assert await ends(t, orders) == [
            ("success", 1),
            ("failed", 3),
            ("failed", 1),
            ("skipped", 1),
            ("success", 1),
            ("skipped", 1),
        ]
        assert t.clock.now() >= begun + MINUTE
        assert seen[0] == [0, 1, 2, 3, 4], "one had left"
        failed = next(job for job in await t.jobs("failed") if job.attempt == 3)
        assert failed.error == "ConnectionError: 1 on attempt 3"


async def test_a_handler_that_raises_fails_all_that_have_no_end_yet(database_url: str) -> None:
    async with TaskApp(app, database_url) as t:
        orders = await t.run_mutation(place, "paid", ["mark", "", "skip"])
        await t.settle_down()
        assert await ends(t, orders) == [("success", 1), ("success", 2), ("skipped", 1)]


async def test_a_def_handler_takes_many_rows(database_url: str) -> None:
    async with TaskApp(app, database_url) as t:
        orders = await t.run_mutation(place, "sync", [""] * 5)
        await t.settle_down()
        assert sorted(seen[0]) == [0, 1, 2, 3, 4]
        assert seen[1:] == [[3]]
        assert await ends(t, orders) == [("success", 1)] * 3 + [("success", 2), ("success", 1)]


# ----- circuit breakers


async def test_failures_on_two_machines_open_the_breaker_of_both(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with two_on(app, database_url) as (first, second):
        broken.append(True)
        for number, t in enumerate((first, second, first)):
            await first.run_mutation(place, "fragile", [str(number)])
            await first.plan()
            await t.run_until_idle(advance=False, raise_errors=False)
        await first.worker.tick()
        assert caplog.text.count("task.breaker_opened") == 1
        await first.run_mutation(place, "fragile", [""] * 4)
        await first.plan()
        seen.clear()
        for t in (second, first):
            await t.run_until_idle(advance=False, raise_errors=False)
        assert seen == []
        (row,) = [row for row in await first.engine.store.tasks.list() if row.plan.function.endswith(":fragile")]
        assert row.held_until == first.clock.now() + timedelta(minutes=5)


async def test_an_open_breaker_tries_one_run_and_opens_again_or_closes(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with TaskApp(app, database_url) as t:
        broken.append(True)
        for _ in range(3):
            await t.run_mutation(place, "fragile", [""])
            await t.settle_down(advance=False)
        await t.worker.tick()
        await t.run_mutation(place, "fragile", [""] * 4)
        await t.settle_down(advance=False)
        assert len(seen) == 3

        t.clock.advance(timedelta(minutes=5))
        await t.settle_down(advance=False)
        await t.worker.tick()
        assert len(seen) == 4, "one was tried, and failed"
        assert caplog.text.count("task.breaker_opened") == 2

        t.clock.advance(timedelta(minutes=2))
        await t.settle_down(advance=False)
        assert len(seen) == 4, "it is open again"

        broken.clear()
        await t.settle_down()
        assert len(seen) == 7
        assert sorted(job.state.value for job in await t.jobs()) == ["failed"] * 4 + ["success"] * 3
        assert caplog.text.count("task.breaker_opened") == 2


async def test_failures_that_are_far_apart_open_nothing(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with TaskApp(app, database_url) as t:
        broken.append(True)
        for _ in range(5):
            await t.run_mutation(place, "fragile", [""])
            await t.settle_down(advance=False)
            t.clock.advance(timedelta(seconds=31))
        assert len(seen) == 5
        assert "task.breaker_opened" not in caplog.text


def test_what_cannot_be_a_batch_or_a_breaker_is_refused() -> None:
    for given in ({"failures": 0}, {"within": timedelta(0)}, {"open_for": timedelta(days=400)}):
        with pytest.raises(DeclarationError, match="CircuitBreaker"):
            CircuitBreaker(**given)

    async def one_row(ctx: TaskCtx[Order]) -> None: ...

    async def many_rows(ctx: TaskBatchCtx[Order]) -> None: ...

    async def a_mutation(ctx: MutationTaskCtx[Order]) -> None: ...

    handler: Any
    for handler, options, message in (
        (many_rows, {}, "and batch=None"),
        (a_mutation, {"batch": 3}, "and batch=3"),
        (many_rows, {"batch": 0}, "from 1 to 10,000"),
        (one_row, {"linger": MINUTE}, "linger needs batch="),
        (one_row, {"breaker": 3}, "breaker is a CircuitBreaker"),
    ):
        with pytest.raises(DeclarationError, match=message):
            App().reactive_task(Order, **options)(handler)
