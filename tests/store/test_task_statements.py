"""What planning rows of tasks and ending their runs asks of the database: little, and of each row what is its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from conformance.bench import NOW, after
from conformance.taskbench import end, row, task_plan

from penstock.clock import SystemClock
from penstock.config import Config
from penstock.store.nouns.jobs import Room
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
