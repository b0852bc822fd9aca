"""What a store promises of attempts that failed, of jobs that are retried, and of filters: kept, once, and exact."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

from conformance.bench import (
    AGAIN,
    KEEP,
    NOW,
    Bench,
    Suite,
    after,
    ended,
    ids,
    lose,
    new_job,
    rooms,
    story,
)
from penstock.jobs.filter import JobFilter
from penstock.jobs.job import Job, Options, Settlement, job_uuid
from penstock.jobs.retry import Retry
from penstock.jobs.settle import ATTEMPTS_KEPT, settle_cancel
from penstock.jobs.states import JobEvent, JobState
from penstock.pools.pool import PoolDefinition
from penstock.store.nouns.jobs import Room

_MANY = ATTEMPTS_KEPT + 5
_FOR_A_WHILE = Retry.fixed(10, max_duration=10**6)
_OFTEN = Retry(max_attempts=_MANY, initial_backoff=0.0)


class Retries(Suite):
    """`store.nouns.Jobs`: attempts that are kept, retries, filters."""

    # ----- attempts

    @story
    async def test_an_attempt_that_failed_is_kept_with_the_job_wherever_it_stands(self, bench: Bench) -> None:
        lease, (job,) = await bench.running(new_job("action", retry=AGAIN))
        failed = ended(job, JobEvent.RAISED, now=after(1), error="Flaky: é\n\"'", traceback="line 1\nline 2 \\u0000")
        assert failed.failed is not None
        await bench.settle(lease, failed)
        kept = (failed.failed,)
        assert (kept[0].number, kept[0].what, kept[0].error) == (1, "raised", "Flaky: é\n\"'")
        assert (kept[0].started_at, kept[0].ended_at) == (NOW, after(1))
        assert (await bench.status(job.id)).attempts == kept, "while it is scheduled"
        assert await bench.claim(lease, 0, after(20)) == []
        assert (await bench.status(job.id)).attempts == kept, "while it is ready"
        again = await bench.claim_one(lease, after(20))
        assert (await bench.status(job.id)).attempts == kept, "while it runs"
        await bench.settle(lease, ended(again, now=after(21), result="1"))
        status = await bench.status(job.id, after(21))
        assert (status.state, status.attempts, status.error) == (JobState.SUCCESS, kept, None)
        assert (await bench.list("success", now=after(21)))[0].attempts == kept

    @story
    async def test_a_job_that_succeeds_at_once_keeps_no_attempts(self, bench: Bench) -> None:
        lease, (job,) = await bench.running(new_job())
        await bench.settle(lease, ended(job))
        assert (await bench.status(job.id)).attempts == ()

    @story
    async def test_what_uses_no_attempt_is_none(self, bench: Bench) -> None:
        lease, jobs = await bench.running(*(new_job("action") for _ in range(3)))
        for job, event in zip(jobs, (JobEvent.SNOOZED, JobEvent.HANDED_BACK, JobEvent.CANCELED), strict=True):
            await bench.settle(lease, ended(job, event, error="not now"))
            assert (await bench.status(job.id)).attempts == ()

    @story
    async def test_a_lost_attempt_is_kept(self, bench: Bench) -> None:
        lease, (job,) = await bench.running(new_job())
        await bench.store.leases.rescue(lease, after(31), lose(after(31)))
        (attempt,) = (await bench.status(job.id)).attempts
        assert (attempt.number, attempt.what, attempt.error) == (1, "lost", "WorkerLost: gone")
        assert (attempt.started_at, attempt.ended_at) == (NOW, after(31))

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

    @story
    async def test_whoever_gets_a_job_knows_since_when_it_fails(self, bench: Bench) -> None:
        await bench.store.pools.declare([PoolDefinition("p", 3, key_parallelism=1)])
        gated = new_job("action", pool="p", retry=_FOR_A_WHILE, concurrency_key="k")
        new = new_job("action", retry=_FOR_A_WHILE)
        await bench.enqueue(new, gated)
        lease = await bench.lease()
        await bench.store.pools.acquire(lease, "p", 3)
        places = [*rooms(9), Room("p", 3, 1)]
        for number in range(_MANY):  # so many that the first attempt is not kept any more
            now = after(100 * number)
            claim = await bench.store.jobs.claim(lease, 9, places, now)
            since = after(1) if number else None
            assert {job.id: job.failing_since for job in claim.jobs} == {new.id: since, gated.id: since}, number
            known = await bench.store.leases.jobs(lease)
            assert {job.id: job.failing_since for job in known} == {new.id: since, gated.id: since}
            if number == 2:  # what is no failure changes nothing
                waits = [ended(job, JobEvent.SNOOZED, now=now, delay=timedelta(0)) for job in claim.jobs]
                await bench.settle(lease, *waits)
                claim = await bench.store.jobs.claim(lease, 9, places, now)
                assert {job.failing_since for job in claim.jobs} == {since}
            now += timedelta(seconds=1)
            await bench.settle(lease, *(ended(job, JobEvent.RAISED, now=now, error="No") for job in claim.jobs))
        for status in (await bench.status(new.id), await bench.status(gated.id)):
            assert len(status.attempts) == ATTEMPTS_KEPT
            assert {one.failing_since for one in status.attempts} == {after(1)}

    @story
    async def test_a_job_that_is_retried_fails_since_it_failed_again(self, bench: Bench) -> None:
        lease, (job,) = await bench.running(new_job("action", retry=_FOR_A_WHILE))
        await bench.settle(lease, ended(job, JobEvent.RAISED, now=after(1), error="No"))
        again = await bench.claim_one(lease, after(20))
        await bench.settle(lease, ended(again, JobEvent.RAISED, now=after(20), error="No", retryable=False))
        assert await bench.retry(job.id, now=after(60)) == [job.id]
        anew = await bench.claim_one(lease, after(60))
        assert (anew.attempt, anew.failing_since) == (1, None)
        await bench.settle(lease, ended(anew, JobEvent.RAISED, now=after(61), error="No"))
        assert (await bench.claim_one(lease, after(80))).failing_since == after(61)

    @story
    async def test_it_is_known_of_a_lost_job_since_when_it_fails(self, bench: Bench) -> None:
        lease, _ = await bench.running(new_job("action", retry=_FOR_A_WHILE))
        await bench.store.leases.rescue(lease, after(31), lose(after(31)))
        second = await bench.lease(after(40))
        assert (await bench.claim_one(second, after(40))).failing_since == after(31)
        seen: list[datetime | None] = []

        def settle(jobs: list[Job]) -> list[Settlement]:
            seen.extend(job.failing_since for job in jobs)
            return lose(after(80))(jobs)

        await bench.store.leases.rescue(second, after(80), settle)
        assert seen == [after(31)]

    @story
    async def test_it_is_not_asked_where_the_policy_does_not(self, bench: Bench) -> None:
        lease, (job,) = await bench.running(new_job("action", retry=AGAIN))
        await bench.settle(lease, ended(job, JobEvent.RAISED, error="No"))
        assert (await bench.claim_one(lease, after(20))).failing_since is None
        assert (await bench.status(job.id)).attempts[0].failing_since is None

    @story
    async def test_attempts_are_kept_while_on_complete_is_still_to_come(self, bench: Bench) -> None:
        lease, (job,) = await bench.running(new_job("action", on_complete="conformance:told"))
        await bench.settle(lease, ended(job, JobEvent.RAISED, error="No"))
        waiting = await bench.status(job.id)
        assert (waiting.state, [one.what for one in waiting.attempts]) == (JobState.COMPLETING, ["exhausted"])
        call = await bench.claim_one(lease)
        await bench.settle(lease, ended(call, JobEvent.RAISED, error="callback failed"))
        assert (await bench.status(job.id)).attempts == waiting.attempts, "a call of on_complete is no attempt"

    @story
    async def test_a_canceled_job_keeps_its_attempts(self, bench: Bench) -> None:
        lease, (job,) = await bench.running(new_job("action", retry=AGAIN))
        await bench.settle(lease, ended(job, JobEvent.RAISED, error="Flaky"))
        await bench.request_cancel(job.id)
        await bench.cancel_pending()
        status = await bench.status(job.id)
        assert (status.state, [one.error for one in status.attempts]) == (JobState.CANCELED, ["Flaky"])

    # ----- retry

    @story
    async def test_a_failed_job_is_retried_as_it_was_with_its_attempts_counted_anew(self, bench: Bench) -> None:
        new = replace(new_job("action", retry=AGAIN, args='{"a":1}', priority=7), on_complete="conformance:told")
        lease, (job,) = await bench.running(new)
        await bench.settle(lease, ended(replace(job, on_complete=None, attempt=3), JobEvent.RAISED, error="No"))
        assert await bench.state(job.id) == "failed"
        assert await bench.retry(job.id, now=after(60)) == [job.id]
        status = await bench.status(job.id, after(60))
        assert (status.state, status.attempt, status.run_at) == (JobState.PENDING, 0, after(60))
        assert (status.enqueued_at, status.started_at, status.finished_at) == (NOW, None, None)
        assert (status.error, [one.number for one in status.attempts]) == ("No", [3])
        again = await bench.claim_one(lease, after(60))
        assert (again.id, again.args, again.priority, again.options.retry) == (job.id, '{"a":1}', 7, AGAIN)
        assert (again.attempt, again.on_complete) == (1, "conformance:told")
        assert await bench.count(after(60)) == {"running": 1}

    @story
    async def test_only_what_failed_or_was_canceled_is_retried(self, bench: Bench) -> None:
        lease, (good, bad, runs) = await bench.running(*(new_job("action") for _ in range(3)))
        ready, later, canceled = new_job(), new_job(delay=60), new_job()
        await bench.enqueue(ready, later, canceled)
        await bench.request_cancel(canceled.id)
        await bench.cancel_pending()
        await bench.settle(lease, ended(good), ended(bad, JobEvent.RAISED, error="No"))
        asked = [good.id, bad.id, runs.id, ready.id, later.id, canceled.id, new_job().id, bad.id]
        assert await bench.retry(*asked) == [bad.id, canceled.id]
        assert await bench.retry(*asked) == []
        assert await bench.state(good.id) == "success"

    @story
    async def test_an_expired_job_is_not_retried(self, bench: Bench) -> None:
        lease, (job,) = await bench.running(new_job("action"))
        await bench.settle(lease, ended(job, JobEvent.RAISED, error="No"))
        assert await bench.retry(job.id, now=NOW + KEEP) == []

    @story
    async def test_a_request_to_cancel_that_came_before_does_not_cancel_the_retry(self, bench: Bench) -> None:
        lease, (job,) = await bench.running(new_job("action"))
        await bench.request_cancel(job.id)
        await bench.settle(lease, ended(job, JobEvent.CANCELED))
        await bench.request_cancel(job.id)
        assert await bench.retry(job.id) == [job.id]
        assert await bench.cancel_pending() == []
        assert (await bench.claim_one(lease)).id == job.id

    @story
    async def test_of_many_who_retry_one_job_one_wins(self, bench: Bench) -> None:
        lease, (job,) = await bench.running(new_job("action"))
        await bench.settle(lease, ended(job, JobEvent.RAISED, error="No"))
        stores = [await bench.another() for _ in range(4)]
        won = await asyncio.gather(*(store.jobs.retry([job.id], NOW) for store in stores))
        assert sorted(map(len, won)) == [0, 0, 0, 1]
        assert await bench.count() == {"ready": 1}

    @story
    async def test_retried_jobs_start_in_the_order_in_which_they_are_named(self, bench: Bench) -> None:
        lease, jobs = await bench.running(*(new_job("action") for _ in range(5)))
        await bench.settle(lease, *(ended(job, JobEvent.RAISED, error="No") for job in jobs))
        order = [jobs[place].id for place in (3, 1, 4, 0, 2)]
        assert await bench.retry(*order) == order
        assert ids(await bench.claim(lease)) == order

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
