"""What a store promises of leases: whoever lost one learns of it, and every job of a lost one is accounted for."""

from __future__ import annotations

import asyncio

from conformance.bench import NOW, TTL, Bench, Suite, after, ended, ids, lose, new_job, story
from penstock.errors import Conflict
from penstock.jobs.job import Job, Settlement
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
