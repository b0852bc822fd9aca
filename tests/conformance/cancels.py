"""What a store promises of wishes that a job be canceled: they are kept with their transaction, and carried out."""

from __future__ import annotations

import asyncio

from conformance.bench import (
    AGAIN,
    NOW,
    Bench,
    Suite,
    after,
    cancel,
    ended,
    ids,
    new_job,
    patiently,
    rooms,
    story,
)
from penstock.jobs.states import JobEvent, JobState
from penstock.store.session import Session


class Cancels(Suite):
    """`store.nouns.Jobs`: canceling."""

    # ----- cancel

    @story
    async def test_a_canceled_job_never_starts(self, bench: Bench) -> None:
        ready, scheduled = new_job(), new_job(delay=10)
        await bench.enqueue(ready, scheduled)
        await bench.request_cancel(ready.id, scheduled.id)
        lease = await bench.lease()
        assert await bench.claim(lease, now=after(20)) == [], "even before the request is carried out"
        assert await bench.cancel_pending(after(20)) == []
        for job in (ready, scheduled):
            status = await bench.status(job.id, after(20))
            assert (status.state, status.attempt) == (JobState.CANCELED, 0)
            assert (status.started_at, status.finished_at) == (None, after(20))
        assert await bench.claim(lease, now=after(20)) == []
        assert await bench.count(after(20)) == {"canceled": 2}

    @story
    async def test_a_request_counts_only_if_its_transaction_commits(self, bench: Bench) -> None:
        job = new_job()
        await bench.enqueue(job)
        session = await bench.store.begin_write()
        await bench.store.jobs.request_cancel(session, [job.id], NOW)
        await session.rollback()
        await bench.cancel_pending()
        assert ids(await bench.claim(await bench.lease())) == [job.id]

    @story
    async def test_a_job_enqueued_and_canceled_in_one_transaction_never_starts(self, bench: Bench) -> None:
        job = new_job()

        async def both(session: Session) -> None:
            await bench.store.jobs.enqueue(session, [job], NOW)
            await bench.store.jobs.request_cancel(session, [job.id], NOW)

        await bench.writing(both)
        await bench.cancel_pending()
        assert await bench.claim(await bench.lease()) == []
        assert await bench.state(job.id) == "canceled"

    @story
    async def test_a_running_job_is_named_until_it_has_ended(self, bench: Bench) -> None:
        lease, (job,) = await bench.running(new_job("action"))
        await bench.request_cancel(job.id)
        assert await bench.cancel_pending() == [job.id]
        assert await bench.cancel_pending(after(3600)) == [job.id]
        assert await bench.state(job.id) == "running"
        await bench.settle(lease, ended(job, JobEvent.CANCELED))
        assert await bench.cancel_pending(after(3600)) == []
        assert await bench.state(job.id) == "canceled"

    @story
    async def test_a_canceled_job_that_would_run_again_does_not(self, bench: Bench) -> None:
        lease, (job,) = await bench.running(new_job("action", retry=AGAIN))
        await bench.request_cancel(job.id)
        await bench.cancel_pending()
        await bench.settle(lease, ended(job, JobEvent.RAISED, error="Flaky"))
        assert await bench.claim(lease, now=after(3600)) == []
        await bench.cancel_pending(after(3600))
        assert await bench.state(job.id, after(3600)) == "canceled"

    @story
    async def test_cancelling_what_has_ended_or_never_was_changes_nothing(self, bench: Bench) -> None:
        lease, (job,) = await bench.running(new_job())
        await bench.settle(lease, ended(job))
        await bench.request_cancel(job.id, new_job().id, job.id)
        for moment in (0, 30, 61, 62):
            assert await bench.cancel_pending(after(moment)) == []
        assert await bench.state(job.id) == "success"

    @story
    async def test_a_job_asked_twice_to_be_canceled_is_canceled_once(self, bench: Bench) -> None:
        job = new_job()
        await bench.enqueue(job)
        await bench.request_cancel(job.id, job.id)
        await bench.request_cancel(job.id)
        await bench.cancel_pending()
        await bench.cancel_pending()
        assert await bench.count() == {"canceled": 1}

    @story
    async def test_cancels_are_carried_out_in_bounded_pieces(self, bench: Bench) -> None:
        jobs = [new_job() for _ in range(25)]
        await bench.enqueue(*jobs)
        await bench.request_cancel(*ids(jobs))
        for left in (15, 5, 0):
            await bench.cancel_pending(limit=10)
            assert (await bench.count()).get("ready", 0) == left

    @story
    async def test_running_jobs_that_do_not_stop_do_not_hold_up_other_cancels(self, bench: Bench) -> None:
        _lease, jobs = await bench.running(*(new_job("action") for _ in range(10)))
        waiting = new_job()
        await bench.enqueue(waiting)
        await bench.request_cancel(*ids(jobs), waiting.id)
        for _ in range(5):
            await bench.cancel_pending(limit=5)
        assert await bench.state(waiting.id) == "canceled"

    @story
    async def test_claim_and_cancel_at_the_same_time_leave_each_job_in_one_place(self, bench: Bench) -> None:
        other = await bench.another()
        jobs = [new_job(delay=number % 2) for number in range(100)]
        await bench.enqueue(*jobs)
        lease = await bench.lease()

        async def cancel_all() -> None:
            for job in jobs:
                await bench.request_cancel(job.id)
                await patiently(lambda: other.jobs.cancel_pending(after(2), 100, cancel(after(2))))

        async def claim_all() -> None:
            for _ in range(40):
                await patiently(lambda: bench.store.jobs.claim(lease, 3, rooms(3), after(2)))

        await asyncio.gather(cancel_all(), claim_all())
        counts = await bench.count(after(2))
        assert counts["canceled"] + counts["running"] == 100
        assert len(await bench.store.leases.jobs(lease)) == counts["running"]
