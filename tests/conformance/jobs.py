"""What a store promises of jobs: how they wait, are claimed, looked at, settled, canceled, retried and forgotten."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest

from conformance.bench import (
    AGAIN,
    KEEP,
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
from penstock.errors import TryAgain
from penstock.jobs.filter import JobFilter
from penstock.jobs.job import Job, NewJob, Options, job_uuid
from penstock.jobs.retry import Retry
from penstock.jobs.settle import ATTEMPTS_KEPT, settle_cancel
from penstock.jobs.states import JobEvent, JobState
from penstock.store.nouns.jobs import BELOW_ALL
from penstock.store.session import Session, Statement, reading
from penstock.store.store import Store

_MANY = ATTEMPTS_KEPT + 5
_OFTEN = Retry(max_attempts=_MANY, initial_backoff=0.0)


class Listening:
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

        def fail() -> Iterator[NewJob]:
            yield from (new_job() for _ in range(150))
            raise LookupError("the 151st")

        before = await bench.count()
        with pytest.raises(LookupError, match="the 151st"):
            await bench.writing(lambda session: bench.store.jobs.enqueue_alike(session, fail(), NOW))
        assert await bench.count() == before, "if one cannot be made, none is stored"
        assert ids(await bench.claim(await bench.lease(), 1000)) == ids(due)

    @story
    async def test_an_id_is_taken_once_and_is_known_in_the_transaction_that_takes_it(self, bench: Bench) -> None:
        alone = [new_job("action", retry=AGAIN), new_job(delay=10), new_job(concurrency_key="a")]
        for job in alone:
            await bench.store.jobs.enqueue_alone(job, NOW)
        assert ids(await bench.claim(await bench.lease())) == [alone[0].id]
        job = new_job()
        session = await bench.store.begin_write()
        await bench.store.jobs.enqueue(session, [job], NOW)
        status = await bench.store.jobs.find(session, job.id, NOW)
        assert status is not None
        assert status.state is JobState.PENDING
        await session.commit()
        for again in (bench.enqueue(job), bench.store.jobs.enqueue_alone(alone[1], NOW)):
            with pytest.raises(Exception, match="already"):
                await again
        await bench.enqueue()
        await bench.request_cancel()
        assert await bench.count() == {"ready": 2, "scheduled": 1, "running": 1}

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
    async def test_a_status_is_known_until_it_expires_and_pruning_takes_nothing_else(self, bench: Bench) -> None:
        """For weeks, each day some jobs end, and every other day the pruner runs."""
        lease = await bench.lease(ttl=timedelta(days=1000))
        await bench.enqueue(new_job())
        await bench.claim_one(lease)
        await bench.enqueue(new_job(delay=10**9))
        until, lengths, stays = dict[UUID, float](), (0.25, 1, 7, 20), {"running": 1, "scheduled": 1}
        for day in range(25):
            now = after(day * 86400)
            await bench.enqueue(*(new_job(now=now) for _ in lengths), now=now)
            ends = [ended(job, JobEvent.RAISED, error="No", now=now) for job in await bench.claim(lease, now=now)]
            kept = [
                replace(end, expires_at=now + timedelta(days=days)) for end, days in zip(ends, lengths, strict=True)
            ]
            await bench.settle(lease, *kept)
            until |= {end.id: day + days for end, days in zip(ends, lengths, strict=True)}
            known = {job_id for job_id, end in until.items() if end > day}
            assert await bench.count(now) == {"failed": len(known), **stays}, f"on day {day}"
            assert set(await bench.matching(JobFilter(state="failed"), now=now)) == known
            for job_id in [one for one, end in until.items() if end == day]:
                assert (await bench.find(job_id, now), await bench.retry(job_id, now=now)) == (None, [])
            if day % 2 == 0:
                await bench.store.jobs.prune(now, 1000)
        for day in range(25, 85):
            await bench.store.jobs.prune(after(day * 86400), 1000)
        assert await bench.count() == stays, "nothing is left behind"
        await bench.enqueue(*(new_job() for _ in range(10)))
        long = [replace(ended(job), expires_at=after(400 * 86400)) for job in await bench.claim(lease)]
        await bench.settle(lease, *long)
        pieces = [await bench.store.jobs.prune(after(401 * 86400), 4) for _ in range(4)]
        assert pieces == [4, 4, 2, 0], "in bounded pieces"
        assert await bench.count() == stays

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
    async def test_of_many_who_settle_or_retry_one_job_one_wins(self, bench: Bench) -> None:
        lease, (job,) = await bench.running(new_job("action"))
        stores = [await bench.another() for _ in range(4)]

        async def settle(number: int, store: Store) -> bool:
            return bool(await store.jobs.settle(lease, [ended(job, JobEvent.RAISED, error=str(number))]))

        won = await asyncio.gather(*(settle(number, store) for number, store in enumerate(stores)))
        assert sum(won) == 1
        assert (await bench.status(job.id)).error == str(won.index(True))
        retried = await asyncio.gather(*(store.jobs.retry([job.id], NOW) for store in stores))
        assert sorted(map(len, retried)) == [0, 0, 0, 1]
        assert await bench.count() == {"ready": 1}

    @story
    async def test_of_many_settled_within_a_transaction_it_is_told_how_many_the_lease_held(self, bench: Bench) -> None:
        lease, (first, second, gone) = await bench.running(new_job(), new_job(), new_job())
        assert await bench.settle(lease, ended(gone, result="0")) == {gone.id}

        async def effect(session: Session) -> None:
            ends = [ended(first, result="1"), ended(gone, result="2"), ended(second, result="3")]
            assert await bench.store.jobs.settle_all_within(session, lease, ends) == len(ends) - 1

        await bench.writing(effect)
        assert [(await bench.status(job.id)).result for job in (first, gone, second)] == [1, 0, 3]

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

    # ----- filters

    @story
    async def test_a_filter_finds_what_has_all_that_it_names_and_what_goes_on_is_seen(self, bench: Bench) -> None:
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
        newest = await bench.matching(now=after(30))
        assert await bench.matching(limit=3, below=newest[2], now=after(30)) == newest[3:6]
        assert await bench.matching(limit=3, below=newest[-1], now=after(30)) == []
        assert await bench.reading(lambda session: bench.store.jobs.count_failed(session, after(30), 9)) == 1
        assert await bench.reading(lambda session: bench.store.jobs.count_failed(session, after(30), 0)) == 0
        assert await bench.reading(lambda session: bench.store.jobs.count_failed(session, after(10**9), 9)) == 0
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

    @story
    async def test_a_bounded_look_sees_all_that_has_not_ended_and_the_last_that_did(self, bench: Bench) -> None:
        jobs, store = await self._all_kinds(bench), bench.store.jobs
        last = sorted((jobs[name] for name in ("good", "bad", "canceled")), reverse=True)[:2]
        unfinished = {jobs[name] for name in ("ready", "later", "runs")}
        ours = JobFilter(function="conformance:function")

        async def look(where: JobFilter) -> set[UUID]:
            found = await bench.reading(lambda session: store.list_recent(session, where, 9, after(30)))
            assert found == sorted(found, key=lambda job: job.id, reverse=True)
            return {job_uuid(job.id) for job in found}

        async def horizon(where: JobFilter) -> UUID:
            return await bench.reading(lambda session: store.horizon(session, where))

        with patch("penstock.store.nouns.jobs.LOOKED_AT", 1):
            assert await look(ours) == unfinished | {*last}
            for state in ("success", "canceled"):
                assert await look(JobFilter(state=state)) <= {*last}
            assert await look(JobFilter(state="failed")) == {jobs["bad"]}
            assert await look(JobFilter(state="running")) == {jobs["runs"]}
            assert await horizon(ours) == last[-1]
            assert [await horizon(one) for one in (JobFilter(), JobFilter(state="failed"))] == [BELOW_ALL] * 2
        assert await look(ours) == {*jobs.values()} - {jobs["named"]}
        assert await horizon(ours) == BELOW_ALL

    @story
    async def test_cancels_are_asked_for_by_filter(self, bench: Bench) -> None:
        jobs = await self._all_kinds(bench)

        async def ask(where: JobFilter) -> int:
            return await bench.writing(lambda session: bench.store.jobs.request_cancel_all(session, where, after(30)))

        assert await ask(JobFilter(error="no such")) == await ask(JobFilter("p", "conformance:other")) == 0
        assert await ask(JobFilter("p", "conformance:function")) == 1
        assert await bench.cancel_pending(after(30)) == []
        assert await ask(JobFilter(state="pending", before=after(10))) == 1
        assert await bench.cancel_pending(after(30)) == []
        assert await bench.count(after(30)) == {"ready": 1, "running": 1, "success": 1, "failed": 1, "canceled": 3}
        assert await ask(JobFilter(concurrency_key="tenant")) == 0
        assert await ask(JobFilter(concurrency_key="tenant %", key="k'1")) == 1
        assert await ask(JobFilter(function="conformance:function")) == 1, "what runs; what has ended is left alone"
        assert await bench.cancel_pending(after(30)) == [jobs["runs"]]

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
