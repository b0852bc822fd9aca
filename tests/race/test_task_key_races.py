"""Rows of one key of a task, with several workers, some of which die: one at a time, and in order all the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

import asyncpg
import pytest
from stage.reactive import Stage
from stage.waits import until

from penstock import ActionCtx, MutationTaskCtx, Retry, Table, TaskCtx
from penstock.store.postgres import jobs as postgres_jobs
from penstock.store.postgres.dialect import POSTGRES
from penstock.store.sql.queries import load_queries
from penstock.store.sqlite import jobs as sqlite_jobs
from penstock.testing import TestApp, gate

KEYS, ROWS = "abcde", 12
again = Retry(max_attempts=9, initial_backoff=0.01)


class Item(Table):
    number: int = 0
    owner: str = "a"
    at: datetime | None = None


class Keyed(Stage):
    """A task with the owners of its rows as their keys. Runs of some numbers fail at first."""

    def __init__(self, **options: Any) -> None:
        super().__init__(Item)
        self.begun: list[tuple[str, int]] = []
        self.under_way: Counter[str] = Counter()
        self.most = 0
        self.failing: Counter[tuple[str, int]] = Counter()
        pool = self.pool = self.app.workpool("keyed", max_parallelism=20, key_parallelism=1)

        async def handler(ctx: TaskCtx[Any]) -> None:
            item = await ctx.get_document()
            place = item.owner, item.number
            self.under_way[item.owner] += 1
            self.most = max(self.most, self.under_way[item.owner])
            try:
                self.begun.append(place)
                await ctx.get_document()  # others may come between
                if self.failing[place]:
                    self.failing[place] -= 1
                    raise ConnectionError("down")
            finally:
                self.under_way[item.owner] -= 1

        self.task(Item, handler=handler, watch=("number",), key="owner", pool=pool, retry=again, **options)

    def order(self, owner: str) -> list[int]:
        """The numbers of an owner's rows as they were begun, without repetitions."""
        return [number for number, _ in groupby(number for one, number in self.begun if one == owner)]


@asynccontextmanager
async def two_on(stage: Stage, url: str, **settings: Any) -> AsyncIterator[tuple[TestApp, TestApp]]:
    async with stage.open(url, **settings) as one, stage.open(url, clock=one.clock, **settings) as two:
        yield one, two


async def test_two_workers_run_one_row_of_a_key_at_a_time(database_url: str) -> None:
    stage = Keyed()
    async with two_on(stage, database_url) as (one, two):
        await stage.insert(one, *(Item(number=number) for number in range(4)))
        await one.plan()
        with gate("task.begun") as held:
            for number in range(4):
                for test in (one, two):
                    await test.worker.tick()
                await held.arrived(number + 1)
                assert len(one.worker.running) + len(two.worker.running) == 1
                assert (await one.job_counts())["running"] == 1
                held.let_pass()
                for test in (one, two):
                    await test.worker.wait_for_jobs()
                    await test.worker.tick()
        assert stage.order("a") == [0, 1, 2, 3]


async def test_a_row_whose_worker_dies_is_run_again_before_the_next_of_its_key(database_url: str) -> None:
    stage = Keyed()
    async with two_on(stage, database_url) as (one, two):
        await stage.insert(one, *(Item(number=number) for number in range(3)))
        await one.plan()
        with gate("task.begun", most=1) as held:
            await one.worker.tick()
            await held.arrived()
            await one.worker.kill()
            held.open()
            two.clock.advance(timedelta(minutes=5))
            await two.run_until_idle()
        assert stage.order("a") == [0, 1, 2]
        assert [ran.attempt for ran in stage.taken()] == [2, 1, 1]


async def stopped_amid_the_first(stage: Stage, url: str) -> None:
    """A worker stops while it runs the first of three rows of a key, and another one goes on."""
    async with two_on(stage, url, grace=0.05) as (one, two):
        await stage.insert(one, *(Item(number=number) for number in range(3)))
        await one.plan()
        with gate("task.begun", most=1) as held:
            await one.worker.tick()
            await held.arrived()
            await one.worker.finish()
            held.open()
            await two.run_until_idle()


async def test_a_row_whose_worker_stops_amid_it_is_run_again_before_the_next_of_its_key(database_url: str) -> None:
    stage = Keyed()
    await stopped_amid_the_first(stage, database_url)
    assert stage.order("a") == [0, 1, 2]
    assert [ran.attempt for ran in stage.taken()] == [2, 1, 1], "nobody knows what its action has done"


async def test_a_row_that_a_worker_hands_back_is_run_before_the_next_of_its_key(database_url: str) -> None:
    stage = Stage(Item)
    pool = stage.app.workpool("keyed", max_parallelism=20, key_parallelism=1)
    ran: list[tuple[int, int]] = []

    @stage.app.reactive_task(Item, watch=("number",), key="owner", pool=pool)
    async def note(ctx: MutationTaskCtx[Item]) -> None:
        ran.append(((await ctx.get_document()).number, ctx.attempt))

    await stopped_amid_the_first(stage, database_url)
    assert ran == [(0, 1), (1, 1), (2, 1)], "a mutation that did not commit has done nothing"


