"""Races of reactive tasks: whatever comes between a change and its run, the last state of each row is handled.

A handler that only writes this database handles each state exactly once. What `test_f…` names are defects of systems
that came before, each tried here.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from stage import reacting
from stage.crews import Crew, crew, run_sql
from stage.processes import processes
from stage.reacting import held_within, sent
from stage.server import server
from stage.waits import until

from penstock import App, Id, MutationCtx, MutationTaskCtx, Retry, Table, TaskCtx
from penstock.app import Backend
from penstock.clock import SystemClock
from penstock.errors import DatabaseUnavailable, TryAgain
from penstock.testing import TestClock, gate, raising

LOST = timedelta(seconds=31)
SHORT_LEASE = 1.0


@pytest.fixture(autouse=True)
def nothing_sent() -> Iterator[None]:
    sent.clear()
    yield
    sent.clear()


def values(item: Any, *, of: str | None = None) -> list[int]:
    """What was told of an item, in order."""
    return [value for one, why, value in sent if one == str(item) and (of is None or why == of) and why != "late"]


async def put(crew: Crew, value: int = 1) -> Id[Any]:
    item: Id[Any] = await crew.run("put", value=value)
    return item


# ----- a change comes while …


async def test_a_change_while_the_run_is_pending_makes_one_run_of_the_last_state(database_url: str) -> None:
    async with crew(reacting.booking, database_url) as one:
        item = await put(one)
        await one.plan()
        for value in (2, 3):
            await one.run("patch", item=item, value=value)
            await one.plan()
        await one.settle_down()
        assert await one.backend.run_query(reacting.done, item=item) == [3]


async def test_a_change_while_the_run_is_claimed_makes_one_more(database_url: str) -> None:
    async with crew(reacting.sending, database_url) as one:
        item = await put(one)
        await one.plan()
        with gate("worker.claimed", most=1) as claimed:
            tick = asyncio.create_task(one.worker.tick())
            await claimed.arrived()
            await one.run("patch", item=item, value=2)
            await one.plan()
            claimed.open()
            await tick
        await one.settle_down()
        assert values(item) == [2], "the run of the state before found that there was another"


async def test_a_change_while_the_run_is_under_way_makes_one_more(database_url: str) -> None:
    async with crew(reacting.sending, database_url) as one:
        item = await put(one)
        await one.plan()
        with held_within() as within:
            await one.worker.tick()
            await within.arrived()
            await one.run("patch", item=item, value=2)
            await one.plan()
            within.open()
            await one.worker.wait_for_jobs()
        await one.settle_down()
        assert values(item) == [2]
        assert (
            Counter(job.state.value for job in await one.backend.jobs() if "late" not in job.function)["success"] >= 1
        )


async def test_a_change_between_outcome_and_settlement_makes_one_more(database_url: str) -> None:
    async with crew(reacting.sending, database_url) as one:
        item = await put(one)
        await one.plan()
        with gate("worker.outcome", most=1) as outcome:
            await one.worker.tick()
            await outcome.arrived()
            await one.run("patch", item=item, value=2)
            await one.plan()
            outcome.open()
            await one.worker.wait_for_jobs()
        await one.settle_down()
        assert values(item) == [1, 2]


async def test_a_change_while_a_mutation_is_about_to_commit_makes_one_more(postgres_url: str) -> None:
    """PostgreSQL only: on SQLite nobody writes meanwhile."""
    async with crew(reacting.booking, postgres_url) as one:
        for value, point in enumerate(("mutation.ran", "commit.before"), start=10):
            item = await put(one)
            await one.plan()
            with gate(point, most=1) as ran:
                await one.worker.tick()
                await ran.arrived()
                changing = asyncio.create_task(one.run("patch", item=item, value=value))
                await until(lambda: _is(one, item, value))  # noqa: B023
                planning = asyncio.create_task(one.plan())
                await asyncio.wait([planning], timeout=0.1)  # it waits for the record if the mutation has it
                ran.open()
                await changing
                await planning
                await one.worker.wait_for_jobs()
            await one.settle_down()
            found = await one.backend.run_query(reacting.done, item=item)
            assert found[-1] == value
            assert len(set(found)) == len(found), "no state twice"


async def _is(crew: Crew, item: Any, value: int) -> bool:
    return (await reacting.rows(crew.backend)).get(str(item)) == value


async def test_a_change_while_the_planner_has_planned_and_not_committed_is_not_lost(database_url: str) -> None:
    async with crew(reacting.booking, database_url) as one:
        item = await put(one)
        for point in ("planner.read", "planner.planned"):
            with gate(point, most=1) as planned:
                planning = asyncio.create_task(one.plan())
                await planned.arrived()
                await one.run("patch", item=item, value=len(point))
                await one.work()
                planned.open()
                await planning
            await one.settle_down()
            await one.run("patch", item=item, value=len(point) + 100)
        await one.settle_down()
        found = await one.backend.run_query(reacting.done, item=item)
        assert found == sorted({len("planner.read"), len("planner.planned"), len("planner.planned") + 100})


async def test_a_row_that_is_deleted_and_one_that_leaves_are_not_run(database_url: str) -> None:
    async with crew(reacting.sending, database_url) as one:
        gone, left = await put(one), await put(one)
        await one.plan()
        await one.run("remove", item=gone)
        await one.run("patch", item=left, status="closed")
        await one.plan()
        await one.settle_down()
        assert values(gone) == values(left) == []
        states = Counter(job.state.value for job in await one.backend.jobs())
        assert states["skipped"] >= 3, states


# ----- two planners


async def test_a_planner_that_lost_its_lease_writes_nothing_and_nothing_is_lost(database_url: str) -> None:
    clock = TestClock()
    async with (
        crew(reacting.booking, database_url, clock) as paused,
        crew(reacting.booking, database_url, clock) as other,
    ):
        first = await put(paused)
        await paused.plan()
        await other.plan()
        second = await put(paused, 2)
        with gate("planner.planned", most=1) as planned:
            planning = asyncio.create_task(paused.planner.tick())
            await planned.arrived()
            clock.advance(LOST)
            await other.worker.tick()  # any worker takes leases away that have run out
            await other.plan()
            third = await put(other, 3)
            await other.settle_down()
            planned.open()
            await planning
        await paused.plan()
        await other.settle_down()
        await paused.settle_down()
        for number, item in enumerate((first, second, third), start=1):
            assert await other.backend.run_query(reacting.done, item=item) == [number]
        runs = [job for job in await other.backend.jobs() if "book" in job.function]
        assert [(job.state.value, job.args["generation"]) for job in runs] == [("success", 1)] * 3


async def test_f7_a_worker_that_lost_its_lease_does_nothing_twice(database_url: str) -> None:
    clock = TestClock()
    async with (
        crew(reacting.sending, database_url, clock) as stalled,
        crew(reacting.sending, database_url, clock) as other,
    ):
        item = await put(stalled)
        await stalled.plan()
        with gate("worker.outcome", when=lambda job, **_: "late" not in job.function, most=1) as outcome:
            await stalled.worker.tick()
            await outcome.arrived()
            await stalled.run("patch", item=item, value=2)
            await stalled.plan()
            clock.advance(LOST)
            await other.worker.tick()
            await other.settle_down()
            outcome.open()
            await until(lambda: _answer(not stalled.worker.running or bool(stalled.worker.open_outcomes)))
        await stalled.worker.tick()
        await other.settle_down()
        assert values(item)[-1] == 2
        runs = [
            job for job in await other.backend.jobs() if job.args["key"] == f'["{item}"]' and "late" not in job.function
        ]
        assert [(job.state.value, job.args["generation"]) for job in runs] == [("success", 2)]


async def _answer(true: bool) -> bool:
    return true


# ----- defects of others


async def test_f3_a_planner_that_fails_loses_no_change(database_url: str) -> None:
    async with crew(reacting.booking, database_url) as one:
        item = await put(one)
        for point in ("planner.read", "planner.planned"):
            with raising(point, DatabaseUnavailable("test")), pytest.raises(DatabaseUnavailable):
                await one.plan()
        await one.settle_down()
        assert await one.backend.run_query(reacting.done, item=item) == [1]


async def test_f8_a_row_that_went_to_another_state_and_back_is_handled(database_url: str) -> None:
    async with crew(reacting.sending, database_url) as one:
        item = await put(one)
        await one.plan()
        await one.run("patch", item=item, value=2)
        await one.work()  # finds another state than it is for, and says that there is nothing to do
        assert values(item) == []
        await one.run("patch", item=item, value=1)
        await one.settle_down()
        assert values(item) == [1]


async def test_f8_a_state_that_comes_again_after_it_was_handled_is_handled_again(database_url: str) -> None:
    async with crew(reacting.sending, database_url) as one:
        item = await put(one)
        await one.settle_down()
        for value in (2, 1):
            await one.run("patch", item=item, value=value)
        await one.settle_down()
        assert values(item) == [1, 1]


async def test_f11_a_row_that_leaves_and_comes_back_unchanged_is_handled(database_url: str) -> None:
    async with crew(reacting.sending, database_url) as one:
        item = await put(one)
        await one.settle_down()
        for planned in (True, False):
            await one.run("patch", item=item, status="closed")
            if planned:
                await one.plan()
            await one.run("patch", item=item, status="open")
            await one.settle_down()
        assert values(item, of="enter") == [1, 1, 1]


async def test_f12_a_row_that_changes_all_the_time_is_handled_within_its_longest_wait(database_url: str) -> None:
    async with crew(reacting.sending, database_url) as one:
        item = await put(one)
        begun = one.clock.now()
        for second in range(1, 13):
            await one.plan()
            await one.work()
            assert not [why for _, why, _ in sent if why == "late"], second
            one.clock.advance(timedelta(seconds=1))
            await one.run("patch", item=item, value=second)
        await one.plan()
        await one.work()
        assert one.clock.now() - begun == timedelta(seconds=12)
        assert [value for _, why, value in sent if why == "late"] == [12]


async def test_f18_a_program_that_lacks_the_task_leaves_its_rows_to_others(database_url: str) -> None:
    clock = TestClock()
    async with (
        crew(reacting.booking, database_url, clock) as one,
        crew(reacting.forgetful, database_url, clock) as older,
    ):
        item = await put(one)
        await older.plan()  # a planner plans for all tasks that the database knows
        assert [job.state.value for job in await one.backend.jobs()] == ["pending"]
        for _ in range(3):
            await older.work()
        assert await one.backend.run_query(reacting.done, item=item) == []
        await one.settle_down()
        assert await one.backend.run_query(reacting.done, item=item) == [1]


class Shop(Table, source="shop", key="nr", managed=False):
    nr: int
    name: str


class Stock(Table, source="stock", key="nr", managed=False):
    nr: int
    name: str


collided: list[tuple[str, int, str]] = []
colliding = App()


@colliding.reactive_task(Shop)
async def shop_changed(ctx: MutationTaskCtx[Shop]) -> None:
    collided.append(("shop", ctx.doc_id, (await ctx.get_document()).name))


@colliding.reactive_task(Stock)
async def stock_changed(ctx: MutationTaskCtx[Stock]) -> None:
    collided.append(("stock", ctx.doc_id, (await ctx.get_document()).name))


@colliding.mutation
async def both(ctx: MutationCtx, number: int) -> None:
    await ctx.db.insert(Shop(nr=number, name="a"))
    await ctx.db.insert(Stock(nr=number, name="b"))


async def test_f2_rows_of_two_tables_with_one_id_are_handled_each(database_url: str) -> None:
    collided.clear()
    async with reacting.forgetful.open(database_url) as backend:
        await run_sql(backend, "create table shop (nr integer primary key, name text not null)")
        await run_sql(backend, "create table stock (nr integer primary key, name text not null)")
    async with crew(colliding, database_url) as one:
        for number in (1, 2):
            await one.backend.run_mutation(both, number=number)
        await one.settle_down()
        assert sorted(collided) == [("shop", 1, "a"), ("shop", 2, "a"), ("stock", 1, "b"), ("stock", 2, "b")]


# ----- processes that die


async def test_whatever_is_killed_the_last_state_of_each_row_is_handled_and_no_state_twice(database_url: str) -> None:
    """Processes that plan and work are killed again and again, while rows change."""
    rounds, stop = 3, asyncio.Event()
    async with reacting.booking.open(database_url) as backend:
        ids = [str(await backend.run_mutation(reacting.put, value=1)) for _ in range(8)]
        written = 1

        async def write() -> None:
            nonlocal written
            while not stop.is_set():
                written += 1
                await backend.run_mutation(reacting.patch, item=Id(ids[written % len(ids)]), value=written)
                await SystemClock().sleep(0.03)

        async def handled() -> bool:
            done = [await backend.run_query(reacting.done, item=item) for item in ids]
            return all(value in found for value, found in zip((await last()).values(), done, strict=True))

        async def last() -> dict[str, int]:
            found = await reacting.rows(backend)
            return {item: found[item] for item in ids}

        writing = asyncio.create_task(write())
        for number in range(rounds):
            before = sum([len(await backend.run_query(reacting.done, item=item)) for item in ids])
            with processes(2, "work", database_url, program="stage.reacting", lease=SHORT_LEASE) as both:

                async def some(least: int = before + 5) -> bool:
                    return sum([len(await backend.run_query(reacting.done, item=item)) for item in ids]) >= least

                await until(some)
                for one in both[: 1 + number % 2]:
                    await asyncio.to_thread(one.kill)
                await until(lambda: _answer(True))
        stop.set()
        await writing
        with processes(1, "work", database_url, program="stage.reacting", lease=SHORT_LEASE):
            await until(handled)
        for item in ids:
            found = await backend.run_query(reacting.done, item=item)
            assert len(found) == len(set(found)), "each state is written down once"
        states = Counter(job.state.value for job in await backend.jobs(limit=100))
        assert not re.search("failed", " ".join(states)), states


async def test_when_who_plans_is_killed_another_goes_on_though_no_process_works(database_url: str) -> None:
    async with reacting.booking.open(database_url) as backend:
        with processes(2, "plan", database_url, program="stage.reacting", lease=SHORT_LEASE) as both:
            await until(lambda: _planned(backend))
            first = await backend.run_mutation(reacting.put, value=1)
            await until(lambda: _is_ready(backend, 1))
            dead = await _planner(backend)
            (killed,) = [one for one in both if str(one.number) == dead.rpartition(":")[2]]
            await asyncio.to_thread(killed.kill)
            second = await backend.run_mutation(reacting.put, value=2)
            await until(lambda: _is_ready(backend, 2))
            assert await _planner(backend) not in {dead, ""}
        with processes(1, "work", database_url, program="stage.reacting", lease=SHORT_LEASE):
            await until(lambda: _handled(backend, first, second))


async def _planner(backend: Backend) -> str:
    """How the one who plans is called; empty if nobody does."""
    store = backend.engine.store
    (reader,) = [row for row in await store.changes.readers() if row.name == "tasks"]
    session = await store.begin_read()
    try:
        return "".join(row.holder for row in await store.leases.list(session) if row.lease == reader.lease)
    finally:
        await session.rollback()


async def _planned(backend: Backend) -> bool:
    return bool(await _planner(backend))


async def _is_ready(backend: Backend, count: int) -> bool:
    return (await backend.job_counts())["ready"] == count


async def _handled(backend: Backend, *items: Id[Any] | None) -> bool:
    return all([await backend.run_query(reacting.done, item=str(item)) for item in items])


async def test_f14_a_handler_that_kills_its_process_each_time_fails_in_the_end(database_url: str) -> None:
    async with reacting.forgetful.open(database_url) as backend:
        await backend.run_mutation(reacting.put)
        for _ in range(2):
            with processes(1, "die", database_url, program="stage.reacting", lease=SHORT_LEASE) as (one,):
                assert await asyncio.to_thread(one.wait) == -9
        with processes(1, "work", database_url, program="stage.reacting", lease=SHORT_LEASE):
            await until(lambda: _has_failed(backend))
        (job,) = await backend.jobs("failed")
        assert [one.what for one in job.attempts] == ["lost", "abandoned"]


async def _has_failed(backend: Backend) -> bool:
    return (await backend.job_counts()).get("failed") == 1


async def test_f15_without_a_reset_a_row_that_changes_and_fails_all_the_time_fails_in_the_end(
    database_url: str,
) -> None:
    failing = App()

    @failing.reactive_task(reacting.Item, reset_retries_on_data_change=False, retry=Retry(max_attempts=3))
    async def fail(ctx: TaskCtx[reacting.Item]) -> None:
        raise RuntimeError("test")

    async with crew(failing, database_url) as one:
        item = await put(one)
        for value in range(3):
            await one.plan()
            assert (await one.backend.job_counts()).get("failed") is None
            await one.work()
            if value < 2:
                await one.run("patch", item=item, value=value + 10)
        (job,) = await one.backend.jobs("failed")
        assert [attempt.what for attempt in job.attempts] == ["raised", "raised", "exhausted"]


# ----- rolling deploys


async def test_f18_what_left_the_filter_of_a_version_before_is_not_dropped_by_the_one_after(database_url: str) -> None:
    """While both triggers are there, one tells that a row leaves, and the other that it stays."""
    before, after = App(), App()

    async def handle(ctx: TaskCtx[reacting.Item]) -> None:
        sent.append((str(ctx.doc_id), ctx.change, (await ctx.get_document()).value))

    before.reactive_task(reacting.Item, filter=lambda item: item.status == "open", watch=("value",))(handle)
    after.reactive_task(reacting.Item, filter=lambda item: item.status != "closed", watch=("value",), version=2)(handle)
    clock = TestClock()
    async with crew(before, database_url, clock) as old:
        item = await put(old)
        await old.plan()
        await old.run("patch", item=item, status="paid")  # told by the old trigger only, and read by nobody yet
        async with crew(after, database_url, clock) as new:
            await old.plan()  # for all versions
            await new.settle_down()
            assert values(item) == [1]
            for status in ("closed", "paid"):
                await new.run("patch", item=item, status=status)
            await old.plan()
            await new.settle_down()
            assert values(item) == [1, 1]


async def test_a_planner_goes_on_after_a_crash_that_gives_numbers_of_undone_transactions_anew() -> None:
    with server("wal_writer_delay = '10s'\n") as own:
        async with crew(reacting.booking, own.url) as one:
            item = await put(one)
            await one.settle_down()
            await own.spend_numbers(200, "rollback")
            await one.plan()
            await own.restart()
            await one.run("patch", item=item, value=2)
            await own.spend_numbers(300, "commit")

            async def is_done() -> bool:
                with suppress(TryAgain):
                    await one.settle_down()
                return bool(await one.backend.run_query(reacting.done, item=item) == [1, 2])

            await until(is_done)
