"""What a store promises of jobs at rest: every move happens once, to its holder only, and in order."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from typing import Any

import pytest

from penstock.errors import TryAgain
from penstock.jobs.job import Job, NewJob, Settlement
from penstock.jobs.retry import Retry
from penstock.jobs.states import MOVES, JobEvent, JobState
from penstock.store.contract import Session, Statement, Store
from penstock.testing.conformance.bench import KEEP, NOW, Bench, Suite, after, ended, ids, lose, new_job, story

_AGAIN = Retry(max_attempts=3, initial_backoff=10.0)


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
    """`store.contract.Jobs`."""

    # ----- enqueue

    @story
    async def test_a_job_is_kept_as_it_was_enqueued(self, bench: Bench) -> None:
        job = new_job("action", priority=3, retry=_AGAIN, args='{"text":"žluťoučký \\u2028 kůň"}')
        await bench.enqueue(job)
        status = await bench.status(job.id)
        assert (status.state, status.attempt) == (JobState.PENDING, 0)
        assert (status.function, status.args) == (job.function, {"text": "žluťoučký \u2028 kůň"})
        assert (status.run_at, status.enqueued_at) == (NOW, NOW)
        claimed = await bench.claim_one(await bench.lease(), after(5))
        assert claimed == Job(
            job.id, job.function, "action", job.args, NOW, job.pool, 3, _AGAIN, 1, enqueued_at=NOW, started_at=after(5)
        )

    @story
    async def test_a_job_is_enqueued_only_if_its_transaction_commits(self, bench: Bench) -> None:
        now, later = new_job(), new_job(delay=10)
        session = await bench.store.begin_write()
        await bench.store.jobs.enqueue(session, [now, later], NOW)
        assert await bench.count() == {}
        await session.rollback()
        assert await bench.count() == {}
        assert await bench.claim(await bench.lease(), now=after(20)) == []

    @story
    async def test_many_jobs_are_enqueued_at_once_and_stay_in_order(self, bench: Bench) -> None:
        jobs = [new_job(delay=number % 2) for number in range(1000)]
        await bench.enqueue(*jobs)
        assert await bench.count() == {"ready": 500, "scheduled": 500}
        claimed = await bench.claim(await bench.lease(), 500)
        assert ids(claimed) == ids(jobs[::2])

    @story
    async def test_no_jobs_are_enqueued_without_fuss(self, bench: Bench) -> None:
        await bench.enqueue()
        await bench.request_cancel()
        assert await bench.count() == {}

    @story
    async def test_an_id_is_taken_once(self, bench: Bench) -> None:
        job = new_job()
        await bench.enqueue(job)
        with pytest.raises(Exception, match="already"):
            await bench.enqueue(job)

    # ----- claim

    @story
    async def test_the_most_urgent_come_first_then_the_oldest(self, bench: Bench) -> None:
        low, first, second, high = new_job(priority=-1), new_job(), new_job(), new_job(priority=9)
        await bench.enqueue(low, first, second, high)
        lease = await bench.lease()
        assert ids(await bench.claim(lease, 1)) == [high.id]
        assert ids(await bench.claim(lease, 2)) == [first.id, second.id]
        assert ids(await bench.claim(lease, 2)) == [low.id]
        assert ids(await bench.claim(lease, 2)) == []

    @story
    async def test_the_order_is_that_of_enqueueing_and_not_of_ids(self, bench: Bench) -> None:
        """Ids are made by the machines that enqueue, whose clocks differ."""
        older, newer = new_job(), new_job()
        await bench.enqueue(newer)
        await bench.enqueue(older)
        assert ids(await bench.claim(await bench.lease())) == [newer.id, older.id]

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
                return (await store.jobs.claim(lease, 7, NOW)).jobs
            except TryAgain:
                continue

    @story
    async def test_under_a_lease_that_was_taken_away_nothing_is_claimed(self, bench: Bench) -> None:
        job = new_job()
        await bench.enqueue(job)
        gone = await bench.lease()
        await bench.store.leases.give_back(gone)
        assert await bench.claim(gone) == []
        rescued = await bench.lease()
        await bench.store.leases.rescue(rescued, after(31), lose())
        assert await bench.claim(rescued) == []
        assert await bench.state(job.id) == "pending"

    @story
    async def test_a_job_runs_under_its_lease_only(self, bench: Bench) -> None:
        job = new_job()
        await bench.enqueue(job)
        lease, other = await bench.lease(), await bench.lease()
        await bench.claim(lease)
        assert ids(await bench.store.leases.jobs(lease)) == [job.id]
        assert await bench.store.leases.jobs(other) == []
        assert await bench.claim(other) == []

    # ----- scheduled for later

    @story
    async def test_a_scheduled_job_waits_for_its_time(self, bench: Bench) -> None:
        job = new_job(delay=10)
        await bench.enqueue(job)
        lease = await bench.lease()
        for moment, expected in ((0, []), (9.999999, []), (10, [job.id])):
            claim = await bench.store.jobs.claim(lease, 5, after(moment))
            assert ids(claim.jobs) == expected
            assert claim.next_run_at == (None if expected else after(10))

    @story
    async def test_the_next_time_is_that_of_the_earliest(self, bench: Bench) -> None:
        lease = await bench.lease()
        assert (await bench.store.jobs.claim(lease, 5, NOW)).next_run_at is None
        await bench.enqueue(new_job(delay=20), new_job(delay=10), new_job(delay=30))
        assert (await bench.store.jobs.claim(lease, 5, NOW)).next_run_at == after(10)
        claim = await bench.store.jobs.claim(lease, 5, after(15))
        assert (len(claim.jobs), claim.next_run_at) == (1, after(20))

    @story
    async def test_due_jobs_start_in_the_order_of_their_times(self, bench: Bench) -> None:
        jobs = [new_job(delay=delay) for delay in (3, 1, 2, 1)]
        await bench.enqueue(*jobs)
        claimed = await bench.claim(await bench.lease(), now=after(5))
        assert ids(claimed) == [jobs[1].id, jobs[3].id, jobs[2].id, jobs[0].id]

    @story
    async def test_more_due_jobs_than_places_wait_as_ready(self, bench: Bench) -> None:
        await bench.enqueue(*(new_job(delay=1) for _ in range(5)))
        lease = await bench.lease()
        claim = await bench.store.jobs.claim(lease, 2, after(2))
        assert (len(claim.jobs), claim.next_run_at) == (2, None)
        assert await bench.count() == {"ready": 3, "running": 2}

    @story
    async def test_thousands_that_are_due_together_all_start(self, bench: Bench) -> None:
        jobs = [new_job(delay=1) for _ in range(2500)]
        await bench.enqueue(*jobs)
        lease, claimed = await bench.lease(), []
        while (claim := await bench.store.jobs.claim(lease, 600, after(2))).jobs:
            claimed += ids(claim.jobs)
        assert claimed == ids(jobs)

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
    async def test_settling_within_a_transaction_tells_that_the_lease_is_lost(self, bench: Bench) -> None:
        lease, (job,) = await bench.running(new_job())
        await bench.store.leases.rescue(lease, after(31), lose())
        session = await bench.store.begin_write()
        assert not await bench.store.jobs.settle_within(session, lease, ended(job))
        await session.rollback()

    @story
    async def test_a_job_that_is_tried_again_waits_and_counts_its_attempts(self, bench: Bench) -> None:
        lease, (job,) = await bench.running(new_job("action", retry=_AGAIN))
        await bench.settle(lease, ended(job, JobEvent.RAISED, error="Flaky"))
        waiting = await bench.status(job.id)
        assert (waiting.run_at, waiting.error) == (after(10), "Flaky")
        assert await bench.claim(lease, now=after(9)) == []
        for attempt, moment in ((2, 10), (3, 40)):
            again = await bench.claim_one(lease, after(moment))
            assert (again.attempt, again.retry, again.enqueued_at) == (attempt, _AGAIN, NOW)
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

    # ----- every move there is

    @story
    async def test_every_move_of_the_state_machine(self, bench: Bench) -> None:
        seen: dict[tuple[JobState, JobEvent], JobState] = {}
        for state, event in MOVES:
            job = new_job("action", retry=_AGAIN if event in {JobEvent.RAISED, JobEvent.LOST} else None)
            await bench.enqueue(job)
            if state is JobState.PENDING:
                await self._move_pending(bench, job, event)
            else:
                await self._move_running(bench, job, event)
            seen[state, event] = (await bench.status(job.id)).state
            await self._clear(bench, job)
        assert seen == MOVES

    async def _move_pending(self, bench: Bench, job: NewJob, event: JobEvent) -> None:
        if event is JobEvent.CLAIMED:
            await bench.claim_one(await bench.lease())
        else:
            await bench.request_cancel(job.id)
            await bench.cancel_pending()

    async def _move_running(self, bench: Bench, job: NewJob, event: JobEvent) -> None:
        lease = await bench.lease()
        claimed = await bench.claim_one(lease)
        assert claimed.id == job.id
        # what happened, of which the rules make the event: no attempt is left, or it may not run again
        happened = {JobEvent.EXHAUSTED: JobEvent.RAISED, JobEvent.ABANDONED: JobEvent.LOST}.get(event, event)
        settlement = ended(claimed, happened, error="what went wrong", delay=timedelta(seconds=1))
        assert settlement.event is event
        if happened is JobEvent.LOST:
            assert await bench.store.leases.rescue(lease, after(31), lambda _jobs: [settlement]) == 1
        else:
            assert await bench.settle(lease, settlement) == {job.id}

    async def _clear(self, bench: Bench, job: NewJob) -> None:
        """Cancel a job that is still pending, so that the next move is made alone."""
        await bench.request_cancel(job.id)
        await bench.cancel_pending()

    # ----- cancel

    @story
    async def test_a_canceled_job_never_starts(self, bench: Bench) -> None:
        ready, scheduled = new_job(), new_job(delay=10)
        await bench.enqueue(ready, scheduled)
        await bench.request_cancel(ready.id, scheduled.id)
        lease = await bench.lease()
        assert await bench.claim(lease, now=after(20)) == [], "even before the request is carried out"
        assert await bench.cancel_pending(after(20)) == []
        for job in (ready, scheduled):
            status = await bench.status(job.id, after(20))
            assert (status.state, status.attempt) == (JobState.CANCELED, 0)
            assert (status.started_at, status.finished_at) == (None, after(20))
        assert await bench.claim(lease, now=after(20)) == []
        assert await bench.count(after(20)) == {"canceled": 2}

    @story
    async def test_a_request_counts_only_if_its_transaction_commits(self, bench: Bench) -> None:
        job = new_job()
        await bench.enqueue(job)
        session = await bench.store.begin_write()
        await bench.store.jobs.request_cancel(session, [job.id], NOW)
        await session.rollback()
        await bench.cancel_pending()
        assert ids(await bench.claim(await bench.lease())) == [job.id]

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
    async def test_a_running_job_is_named_until_it_has_ended(self, bench: Bench) -> None:
        lease, (job,) = await bench.running(new_job("action"))
        await bench.request_cancel(job.id)
        assert await bench.cancel_pending() == [job.id]
        assert await bench.cancel_pending(after(3600)) == [job.id]
        assert await bench.state(job.id) == "running"
        await bench.settle(lease, ended(job, JobEvent.CANCELED))
        assert await bench.cancel_pending(after(3600)) == []
        assert await bench.state(job.id) == "canceled"

    @story
    async def test_a_canceled_job_that_would_run_again_does_not(self, bench: Bench) -> None:
        lease, (job,) = await bench.running(new_job("action", retry=_AGAIN))
        await bench.request_cancel(job.id)
        await bench.cancel_pending()
        await bench.settle(lease, ended(job, JobEvent.RAISED, error="Flaky"))
        assert await bench.claim(lease, now=after(3600)) == []
        await bench.cancel_pending(after(3600))
        assert await bench.state(job.id, after(3600)) == "canceled"

    @story
    async def test_cancelling_what_has_ended_or_never_was_changes_nothing(self, bench: Bench) -> None:
        lease, (job,) = await bench.running(new_job())
        await bench.settle(lease, ended(job))
        await bench.request_cancel(job.id, new_job().id, job.id)
        for moment in (0, 30, 61, 62):
            assert await bench.cancel_pending(after(moment)) == []
        assert await bench.state(job.id) == "success"

    @story
    async def test_a_job_asked_twice_to_be_canceled_is_canceled_once(self, bench: Bench) -> None:
        job = new_job()
        await bench.enqueue(job)
        await bench.request_cancel(job.id, job.id)
        await bench.request_cancel(job.id)
        await bench.cancel_pending()
        await bench.cancel_pending()
        assert await bench.count() == {"canceled": 1}

    @story
    async def test_cancels_are_carried_out_in_bounded_pieces(self, bench: Bench) -> None:
        jobs = [new_job() for _ in range(25)]
        await bench.enqueue(*jobs)
        await bench.request_cancel(*ids(jobs))
        for left in (15, 5, 0):
            await bench.cancel_pending(limit=10)
            assert (await bench.count()).get("ready", 0) == left

    @story
    async def test_running_jobs_that_do_not_stop_do_not_hold_up_other_cancels(self, bench: Bench) -> None:
        _lease, jobs = await bench.running(*(new_job("action") for _ in range(10)))
        waiting = new_job()
        await bench.enqueue(waiting)
        await bench.request_cancel(*ids(jobs), waiting.id)
        for _ in range(5):
            await bench.cancel_pending(limit=5)
        assert await bench.state(waiting.id) == "canceled"

    @story
    async def test_claim_and_cancel_at_the_same_time_leave_each_job_in_one_place(self, bench: Bench) -> None:
        other = await bench.another()
        jobs = [new_job(delay=number % 2) for number in range(100)]
        await bench.enqueue(*jobs)
        lease = await bench.lease()

        async def cancel_all() -> None:
            for job in jobs:
                await bench.request_cancel(job.id)
                await self._patiently(lambda: other.jobs.cancel_pending(after(2), after(9000), 100))

        async def claim_all() -> None:
            for _ in range(40):
                await self._patiently(lambda: bench.store.jobs.claim(lease, 3, after(2)))

        await asyncio.gather(cancel_all(), claim_all())
        counts = await bench.count(after(2))
        assert counts["canceled"] + counts["running"] == 100
        assert len(await bench.store.leases.jobs(lease)) == counts["running"]

    async def _patiently(self, work: object) -> None:
        while True:
            try:
                await work()  # type: ignore[operator]
            except TryAgain:
                continue
            return

    # ----- look

    @story
    async def test_a_job_is_found_wherever_it_stands(self, bench: Bench) -> None:
        ready, scheduled, runs, failed = new_job(), new_job(delay=10), new_job(), new_job()
        lease, (running, finished) = await bench.running(runs, failed)
        await bench.enqueue(ready, scheduled)
        await bench.settle(lease, ended(finished, JobEvent.RAISED, error="E"))
        found = {job.id: await bench.state(job.id) for job in (ready, scheduled, running, finished)}
        assert list(found.values()) == ["pending", "pending", "running", "failed"]
        assert await bench.find(new_job().id) is None
        assert await bench.count() == {"ready": 1, "scheduled": 1, "running": 1, "failed": 1}

    @story
    async def test_jobs_are_listed_newest_first_by_state(self, bench: Bench) -> None:
        jobs = [new_job(delay=10 if number == 1 else 0) for number in range(5)]
        lease, claimed = await bench.running(jobs[3], jobs[4])
        await bench.enqueue(*jobs[:3])
        await bench.settle(lease, ended(claimed[0]))
        order = {status.id: number for number, status in enumerate(await bench.list())}
        assert len(order) == 5
        listed = [[status.state.value for status in await bench.list(state)] for state in (None, "pending")]
        assert listed == [["running", "success", "pending", "pending", "pending"], ["pending"] * 3]
        assert [status.run_at for status in await bench.list("pending")] == [NOW, after(10), NOW]
        assert [len(await bench.list(state)) for state in ("running", "success", "failed", "canceled")] == [1, 1, 0, 0]
        assert len(await bench.list(limit=2)) == 2

    @story
    async def test_a_job_is_found_in_the_transaction_that_enqueues_it(self, bench: Bench) -> None:
        job = new_job()
        session = await bench.store.begin_write()
        await bench.store.jobs.enqueue(session, [job], NOW)
        status = await bench.store.jobs.find(session, job.id, NOW)
        assert status is not None
        assert status.state is JobState.PENDING
        await session.rollback()

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
            assert await bench.count(now) == {"success": expected}, f"on day {day}"
        end = after(200 * 86400)
        for day in range(60, 120):
            await bench.store.jobs.prune(after(day * 86400), 1000)
        assert await bench.store.jobs.prune(end, 1000) == 0, "nothing is left behind"
        assert await bench.list(now=NOW) == []

    @story
    async def test_pruning_goes_in_bounded_pieces(self, bench: Bench) -> None:
        lease, jobs = await bench.running(*(new_job() for _ in range(10)))
        await bench.settle(lease, *(self._kept_for(ended(job), 400) for job in jobs))
        now = after(401 * 86400)
        assert [await bench.store.jobs.prune(now, 4) for _ in range(4)] == [4, 4, 2, 0]

    @story
    async def test_pruning_leaves_jobs_alone_that_have_not_ended(self, bench: Bench) -> None:
        _lease, _jobs = await bench.running(new_job())
        await bench.enqueue(new_job(), new_job(delay=10))
        for day in range(40):
            await bench.store.jobs.prune(after(day * 86400), 1000)
        assert await bench.count() == {"ready": 1, "scheduled": 1, "running": 1}

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
