"""What a store promises of jobs that end: each is settled once, and by its holder only."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import timedelta

from conformance.bench import AGAIN, NOW, Bench, Suite, after, ended, ids, lose, new_job, story
from penstock.jobs.states import JobEvent, JobState
from penstock.store.session import Session
from penstock.store.store import Store


class Settlements(Suite):
    """`store.nouns.Jobs`: settling."""

    # ----- settle

    @story
    async def test_a_success_is_kept_with_its_result(self, bench: Bench) -> None:
        lease, (job,) = await bench.running(new_job())
        assert await bench.settle(lease, ended(job, result='{"ok":true}', now=after(3))) == {job.id}
        status = await bench.status(job.id)
        assert (status.state, status.attempt, status.result) == (JobState.SUCCESS, 1, {"ok": True})
        assert (status.started_at, status.finished_at) == (NOW, after(3))
        assert (status.error, status.traceback) == (None, None)

    @story
    async def test_a_failure_is_kept_with_its_error(self, bench: Bench) -> None:
        lease, (job,) = await bench.running(new_job("action"))
        await bench.settle(lease, ended(job, JobEvent.RAISED, error="ValueError: no", traceback="line 1"))
        status = await bench.status(job.id)
        assert (status.state, status.error, status.traceback) == (JobState.FAILED, "ValueError: no", "line 1")
        assert status.result is None

    @story
    async def test_many_are_settled_at_once(self, bench: Bench) -> None:
        lease, jobs = await bench.running(*(new_job("action") for _ in range(300)))
        outcomes = [
            ended(job, JobEvent.RETURNED if number % 3 else JobEvent.RAISED, result=str(number), error=f"E{number}")
            for number, job in enumerate(jobs)
        ]
        assert await bench.settle(lease, *outcomes) == set(ids(jobs))
        assert await bench.count() == {"success": 200, "failed": 100}
        assert (await bench.status(jobs[4].id)).result == 4
        assert (await bench.status(jobs[6].id)).error == "E6"

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
    async def test_a_job_is_settled_once(self, bench: Bench) -> None:
        lease, (job,) = await bench.running(new_job())
        assert await bench.settle(lease, ended(job, result="1")) == {job.id}
        assert await bench.settle(lease, ended(job, result="2")) == set()
        assert (await bench.status(job.id)).result == 1

    @story
    async def test_settling_under_another_lease_loses_quietly(self, bench: Bench) -> None:
        _lease, (job,) = await bench.running(new_job())
        other = await bench.lease()
        assert await bench.settle(other, ended(job)) == set()
        assert await bench.state(job.id) == "running"

    @story
    async def test_settling_late_loses_quietly(self, bench: Bench) -> None:
        """The lease ran out and the job runs again under another one: what its first worker says is not heard."""
        late, (job,) = await bench.running(new_job())
        await bench.store.leases.rescue(late, after(31), lose(after(31)))
        new = await bench.lease(after(31))
        again = await bench.claim_one(new, after(31))
        assert (again.id, again.attempt) == (job.id, 2)
        assert await bench.settle(late, ended(job, result='"late"')) == set()
        assert await bench.settle(new, ended(again, result='"new"')) == {job.id}
        assert (await bench.status(job.id)).result == "new"

    @story
    async def test_of_a_batch_only_what_was_lost_loses(self, bench: Bench) -> None:
        lease, (kept, gone) = await bench.running(new_job(), new_job())
        await bench.settle(lease, ended(gone))
        assert await bench.settle(lease, ended(kept), ended(gone)) == {kept.id}

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
    async def test_settled_within_a_transaction_the_end_and_the_effect_are_one(self, bench: Bench) -> None:
        lease, (job,) = await bench.running(new_job())

        async def effect(session: Session) -> None:
            await bench.insert(session, "effect")
            assert await bench.store.jobs.settle_within(session, lease, ended(job, result="1"))

        await bench.writing(effect)
        assert (await bench.state(job.id), await bench.kept()) == ("success", ["effect"])

    @story
    async def test_settled_within_a_transaction_that_is_undone_the_job_still_runs(self, bench: Bench) -> None:
        lease, (job,) = await bench.running(new_job())
        session = await bench.store.begin_write()
        await bench.insert(session, "effect")
        assert await bench.store.jobs.settle_within(session, lease, ended(job))
        await session.rollback()
        assert (await bench.state(job.id), await bench.kept()) == ("running", [])
        assert await bench.settle(lease, ended(job)) == {job.id}

    @story
    async def test_of_many_settled_within_a_transaction_it_is_told_how_many_the_lease_held(self, bench: Bench) -> None:
        lease, (first, second, gone) = await bench.running(new_job(), new_job(), new_job())
        assert await bench.settle(lease, ended(gone, result="0")) == {gone.id}

        async def effect(session: Session) -> None:
            ends = [ended(first, result="1"), ended(gone, result="2"), ended(second, result="3")]
            assert await bench.store.jobs.settle_all_within(session, lease, ends) == len(ends) - 1

        await bench.writing(effect)
        assert [(await bench.status(job.id)).result for job in (first, gone, second)] == [1, 0, 3]

    @story
    async def test_settling_within_a_transaction_tells_that_the_lease_is_lost(self, bench: Bench) -> None:
        lease, (job,) = await bench.running(new_job())
        await bench.store.leases.rescue(lease, after(31), lose())
        session = await bench.store.begin_write()
        assert not await bench.store.jobs.settle_within(session, lease, ended(job))
        await session.rollback()

    @story
    async def test_a_job_that_is_tried_again_waits_and_counts_its_attempts(self, bench: Bench) -> None:
        lease, (job,) = await bench.running(new_job("action", retry=AGAIN))
        await bench.settle(lease, ended(job, JobEvent.RAISED, error="Flaky"))
        waiting = await bench.status(job.id)
        assert (waiting.run_at, waiting.error) == (after(10), "Flaky")
        assert await bench.claim(lease, now=after(9)) == []
        for attempt, moment in ((2, 10), (3, 40)):
            again = await bench.claim_one(lease, after(moment))
            assert (again.attempt, again.options.retry, again.enqueued_at) == (attempt, AGAIN, NOW)
            await bench.settle(lease, ended(again, JobEvent.RAISED, now=after(moment), error=f"Flaky {attempt}"))
        status = await bench.status(job.id, after(40))
        assert (status.state, status.attempt, status.error) == (JobState.FAILED, 3, "Flaky 3")

    @story
    async def test_a_job_tells_why_it_waits_until_something_else_becomes_of_it(self, bench: Bench) -> None:
        lease, (job,) = await bench.running(new_job())
        assert (await bench.status(job.id)).error is None
        await bench.settle(lease, ended(job, JobEvent.SNOOZED, delay=timedelta(seconds=60), error="No version"))
        assert ((await bench.status(job.id)).error, (await bench.list("pending"))[0].error) == ("No version",) * 2
        assert await bench.claim(lease, 0, after(60)) == [], "it is ready now, and not claimed"
        assert (await bench.count(), (await bench.status(job.id)).error) == ({"ready": 1}, "No version")
        again = await bench.claim_one(lease, after(60))
        assert ((await bench.status(job.id)).error, (await bench.list("running"))[0].error) == ("No version",) * 2
        await bench.settle(lease, ended(again, JobEvent.HANDED_BACK, now=after(60)))
        assert (await bench.status(job.id)).error == "No version"
        last = await bench.claim_one(lease, after(60))
        await bench.settle(lease, ended(last, now=after(60)))
        status = await bench.status(job.id, after(60))
        assert (status.state, status.error) == (JobState.SUCCESS, None)

    @story
    async def test_a_job_that_is_put_off_or_handed_back_uses_no_attempt(self, bench: Bench) -> None:
        lease, (snoozed, handed_back) = await bench.running(new_job(), new_job(priority=5))
        await bench.settle(
            lease,
            ended(snoozed, JobEvent.SNOOZED, delay=timedelta(seconds=60)),
            ended(handed_back, JobEvent.HANDED_BACK),
        )
        other = await bench.lease()
        again = await bench.claim_one(other)
        assert (again.id, again.attempt, again.priority) == (handed_back.id, 1, 5)
        again = await bench.claim_one(other, after(60))
        assert (again.id, again.attempt) == (snoozed.id, 1)
