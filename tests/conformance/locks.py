"""What a store promises of locks: one holder at a time, numbers that rise, and no move by who is not the holder."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from datetime import datetime, timedelta
from uuid import UUID

from conformance.bench import NOW, TTL, Bench, Suite, after, ended, ids, lose, new_job, story
from penstock.clock import SystemClock
from penstock.errors import Conflict
from penstock.jobs.job import Job, Settlement
from penstock.store.nouns.locks import LOCK_KEPT, LockRow
from penstock.store.session import Session
from penstock.store.store import Store

LEASE = timedelta(seconds=15)

_attempts = itertools.count(1)


class Locks(Suite):
    @story
    async def test_a_lock_is_held_until_it_is_given_back_or_runs_out(self, bench: Bench) -> None:
        locks, attempt = bench.store.locks, new_attempt()
        row = await locks.take("k", attempt, "ada", LEASE, NOW)
        assert row == LockRow("k", row.fence, attempt, "ada", NOW, after(15), wanted=False)
        assert await locks.take("k", attempt, "ada", LEASE, after(1)) == row, "asked twice for one attempt"
        for moment in (0, 14.999):
            assert await take(bench, "k", "eve", after(moment)) == row, "it tells who has it"
        assert (await take(bench, "K", "eve")).holder == "eve", "keys are told apart to the letter"
        assert await locks.renew("k", row.fence, LEASE, after(10))
        found = await take(bench, "k", "eve", after(24.999))
        assert (found.fence, found.taken_at, found.expires_at) == (row.fence, NOW, after(25))
        again = await take(bench, "k", "eve", after(25))
        assert (again.holder, again.taken_at, again.expires_at) == ("eve", after(25), after(40))
        assert await locks.release("k", again.fence) == again
        assert await locks.release("k", again.fence) is None, "not twice"
        assert (await take(bench, "k", now=after(26))).holder == "ada"

    @story
    async def test_numbers_rise_and_none_is_given_twice(self, bench: Bench) -> None:
        fences = []
        for number in range(4):
            row = await take(bench, "k", now=after(number * 100))
            fences.append(row.fence)
            if number % 2:  # given back, or left to run out
                assert await bench.store.locks.release("k", row.fence) is not None
        fences.append((await take(bench, "other")).fence)
        assert await bench.store.locks.prune(after(400) + LOCK_KEPT + LEASE, 10) == 1
        fences.append((await take(bench, "k")).fence)
        assert fences == sorted(set(fences))

    @story
    async def test_who_has_lost_it_does_nothing_to_the_next_holder(self, bench: Bench) -> None:
        locks, attempt = bench.store.locks, new_attempt()
        assert await locks.withdraw("k", attempt) is None
        unheard = await locks.take("k", attempt, "ada", LEASE, NOW)
        assert (await locks.withdraw("k", attempt), await listed(bench)) == (unheard, [])
        lost = await locks.take("k", attempt, "ada", LEASE, NOW)
        row = await take(bench, "k", "eve", after(15))
        assert not await locks.renew("k", lost.fence, timedelta(days=1), after(15))
        assert await locks.release("k", lost.fence) is None
        assert await locks.withdraw("k", attempt) is None
        assert not await locks.want("k", lost.fence)
        assert not await check(bench, "k", lost.fence)
        assert await take(bench, "k", now=after(16)) == row
        assert await check(bench, "k", row.fence)

    @story
    async def test_a_number_is_that_of_one_key_and_who_waits_is_known_to_its_holder(self, bench: Bench) -> None:
        locks = bench.store.locks
        one, two = await take(bench, "one"), await take(bench, "two")
        assert not await locks.renew("one", two.fence, LEASE, NOW)
        assert await locks.release("two", one.fence) is None
        assert not await check(bench, "one", two.fence)
        for _ in range(2):  # many may wait
            assert await locks.want("one", one.fence)
        assert (await take(bench, "one", "eve")).wanted
        assert [(row.key, row.wanted) for row in await listed(bench)] == [("one", True), ("two", False)]
        released = await locks.release("one", one.fence)
        assert released is not None
        assert released.wanted
        assert not await locks.want("one", one.fence), "it is free by now"
        assert not (await take(bench, "one")).wanted

    @story
    async def test_locks_are_listed_in_the_order_in_which_they_were_taken_until_they_are_forgotten(
        self, bench: Bench
    ) -> None:
        for number, key in enumerate("cab"):
            await take(bench, key, now=after(number))
        assert [row.key for row in await listed(bench)] == ["c", "a", "b"]
        assert [row.key for row in await listed(bench, limit=2)] == ["c", "a"]
        locks, then = bench.store.locks, NOW + LEASE + LOCK_KEPT
        assert await locks.prune(then - timedelta(seconds=1), 10) == 0
        assert [await locks.prune(then + timedelta(seconds=1), most) for most in (1, 10)] == [1, 1]
        assert [row.key for row in await listed(bench)] == ["b"]

    @story
    async def test_of_many_who_ask_at_once_one_gets_it(self, bench: Bench) -> None:
        stores = [bench.store, await bench.another(), await bench.another()]
        last = 0
        for round_ in range(8):
            now = after(round_ * 100)  # in every second round it has run out, in the others it was given back
            rows = await asyncio.gather(*(take(bench, "k", f"h{n}", now, stores[n % 3]) for n in range(9)))
            (row,) = set(rows)
            assert row.fence > last
            last = row.fence
            if round_ % 2:
                assert await bench.store.locks.release("k", row.fence) is not None

    @story
    async def test_holders_follow_each_other_with_rising_numbers(self, bench: Bench) -> None:
        """Each takes it and gives it back at once, side by side: nobody has a lower number than who was before."""
        stores = [bench.store, await bench.another(), await bench.another()]
        fences: list[int] = []
        inside, machine = 0, SystemClock()

        async def use(store: Store) -> None:
            nonlocal inside
            for _ in range(12):
                attempt = new_attempt()
                while (row := await store.locks.take("k", attempt, "h", LEASE, NOW)).attempt != attempt:
                    await machine.sleep(0)
                inside += 1
                assert inside == 1
                fences.append(row.fence)
                inside -= 1
                assert await store.locks.release("k", row.fence) is not None

        await asyncio.gather(*(use(store) for store in stores))
        assert len(fences) == 36
        assert fences == sorted(set(fences))

    @story
    async def test_what_is_checked_stays_until_the_transaction_ends(self, bench: Bench) -> None:
        row = await take(bench, "k")
        session, other = await bench.store.begin_write(), await bench.another()
        assert await bench.store.locks.check(session, "k", row.fence)
        await bench.insert(session, "effect")
        if not self.one_writer:
            assert await other.locks.renew("k", row.fence, timedelta(seconds=1), NOW), "its holder may renew it"
        taking = asyncio.create_task(take(bench, "k", "eve", after(15), other))
        releasing = asyncio.create_task(other.locks.release("k", row.fence))
        await bench.reading(bench.titles)  # a round trip, in which they would be done
        await bench.reading(bench.titles)
        assert not taking.done()
        assert not releasing.done()
        await session.commit()
        assert (await taking).holder == "eve" or (await releasing) is not None
        await releasing
        assert await bench.kept() == ["effect"]

    @story
    async def test_what_was_taken_over_after_the_transaction_began_is_not_found(self, bench: Bench) -> None:
        if self.one_writer:
            return
        row = await take(bench, "k")
        session = await bench.store.begin_write()
        try:
            await bench.titles(session)  # its snapshot
            await take(bench, "k", "eve", after(15))
            with contextlib.suppress(Conflict):  # it is to begin again, and then sees it
                assert not await bench.store.locks.check(session, "k", row.fence)
        finally:
            await session.rollback()
        assert not await check(bench, "k", row.fence)


def new_attempt() -> UUID:
    return UUID(int=next(_attempts))


async def take(bench: Bench, key: str, holder: str = "ada", now: datetime = NOW, store: Store | None = None) -> LockRow:
    return await (store or bench.store).locks.take(key, new_attempt(), holder, LEASE, now)


async def check(bench: Bench, key: str, fence: int) -> bool:
    return await bench.writing(lambda session: bench.store.locks.check(session, key, fence))


async def listed(bench: Bench, limit: int = 100) -> list[LockRow]:
    return await bench.reading(lambda session: bench.store.locks.list(session, limit))


class Leases(Suite):
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
        last = await bench.lease()
        await bench.store.leases.give_back(last)
        lease, _jobs = await bench.running(new_job())
        assert lease > last, "no number is given out twice"

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
