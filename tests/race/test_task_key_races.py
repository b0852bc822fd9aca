"""Rows of one key of a task, with several workers, some of which die: one at a time, and in order all the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import groupby
from typing import Any

from stage.reactive import Stage
from stage.waits import until

from penstock import Retry, Table, TaskCtx
from penstock.testing import TestApp, gate

KEYS, ROWS = "abcde", 12
again = Retry(max_attempts=9, initial_backoff=0.01)


class Item(Table):
    number: int = 0
    owner: str = "a"


class Keyed(Stage):
    """A task with the owners of its rows as their keys. Runs of some numbers fail at first."""

    def __init__(self) -> None:
        super().__init__(Item)
        self.begun: list[tuple[str, int]] = []
        self.under_way: Counter[str] = Counter()
        self.most = 0
        self.failing: Counter[tuple[str, int]] = Counter()
        pool = self.app.workpool("keyed", max_parallelism=20, key_parallelism=1)

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

        self.task(Item, handler=handler, watch=("number",), key="owner", pool=pool, retry=again)

    def order(self, owner: str) -> list[int]:
        """The numbers of an owner's rows as they were begun, without repetitions."""
        return [number for number, _ in groupby(number for one, number in self.begun if one == owner)]


@asynccontextmanager
async def two_on(stage: Stage, url: str) -> AsyncIterator[tuple[TestApp, TestApp]]:
    async with stage.open(url) as one, stage.open(url, clock=one.clock) as two:
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


async def test_a_worker_that_stops_hands_a_row_back_before_the_next_of_its_key(database_url: str) -> None:
    stage = Keyed()
    async with two_on(stage, database_url) as (one, two):
        await stage.insert(one, *(Item(number=number) for number in range(3)))
        await one.plan()
        with gate("task.begun", most=1) as held:
            await one.worker.tick()
            await held.arrived()
            await one.worker.finish()
            held.open()
            await two.run_until_idle()
        assert stage.order("a") == [0, 1, 2]


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
