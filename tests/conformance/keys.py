"""What a store promises of keys: one job at a time has one, and it is free when the job has started, or ended."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

from conformance.bench import KEEP, NOW, Bench, Suite, after, ended, new_job, patiently, story
from penstock.jobs.job import NewJob, Settlement
from penstock.jobs.settle import complete
from penstock.jobs.states import JobEvent
from penstock.pools.pool import PoolDefinition
from penstock.pools.rates import RateState, TokenBucket, take
from penstock.store.nouns.jobs import Room
from penstock.store.nouns.keys import KeyHolder
from penstock.store.nouns.rates import RateRow
from penstock.store.session import Session
from penstock.store.store import Store

POLICY = TokenBucket(rate=10, period=timedelta(seconds=10))


class Keys(Suite):
    @story
    async def test_a_key_is_free_when_its_on_complete_has_run(self, bench: Bench) -> None:
        await bench.store.pools.declare([PoolDefinition("p", 100)])
        lease = await bench.lease()
        for canceled in (False, True):
            job = keyed(on_complete="conformance:told")
            known = KeyHolder(job.id, until_start=False, enqueued_at=None)
            await hold(bench, job)
            if canceled:
                await bench.request_cancel(job.id)
                assert await holder(bench) == known
                assert not await replace(bench, job, keyed())
                await bench.cancel_pending()
            else:
                (running,) = (await bench.store.jobs.claim(lease, 5, [Room("p", 5, 1)], NOW)).jobs
                await bench.settle(lease, ended(running))
            assert not await free(bench, job)
            assert await holder(bench) == known
            (running,) = (await bench.store.jobs.claim(lease, 5, [], NOW)).jobs
            again = ended(running, JobEvent.HANDED_BACK)
            assert await bench.settle(lease, again) == {job.id}
            assert await holder(bench) == known, "it is called again"
            assert not await replace(bench, job, keyed())
            (running,) = (await bench.store.jobs.claim(lease, 5, [], NOW)).jobs
            assert running.ending is not None
            await within(bench, lease, complete(running, running.ending, NOW, KEEP))
            assert await holder(bench) is None

    @story
    async def test_a_key_is_taken_from_a_job_that_was_never_stored(self, bench: Bench) -> None:
        lost, other = keyed(), keyed()
        assert await holder(bench) is None
        await bench.writing(lambda session: bench.store.keys.hold(session, lost))
        assert not await hold(bench, other)
        assert not await free(bench, other), "it has not the key"
        assert await free(bench, lost)
        assert not await free(bench, lost)
        session = await bench.store.begin_write()
        assert await bench.store.keys.hold(session, lost)
        await session.rollback()
        assert await hold(bench, other), "it is free if its transaction is undone"
        assert await hold(bench, keyed("other"))

    @story
    async def test_what_is_left_is_kept_for_each_name_and_key(self, bench: Bench) -> None:
        rates, state = bench.store.rates, RateState(-9_000_000_000, 1_000_000_000, after(1.5))
        await keep(bench, "one", "a", state)
        assert [await peek(bench, *of) for of in (("one", "a"), ("one", "b"), ("two", "a"))] == [state, None, None]
        await keep(bench, "one", "a", RateState(5, 7, NOW))
        assert await peek(bench, "one", "a") == RateState(5, 7, NOW)
        rows = [RateRow("n", f"k{number}", POLICY, RateState(number, 1, NOW)) for number in range(50)]
        await bench.writing(lambda session: rates.keep(session, rows))
        assert [await peek(bench, row.name, row.key) for row in rows] == [row.state for row in rows]
        await bench.writing(lambda session: rates.keep(session, []))
        for key in ("a", "never"):
            await bench.writing(lambda session, key=key: rates.forget(session, "one", key))  # type: ignore[misc]
        assert await peek(bench, "one", "a") is None
        session = await bench.store.begin_write()
        await rates.hold(session, "one", "a", NOW)
        await rates.keep(session, [RateRow("one", "a", POLICY, RateState(1, 1, NOW))])
        await session.rollback()
        assert await peek(bench, "one", "a") is None, "what is undone was not taken"

    @story
    async def test_what_is_only_held_is_as_if_nothing_was_taken(self, bench: Bench) -> None:
        for _ in range(2):
            assert await bench.writing(lambda session: bench.store.rates.hold(session, "one", "a", NOW)) is None
            assert await peek(bench, "one", "a") is None
        await keep(bench, "one", "a", RateState(3, 1, NOW))
        held = await bench.writing(lambda session: bench.store.rates.hold(session, "one", "a", after(9)))
        assert held == RateState(3, 1, NOW)

    @story
    async def test_of_many_who_take_at_once_none_takes_what_another_took(self, bench: Bench) -> None:
        stores = [bench.store, await bench.another(), await bench.another()]
        taken = 0

        async def try_to_take(store: Store) -> None:
            nonlocal taken
            for _ in range(6):
                ok = False

                async def attempt(session: Session) -> None:
                    nonlocal ok
                    state = await store.rates.hold(session, "one", "", NOW)
                    found = take(POLICY, state, NOW)
                    ok = found.ok
                    if found.ok and found.state is not None:
                        await store.rates.keep(session, [RateRow("one", "", POLICY, found.state)])

                await patiently(lambda attempt=attempt: bench.writing(attempt, store))  # type: ignore[misc]
                taken += ok

        await asyncio.gather(*(try_to_take(store) for store in stores))
        assert taken == 10

    @story
    async def test_those_that_are_full_again_are_forgotten(self, bench: Bench) -> None:
        for number in range(5):
            await keep(bench, "one", f"k{number}", _one_taken(after(number)))
        assert await bench.store.rates.prune(after(0.9), 10) == 0
        assert await bench.store.rates.prune(after(4), 2) == 2
        assert await bench.store.rates.prune(after(4), 10) == 2
        assert [await peek(bench, "one", f"k{number}") is None for number in range(5)] == [True] * 4 + [False]


def keyed(key: str = "k", **asked: Any) -> NewJob:
    return new_job(**{"pool": "p", "key": key, **asked})


async def hold(bench: Bench, job: NewJob) -> bool:
    """Enqueue a job if its key is free; whether it was."""

    async def enqueue(session: Any) -> bool:
        held = await bench.store.keys.hold(session, job)
        if held:
            await bench.store.jobs.enqueue(session, [job], NOW)
        return held

    return await bench.writing(enqueue)


async def holder(bench: Bench, key: str = "k") -> KeyHolder | None:
    return await bench.reading(lambda session: bench.store.keys.holder(session, "p", key))


async def free(bench: Bench, job: NewJob) -> bool:
    """Take its key from a job, if that is not there; whether it was so."""
    return await bench.writing(lambda session: bench.store.keys.free(session, "p", "k", job.id))


async def replace(bench: Bench, old: NewJob, new: NewJob) -> bool:
    known = KeyHolder(old.id, until_start=bool(old.options.until_start), enqueued_at=NOW)
    return await bench.writing(lambda session: bench.store.keys.replace(session, known, new, NOW))


async def within(bench: Bench, lease: int, settlement: Settlement) -> None:
    assert await bench.writing(lambda session: bench.store.jobs.settle_within(session, lease, settlement))


def _one_taken(now: datetime) -> RateState:
    state = take(POLICY, None, now).state
    assert state is not None
    return state


async def keep(bench: Bench, name: str, key: str, state: RateState) -> None:
    row = RateRow(name, key, POLICY, state)
    await bench.writing(lambda session: bench.store.rates.keep(session, [row]))


async def peek(bench: Bench, name: str, key: str) -> RateState | None:
    return await bench.reading(lambda session: bench.store.rates.peek(session, name, key))
