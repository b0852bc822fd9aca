"""What planning rows of tasks and ending their runs asks of the database: little, and of each row what is its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from conformance.bench import NOW, after
from conformance.taskbench import end, row, task_plan

from penstock.clock import SystemClock
from penstock.config import Config
from penstock.store.nouns.jobs import Room
from penstock.store.nouns.tasks import RecordRow
from penstock.store.open import make_store
from penstock.store.push.migrate import push
from penstock.store.store import Store

TTL = after(60) - NOW


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Any]:
    """A store with its tables."""
    store = make_store(Config(database=url), SystemClock())
    await store.open()
    try:
        await push(store, [])
        yield store
    finally:
        await store.close()


async def end_all(store: Store, count: int) -> None:
    """Let all that may start run, and return."""
    lease = await store.leases.take("worker", TTL, NOW)
    jobs = (await store.jobs.claim(lease, count, [Room("default", count, None)], after(1))).jobs
    assert await store.jobs.settle(lease, [end(job, at=1) for job in jobs]) == {job.id for job in jobs}
    assert len(jobs) == count


async def records(store: Store, task: int, keys: Sequence[str]) -> list[RecordRow | None]:
    """The records of rows."""
    session = await store.begin_read()
    try:
        return [await store.tasks.find(session, task, key) for key in keys]
    finally:
        await session.rollback()


async def test_new_rows_that_are_due_are_planned_by_two_statements_and_ended_by_one_more_than_jobs_are(
    suite_files: Callable[[], str],
) -> None:
    async with opened(suite_files()) as store:
        task = (await store.tasks.declare([task_plan()], NOW))[0].id
        told: list[str] = []
        store._writer.connection.set_trace_callback(told.append)
        await store.tasks.plan([row(task, f"[{number}]") for number in range(10)], None, NOW)
        assert [one for one in told if "json_each" in one and "task" in one] == [
            one for one in told if "into penstock_task_record" in one or "into penstock_ready_job" in one
        ]
        told.clear()
        await end_all(store, 10)
        store._writer.connection.set_trace_callback(None)
    assert len([one for one in told if "penstock_task_record" in one]) == 1


async def test_rows_planned_together_keep_what_is_their_own(database_url: str) -> None:
    alike = [f"[{number}]" for number in range(3)]
    async with opened(database_url) as store:
        one, two = sorted(item.id for item in await store.tasks.declare([task_plan("a"), task_plan("b")], NOW))
        await store.tasks.plan([row(one, key) for key in alike], None, NOW)
        plans = [
            row(one, "[0]", "change", now=after(0.5)),
            row(two, "[1]"),
            row(one, "[2]", "leave", runs=False, gone="left"),
            replace(row(two, "[3]", due=100), version=4),
        ]
        assert await store.tasks.plan(plans, None, NOW) == 2
        kept = [*await records(store, one, alike), *await records(store, two, ["[1]", "[3]"])]
    assert [
        (item.task, item.generation, item.change, item.changed_at, item.due_at, item.gone) for item in kept if item
    ] == [
        (one, 2, "enter", after(0.5), after(0.5), None),
        (one, 1, "enter", NOW, NOW, None),
        (one, 1, "enter", NOW, NOW, "left"),
        (two, 1, "enter", NOW, NOW, None),
        (two, 1, "enter", NOW, after(100), None),
    ]


async def test_runs_that_end_together_end_at_the_generations_of_their_own(database_url: str) -> None:
    async with opened(database_url) as store:
        one, two = sorted(item.id for item in await store.tasks.declare([task_plan("a"), task_plan("b")], NOW))
        rows = [(one, "[0]"), (one, "[1]"), (two, "[0]"), (two, "[1]"), (two, "[2]")]
        await store.tasks.plan([row(*place) for place in rows], None, NOW)
        await store.tasks.plan([row(one, "[1]", "change"), row(two, "[2]", "change")], None, NOW)
        lease = await store.leases.take("worker", TTL, NOW)
        jobs = (await store.jobs.claim(lease, 9, [Room("default", 9, None)], after(1))).jobs
        await store.tasks.plan([row(two, "[1]", "change")], None, after(1))
        assert len(await store.jobs.settle(lease, [end(job, at=2) for job in jobs])) == len(rows)
        found = [*await records(store, one, ["[0]", "[1]"]), *await records(store, two, ["[0]", "[1]", "[2]"])]
    assert [(item.generation, item.live) for item in found if item] == [
        (1, False),
        (2, False),
        (1, False),
        (2, True),
        (2, False),
    ]
