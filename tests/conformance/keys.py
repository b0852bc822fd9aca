"""What a store promises of keys: one job at a time has one, and it is free when the job has started, or ended."""

from __future__ import annotations

from typing import Any

from conformance.bench import (
    KEEP,
    NOW,
    Bench,
    Suite,
    ended,
    new_job,
    story,
)
from penstock.jobs.job import NewJob, Settlement
from penstock.jobs.settle import complete
from penstock.jobs.states import JobEvent
from penstock.pools.pool import PoolDefinition
from penstock.store.nouns.jobs import Room
from penstock.store.nouns.keys import KeyHolder


class Keys(Suite):
    """`store.nouns.Keys`."""

    @story
    async def test_a_key_is_free_when_its_on_complete_has_run(self, bench: Bench) -> None:
        await bench.store.pools.declare([PoolDefinition("p", 100)])
        lease = await bench.lease()
        for canceled in (False, True):
            job = keyed(on_complete="conformance:told")
            await hold(bench, job)
            if canceled:
                await bench.request_cancel(job.id)
                await bench.cancel_pending()
            else:
                (running,) = (await bench.store.jobs.claim(lease, 5, [Room("p", 5, 1)], NOW)).jobs
                await bench.settle(lease, ended(running))
            assert not await free(bench, job)
            assert await holder(bench) == KeyHolder(job.id, until_start=False, enqueued_at=None)
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
    async def test_a_job_to_be_canceled_has_its_key_until_its_on_complete_has_run(self, bench: Bench) -> None:
        await bench.store.pools.declare([PoolDefinition("p", 100)])
        job = keyed(on_complete="conformance:told")
        known = KeyHolder(job.id, until_start=False, enqueued_at=None)
        await hold(bench, job)
        await bench.request_cancel(job.id)
        assert await holder(bench) == known
        assert not await replace(bench, job, keyed())
        await bench.cancel_pending()
        lease = await bench.lease()
        (running,) = (await bench.store.jobs.claim(lease, 5, [], NOW)).jobs
        await bench.settle(lease, ended(running, JobEvent.RAISED, error="No"))
        assert await holder(bench) == known, "it is called again"
        assert not await replace(bench, job, keyed())


def keyed(key: str = "k", **asked: Any) -> NewJob:
    """A job with a key."""
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
    """Who has a key of the pool."""
    return await bench.reading(lambda session: bench.store.keys.holder(session, "p", key))


async def free(bench: Bench, job: NewJob) -> bool:
    """Take its key from a job, if that is not there; whether it was so."""
    return await bench.writing(lambda session: bench.store.keys.free(session, "p", "k", job.id))


async def replace(bench: Bench, old: NewJob, new: NewJob) -> bool:
    """Put a job in the place of another."""
    known = KeyHolder(old.id, until_start=bool(old.options.until_start), enqueued_at=NOW)
    return await bench.writing(lambda session: bench.store.keys.replace(session, known, new, NOW))


async def within(bench: Bench, lease: int, settlement: Settlement) -> None:
    """Settle a job in a transaction."""
    assert await bench.writing(lambda session: bench.store.jobs.settle_within(session, lease, settlement))
