"""Races of reactive tasks: whatever comes between a change and its run, the last state of each row is handled.

A handler that only writes this database handles each state exactly once. What `test_f…` names are defects of systems
that came before, each tried here.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from programs import reacting
from programs.reacting import held_within, sent
from stage.faults import held
from stage.stories import Crew, crew
from stage.waits import until

from penstock import Id
from penstock.errors import DatabaseUnavailable
from penstock.testing import TestClock, gate, raising

LOST = timedelta(seconds=31)


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


async def done(crew: Crew, item: Id[Any]) -> list[int]:
    found: list[int] = await crew.backend.run_query(reacting.done, item=item)
    return found


async def states(crew: Crew) -> Counter[str]:
    return Counter(job.state.value for job in await crew.backend.jobs() if "late" not in job.function)


# ----- a change comes while …


async def test_a_change_while_a_run_is_pending_claimed_under_way_or_unsettled_makes_one_more(
    database_url: str,
) -> None:
    async with crew(reacting.sending, database_url) as one:

        async def change(item: Id[Any], value: int = 2) -> None:
            await one.run("patch", item=item, value=value)
            await one.plan()

        pending = await put(one)
        await one.plan()
        await change(pending)
        await change(pending, 3)
        await one.settle_down()
        assert values(pending) == [3], "one run of the last state"

        claimed = await put(one)
        await one.plan()
        async with held("worker.claimed", one.worker.tick()):
            await change(claimed)
        await one.settle_down()
        assert values(claimed) == [2], "the run of the state before found that there was another"

        begun = await put(one)
        await one.plan()
        with held_within() as within:
            await one.worker.tick()
            await within.arrived()
            await change(begun)
            within.open()
            await one.worker.wait_for_jobs()
        await one.settle_down()
        assert values(begun) == [2]

        unsettled = await put(one)
        await one.plan()
        with gate("worker.outcome", most=1, when=lambda job, **_: "late" not in job.function) as outcome:
            await one.worker.tick()
            await outcome.arrived()
            await change(unsettled)
            outcome.open()
            await one.worker.wait_for_jobs()
        await one.settle_down()
        assert values(unsettled) == [1, 2]

        gone, left = await put(one), await put(one)
        await one.plan()
        await one.run("remove", item=gone)
        await one.run("patch", item=left, status="closed")
        await one.plan()
        before = (await states(one))["skipped"]
        await one.settle_down()
        assert values(gone) == values(left) == []
        assert (await states(one))["skipped"] >= before


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
                await asyncio.gather(changing, planning)
                await one.worker.wait_for_jobs()
            await one.settle_down()
            found = await done(one, item)
            assert found[-1] == value
            assert len(set(found)) == len(found), "no state twice"


async def _is(crew: Crew, item: Any, value: int) -> bool:
    return (await reacting.rows(crew.backend)).get(str(item)) == value


async def test_f3_a_change_while_a_planner_plans_or_fails_is_not_lost(database_url: str) -> None:
    async with crew(reacting.booking, database_url) as one:
        item = await put(one)
        points = ("planner.read", "planner.planned")
        for point in points:
            with raising(point, DatabaseUnavailable("test")), pytest.raises(DatabaseUnavailable):
                await one.plan()
        await one.settle_down()
        assert await done(one, item) == [1]
        for value, point in zip((10, 20), points, strict=True):
            await one.run("patch", item=item, value=value)
            async with held(point, one.plan()):
                await one.run("patch", item=item, value=value + 1)
                await one.work()
            await one.settle_down()
        assert await done(one, item) == [1, 11, 21]


# ----- two planners, two workers


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
        async with held("planner.planned", paused.planner.tick()):
            clock.advance(LOST)
            await other.worker.tick()  # any worker takes leases away that have run out
            await other.plan()
            third = await put(other, 3)
            await other.settle_down()
        await paused.plan()
        await other.settle_down()
        await paused.settle_down()
        assert [await done(other, item) for item in (first, second, third)] == [[1], [2], [3]]
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
            await until(lambda: not stalled.worker.running or bool(stalled.worker.open_outcomes))
        await stalled.worker.tick()
        await other.settle_down()
        assert values(item)[-1] == 2
        runs = [
            job for job in await other.backend.jobs() if job.args["key"] == f'["{item}"]' and "late" not in job.function
        ]
        assert [(job.state.value, job.args["generation"]) for job in runs] == [("success", 2)]


# ----- defects of others


async def test_f8_f11_states_that_come_again_and_rows_that_come_back_are_handled(database_url: str) -> None:
    async with crew(reacting.sending, database_url) as one:
        item = await put(one)
        await one.plan()
        await one.run("patch", item=item, value=2)
        await one.work()  # finds another state than it is for, and says that there is nothing to do
        assert values(item) == []
        await one.run("patch", item=item, value=1)
        await one.settle_down()
        assert values(item) == [1], "it went to another state and back"
        for value in (2, 1):
            await one.run("patch", item=item, value=value)
        await one.settle_down()
        assert values(item) == [1, 1], "it went there and back after it was handled"
        for planned in (True, False):
            await one.run("patch", item=item, status="closed")
            if planned:
                await one.plan()
            await one.run("patch", item=item, status="open")
            await one.settle_down()
        assert values(item)[2:] == [1, 1], "it left and came back unchanged"
        assert values(item, of="enter")[-2:] == [1, 1]


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
        assert await done(one, item) == []
        await one.settle_down()
        assert await done(one, item) == [1]
