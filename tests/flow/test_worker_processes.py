"""Workers in processes of their own, and actions that a worker runs in processes of their own."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from flow import process_actions
from stage import ledger
from stage.processes import Process, processes
from stage.waits import until

from penstock import Backend, JobId, JobState, JobStatus
from penstock.testing import TestApp

NOW = timedelta(0)


async def succeeded(backend: Backend, count: int) -> None:
    async def enough() -> bool:
        return (await backend.job_counts()).get("success", 0) >= count

    await until(enough)


async def status(backend: Backend, job: JobId) -> JobStatus:
    found = await backend.job(job)
    assert found is not None
    return found


async def test_a_job_is_run_by_another_process_as_soon_as_it_is_scheduled(database_url: str) -> None:
    """The worker looks by itself once an hour only: it is told."""
    with processes(1, "work", database_url, poll=3600.0):
        async with ledger.app.open(database_url) as backend:
            for number in range(3):
                await backend.run_mutation(ledger.schedule_entries, what="x", first=number, count=1)
                await succeeded(backend, number + 1)
            assert await backend.run_query(ledger.entries, what="x") == [0, 1, 2]


async def test_a_program_that_schedules_and_ends_at_once_is_heard(postgres_url: str) -> None:
    with processes(1, "work", postgres_url, poll=3600.0):
        async with ledger.app.open(postgres_url) as backend:
            async with ledger.app.open(postgres_url) as short:
                await short.scheduler.run_after(NOW, ledger.enter, what="x")
            await succeeded(backend, 1)


async def test_a_job_for_later_is_run_on_time_by_a_process_that_nobody_tells(database_url: str) -> None:
    with processes(1, "work", database_url, poll=3600.0):
        async with ledger.app.open(database_url) as backend:
            job = await backend.scheduler.run_after(timedelta(seconds=0.4), ledger.enter, what="x")
            await succeeded(backend, 1)
            found = await status(backend, job)
            assert found.started_at is not None
            assert timedelta(0) <= found.started_at - found.run_at < timedelta(seconds=2)


async def test_workers_that_start_together_on_an_empty_database_all_work(empty_database_url: str) -> None:
    """Each of them makes the tables, and one of them does."""
    started = [Process("work", empty_database_url) for _ in range(3)]
    try:
        for process in started:
            await asyncio.to_thread(process.expect, "ready")
        async with ledger.app.open(empty_database_url) as backend:
            await backend.run_mutation(ledger.schedule_entries, what="x", first=0, count=60)
            await succeeded(backend, 60)
            assert await backend.run_query(ledger.entries, what="x") == list(range(60))
        for process in started:
            assert await asyncio.to_thread(process.stop) == 0
    finally:
        for process in started:
            process.close()


async def test_work_that_has_piled_up_is_done_by_the_first_worker_that_comes(database_url: str) -> None:
    async with ledger.app.open(database_url) as backend:
        await backend.run_mutation(ledger.schedule_entries, what="x", first=0, count=300)
        with processes(1, "work", database_url, worker_jobs=20):
            await succeeded(backend, 300)
        assert await backend.run_query(ledger.entries, what="x") == list(range(300))


async def test_an_action_in_a_process_that_dies_ends_lost_and_its_worker_goes_on(database_url: str) -> None:
    async with TestApp(process_actions.app, database_url, processes=1) as test:
        died = await test.scheduler.run_after(NOW, process_actions.fail, how="die")
        await test.run_until_idle(raise_errors=False)
        found = await status(test, died)
        assert found.state is JobState.FAILED
        assert (found.error or "").startswith("WorkerLost: The process that ran flow.process_actions:fail died")
        failed = await test.scheduler.run_after(NOW, process_actions.fail, how="value")
        lives = await test.scheduler.run_after(NOW, process_actions.process_id)
        await test.run_until_idle(raise_errors=False)
        assert (await status(test, failed)).error == "ValueError: wrong"
        assert (await status(test, lives)).state is JobState.SUCCESS
