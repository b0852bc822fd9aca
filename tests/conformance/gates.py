"""What a store promises of gates: jobs start in fair turns of their keys, never beyond a limit, whoever opens them."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from conformance.bench import (
    NOW,
    Bench,
    Suite,
    after,
    ended,
    ids,
    new_job,
    patiently,
    story,
)
from penstock.clock import random_of
from penstock.jobs.job import Job, NewJob
from penstock.pools.pool import PoolDefinition
from penstock.pools.rates import FixedWindow, TokenBucket
from penstock.store.nouns.jobs import Claim, Room
from penstock.store.store import Store

MINUTE = timedelta(minutes=1)


class Gates(Suite):
    """`store.nouns.Jobs`, for jobs that pass a gate."""

    # ----- turns

    @story
    async def test_the_limit_of_a_key_holds_for_all_stores_together(self, bench: Bench) -> None:
        await declare(bench, key_parallelism=3)
        await bench.enqueue(*(job for key in "abcd" for job in jobs(key, 30)))
        stores = [bench.store, await bench.another(), await bench.another()]
        running, chance, done = Counter[str](), random_of(7), 0

        async def work(store: Store) -> None:
            nonlocal done
            lease = await store.leases.take("conformance", timedelta(days=1), NOW)
            while done < 120:
                found = (await store.jobs.claim(lease, 9, [Room("p", chance.randrange(1, 9), 1)], NOW)).jobs
                for job in found:
                    running[job.options.concurrency_key or ""] += 1
                    assert max(running.values()) <= 3
                await bench.reading(store.pools.list, store)  # others have time to take too many
                for job in found:
                    running[job.options.concurrency_key or ""] -= 1  # before it is settled: then others may start
                    await patiently(lambda job=job: store.jobs.settle(lease, [ended(job)]))  # type: ignore[misc]
                    done += 1

        await asyncio.gather(*(work(store) for store in stores))
        assert await bench.count() == {"success": 120}

    # ----- what waits

    @story
    async def test_pools_share_places_whether_their_jobs_pass_gates_or_not(self, bench: Bench) -> None:
        await bench.store.pools.declare([PoolDefinition("p", 5), PoolDefinition("q", 5)])
        await bench.enqueue(*jobs("a", 9), *(new_job(pool="q", concurrency_key="a") for _ in range(3)))
        lease, order = await bench.lease(), list[str]()
        found = await bench.store.jobs.claim(lease, 9, [Room("q", 2, 1), Room("p", 0, 1)], NOW)
        assert [job.pool for job in found.jobs] == ["q", "q"]
        found = await bench.store.jobs.claim(lease, 2, [Room("q", 3, 1), Room("p", 3, 1)], NOW)
        assert sorted(job.pool for job in found.jobs) == ["p", "q"]
        await bench.enqueue(*(new_job() for _ in range(6)))
        for _ in range(6):
            found = await bench.store.jobs.claim(lease, 1, [Room("default", 1), Room("p", 5, 1)], NOW)
            order += [job.pool for job in found.jobs]
        assert Counter(order) == {"p": 3, "default": 3}

    @story
    async def test_an_on_complete_needs_no_gate_and_a_gate_stays_shut_for_who_knows_an_old_limit(
        self, bench: Bench
    ) -> None:
        await declare(bench, key_parallelism=1)
        await bench.enqueue(new("a", on_complete="conformance:told"), *jobs("a", 2))
        lease = await bench.lease()
        (running,) = (await claim(bench, lease, 1)).jobs
        await bench.settle(lease, ended(running))
        found = (await claim(bench, lease, 5)).jobs
        assert sorted(job.ending is not None for job in found) == [False, True], "a call has no place at the gate"
        await bench.settle(lease, *(ended(job) for job in found if job.ending is None))
        assert await bench.store.pools.change("p", paused=True)
        assert (await claim(bench, lease, 5)).jobs == []
        assert len((await claim(bench, lease, 5, epoch=2)).jobs) == 1, "the limit itself is that of slots"
        assert (await bench.store.jobs.claim(lease, 5, [Room("unknown", 5, 1)], NOW)).jobs == []

    # ----- rate limits

    @story
    async def test_keys_without_tokens_do_not_stand_in_the_way(self, bench: Bench) -> None:
        await declare(bench, key_rate_limit=TokenBucket(rate=1, period=MINUTE))
        await bench.enqueue(*(job for number in range(60) for job in jobs(f"k{number:02}", 2)), *jobs("z", 1))
        lease = await bench.lease()
        assert len((await claim(bench, lease, 60)).jobs) == 60
        found = await claim(bench, lease, 1, now=after(1))
        assert keys_of(found.jobs) == {"z": 1}
        assert (await claim(bench, lease, 1, now=after(2))).again == timedelta(seconds=58)

    @story
    async def test_a_rate_limit_that_is_declared_anew_holds_at_once(self, bench: Bench) -> None:
        await declare(bench, key_rate_limit=TokenBucket(rate=1, period=timedelta(days=1)))
        await bench.enqueue(*jobs("a", 3))
        lease = await bench.lease()
        assert len((await claim(bench, lease, 9)).jobs) == 1
        await declare(bench, key_rate_limit=TokenBucket(rate=1, period=timedelta(seconds=1)))
        assert len((await claim(bench, lease, 9, now=after(5), epoch=2)).jobs) == 1
        await declare(bench)
        assert len((await claim(bench, lease, 9, now=after(5), epoch=3)).jobs) == 1, "without one all may start"

    @story
    async def test_jobs_that_were_ready_before_a_rate_limit_was_declared_pass_the_gate(self, bench: Bench) -> None:
        await declare(bench)
        ready = [new_job(pool="p", priority=number) for number in range(5)]
        await bench.enqueue(*ready)
        await declare(bench, rate_limit=FixedWindow(rate=2, period=MINUTE))
        lease = await bench.lease()
        assert (await claim(bench, lease, 9)).jobs == [], "an old limit is known"
        found = await claim(bench, lease, 9, epoch=2)
        assert sorted(ids(found.jobs)) == sorted([ready[4].id, ready[3].id])
        assert (await claim(bench, lease, 9, epoch=2)).again == MINUTE
        await bench.enqueue(new_job(pool="p", priority=9))  # by a program that declares none
        found = await claim(bench, lease, 9, epoch=2, now=after(60))
        assert [job.priority for job in sorted(found.jobs, key=lambda job: -job.priority)] == [9, 2]
        await declare(bench)
        assert len((await claim(bench, lease, 9, epoch=3, now=after(61))).jobs) == 2

    # ----- groups

    @story
    async def test_pools_of_a_group_lend_each_other_what_they_do_not_use(self, bench: Bench) -> None:
        pools = bench.store.pools
        await pools.declare([PoolDefinition("p", 3, group="g"), PoolDefinition("q", 2, group="g")])
        one, two = await bench.lease(), await bench.lease()
        assert await pools.acquire(one, "p", 9) == 5
        assert await pools.acquire(two, "q", 9) == 0
        (view,) = await pools.look(two, ["q"], 9)
        assert (view.max_parallelism, view.free) == (2, 0), "it still wants its own"
        (view,) = await pools.look(one, ["p"], 9)
        assert (view.max_parallelism, view.granted, view.lacking) == (3, 5, 9), "the other one wants some"
        await pools.release(one, "p", 1)
        assert await pools.acquire(one, "p", 1) == 4, "what is owed is not lent again"
        assert await pools.acquire(two, "q", 2) == 1

    @story
    async def test_a_change_of_one_pool_holds_for_its_group(self, bench: Bench) -> None:
        pools = bench.store.pools
        await pools.declare(
            [PoolDefinition("p", 3, group="g"), PoolDefinition("q", 2, group="g"), PoolDefinition("r", 2)]
        )
        before = await epochs(bench)
        assert await pools.change("p", paused=True)
        changed = await epochs(bench)
        assert {name for name in changed if changed[name] != before[name]} == {"p", "q"}
        one = await bench.lease()
        assert await pools.acquire(one, "p", 9) == 0, "a paused pool borrows nothing"
        assert await pools.acquire(one, "q", 9) == 2, "and lends nothing"
        await pools.change("p", paused=False)
        await pools.declare([PoolDefinition("q", 2)])
        assert (await epochs(bench))["p"] > changed["p"]
        assert await pools.acquire(one, "p", 9) == 3

    @story
    async def test_of_many_who_take_slots_at_once_none_gets_more_than_its_pool_or_group_has(self, bench: Bench) -> None:
        names = ("p", "q", "r", "alone")
        await bench.store.pools.declare(
            [PoolDefinition(name, 4, group=None if name == "alone" else "g") for name in names]
        )
        stores = [bench.store, await bench.another(), await bench.another()]
        chance = random_of(3)

        async def take_and_give(store: Store) -> None:
            lease = await store.leases.take("conformance", timedelta(days=1), NOW)
            for _ in range(20):
                await patiently(lambda: store.pools.acquire(lease, chance.choice(names), chance.randrange(1, 9)))
                granted = {row.name: row.granted for row in await bench.reading(store.pools.list, store)}
                assert granted.pop("alone") <= 4
                assert sum(granted.values()) <= 12
                await patiently(lambda: store.pools.release(lease, chance.choice(names), chance.randrange(1, 9)))
                await store.pools.change(chance.choice(names), max_parallelism=4)

        await asyncio.gather(*(take_and_give(store) for store in stores))


async def declare(bench: Bench, **declared: Any) -> None:
    """Declare the pool of these tests."""
    await bench.store.pools.declare([replace(PoolDefinition("p", 100), **declared)])


def new(concurrency_key: str, **asked: Any) -> NewJob:
    """A job that passes the gate of the pool."""
    return new_job(**{"pool": "p", "concurrency_key": concurrency_key, **asked})


def jobs(concurrency_key: str, count: int, **asked: Any) -> list[NewJob]:
    """So many of them."""
    return [new(concurrency_key, **asked) for _ in range(count)]


async def claim(
    bench: Bench, lease: int, room: int, *, now: datetime = NOW, epoch: int = 1, store: Store | None = None
) -> Claim:
    """Claim as many jobs of the pool as there is room for."""
    return await (store or bench.store).jobs.claim(lease, room, [Room("p", room, epoch)], now)


def keys_of(found: list[Job]) -> dict[str, int]:
    """How many jobs of each key these are."""
    return dict(Counter(job.options.concurrency_key or "" for job in found))


async def epochs(bench: Bench) -> dict[str, int]:
    """The number of each pool's limit."""
    lease = await bench.lease()
    return {view.pool: view.epoch for view in await bench.store.pools.look(lease, ["p", "q", "r"], 1)}
