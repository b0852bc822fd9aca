"""Rows of one key of a reactive task: one at a time, in the order of their changes, whatever comes between."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from stage.feed import write
from stage.stories import Stage, settle, silence

from penstock import ActionCtx, Id, Retry, Table, TaskBatchCtx, TaskCtx, TaskFilter
from penstock.testing import TestApp, TestClock, gate

again = Retry(max_attempts=3, initial_backoff=10.0)
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
Does = Callable[[TaskCtx[Any], int], Awaitable[None]]


class Item(Table):
    number: int = 0
    owner: str | None = "a"


class Unsteady(TestClock):
    """A clock that can be set wrong."""

    off = timedelta(0)

    def now(self) -> datetime:
        """The time it shows."""
        return super().now() + self.off


class Keyed(Stage):
    """A task whose rows have the owner as their key, and the numbers of those that it has begun to run."""

    def __init__(self, **options: Any) -> None:
        super().__init__(Item)
        self.numbers: list[int] = []
        self.failing: dict[int, int] = {}  # how many attempts at which numbers are still to fail
        self.does: Does | None = None
        self.pool = self.app.workpool("keyed", key_parallelism=1)

        async def handler(ctx: TaskCtx[Any]) -> None:
            number = ctx.watched_values["number"]
            self.numbers.append(number)
            if self.does is not None:
                await self.does(ctx, number)
            if self.failing.get(number, 0):
                self.failing[number] -= 1
                raise ConnectionError("down")

        given: dict[str, Any] = {"watch": ("number",), "key": "owner", "pool": self.pool, "retry": again} | options
        self.task(Item, handler=handler, **given)

    async def fill(self, test: TestApp, *numbers: int, owner: str | None = "a") -> list[Id[Any]]:
        """Insert rows of one owner."""
        return await self.insert(test, *(Item(number=number, owner=owner) for number in numbers))

    def begun(self) -> list[int]:
        """What has been begun since it was last asked."""
        numbers, self.numbers = self.numbers, []
        return numbers


async def now(test: TestApp) -> None:
    """Plan and run what is due now."""
    await test.run_until_idle(advance=False, raise_errors=False)


async def finish(test: TestApp) -> None:
    """The same, and what is due later."""
    await test.run_until_idle(raise_errors=False)


# ----- order


async def test_rows_run_in_the_order_of_their_last_changes_unless_they_wait_already(database_url: str) -> None:
    stage = Keyed()
    async with stage.open(database_url) as test:
        ids = await stage.fill(test, 0, 1, 2, 3)
        await now(test)
        assert stage.begun() == [0, 1, 2, 3]
        for place, number in ((2, 22), (0, 20), (3, 23), (1, 21), (3, 33)):
            await stage.patch(test, Item, ids[place], number=number)
        await now(test)
        assert stage.begun() == [22, 20, 21, 33]
        ids = await stage.fill(test, 40, 41, 42)
        await test.plan()
        await stage.patch(test, Item, ids[0], number=50)
        await test.plan()
        await now(test)
        assert stage.begun() == [50, 41, 42], "it keeps its place"


async def test_a_row_that_changes_amid_its_run_or_before_its_next_attempt_goes_behind_those_changed_before(
    database_url: str,
) -> None:
    stage = Keyed()
    stage.failing = {0: 1}
    async with stage.open(database_url) as test:
        first, *_ = await stage.fill(test, 0, 2, 4)
        await now(test)
        test.clock.advance(timedelta(seconds=1))
        await stage.patch(test, Item, first, number=10)
        await now(test)
        assert stage.begun() == [0, 2, 4, 10]
        first, *_ = await stage.fill(test, 1, 3, 5)
        await test.plan()
        with gate("task.begun", most=1) as held:
            await test.worker.tick()
            await held.arrived()
            await stage.patch(test, Item, first, number=11)
            await test.plan()
            held.open()
            await now(test)
        assert stage.begun() == [1, 3, 5, 11]


async def test_debounced_rows_run_in_the_order_in_which_they_are_due(database_url: str) -> None:
    stage = Keyed(debounce=timedelta(seconds=5))
    async with stage.open(database_url) as test:
        ids = await stage.fill(test, 0, 1, 2)
        for place in (0, 1):
            await settle(test, timedelta(seconds=4))
            await stage.patch(test, Item, ids[place], number=10 + place)
        await finish(test)
        assert stage.begun() == [2, 10, 11]


# ----- what a handler, or whoever looks after the task, asks for


async def test_a_throttle_keeps_the_order(database_url: str) -> None:
    stage = Keyed()

    async def throttle(ctx: TaskCtx[Any], number: int) -> None:
        if number == 0 and ctx.attempt == 1:
            ctx.throttle_all(MINUTE)
            raise ConnectionError("429")

    stage.does = throttle
    async with stage.open(database_url) as test:
        await stage.fill(test, 0, 2, 4)
        await now(test)
        await settle(test, timedelta(seconds=30))
        await stage.fill(test, 6)
        await settle(test, timedelta(seconds=29))
        assert stage.begun() == [0], "none begins before its time"
        await finish(test)
        assert stage.begun() == [0, 2, 4, 6]


async def test_a_pause_keeps_the_order(database_url: str) -> None:
    stage = Keyed()
    async with stage.open(database_url) as test:
        await now(test)
        await stage.app.tasks.pause(test, "react")
        await settle(test, MINUTE)
        await stage.fill(test, 0, 2)
        await now(test)
        await stage.fill(test, 4)
        await settle(test, timedelta(hours=2))
        at = test.clock.now()
        await finish(test)
        assert (stage.begun(), test.clock.now()) == ([], at), "what is paused is no reason to move the clock"
        await stage.fill(test, 6)
        await test.plan()
        await stage.app.tasks.resume(test, "react")
        await settle(test, MINUTE)
        assert stage.begun() == [0, 2, 4, 6]


# ----- one at a time


async def running(test: TestApp) -> int:
    """How many runs are begun at once, if none of them ends."""
    with gate("task.begun") as held:
        for _ in range(3):  # slots of the pool are taken first
            await test.worker.tick()
        await held.arrived()
        count = (await test.job_counts())["running"]
        held.open()
        await now(test)
    return count


async def test_deleted_rows_that_are_found_later_run_one_at_a_time(database_url: str) -> None:
    stage = Keyed(on=("enter", "change", "delete"))
    async with stage.open(database_url) as test:
        ids = [*await stage.fill(test, *range(6)), *await stage.fill(test, 10, 11, owner="b")]
        ids += await stage.fill(test, 20, 21, owner=None)
        await test.plan()
        assert await running(test) == 3
        stage.begun()
        await silence(test)
        for one in ids:
            await stage.delete(test, Item, one)
        await stage.app.tasks.reconcile(test, "react")
        await test.plan()
        assert await running(test) == 3
        assert sorted(stage.begun()) == [*range(6), 10, 11, 20, 21]


async def test_rows_of_a_truncated_table_run_one_at_a_time(postgres_url: str) -> None:
    stage = Keyed(on=("enter", "change", "delete"))
    async with stage.open(postgres_url) as test:
        await stage.fill(test, *range(6))
        await stage.fill(test, 10, owner="b")
        await now(test)
        stage.begun()
        await write(test.engine.store, 'truncate "item"')
        await test.plan()
        assert await running(test) == 2
        assert sorted(stage.begun()) == [*range(6), 10]


class Priced(Table):
    owner: str = ""
    price: Decimal = Decimal(1)
    ratio: float = 0.0


@pytest.mark.parametrize("older", [True, False])
async def test_rows_whose_keys_are_empty_or_equal_run_one_at_a_time(database_url: str, *, older: bool) -> None:
    before, stage = Stage(Priced), Stage(Priced)
    for key in ("owner", "price", "ratio"):
        stage.task(Priced, key, key=key, pool=stage.app.workpool(key, key_parallelism=1))
    zero = 0.0 if database_url.startswith("sqlite") else -0.0  # columns of SQLite hold no minus zero
    rows = [Priced(price=Decimal(price), ratio=ratio) for price, ratio in (("1.0", 0.0), ("1.00", zero), ("1", 0.0))]
    if older:
        async with before.open(database_url) as test:
            await before.insert(test, *rows)
    async with stage.open(database_url) as test:
        if not older:
            await stage.insert(test, *rows)
        await test.plan()
        assert await running(test) == 3, "one of each task"
        assert sorted(ran.task for ran in stage.taken()) == ["owner"] * 3 + ["price"] * 3 + ["ratio"] * 3


async def test_a_batch_takes_one_row_of_each_key(database_url: str) -> None:
    batches: list[list[int]] = []
    stage = Stage(Item)
    pool = stage.app.workpool("keyed", key_parallelism=1)

    @stage.app.reactive_task(Item, watch=("number",), key="owner", pool=pool, batch=10, retry=again)
    async def together(ctx: TaskBatchCtx[Item]) -> None:
        batches.append(sorted(run.watched_values["number"] for run in ctx.runs))
        for run in ctx.runs:
            if run.watched_values["number"] == 0 and run.attempt == 1:
                run.fail(ConnectionError("down"))

    async with stage.open(database_url) as test:
        await stage.insert(test, *(Item(number=number, owner="ab"[number % 2]) for number in range(4)))
        await finish(test)
    assert batches == [[0, 1], [3], [0], [2]]


# ----- other work of the pool


async def test_work_of_the_same_key_waits_for_a_row_that_is_tried_again_and_nobody_waits_for_other_work(
    database_url: str,
) -> None:
    stage = Keyed()
    stage.failing = {1: 1}
    done: list[str] = []

    @stage.app.action
    async def work(ctx: ActionCtx, name: str) -> None:
        done.append(name)
        if name == "first" and done.count("first") == 1:
            raise ConnectionError("down")

    async with stage.open(database_url) as test:
        keyed = stage.pool.with_options(concurrency_key="a", retry=again)
        await keyed.enqueue(test, work, "first")
        await keyed.enqueue(test, work, "second")
        await stage.fill(test, 0)
        await now(test)
        assert (done, stage.begun()) == (["first", "second"], [0])
        await finish(test)
        assert done == ["first", "second", "first"]
        done.clear()
        await stage.fill(test, 1)
        await now(test)
        for key in ("a", "b"):
            await stage.pool.with_options(concurrency_key=key).enqueue(test, work, key)
        await stage.pool.enqueue(test, work, "none")
        await now(test)
        assert sorted(done) == ["b", "none"]
        await finish(test)
        assert done[2:] == ["a"]


async def test_a_clock_that_is_set_back_keeps_the_order_and_one_that_was_ahead_holds_nobody_up(
    database_url: str,
) -> None:
    stage, clock, behind = Keyed(), Unsteady(), Unsteady(seed=7)
    async with stage.open(database_url, clock=clock) as test, stage.open(database_url, clock=behind) as other:
        for number, off in enumerate((0, -1, -9, -2)):
            clock.off = off * SECOND
            await stage.fill(test, number)
            await test.plan()
        clock.off = timedelta(0)
        await now(test)
        assert stage.begun() == [0, 1, 2, 3]
        clock.off = timedelta(days=1)
        await stage.fill(test, 4)
        await test.plan()
        clock.off = timedelta(0)
        await stage.fill(test, 5, owner="b")
        await test.plan()
        await now(test)
        assert sorted(stage.begun()) == [4, 5]
        await stage.fill(test, 6)
        await test.plan()
        await test.planner.finish()
        behind.off = -5 * SECOND
        for number in (7, 8):
            await stage.fill(other, number)
            await other.plan()
        await now(test)
        assert stage.begun() == [6, 7, 8], "whichever process plans"


async def test_a_row_that_is_canceled_or_deferred_or_has_failed_lets_the_next_ones_go(database_url: str) -> None:
    stage = Keyed()
    stage.failing = {0: 1, 4: 1, 8: 3}

    async def defer(ctx: TaskCtx[Any], number: int) -> None:
        if number == 12 and stage.numbers.count(12) == 1:
            ctx.defer_current(MINUTE)

    stage.does = defer
    async with stage.open(database_url) as test:
        first, *_ = await stage.fill(test, 0, 2)
        await now(test)
        assert stage.begun() == [0]
        await stage.app.tasks.cancel(test, TaskFilter(task="react", key=first))
        await now(test)
        assert stage.begun() == [2]
        first, *_ = await stage.fill(test, 4, 6)
        await now(test)
        test.clock.advance(timedelta(seconds=1))
        await stage.app.tasks.retry(test, TaskFilter(task="react", key=first))
        await now(test)
        assert stage.begun() == [4, 6, 4], "one that is retried by hand is due at once"
        await stage.fill(test, 8, 10)
        await finish(test)
        assert stage.begun() == [8, 8, 8, 10], "tried again first, and then failed for good"
        await stage.fill(test, 12, 14)
        await finish(test)
        assert stage.begun() == [12, 14, 12]
