"""What a store promises of jobs that end: each is settled once, and by its holder only."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

from conformance.bench import Bench, Suite, after, ended, ids, new_job, story
from penstock.jobs.states import JobEvent, JobState
from penstock.store.session import Session
from penstock.store.store import Store


class Settlements(Suite):
    """`store.nouns.Jobs`: settling."""

    # ----- settle

    @story
    async def test_those_that_simply_return_keep_what_each_returned_and_when(self, bench: Bench) -> None:
        """They are written together, and whatever is not alike is still each one's own."""
        lease, jobs = await bench.running(*(new_job(keep=60.0 * (number % 3 + 1)) for number in range(12)))
        results = [None, "null", '"a"', json.dumps("b" * 5000), json.dumps({"c": [1, "\u2028\\"]}), "null"] * 2
        others = await bench.lease()
        assert await bench.settle(others, *map(ended, jobs)) == set(), "the lease is the fence"
        outcomes = [
            ended(job, result=result, now=after(number % 2))
            for number, (job, result) in enumerate(zip(jobs[:-2], results, strict=False))
        ]
        failed = ended(jobs[-2], JobEvent.RAISED, error="no")
        unknown = ended(replace(jobs[-1], id=new_job().id))
        assert await bench.settle(lease, *outcomes, failed, unknown) == set(ids(jobs[:-1]))
        for number, (job, result) in enumerate(zip(jobs[:-2], results, strict=False)):
            status = await bench.status(job.id)
            assert (status.state, status.finished_at) == (JobState.SUCCESS, after(number % 2)), number
            assert status.result == (None if result is None else json.loads(result)), number
            assert await bench.find(job.id, after(60.0 * (number % 3 + 1) + 2)) is None, "as long as it is to be kept"
        assert await bench.count() == {"success": 10, "failed": 1, "running": 1}

    @story
    async def test_of_many_who_settle_one_job_one_wins(self, bench: Bench) -> None:
        lease, (job,) = await bench.running(new_job())
        stores = [await bench.another() for _ in range(4)]

        async def settle(number: int, store: Store) -> bool:
            return bool(await store.jobs.settle(lease, [ended(job, result=str(number))]))

        won = await asyncio.gather(*(settle(number, store) for number, store in enumerate(stores)))
        assert sum(won) == 1
        assert (await bench.status(job.id)).result == won.index(True)

    @story
    async def test_of_many_settled_within_a_transaction_it_is_told_how_many_the_lease_held(self, bench: Bench) -> None:
        lease, (first, second, gone) = await bench.running(new_job(), new_job(), new_job())
        assert await bench.settle(lease, ended(gone, result="0")) == {gone.id}

        async def effect(session: Session) -> None:
            ends = [ended(first, result="1"), ended(gone, result="2"), ended(second, result="3")]
            assert await bench.store.jobs.settle_all_within(session, lease, ends) == len(ends) - 1

        await bench.writing(effect)
        assert [(await bench.status(job.id)).result for job in (first, gone, second)] == [1, 0, 3]
