"""What a store promises of jobs that wait, are claimed, looked at and forgotten. How they end is in `settlements`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from conformance.bench import (
    AGAIN,
    KEEP,
    NOW,
    Bench,
    Suite,
    after,
    ended,
    ids,
    new_job,
    rooms,
    story,
)
from penstock.errors import TryAgain
from penstock.jobs.job import Job, NewJob, Options, Settlement, job_uuid
from penstock.jobs.states import JobState
from penstock.store.session import Session, Statement, reading
from penstock.store.store import Store


class Listening:
    """A session that remembers the statements it is given."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.heard: list[str] = []

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._session, name)

        def listen(statement: Statement, *args: Any) -> Any:
            self.heard.append(statement.sql)
            return verb(statement, *args)

        return listen if name in {"fetch", "execute", "execute_many"} else verb


class Jobs(Suite):
    """`store.nouns.Jobs`: enqueueing, claiming, looking and pruning."""

    # ----- enqueue

    @story
    async def test_thousands_that_are_enqueued_at_once_all_start_in_order(self, bench: Bench) -> None:
        jobs = [new_job(delay=number % 2) for number in range(2500)]
        await bench.enqueue(*jobs)
        assert await bench.count() == {"ready": 1250, "scheduled": 1250}
        lease, claimed = await bench.lease(), []
        while (claim := await bench.store.jobs.claim(lease, 600, rooms(600), after(2))).jobs:
            claimed += ids(claim.jobs)
        assert claimed == ids(jobs[::2]) + ids(jobs[1::2])

    @story
    async def test_jobs_that_are_alike_are_enqueued_while_they_are_made(self, bench: Bench) -> None:
        due = []
        for many, delay, key in ((250, 0, None), (250, 10, None), (250, 0, "a"), (7, 0, None), (0, 0, None)):
            made = [new_job(delay=delay, concurrency_key=key) for _ in range(many)]
            before, session = await bench.count(), await bench.store.begin_write()
            await bench.store.jobs.enqueue_alike(session, iter(made), NOW)
            assert await bench.count() == before
            await session.commit()
            now, place = await bench.count(), "scheduled" if delay else "ready"
            assert now.get(place, 0) - before.get(place, 0) == many == sum(now.values()) - sum(before.values())
            due += [] if delay or key else made
        assert ids(await bench.claim(await bench.lease(), 1000)) == ids(due)

    @story
    async def test_if_one_cannot_be_made_none_is_stored(self, bench: Bench) -> None:
        def each() -> Iterator[NewJob]:
            yield from (new_job() for _ in range(150))
            raise LookupError("the 151st")

        with pytest.raises(LookupError, match="the 151st"):
            await bench.writing(lambda session: bench.store.jobs.enqueue_alike(session, each(), NOW))
        assert await bench.count() == {}
        await bench.enqueue(new_job())
        assert await bench.count() == {"ready": 1}

    @story
    async def test_a_job_is_enqueued_alone(self, bench: Bench) -> None:
        jobs = [new_job("action", retry=AGAIN), new_job(delay=10), new_job(concurrency_key="a")]
        for job in jobs:
            await bench.store.jobs.enqueue_alone(job, NOW)
        assert await bench.count() == {"ready": 2, "scheduled": 1}
        assert ids(await bench.claim(await bench.lease())) == [jobs[0].id]
        with pytest.raises(Exception, match="already"):
            await bench.store.jobs.enqueue_alone(jobs[1], NOW)

    @story
    async def test_an_id_is_taken_once_and_is_known_in_the_transaction_that_takes_it(self, bench: Bench) -> None:
        job = new_job()
        session = await bench.store.begin_write()
        await bench.store.jobs.enqueue(session, [job], NOW)
        status = await bench.store.jobs.find(session, job.id, NOW)
        assert status is not None
        assert status.state is JobState.PENDING
        await session.commit()
        with pytest.raises(Exception, match="already"):
            await bench.enqueue(job)
        await bench.enqueue()
        await bench.request_cancel()
        assert await bench.count() == {"ready": 1}

    # ----- claim

    @story
    async def test_each_job_is_claimed_once_by_many_at_a_time(self, bench: Bench) -> None:
        stores: list[Store] = [await bench.another() for _ in range(3)]
        jobs = [new_job() for _ in range(200)]
        await bench.enqueue(*jobs)

        async def claim_all(store: Store) -> list[Job]:
            lease, claimed = await store.leases.take("one of many", timedelta(seconds=30), NOW), []
            while found := await self._claim_patiently(store, lease):
                claimed += found
            return claimed

        claims = await asyncio.gather(*(claim_all(store) for store in stores for _ in range(3)))
        claimed = [job.id for claim in claims for job in claim]
        assert sorted(claimed) == ids(jobs)
        assert await bench.count() == {"running": 200}

    async def _claim_patiently(self, store: Store, lease: int) -> list[Job]:
        while True:
            try:
                return (await store.jobs.claim(lease, 7, rooms(7), NOW)).jobs
            except TryAgain:
                continue

    # ----- scheduled for later

    # ----- look

    @story
    async def test_jobs_are_found_by_a_text_that_they_name(self, bench: Bench) -> None:
        traced = replace(new_job(), options=Options(trace="00-a-trace-01"))
        ready, scheduled, runs, other = new_job(), new_job(delay=10), new_job(), new_job()
        for one in (ready, scheduled, runs):
            one.args = '{"row": "a-trace"}'
        lease, (_, finished) = await bench.running(runs, traced)
        await bench.enqueue(ready, scheduled, other)
        await bench.settle(lease, ended(finished))
        async with reading(bench.store.begin_read) as session:
            naming = bench.store.jobs.naming
            wanted = sorted(one.id for one in (traced, ready, scheduled, runs))
            found = await naming(session, "a-trace", UUID(int=0), 10, NOW, in_args=True)
            assert [job_uuid(one.id) for one in found] == wanted
            found = await naming(session, "a-trace", UUID(int=0), 10, NOW, in_args=False)
            assert [job_uuid(one.id) for one in found] == [traced.id]
            later = await naming(session, "a-trace", wanted[1], 2, NOW, in_args=True)
            assert [job_uuid(one.id) for one in later] == wanted[1:3]

    # ----- forget

    @story
    async def test_a_status_expires_on_time_and_is_pruned_later(self, bench: Bench) -> None:
        lease, (short, medium, long) = await bench.running(new_job(), new_job(), new_job())
        days = {short.id: 1, medium.id: 5, long.id: 400}
        await bench.settle(lease, *(self._kept_for(ended(job), days[job.id]) for job in (short, medium, long)))
        for day, known in ((0, 3), (0.99, 3), (1, 2), (4.99, 2), (5, 1), (399.9, 1), (400, 0)):
            now = after(day * 86400)
            assert len(await bench.list(now=now)) == known, f"on day {day}"
            assert (await bench.count(now)).get("success", 0) == known
            assert (await bench.find(short.id, now) is None) is (day >= 1)

    def _kept_for(self, settlement: Settlement, days: float) -> Settlement:
        return Settlement(
            id=settlement.id,
            state=settlement.state,
            event=settlement.event,
            attempt=settlement.attempt,
            run_at=settlement.run_at,
            finished_at=settlement.finished_at,
            expires_at=settlement.finished_at + timedelta(days=days),
            result="null",
        )

    @story
    async def test_pruning_takes_what_has_expired_and_nothing_else(self, bench: Bench) -> None:
        """For two months, each day some jobs end and the pruner runs: nobody's status goes before its time."""
        lease = await bench.lease(ttl=timedelta(days=1000))
        kept: dict[object, float] = {}
        await bench.enqueue(new_job(), now=NOW)
        await bench.claim_one(lease)
        stays = {"running": 1, "scheduled": 1}
        await bench.enqueue(new_job(delay=10**9))
        for day in range(60):
            now = after(day * 86400)
            jobs = [new_job(now=now) for _ in range(4)]
            await bench.enqueue(*jobs, now=now)
            claimed = await bench.claim(lease, now=now)
            lengths = (0.25, 1, 7, 20)
            await bench.settle(
                lease,
                *(self._kept_for(ended(job, now=now), length) for job, length in zip(claimed, lengths, strict=True)),
            )
            kept |= {job.id: day + length for job, length in zip(claimed, lengths, strict=True)}
            await bench.store.jobs.prune(now, 1000)
            expected = sum(until > day for until in kept.values())
            assert await bench.count(now) == {"success": expected, **stays}, f"on day {day}"
        for day in range(60, 120):
            await bench.store.jobs.prune(after(day * 86400), 1000)
        assert await bench.store.jobs.prune(after(200 * 86400), 1000) == 0, "nothing is left behind"
        assert await bench.count() == stays

    @story
    async def test_pruning_goes_in_bounded_pieces(self, bench: Bench) -> None:
        lease, jobs = await bench.running(*(new_job() for _ in range(10)))
        await bench.settle(lease, *(self._kept_for(ended(job), 400) for job in jobs))
        now = after(401 * 86400)
        assert [await bench.store.jobs.prune(now, 4) for _ in range(4)] == [4, 4, 2, 0]

    # ----- in peace with users

    @story
    async def test_a_users_transaction_only_inserts_and_looks(self, bench: Bench) -> None:
        """What workers update and delete all the time, a transaction of a user's never does: neither is in the way."""
        session = await bench.store.begin_write()
        listening = Listening(session)
        await bench.store.jobs.enqueue(listening, [new_job(), new_job(delay=5)], NOW)
        await bench.store.jobs.request_cancel(listening, [new_job().id], NOW)
        await bench.store.jobs.find(listening, new_job().id, NOW)
        await session.rollback()
        assert listening.heard
        for sql in listening.heard:
            assert not re.search(r"\b(update|delete|truncate|merge)\b", sql, re.IGNORECASE), sql

    @story
    async def test_enqueueing_neither_waits_for_workers_nor_conflicts_with_them(self, bench: Bench) -> None:
        """A user's transaction only inserts: while it is open, all else goes on, and then it commits."""
        if self.one_writer:
            return  # then all who write wait for each other, workers too
        lease, (job,) = await bench.running(new_job())
        await bench.enqueue(new_job(), new_job(delay=1))
        session = await bench.store.begin_write()
        await bench.insert(session, "effect")
        await bench.store.jobs.enqueue(session, [new_job(), new_job(delay=5)], NOW)
        await bench.store.jobs.request_cancel(session, [new_job().id], NOW)
        assert len(await bench.claim(lease, now=after(2))) == 2
        await bench.settle(lease, ended(job))
        await bench.cancel_pending()
        await bench.store.jobs.prune(NOW + 2 * KEEP, 10)
        await session.commit()
        assert await bench.count() == {"ready": 1, "scheduled": 1, "running": 2, "success": 1}
