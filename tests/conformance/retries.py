"""What a store promises of attempts that failed, of jobs that are retried, and of filters: kept, once, and exact."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import UUID

from conformance.bench import (
    KEEP,
    NOW,
    Bench,
    Suite,
    after,
    ended,
    ids,
    new_job,
    story,
)
from penstock.jobs.filter import JobFilter
from penstock.jobs.job import Options, job_uuid
from penstock.jobs.retry import Retry
from penstock.jobs.settle import ATTEMPTS_KEPT, settle_cancel
from penstock.jobs.states import JobEvent

_MANY = ATTEMPTS_KEPT + 5
_FOR_A_WHILE = Retry.fixed(10, max_duration=10**6)
_OFTEN = Retry(max_attempts=_MANY, initial_backoff=0.0)


class Retries(Suite):
    """`store.nouns.Jobs`: attempts that are kept, retries, filters."""

    # ----- attempts

    @story
    async def test_of_very_many_attempts_the_last_ones_are_kept(self, bench: Bench) -> None:
        new = new_job("action", retry=_OFTEN)
        await bench.enqueue(new)
        lease = await bench.lease()
        for number in range(1, _MANY + 1):
            job = await bench.claim_one(lease, after(number))
            await bench.settle(
                lease, ended(job, JobEvent.RAISED, now=after(number), error=f"E{number}", traceback="x" * 50_000)
            )
        status = await bench.status(new.id, after(_MANY))
        assert [one.number for one in status.attempts] == list(range(6, _MANY + 1))
        assert {one.what for one in status.attempts[:-1]} == {"raised"}
        assert status.attempts[-1].what == "exhausted"
        assert sum(len(one.traceback or "") for one in status.attempts) <= ATTEMPTS_KEPT * 4_000
        assert status.traceback == "x" * 50_000

    # ----- since when a job fails

    # ----- retry

    @story
    async def test_an_expired_job_is_not_retried(self, bench: Bench) -> None:
        lease, (job,) = await bench.running(new_job("action"))
        await bench.settle(lease, ended(job, JobEvent.RAISED, error="No"))
        assert await bench.retry(job.id, now=NOW + KEEP) == []

    @story
    async def test_of_many_who_retry_one_job_one_wins(self, bench: Bench) -> None:
        lease, (job,) = await bench.running(new_job("action"))
        await bench.settle(lease, ended(job, JobEvent.RAISED, error="No"))
        stores = [await bench.another() for _ in range(4)]
        won = await asyncio.gather(*(store.jobs.retry([job.id], NOW) for store in stores))
        assert sorted(map(len, won)) == [0, 0, 0, 1]
        assert await bench.count() == {"ready": 1}

    # ----- filters

    @story
    async def test_a_filter_finds_what_has_all_that_it_names(self, bench: Bench) -> None:
        jobs = await self._all_kinds(bench)
        names = {job_id: name for name, job_id in jobs.items()}
        for where, expected in (
            (JobFilter(), "ready later runs good bad canceled named"),
            (JobFilter(pool="p"), "later"),
            (JobFilter(pool="nowhere"), ""),
            (JobFilter(function="conformance:function"), "ready later runs good bad canceled"),
            (JobFilter(function="conformance:other"), "named"),
            (JobFilter(state="pending"), "ready later named"),
            (JobFilter(state="running"), "runs"),
            (JobFilter(state="completing"), ""),
            (JobFilter(state="failed"), "bad"),
            (JobFilter(name="Ada's"), "named"),
            (JobFilter(name="conformance:function", state="success"), "good"),
            (JobFilter(key="k'1"), "named"),
            (JobFilter(key="k"), ""),
            (JobFilter(concurrency_key="tenant %", key="k'1"), "named"),
            (JobFilter(concurrency_key="%"), ""),
            (JobFilter(error="%_'"), "bad"),
            (JobFilter(error="e100"), ""),
            (JobFilter(since=after(10)), "bad named"),
            (JobFilter(before=after(10)), "ready later runs good canceled"),
            (JobFilter(since=after(10), before=after(20)), "bad"),
            (JobFilter(state="pending", since=after(11), pool="default"), "named"),
        ):
            found = [names[job_id] for job_id in await bench.matching(where, now=after(30))]
            assert sorted(found) == sorted(expected.split()), where
            session = await bench.store.begin_read()
            listed = await bench.store.jobs.list(session, where, 9, after(30))
            await session.rollback()
            assert [names[job_uuid(job.id)] for job in listed] == found, where
        assert await bench.reading(lambda session: bench.store.jobs.count_failed(session, after(30), 9)) == 1
        assert await bench.reading(lambda session: bench.store.jobs.count_failed(session, after(30), 0)) == 0
        assert await bench.reading(lambda session: bench.store.jobs.count_failed(session, after(10**9), 9)) == 0

    @story
    async def test_matching_goes_on_below_an_id(self, bench: Bench) -> None:
        jobs = [new_job(delay=number % 2) for number in range(7)]
        await bench.enqueue(*jobs)
        newest = ids(jobs)[::-1]
        assert await bench.matching(limit=3) == newest[:3]
        assert await bench.matching(limit=3, below=newest[2]) == newest[3:6]
        assert await bench.matching(limit=3, below=newest[-1]) == []

    @story
    async def test_cancels_are_asked_for_by_filter(self, bench: Bench) -> None:
        jobs = await self._all_kinds(bench)

        async def ask(where: JobFilter) -> int:
            return await bench.writing(lambda session: bench.store.jobs.request_cancel_all(session, where, after(30)))

        assert await ask(JobFilter(error="no such")) == 0
        assert await ask(JobFilter(state="pending", before=after(10))) == 2
        assert await bench.cancel_pending(after(30)) == []
        assert await bench.count(after(30)) == {"ready": 1, "running": 1, "success": 1, "failed": 1, "canceled": 3}
        assert await ask(JobFilter(concurrency_key="tenant")) == 0
        assert await ask(JobFilter(concurrency_key="tenant %", key="k'1")) == 1
        assert await ask(JobFilter(function="conformance:function")) == 1, "what runs; what has ended is left alone"
        assert await bench.cancel_pending(after(30)) == [jobs["runs"]]

    # ----- what is seen from outside

    @story
    async def test_what_goes_on_in_pools_and_under_leases_is_seen(self, bench: Bench) -> None:
        jobs = await self._all_kinds(bench)
        idle = await bench.lease(after(40))
        oldest = await bench.reading(lambda session: bench.store.pools.oldest(session, 1))
        assert sorted((one.place, one.pool, one.since) for one in oldest) == [
            ("ready", "default", NOW),
            ("running", "default", NOW),
        ]
        assert [one.id for one in oldest if one.place == "running"] == [jobs["runs"]]
        busy, free = await bench.reading(bench.store.leases.list)
        assert (busy.holder, busy.running, busy.started_at, busy.expires_at) == ("conformance", 1, NOW, after(30))
        assert (free.lease, free.running, free.expires_at) == (idle, 0, after(70))
        assert await bench.state(jobs["runs"]) == "running"

    async def _all_kinds(self, bench: Bench) -> dict[str, UUID]:
        lease, (runs, good, bad) = await bench.running(*(new_job("action") for _ in range(3)))
        await bench.settle(lease, ended(good, now=after(5)))
        await bench.settle(lease, ended(bad, JobEvent.RAISED, now=after(15), error="E100: 100 %_' of it"))
        ready, later, canceled = new_job(), new_job(delay=600, pool="p"), new_job()
        options = Options(name="Ada's", key="k'1", concurrency_key="tenant %")
        named = replace(new_job(now=after(20)), function="conformance:other", options=options)
        await bench.enqueue(ready, later, canceled)
        await bench.enqueue(named, now=after(20))
        await bench.request_cancel(canceled.id)
        await bench.store.jobs.cancel_pending(
            after(6), 10, lambda jobs: [settle_cancel(job, after(6), KEEP) for job in jobs]
        )
        waiting = {"ready": ready.id, "later": later.id, "canceled": canceled.id, "named": named.id}
        return waiting | {"runs": runs.id, "good": good.id, "bad": bad.id}
