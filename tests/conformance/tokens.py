"""What a store promises of tokens: work held outside keeps its slot, and ends once, whoever is first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

from conformance.bench import KEEP, NOW, TTL, Bench, Suite, after, definitions, ended, lose, new_job, story
from penstock.clock import random_of
from penstock.errors import TryAgain
from penstock.jobs.job import Job, NewJob, Outcome, Settlement
from penstock.jobs.progress import Progress
from penstock.jobs.settle import settle
from penstock.jobs.states import JobEvent, JobState
from penstock.jobs.token import Token, token_of, token_text
from penstock.store.nouns.jobs import Room
from penstock.store.nouns.leases import OUTSIDE
from penstock.store.nouns.tokens import Redeemed
from penstock.store.store import Store

HOUR = timedelta(hours=1)


def token_for(job: Job, chance: str = "unguessed") -> Token:
    return token_of(token_text(job.id, job.attempt, chance))


def decide(event: JobEvent = JobEvent.RETURNED, seconds: float = 1, **facts: Any) -> Callable[[list[Job]], Any]:
    """Decides about jobs as whoever brings a token does."""

    def settled(jobs: list[Job]) -> list[Settlement]:
        return [settle(job, Outcome(event, **facts), after(seconds), 0.5, KEEP) for job in jobs]

    return settled


class Tokens(Suite):
    async def _held(self, bench: Bench, *jobs: NewJob) -> tuple[int, list[Job]]:
        """Jobs of the pool p that are held outside, and the lease that they ran under."""
        await bench.store.pools.declare(definitions({"p": 4}))
        await bench.enqueue(*jobs)
        lease = await bench.lease()
        await bench.store.pools.acquire(lease, "p", len(jobs))
        claimed = (await bench.store.jobs.claim(lease, 9, [Room("p", len(jobs), 1)], NOW)).jobs
        assert len(claimed) == len(jobs)
        for job in claimed:
            assert await bench.store.tokens.issue(lease, token_for(job), NOW + HOUR)
        assert await bench.store.tokens.hold(lease, [(job.id, job.attempt) for job in claimed]) == {
            job.id for job in claimed
        }
        return lease, sorted(claimed, key=lambda job: job.id)

    async def _slots(self, bench: Bench, lease: int) -> tuple[int, int, int]:
        """Slots of the pool p: all that are held, those of a lease, and those outside."""
        (mine,) = await bench.store.pools.look(lease, ["p"], 1)
        (outside,) = await bench.store.pools.look(OUTSIDE, ["p"], 1)
        return mine.granted, mine.held, outside.held

    # ----- progress

    @story
    async def test_progress_is_written_for_jobs_that_the_lease_holds(self, bench: Bench) -> None:
        lease, (first, second) = await bench.running(new_job("action"), new_job("action"))
        said = {first.id: Progress(1, 2, "half"), second.id: Progress(0.5)}
        await bench.store.tokens.report(lease, said)
        await bench.store.tokens.report(await bench.lease(), {first.id: Progress(9)})
        await bench.store.tokens.report(lease, {new_job().id: Progress(9)})
        assert {(await bench.status(job.id)).progress for job in (first, second)} == set(said.values())
        assert {status.progress for status in await bench.list("running")} == set(said.values())
        await bench.settle(lease, ended(first), ended(second, JobEvent.SNOOZED))
        assert [(await bench.status(job.id)).progress for job in (first, second)] == [None, None]

    # ----- tokens

    @story
    async def test_a_held_job_leaves_its_worker_with_its_slot(self, bench: Bench) -> None:
        lease, (job, _) = await self._held(bench, new_job("action", pool="p"), new_job("action", pool="p"))
        assert await self._slots(bench, lease) == (2, 0, 2)
        assert await bench.store.leases.jobs(lease) == []
        assert await bench.settle(lease, ended(job)) == set(), "it is not the worker's any more"
        assert await bench.store.tokens.hold(lease, [(job.id, 1)]) == set()
        await bench.store.leases.give_back(lease)
        assert not await bench.store.leases.renew(lease, TTL, NOW)
        assert await bench.store.leases.find_expired(after(10**9)) == []
        assert await bench.store.leases.rescue(OUTSIDE, after(10**9), lose()) == 0
        assert await bench.state(job.id) == "running"
        other = await bench.lease()
        assert await bench.store.pools.acquire(other, "p", 3) == 2, "the sum is the limit"
        (view,) = await bench.store.pools.look(other, ["p"], 1)
        assert (view.granted, view.holders) == (4, 1), "nobody has to share with those outside"

    @story
    async def test_a_token_ends_its_job_once(self, bench: Bench) -> None:
        lease, (job,) = await self._held(bench, new_job("action", pool="p", on_complete="conformance:told"))
        tokens, token = bench.store.tokens, token_for(job)
        assert await tokens.redeem(token_for(job, "guessed"), "success", NOW, decide()) is None
        assert await tokens.redeem(token, "success", NOW, decide(result="5")) == Redeemed(accepted=True, told="success")
        for told in ("success", "failed"):
            assert await tokens.redeem(token, told, NOW, decide()) == Redeemed(accepted=False, told="success")
        assert await bench.state(job.id) == "completing"
        assert await self._slots(bench, lease) == (0, 0, 0)
        claimed = await bench.claim_one(lease, after(2))
        assert claimed.ending is not None
        assert (claimed.ending.state, claimed.ending.result) == (JobState.SUCCESS, "5")

    @story
    async def test_a_void_token_counts_no_more(self, bench: Bench) -> None:
        lease, (job,) = await bench.running(new_job("action"))
        tokens, token = bench.store.tokens, token_for(job)
        assert await tokens.void(job.id, job.attempt), "there is none"
        await tokens.issue(lease, token, NOW + HOUR)
        assert await tokens.void(job.id, job.attempt)
        assert await tokens.void(job.id, job.attempt)
        assert await tokens.redeem(token, "success", NOW, decide()) == Redeemed(accepted=False, told="expired")
        assert await tokens.issue(lease, token, NOW + HOUR), "the next run of a snoozed attempt has one of its own"
        assert await tokens.redeem(token, "success", NOW, decide()) == Redeemed(accepted=True, told="success")

    # ----- the end of those of which nobody tells

    @story
    async def test_jobs_of_which_nobody_tells_in_time_end_and_their_tokens_are_forgotten(self, bench: Bench) -> None:
        lease, (told, canceled, one, two) = await self._held(bench, *(new_job("action", pool="p") for _ in range(4)))
        tokens, day = bench.store.tokens, 86400
        assert await tokens.redeem(token_for(told), "success", NOW, decide()) == Redeemed(accepted=True, told="success")
        assert await tokens.cancel(NOW, 9, decide(JobEvent.CANCELED)) == 0
        await bench.request_cancel(canceled.id)
        assert await bench.cancel_pending() == [canceled.id]
        assert await tokens.cancel(NOW, 9, decide(JobEvent.CANCELED)) == 1
        redeemed = await tokens.redeem(token_for(canceled), "success", NOW, decide())
        assert redeemed == Redeemed(accepted=False, told="canceled")
        assert (await bench.count(), await self._slots(bench, lease)) == (
            {"success": 1, "canceled": 1, "running": 2}, (2, 0, 2),
        )  # fmt: skip
        assert await tokens.prune(after(day - 1), 9) == 0
        assert await tokens.prune(after(9 * day), 9) == 2, "the others are waited for, however long"
        assert await tokens.redeem(token_for(told), "success", NOW, decide()) is None
        fail = decide(JobEvent.RAISED, 3600, error="late")
        assert await tokens.expire(after(3599), 100, fail) == 0
        late = await tokens.redeem(token_for(one), "success", after(3600), decide())
        assert late == Redeemed(accepted=False, told="expired")
        assert [await tokens.expire(after(3600), most, fail) for most in (1, 9, 9)] == [1, 1, 0]
        assert [(await bench.status(job.id)).error for job in (one, two)] == ["late"] * 2
        assert await self._slots(bench, lease) == (0, 0, 0)
        assert await tokens.prune(after(2 * day), 9) == 2

    # ----- races

    @story
    async def test_of_many_who_end_a_job_one_does(self, bench: Bench) -> None:
        stores = [bench.store, await bench.another(), await bench.another()]
        chance = random_of(7)
        for number in range(6):
            lease, (job,) = await self._held(bench, new_job("action", pool="p"))
            await bench.request_cancel(job.id)
            end = after(3600)

            def ways(store: Store, token: Token, now: Any = end) -> list[Coroutine[Any, Any, Any]]:
                early = now - HOUR
                return [
                    store.tokens.redeem(token, "success", early, decide()),
                    store.tokens.redeem(token, "failed", early, decide(JobEvent.RAISED, error="No")),
                    store.tokens.expire(now, 9, decide(JobEvent.RAISED, 3600, error="late")),
                    store.tokens.cancel(now, 9, decide(JobEvent.CANCELED)),
                ]

            calls = [call for store in stores for call in ways(store, token_for(job))]
            chance.shuffle(calls)
            answers = await asyncio.gather(*calls, return_exceptions=True)
            assert all(not isinstance(answer, BaseException) or isinstance(answer, TryAgain) for answer in answers)
            won = [one for one in answers if one == 1 or (isinstance(one, Redeemed) and one.accepted)]
            assert len(won) == 1, f"{number}: {answers}"
            assert await self._slots(bench, lease) == (0, 0, 0)
            assert sum((await bench.count()).values()) == number + 1

    @story
    async def test_of_a_hold_and_a_completion_none_is_lost(self, bench: Bench) -> None:
        """The function returns, and at the same moment the outside system tells: the slot is given back once."""
        await bench.store.pools.declare(definitions({"p": 2}))
        other = await bench.another()
        lease = await bench.lease()
        for _ in range(8):
            await bench.store.pools.acquire(lease, "p", 1)
            await bench.enqueue(new_job("action", pool="p"))
            (job,) = (await bench.store.jobs.claim(lease, 1, [Room("p", 1, 1)], NOW)).jobs
            await bench.store.tokens.issue(lease, token_for(job), NOW + HOUR)
            moved, redeemed = await asyncio.gather(
                bench.store.tokens.hold(lease, [(job.id, job.attempt)]),
                other.tokens.redeem(token_for(job), "success", NOW, decide()),
            )
            assert redeemed == Redeemed(accepted=True, told="success")
            assert await bench.state(job.id) == "success"
            assert await self._slots(bench, lease) == ((0, 0, 0) if moved else (1, 1, 0))
            await bench.store.pools.release(lease, "p", 1)
