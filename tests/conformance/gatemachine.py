"""Any order of moves through gates: jobs with concurrency keys and unique keys, of pools with limits and rate limits.

Leaves the model to `gatemodel`, and the moves that jobs make without a gate to `machine`, whose steps it goes on using:
leases, settlements, tokens, cancels, crashes, retries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from conformance.bench import AGAIN, TTL, new_job
from conformance.gatemodel import GatedJob, GateModel, most_in
from conformance.machine import INDEX, WHILE_SHRINKING, AnyOrder, JobMachine
from penstock.jobs.job import Kind, NewJob
from penstock.jobs.states import JobEvent
from penstock.pools.pool import PoolDefinition
from penstock.pools.rates import FixedWindow, TokenBucket
from penstock.store.nouns.jobs import Claim, Room
from penstock.store.nouns.keys import KeyHolder
from penstock.store.session import Session

_POOLS = (
    PoolDefinition("limited", 100, key_parallelism=2),
    PoolDefinition("bucket", 100, key_parallelism=1, rate_limit=TokenBucket(6, timedelta(minutes=1), capacity=3)),
    PoolDefinition(
        "window",
        100,
        rate_limit=FixedWindow(4, timedelta(seconds=20), capacity=5),
        key_rate_limit=TokenBucket(2, timedelta(seconds=7)),
    ),
)
Tick = tuple[
    int, list[int], int, list[JobEvent]
]  # which lease, room in each pool, seconds before it, what ends before it

_POOL = st.integers(0, len(_POOLS) - 1)
_KEY = st.sampled_from(["a", "b", "c", "", None])
_UNIQUE = "x"
_ROOMS = st.lists(st.integers(0, 4), min_size=len(_POOLS), max_size=len(_POOLS)).filter(any)
_ENDS = st.sampled_from([JobEvent.RETURNED, JobEvent.RETURNED, JobEvent.RAISED])
_TICK = st.tuples(INDEX, _ROOMS, st.sampled_from([0, 0, 1, 4, 11]), st.lists(_ENDS, max_size=3))
_TICKS = st.lists(_TICK, min_size=1, max_size=3)
_DELAY = st.sampled_from([0, 0, 0, 5, 60])


class GateMachine(JobMachine):
    """Does each step to the model and to the store, and compares."""

    model: GateModel

    # ----- steps

    @initialize()
    def begin(self) -> None:
        self._take_lease()
        self._take_lease()
        self.pools = [f"{pool.name}-{self.examples}" for pool in _POOLS]
        for name, pool in zip(self.pools, _POOLS, strict=True):
            self._declare(replace(pool, name=name))
        jobs = [self._new(pool, key) for pool in self.pools for key in ("a", "a", "a", "b")]
        self._enqueue(jobs)
        for number in range(len(self.pools)):
            self._enqueue_unique(number, "", 0, until_start=False, instead=False)

    @rule(
        pool=_POOL,
        key=_KEY,
        kind=st.sampled_from(["mutation", "action"]),
        delay=_DELAY,
        priority=st.integers(-1, 1),
        retried=st.booleans(),
        count=st.integers(1, 4),
        ticks=_TICKS,
    )
    def enqueue(
        self,
        pool: int,
        key: str | None,
        kind: Kind,
        delay: int,
        priority: int,
        *,
        retried: bool,
        count: int,
        ticks: list[Tick],
    ) -> None:
        if not key and self._declared(pool).rate_limit is None:
            key = "a"  # only where there is a rate limit does a job without a key pass the gate
        retry = AGAIN if retried else None
        asked: dict[str, Any] = {"kind": kind, "delay": delay, "retry": retry}
        priorities = [(priority + number) % 3 - 1 for number in range(count)]
        self._enqueue([self._new(self.pools[pool], key, priority=number, **asked) for number in priorities])
        self._work(ticks)

    @rule(
        pool=_POOL,
        key=st.sampled_from(["", "a"]),
        delay=_DELAY,
        until_start=st.booleans(),
        instead=st.booleans(),
        ticks=_TICKS,
    )
    def enqueue_unique(
        self, pool: int, key: str, delay: int, *, until_start: bool, instead: bool, ticks: list[Tick]
    ) -> None:
        self._enqueue_unique(pool, key, delay, until_start=until_start, instead=instead)
        self._work(ticks)

    def _enqueue_unique(self, pool: int, key: str, delay: int, *, until_start: bool, instead: bool) -> None:
        asked: dict[str, Any] = {"kind": "action", "retry": AGAIN, "delay": delay, "until_start": until_start}
        new = self._new(self.pools[pool], key, key=_UNIQUE, **asked)
        name, keys, model = new.pool, self.bench.store.keys, self.model
        known = model.holders.get((name, _UNIQUE))
        never_tried = known is not None and model.jobs[known].state == "pending" and not model.jobs[known].attempt

        async def write(session: Session) -> tuple[bool, KeyHolder | None, bool, bool]:
            if await keys.hold(session, new):
                await self.bench.store.jobs.enqueue(session, [new], self.now)
                return True, await keys.holder(session, name, _UNIQUE), False, False
            holder = await keys.holder(session, name, _UNIQUE)
            assert holder is not None
            assert not await keys.free(session, name, _UNIQUE, holder.job_id), "its job is there"
            replaced = instead and await keys.replace(session, holder, new, self.now)
            taken = instead and not replaced and await keys.take_over(session, replace(holder, canceled=True), new)
            if taken:
                await self.bench.store.jobs.enqueue(session, [new], self.now)
            return False, holder, replaced, taken

        held, holder, replaced, taken = self.runner.run(self.bench.writing(write))
        if known is None:
            assert held
            model.enqueue(new, self.now)
            model.holders[name, _UNIQUE] = new.id
            assert holder == KeyHolder(new.id, until_start, self.now)
            return
        job = model.jobs[known]
        assert not held
        canceled = job.state == "pending" and job.asked_at is not None
        gives_way = never_tried and not canceled
        assert holder == KeyHolder(known, job.until_start, job.enqueued_at if gives_way else None, canceled)
        assert (replaced, taken) == (instead and gives_way, instead and canceled)
        if replaced:
            model.replace(job, new, self.now)
        if taken:
            model.enqueue(new, self.now)
            model.holders[name, _UNIQUE] = new.id

    def _work(self, ticks: list[Tick]) -> None:
        """What workers do meanwhile: time passes, jobs end, and others start."""
        for which, rooms, seconds, ends in ticks:
            self.time_passes(seconds)
            self.runner.run(self.bench.store.rates.prune(self.now, 100))  # which nobody notices
            for number, event in enumerate(ends if self.handles else []):
                self.settle(which + number, event, other=False)
            self.claim(which, rooms, late=False)

    @rule(which=INDEX, rooms=_ROOMS, late=st.sampled_from([False, False, False, True]))
    def claim(self, which: int, rooms: list[int], *, late: bool) -> None:
        """A worker looks for work, now and then one that has not heard yet of a change of the limits."""
        self._claim(self._some_lease(which), rooms, late=late)

    def _claim(self, lease: int, rooms: list[int], *, late: bool) -> None:
        model = self.model
        asked = [Room(pool, room, model.gates[pool].epoch - late) for pool, room in zip(self.pools, rooms, strict=True)]
        claim = self.runner.run(self.bench.store.jobs.claim(lease, sum(rooms), asked, self.now))
        model.promote(self.now)
        may = [job for room in asked if room.room for job in model.open(room.pool, room.room, self.now)]
        expected = [] if late or lease not in model.leases else may
        assert sorted(job.id for job in claim.jobs) == sorted(job.id for job in expected)
        model.start(expected, lease, self.now)
        for job in claim.jobs:
            known = model.jobs[job.id]
            assert job == self._claimed(known)
            self._note(lease, job)
        later = [job for job in model.line("scheduled") if job.asked_at is None]
        assert claim.next_run_at == (later[0].run_at if later else None)
        self._check_limits(expected)
        self._check_again(claim, [room for room in asked if room.room], expected)

    @rule(pool=_POOL, number=st.sampled_from([1, 2, 3, None]), ticks=_TICKS)
    def declare_anew(self, pool: int, number: int | None, ticks: list[Tick]) -> None:
        self._declare(replace(self._declared(pool), key_parallelism=number))
        self._work(ticks)

    @rule(which=INDEX, count=st.integers(1, 3), ticks=_TICKS)
    def retry_and_work(self, which: int, count: int, ticks: list[Tick]) -> None:
        self._work(ticks)
        self.retry(which, count)
        self._work(ticks)

    @rule(which=INDEX, rooms=_ROOMS, ticks=_TICKS)
    def crash(self, which: int, rooms: list[int], ticks: list[Tick]) -> None:
        """A worker is not heard of, its jobs are taken over, and what it still asks for is in vain."""
        any_one = self._some_lease(which)
        busy = [lease for lease in self.model.leases if self._under(lease)]
        lost = busy[which % len(busy)] if busy else any_one
        self.now += TTL
        for lease in self.model.leases.keys() - {lost}:
            assert self.runner.run(self.bench.store.leases.renew(lease, TTL, self.now))
            self.model.leases[lease] = self.now + TTL
        self._rescue(lost)
        self._claim(lost, rooms, late=False)
        self._work(ticks)

    # ----- comparison

    @precondition(lambda self: self.model.gates)
    @invariant()
    def nobody_has_a_key_that_the_model_has_freed(self) -> None:
        async def held(session: Session) -> dict[tuple[str, str], KeyHolder | None]:
            return {(pool, _UNIQUE): await self.bench.store.keys.holder(session, pool, _UNIQUE) for pool in self.pools}

        found = self.runner.run(self.bench.reading(held))
        assert {key: holder.job_id for key, holder in found.items() if holder} == self.model.holders

    def _check_limits(self, started: Sequence[GatedJob]) -> None:
        """Of what has just started nothing is beyond a limit: this much is promised, however the turns are."""
        for pool, key in {(job.pool, job.key) for job in started}:
            gate = self.model.gates[pool]
            number = gate.declared.key_parallelism
            assert not key or number is None or self.model.running(pool, key) <= number
            for policy, starts in gate.policies(key):
                assert all(
                    len(starts) - place <= most_in(policy, starts[-1] - moment) for place, moment in enumerate(starts)
                )

    def _check_again(self, claim: Claim, asked: Sequence[Room], started: Sequence[GatedJob]) -> None:
        """Who is told when more may start is not told too late, nor before any token comes."""
        if claim.again is not None:
            assert claim.again >= min(wait for room in asked for wait in self.model.refills(room.pool, self.now))
        for room in asked:
            if sum(job.pool == room.pool for job in started) == room.room:
                continue  # it looks again when one of them has ended
            for wait, may_run in self.model.waits(room.pool, self.now):
                assert not wait or not may_run or (claim.again is not None and claim.again <= wait)

    # ----- words

    def _new_model(self) -> GateModel:
        return GateModel()

    def _new(self, pool: str, concurrency_key: str | None, **asked: Any) -> NewJob:
        return new_job(pool=pool, concurrency_key=concurrency_key, now=self.now, **asked)

    def _enqueue(self, jobs: list[NewJob], *, kept: bool = True) -> None:
        self._write(lambda session: self.bench.store.jobs.enqueue(session, jobs, self.now), kept=kept)
        for job in jobs if kept else []:
            self.model.enqueue(job, self.now)

    def _declared(self, pool: int) -> PoolDefinition:
        return self.model.gates[self.pools[pool]].declared

    def _declare(self, pool: PoolDefinition) -> None:
        self.runner.run(self.bench.store.pools.declare([pool]))
        self.model.declare(pool)


class GatesInAnyOrder(AnyOrder):
    """The moves of jobs that pass gates, in any order."""

    @WHILE_SHRINKING
    def test_any_order_of_moves_through_gates_does_as_the_model_says(self) -> None:
        self.run_machine(GateMachine, self.machine_examples // 2)  # of which each step is several
