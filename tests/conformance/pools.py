"""What a store promises of pools: no more slots than the limit, whoever asks, and none left behind by a dead worker."""

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
    definitions,
    ended,
    ids,
    killed_before,
    lose,
    new_job,
    patiently,
    story,
)
from penstock.clock import random_of
from penstock.jobs.job import Job, NewJob
from penstock.pools.pool import PoolDefinition
from penstock.pools.rates import FixedWindow, TokenBucket
from penstock.store.nouns.jobs import Claim, Room
from penstock.store.nouns.pools import Backlog, PoolRow, PoolView
from penstock.store.session import reading
from penstock.store.store import Store

MINUTE = timedelta(minutes=1)


class Pools(Suite):
    # ----- limits

    @story
    async def test_a_declared_limit_holds_until_it_is_changed_or_another_is_declared(self, bench: Bench) -> None:
        pools = bench.store.pools
        await pools.declare(definitions({"b": 2, "a": 1}))
        await pools.declare(definitions({"a": 1, "b": 2}))
        assert await _rows(bench) == [("a", 1, 1, False), ("b", 2, 2, False)]
        assert await pools.change("b", max_parallelism=9)
        await pools.declare(definitions({"a": 1, "b": 2}))
        assert await _rows(bench) == [("a", 1, 1, False), ("b", 2, 9, False)]
        await pools.declare(definitions({"b": 3}))
        assert await _rows(bench) == [("a", 1, 1, False), ("b", 3, 3, False)]
        assert await pools.change("b", paused=True)
        assert await pools.change("b", max_parallelism=5)
        assert await _rows(bench) == [("a", 1, 1, False), ("b", 3, 5, True)]
        assert not await pools.change("c", paused=True)
        lease, first, other = await bench.lease(), PoolDefinition("p", 5, group="g"), PoolDefinition("q", 1, group="g")
        for number, query in enumerate(("declare", "changed")):
            await pools.declare([first, other])
            (before,) = await pools.look(lease, ["q"], 1)
            with killed_before(pools, query):
                await pools.declare([replace(first, max_parallelism=number + 1), other])
            await pools.declare([replace(first, max_parallelism=number + 1), other])
            (view,) = await pools.look(lease, ["q"], 1)
            assert view.epoch > before.epoch, "what the other may borrow has changed, though a declaration was cut off"

    @story
    async def test_a_pool_is_looked_at(self, bench: Bench) -> None:
        await bench.store.pools.declare(definitions({"p": 5, "q": 1}))
        await bench.enqueue(*(new_job(pool="p") for _ in range(7)), new_job(pool="q"), new_job(pool="p", delay=9))
        mine, other = await bench.lease(), await bench.lease()
        assert await bench.store.pools.acquire(other, "p", 4) == 4
        assert await bench.store.pools.acquire(mine, "p", 3) == 1
        (view,) = await bench.store.pools.look(mine, ["p"], 5)
        assert view == PoolView("p", 5, 1, granted=5, held=1, holders=2, wanted=0, waiting=5)
        (view,) = await bench.store.pools.look(other, ["p", "unknown"], 100)
        assert view == PoolView("p", 5, 1, granted=5, held=4, holders=2, wanted=2, waiting=7)
        await bench.store.pools.change("p", paused=True)
        (view,) = await bench.store.pools.look(mine, ["p"], 5)
        assert (view.max_parallelism, view.epoch) == (0, 2)
        rows = await bench.reading(bench.store.pools.list)
        assert rows[0] == PoolRow("p", 5, 5, paused=True, granted=5, ready=7, scheduled=1, running=0)

    @story
    async def test_the_gate_of_a_pool_is_seen_from_outside(self, bench: Bench) -> None:
        bucket, window = TokenBucket(6, timedelta(minutes=1), capacity=3), FixedWindow(9, timedelta(days=1), start=NOW)
        limits: dict[str, Any] = {"key_parallelism": 2, "rate_limit": bucket, "key_rate_limit": window, "group": "g"}
        await bench.store.pools.declare([PoolDefinition("p", 9, **limits), PoolDefinition("q", 9)])
        keys = ["b"] * 5 + ["a"] * 3 + ["", "c"]
        await bench.enqueue(*(new_job(pool="p", concurrency_key=key) for key in keys), new_job(pool="q"))
        await bench.store.jobs.claim(await bench.lease(), 1, [Room("p", 1, 1)], NOW)
        gated, plain = await bench.reading(bench.store.pools.list)
        assert gated == PoolRow("p", 9, 9, False, granted=0, ready=9, scheduled=0, running=1, waiting=9, **limits)
        assert plain == PoolRow("q", 9, 9, False, granted=0, ready=1, scheduled=0, running=0)

        async def waiting(pool: str, keys: int, most: int) -> list[tuple[str, int, int]]:
            rows = await bench.reading(lambda session: bench.store.pools.waiting(session, pool, keys, most))
            return [(row.key, row.waiting, row.running) for row in rows]

        assert await waiting("p", 9, 9) == [("", 1, 0), ("a", 2, 1), ("b", 5, 0), ("c", 1, 0)]
        assert await waiting("p", 3, 2) == [("", 1, 0), ("a", 2, 1), ("b", 2, 0)]
        assert await waiting("q", 9, 9) == []

    @story
    async def test_jobs_whose_keys_run_all_they_may_do_not_count_as_waiting(self, bench: Bench) -> None:
        await bench.store.pools.declare(
            [PoolDefinition("p", 9, key_parallelism=2, group="g"), PoolDefinition("q", 9, key_parallelism=2)]
        )
        keys = ["a"] * 5 + ["b"] * 1 + ["c"] * 4
        await bench.enqueue(*(new_job(pool=pool, concurrency_key=key) for pool in "pq" for key in keys))
        lease = await bench.lease()

        async def waiting(most: int = 99) -> list[int]:
            return [view.waiting for view in await bench.store.pools.look(lease, ["p", "q"], most)]

        assert await waiting() == [2 + 1 + 2, 10], "only a pool that might lend its slots looks so closely"
        assert await waiting(3) == [3, 3]
        jobs = (await bench.store.jobs.claim(lease, 3, [Room("p", 3, 1)], NOW)).jobs
        assert await waiting() == [2, 10]
        await bench.store.jobs.claim(lease, 9, [Room("p", 9, 1)], NOW)
        assert await waiting() == [0, 10]
        await bench.settle(lease, *map(ended, jobs))
        assert await waiting() == [2, 10]
        await bench.enqueue(new_job(pool="p"), *(new_job(pool="p", concurrency_key="") for _ in range(3)))
        assert await waiting() == [6, 10], "jobs without a key have no limit of their own"

    @story
    async def test_the_backlog_of_each_pool_is_counted_up_to_a_number(self, bench: Bench) -> None:
        pools = bench.store.pools
        await pools.declare(definitions({"p": 5, "q": 2}))
        await bench.enqueue(*(new_job(pool="p") for _ in range(4)), new_job(pool="p", delay=9), new_job(pool="q"))
        told = new_job("action", pool="q", on_complete="conformance:told")
        await bench.enqueue(new_job(), told, replace(new_job(pool="p"), concurrency_key="k"))
        lease = await bench.lease()
        await pools.acquire(lease, "q", 2)
        claim = await bench.store.jobs.claim(lease, 5, [Room("q", 2, 1)], NOW)
        await bench.settle(lease, *(ended(job, result="1", now=after(1)) for job in claim.jobs))
        await pools.change("q", paused=True)
        expected = [
            Backlog("default", None, granted=0, ready=1, oldest=NOW, scheduled=0),
            Backlog("p", 5, granted=0, ready=5, oldest=NOW, scheduled=1),
            Backlog("q", 0, granted=2, ready=0, oldest=None, scheduled=0),
        ]
        assert list(await pools.backlog(100)) == expected
        assert [row.ready for row in await pools.backlog(3)] == [1, 4, 0], "three, and one at the gate"
        async with reading(bench.store.begin_read) as session:
            (default, first), *seen = await pools.now(session, 3)
            p, q = await pools.list(session)
            assert seen == [(replace(p, ready=4), NOW), (replace(q, ready=1), None)], "q has an on_complete"
        assert (default.name, default.ready, default.scheduled, default.running, first) == ("default", 1, 0, 0, NOW)

    # ----- slots

    @story
    async def test_slots_are_given_up_to_the_limit_and_taken_back(self, bench: Bench) -> None:
        pools = bench.store.pools
        await pools.declare(definitions({"p": 5}))
        one, two = await bench.lease(), await bench.lease()
        for lease, wanted, held in ((one, 3, 3), (two, 9, 2), (two, 1, 2)):
            assert await pools.acquire(lease, "p", wanted) == held
        assert await pools.release(one, "p", 2) == 1
        assert await pools.acquire(two, "p", 9) == 4
        assert await pools.release(one, "p", 9) == 0
        for pool, wanted in (("p", 0), ("unknown", 1)):
            assert await pools.acquire(one, pool, wanted) == await pools.release(one, pool, wanted) == 0
        await pools.change("p", paused=True)
        assert await pools.acquire(two, "p", 5) == 4, "a paused pool gives none"
        await pools.change("p", paused=False, max_parallelism=1)
        assert await pools.acquire(two, "p", 5) == 4
        (view,) = await pools.look(two, ["p"], 1)
        assert (view.granted, view.max_parallelism) == (4, 1), "a lower limit takes none away"

    @story
    async def test_slots_end_with_their_lease_unless_jobs_run(self, bench: Bench) -> None:
        pools = bench.store.pools
        await pools.declare(definitions({"p": 5}))
        one, two, three, busy = [await bench.lease() for _ in range(4)]
        for lease, wanted in ((one, 2), (two, 1), (busy, 1)):
            assert await pools.acquire(lease, "p", wanted) == wanted
        await bench.enqueue(new_job(pool="p"))
        assert len((await bench.store.jobs.claim(busy, 5, [Room("p", 1, 1)], NOW)).jobs) == 1
        for lease in (one, busy):
            await bench.store.leases.give_back(lease)
        assert await pools.acquire(three, "p", 9) == 3
        await bench.store.leases.rescue(two, after(31), lose(after(31)))
        assert await pools.acquire(three, "p", 9) == 4
        assert await pools.acquire(two, "p", 1) == 0, "a lease that was lost gets none"

    # ----- claims

    @story
    async def test_of_each_pool_as_many_are_claimed_as_it_has_room_for_in_turns(self, bench: Bench) -> None:
        names = [f"p{number}" for number in range(6)]
        await bench.store.pools.declare(definitions({"p": 50, "q": 50} | dict.fromkeys(names, 1)))
        lease = await bench.lease()

        async def claimed(limit: int, *rooms: tuple[str, int]) -> list[str]:
            asked = [Room(pool, room, None if pool == "default" else 1) for pool, room in rooms]
            claim = await bench.store.jobs.claim(lease, limit, asked, NOW)
            return sorted(job.pool for job in claim.jobs)

        await bench.enqueue(*(new_job(pool=pool) for pool in ("default", "p", "q", "r") for _ in range(6)))
        assert await claimed(100, ("default", 2), ("p", 3), ("q", 0)) == ["default"] * 2 + ["p"] * 3
        assert await claimed(100, ("default", 9), ("p", 9), ("q", 3)) == ["default"] * 4 + ["p"] * 3 + ["q"] * 3
        await bench.enqueue(*(new_job(pool="p", priority=9) for _ in range(50)))
        assert await claimed(8, ("default", 8), ("p", 8), ("q", 8)) == ["p"] * 5 + ["q"] * 3, "they take turns"
        await bench.enqueue(*(new_job(pool=pool) for pool in names[3:]))
        assert await claimed(1, ("default", 2), *((pool, 1) for pool in names[:4])) == ["p3"]
        assert await claimed(2, ("default", 2), *((pool, 1) for pool in names)) == ["p4", "p5"]

    @story
    async def test_a_place_goes_to_the_pool_whose_gate_lets_a_job_pass(self, bench: Bench) -> None:
        names = [f"p{number}" for number in range(4)]
        await bench.store.pools.declare([PoolDefinition(pool, 5, key_parallelism=1) for pool in names])
        lease, rooms = await bench.lease(), [Room(pool, 5, 1) for pool in names]
        for pool in names[:3]:
            await bench.enqueue(*(new_job(pool=pool, concurrency_key="a") for _ in range(2)))
        assert len((await bench.store.jobs.claim(lease, 3, rooms, NOW)).jobs) == 3
        late = [new_job(pool="p3", concurrency_key=key) for key in "abc"]
        await bench.enqueue(*late)
        claims = [await bench.store.jobs.claim(lease, limit, rooms, NOW) for limit in (1, 2)]
        assert sorted(ids([job for claim in claims for job in claim.jobs])) == sorted(ids(late))

    @story
    async def test_places_go_to_the_pools_that_run_the_least_and_then_to_the_one_named_first(
        self, bench: Bench
    ) -> None:
        await bench.store.pools.declare(definitions({"p": 50, "q": 50, "r": 50}))
        for pool in ("p", "q", "r"):
            await bench.enqueue(*(new_job(pool=pool) for _ in range(9)))
        lease = await bench.lease()
        rooms = [Room("p", 8, 1, running=4), Room("q", 8, 1, running=2), Room("r", 1, 1, running=3)]
        for limit, pools in ((1, "q"), (4, "pqqr"), (4, "ppqq"), (0, "")):
            claim = await bench.store.jobs.claim(lease, limit, rooms, NOW)
            assert sorted(job.pool for job in claim.jobs) == list(pools)
            started = Counter(job.pool for job in claim.jobs)
            rooms = [
                Room(room.pool, room.room - started[room.pool], 1, room.running + started[room.pool]) for room in rooms
            ]
        await bench.enqueue(new_job(pool="p", priority=9), new_job(pool="q", priority=1))
        found = []
        for first, second in (("q", "p"), ("p", "q"), ("q", "p")):
            claim = await bench.store.jobs.claim(lease, 1, [Room(first, 5, 1), Room(second, 5, 1)], NOW)
            found += [(job.pool, job.priority) for job in claim.jobs]
        assert found == [("q", 1), ("p", 9), ("q", 0)]

    @story
    async def test_room_within_a_limit_that_was_changed_is_none(self, bench: Bench) -> None:
        await bench.store.pools.declare(definitions({"p": 5}))
        await bench.enqueue(*(new_job(pool="p") for _ in range(6)))
        lease = await bench.lease()
        for epoch, change in ((1, {"max_parallelism": 1}), (2, {"paused": True})):
            assert len((await bench.store.jobs.claim(lease, 1, [Room("p", 1, epoch)], NOW)).jobs) == 1
            assert await bench.store.pools.change("p", **change)
            assert (await bench.store.jobs.claim(lease, 5, [Room("p", 5, epoch)], NOW)).jobs == []

    # ----- turns

    @story
    async def test_the_limit_of_a_key_holds_for_all_stores_together(self, bench: Bench) -> None:
        await declare(bench, key_parallelism=3)
        await bench.enqueue(*(job for key in "abcd" for job in jobs(key, 15)))
        stores = [bench.store, await bench.another(), await bench.another()]
        running, chance, done = Counter[str](), random_of(7), 0

        async def work(store: Store) -> None:
            nonlocal done
            lease = await store.leases.take("conformance", timedelta(days=1), NOW)
            while done < 60:
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
        assert await bench.count() == {"success": 60}

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


async def _rows(bench: Bench) -> list[tuple[str, int, int, bool]]:
    rows = await bench.reading(bench.store.pools.list)
    return [(row.name, row.declared, row.max_parallelism, row.paused) for row in rows]


async def declare(bench: Bench, **declared: Any) -> None:
    await bench.store.pools.declare([replace(PoolDefinition("p", 100), **declared)])


def new(concurrency_key: str, **asked: Any) -> NewJob:
    return new_job(**{"pool": "p", "concurrency_key": concurrency_key, **asked})


def jobs(concurrency_key: str, count: int, **asked: Any) -> list[NewJob]:
    return [new(concurrency_key, **asked) for _ in range(count)]


async def claim(
    bench: Bench, lease: int, room: int, *, now: datetime = NOW, epoch: int = 1, store: Store | None = None
) -> Claim:
    return await (store or bench.store).jobs.claim(lease, room, [Room("p", room, epoch)], now)


def keys_of(found: list[Job]) -> dict[str, int]:
    return dict(Counter(job.options.concurrency_key or "" for job in found))


async def epochs(bench: Bench) -> dict[str, int]:
    lease = await bench.lease()
    return {view.pool: view.epoch for view in await bench.store.pools.look(lease, ["p", "q", "r"], 1)}