async def test_the_order_holds_with_many_keys_failures_and_workers(database_url: str) -> None:
    stage = Keyed()
    for place, owner in enumerate(KEYS):
        stage.failing.update({(owner, number): (number + place) % 4 for number in range(ROWS)})
    attempts = len(KEYS) * ROWS + stage.failing.total()
    async with (
        stage.app.open(database_url, services=("worker", "planner")) as one,
        stage.app.open(database_url, services=("worker", "planner")) as two,
    ):
        for number in range(0, ROWS, 2):
            await stage.insert(
                (one, two)[number % 4 // 2], *(Item(number=number + n, owner=o) for n in range(2) for o in KEYS)
            )

        async def done() -> bool:
            return len(stage.ran) == len(KEYS) * ROWS

        await until(done)
    assert stage.most == 1
    assert {owner: stage.order(owner) for owner in KEYS} == {owner: [*range(ROWS)] for owner in KEYS}
    assert len(stage.begun) == attempts


# ----- jobs that others have in hand


@asynccontextmanager
async def in_hand(url: str, statement: str, *args: Any) -> AsyncIterator[None]:
    """A statement of somebody else, whose transaction is open for the time of a block."""
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            await connection.execute(statement, *args)
            yield
    finally:
        await connection.close()


async def look(test: TestApp) -> None:
    """Let the worker look, more often than it has reason to."""
    for _ in range(4):
        await test.worker.tick()
        await test.worker.wait_for_jobs()


def locking(place: int) -> str:
    """Locks one of the jobs with the key "a", as who changes it does."""
    ordered = "select id from penstock.scheduled_job where concurrency_key like '%a%' order by rank, place, id"
    return f"select from penstock.scheduled_job where id = ({ordered} limit 1 offset {place}) for update"


async def test_a_row_that_another_worker_is_about_to_let_wait_keeps_its_turn(postgres_url: str) -> None:
    stage, promote = (
        Keyed(debounce=timedelta(seconds=5)),
        load_queries("moves", POSTGRES)["promote"],
    )
    async with stage.open(postgres_url) as test:
        for owner, number in (("a", 0), ("a", 1), ("b", 2), ("a", 3)):
            await stage.insert(test, Item(number=number, owner=owner))
            await test.plan()
            test.clock.advance(timedelta(seconds=1))
        test.clock.advance(timedelta(seconds=9))
        values = promote.args({"now": test.clock.now(), "limit": 1})
        async with in_hand(postgres_url, promote.statement.sql, *values):
            await look(test)
            assert stage.begun == [("b", 2)]
        await test.run_until_idle()
        assert stage.order("a") == [0, 1, 3]


async def test_a_row_that_is_due_before_all_that_are_due_can_be_let_wait_keeps_its_turn(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (postgres_jobs, sqlite_jobs):
        monkeypatch.setattr(module, "_PROMOTE_MOST", 1)
    stage = Keyed(run_at="at")
    async with stage.open(database_url) as test:
        now = test.clock.now()
        for seconds, owner in enumerate("bca"):
            await stage.insert(test, Item(owner=owner, at=now + timedelta(seconds=5 + seconds)))
        await test.plan()
        test.clock.advance(timedelta(seconds=10))
        await stage.insert(test, Item(number=1, at=now + timedelta(seconds=9)))
        await test.plan()  # this one waits at once
        await test.run_until_idle()
        assert stage.order("a") == [0, 1]


@pytest.mark.parametrize(("place", "begun"), [(0, []), (1, [0]), (2, [0, 1])])
async def test_a_row_that_is_being_changed_keeps_its_turn(postgres_url: str, place: int, begun: list[int]) -> None:
    stage = Keyed()
    async with stage.open(postgres_url) as test:
        await stage.insert(test, *(Item(number=number) for number in range(3)), Item(number=9, owner="b"))
        await test.plan()
        async with in_hand(postgres_url, locking(place)):
            await look(test)
            assert (stage.order("a"), stage.order("b")) == (begun, [9])
        await test.run_until_idle()
        assert stage.order("a") == [0, 1, 2]


async def test_a_row_that_is_canceled_while_somebody_holds_it_lets_the_next_ones_go(postgres_url: str) -> None:
    stage = Keyed()
    async with stage.open(postgres_url) as test:
        first, _ = await stage.insert(test, *(Item(number=number) for number in range(2)))
        await test.plan()
        job = (await stage.app.tasks.explain(test, "react", first)).job
        assert job is not None
        async with in_hand(postgres_url, locking(0)):
            await test.scheduler.cancel(job.id)
            await look(test)
            assert stage.order("a") == [1]


async def test_ordinary_work_that_is_being_changed_keeps_nobody_waiting(postgres_url: str) -> None:
    stage = Keyed()
    done: list[int] = []

    @stage.app.internal_action
    async def act(ctx: ActionCtx, number: int) -> None:
        done.append(number)

    async with stage.open(postgres_url) as test:
        keyed = stage.pool.with_options(concurrency_key="a")
        await keyed.enqueue_batch(test, act, [{"number": number} for number in range(3)])
        async with in_hand(postgres_url, locking(0)):
            await look(test)
            assert done == [1, 2]
