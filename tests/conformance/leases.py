"""What a store promises of leases: whoever lost one learns of it, and every job of a lost one is accounted for."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from conformance.bench import NOW, TTL, Bench, Suite, after, ended, ids, lose, new_job, story
from penstock.errors import Conflict
from penstock.jobs.job import Job, Settlement
from penstock.jobs.retry import Retry
from penstock.jobs.settle import MAX_LOSSES
from penstock.jobs.states import JobState
from penstock.store.session import Session


class Leases(Suite):
    """`store.nouns.Leases`."""

    @story
    async def test_each_lease_has_a_number_of_its_own_that_rises(self, bench: Bench) -> None:
        numbers = [await bench.lease() for _ in range(3)]
        await bench.store.leases.give_back(numbers[2])
        numbers.append(await bench.lease())
        assert numbers == sorted(set(numbers)), "no number is given out twice"

    @story
    async def test_a_lease_runs_out_unless_it_is_renewed(self, bench: Bench) -> None:
        leases = bench.store.leases
        renewed, left = await bench.lease(), await bench.lease()
        assert await leases.find_expired(after(29.9)) == []
        assert await leases.renew(renewed, TTL, after(20))
        assert await leases.find_expired(after(30)) == [left]
        assert sorted(await leases.find_expired(after(50))) == [renewed, left]

    @story
    async def test_a_lease_that_was_taken_over_cannot_be_renewed(self, bench: Bench) -> None:
        leases = bench.store.leases
        lease, _jobs = await bench.running(new_job())
        assert await leases.rescue(lease, after(31), lose()) == 1
        assert not await leases.renew(lease, TTL, after(31))
        assert await leases.find_expired(after(1000)) == []
        assert not await leases.renew(lease, TTL, after(31)), "losing stays the answer"

    @story
    async def test_a_lease_that_was_renewed_in_time_cannot_be_taken_over(self, bench: Bench) -> None:
        leases = bench.store.leases
        lease, (job,) = await bench.running(new_job())
        assert await leases.find_expired(after(30)) == [lease]
        assert await leases.renew(lease, TTL, after(30))
        assert await leases.rescue(lease, after(30), lose()) == 0
        assert await bench.settle(lease, ended(job)) == {job.id}

    @story
    async def test_a_lease_under_which_nothing_runs_is_given_back(self, bench: Bench) -> None:
        leases = bench.store.leases
        lease, (job,) = await bench.running(new_job())
        await leases.give_back(lease)
        assert await leases.renew(lease, TTL, NOW), "while a job runs under it, it stays"
        await bench.settle(lease, ended(job))
        await leases.give_back(lease)
        assert not await leases.renew(lease, TTL, NOW)
        assert await leases.find_expired(after(1000)) == []

    @story
    async def test_the_jobs_of_a_lease_are_known(self, bench: Bench) -> None:
        lease, (first, second) = await bench.running(new_job(), new_job("action"))
        assert {job.id: job for job in await bench.store.leases.jobs(lease)} == {first.id: first, second.id: second}
        await bench.settle(lease, ended(first))
        assert await bench.store.leases.jobs(lease) == [second]

    @story
    async def test_lost_mutations_run_again_and_lost_actions_end(self, bench: Bench) -> None:
        lease, (mutation, action, retried) = await bench.running(
            new_job(), new_job("action"), new_job("action", retry=Retry(max_attempts=2))
        )
        assert await bench.store.leases.rescue(lease, after(31), lose(after(31))) == 3
        status = await bench.status(mutation.id)
        assert (status.state, status.attempt, status.run_at) == (JobState.PENDING, 1, after(31))
        status = await bench.status(action.id)
        assert (status.state, status.error) == (JobState.FAILED, "WorkerLost: gone")
        assert (await bench.status(retried.id)).state is JobState.PENDING
        again = await bench.claim(await bench.lease(), now=after(40))
        assert {job.id: job.attempt for job in again} == {mutation.id: 2, retried.id: 2}

    @story
    async def test_a_mutation_that_takes_its_worker_down_each_time_ends(self, bench: Bench) -> None:
        job, moment = new_job(), 0.0
        await bench.enqueue(job)
        for attempt in range(1, MAX_LOSSES + 1):
            lease = await bench.lease(after(moment))
            assert (await bench.claim_one(lease, after(moment))).attempt == attempt
            moment += 100
            await bench.store.leases.rescue(lease, after(moment), lose(after(moment)))
            moment += 100
        status = await bench.status(job.id, after(moment))
        assert (status.state, status.attempt, status.error) == (JobState.FAILED, MAX_LOSSES, "WorkerLost: gone")

    @story
    async def test_of_many_rescuers_one_gets_each_job(self, bench: Bench) -> None:
        lease, jobs = await bench.running(*(new_job("action") for _ in range(20)))
        stores = [await bench.another() for _ in range(4)]
        seen: list[Job] = []

        def settle(lost: list[Job]) -> list[Settlement]:
            seen.extend(lost)
            return lose()(lost)

        counts = await asyncio.gather(
            *(store.leases.rescue(lease, after(31), settle) for store in stores), return_exceptions=True
        )
        assert sum(count for count in counts if isinstance(count, int)) == 20
        assert await bench.count() == {"failed": 20}
        assert set(ids(seen)) == set(ids(jobs))

    @story
    async def test_what_a_rescue_decides_is_undone_if_it_fails(self, bench: Bench) -> None:
        lease, _jobs = await bench.running(new_job())

        def fail(_jobs: list[Job]) -> list[Settlement]:
            raise ZeroDivisionError

        outcome = await asyncio.gather(bench.store.leases.rescue(lease, after(31), fail), return_exceptions=True)
        assert isinstance(outcome[0], ZeroDivisionError)
        assert await bench.count() == {"running": 1}
        assert await bench.store.leases.find_expired(after(31)) == [lease]
        assert await bench.store.leases.rescue(lease, after(31), lose()) == 1

    @story
    async def test_jobs_of_a_lease_that_is_gone_are_found_and_rescued(self, bench: Bench) -> None:
        """A claim that was on its way while its lease ended leaves jobs under a lease that nobody has."""
        lease, (job,) = await bench.running(new_job())
        await bench.writing(lambda session: session.execute(self.delete_lease, (lease,)))
        assert await bench.store.leases.find_expired(NOW) == [lease]
        assert await bench.store.leases.rescue(lease, NOW, lose()) == 1
        assert await bench.state(job.id) == "pending"
        assert await bench.store.leases.find_expired(NOW) == []

    @story
    async def test_a_rescue_and_the_end_of_the_job_cannot_both_win(self, bench: Bench) -> None:
        """The job's own transaction has settled it and is about to commit when its lease is taken over."""
        lease, (job,) = await bench.running(new_job())
        session = await bench.store.begin_write()
        await bench.insert(session, "effect")
        assert await bench.store.jobs.settle_within(session, lease, ended(job))
        other = await bench.another()
        rescue = asyncio.create_task(other.leases.rescue(lease, after(31), lose(after(31))))
        if not self.one_writer:
            assert await rescue == 0, "it does not wait for a transaction that may never end"
        await session.commit()
        assert await rescue == 0
        assert (await bench.state(job.id), await bench.kept()) == ("success", ["effect"])

    @story
    async def test_a_rescue_that_stepped_around_a_transaction_is_done_later(self, bench: Bench) -> None:
        lease, (job, other_job) = await bench.running(new_job(), new_job())

        async def rescue() -> int:
            return await bench.store.leases.rescue(lease, after(31), lose(after(31)))

        if self.one_writer:
            assert await rescue() == 2
            return
        session = await bench.store.begin_write()
        assert await bench.store.jobs.settle_within(session, lease, ended(job))
        assert await rescue() == 1
        assert await bench.state(other_job.id) == "pending"
        assert not await bench.store.leases.renew(lease, TTL, after(31)), "its worker does not get it back"
        assert lease in await bench.store.leases.find_expired(after(31))
        await session.rollback()
        assert await rescue() == 1
        assert await bench.state(job.id) == "pending"
        assert await bench.store.leases.find_expired(after(1000)) == []

    @story
    async def test_a_transaction_that_reads_a_job_is_not_disturbed_by_its_rescue(self, bench: Bench) -> None:
        if self.one_writer:
            return
        lease, (job,) = await bench.running(new_job())
        session = await bench.store.begin_write()
        status = await bench.store.jobs.find(session, job.id, NOW)
        assert status is not None
        await bench.insert(session, "effect")
        await bench.store.leases.rescue(lease, after(31), lose())
        await session.commit()
        assert await bench.kept() == ["effect"]

    @story
    async def test_settling_in_a_snapshot_older_than_the_rescue_does_not_commit(self, bench: Bench) -> None:
        if self.one_writer:
            return
        lease, (job,) = await bench.running(new_job())
        session = await bench.store.begin_write()
        assert await bench.titles(session) == []
        await bench.store.leases.rescue(lease, after(31), lose())
        assert not await self._commits(bench, session, lease, job)
        assert await bench.kept() == []
        assert await bench.state(job.id) == "pending"

    async def _commits(self, bench: Bench, session: Session, lease: int, job: Job) -> bool:
        try:
            await bench.insert(session, "effect")
            won = await bench.store.jobs.settle_within(session, lease, ended(job))
            if won:
                await session.commit()
        except Conflict:
            return False
        finally:
            await session.rollback()
        return won

    @story
    async def test_a_long_lease(self, bench: Bench) -> None:
        lease = await bench.lease(ttl=timedelta(days=365))
        assert await bench.store.leases.find_expired(after(364 * 86400)) == []
        assert await bench.store.leases.renew(lease, TTL, NOW)
        assert await bench.store.leases.find_expired(after(60)) == [lease]
