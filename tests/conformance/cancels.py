"""What a store promises of wishes that a job be canceled: they are kept with their transaction, and carried out."""

from __future__ import annotations

import asyncio

from conformance.bench import (
    NOW,
    Bench,
    Suite,
    after,
    cancel,
    ids,
    new_job,
    patiently,
    rooms,
    story,
)
from penstock.store.session import Session


class Cancels(Suite):
    """`store.nouns.Jobs`: canceling."""

    # ----- cancel

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
    async def test_cancels_are_carried_out_in_bounded_pieces_that_running_jobs_do_not_hold_up(
        self, bench: Bench
    ) -> None:
        _lease, running = await bench.running(*(new_job("action") for _ in range(10)))
        jobs = [new_job() for _ in range(25)]
        await bench.enqueue(*jobs)
        await bench.request_cancel(*ids(running))
        await bench.request_cancel(*ids(jobs), now=after(1))
        for _ in range(3):
            before = (await bench.count())["ready"]
            await bench.cancel_pending(limit=10)
            assert before - (await bench.count()).get("ready", 0) <= 10
        for _ in range(3):
            await bench.cancel_pending(limit=10)
        assert await bench.count() == {"canceled": 25, "running": 10}

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
