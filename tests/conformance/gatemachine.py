"""Any order of moves through gates: jobs with concurrency keys and unique keys, of pools with limits and rate limits.

It goes on using the steps of `machine`: leases, settlements, tokens, cancels, crashes, retries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from math import ceil
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from conformance.bench import AGAIN, TTL, new_job
from conformance.machine import INDEX, WHILE_SHRINKING, AnyOrder, JobMachine, Model, ModelJob
from penstock.jobs.job import Kind, NewJob, Settlement
from penstock.jobs.states import JobEvent
from penstock.pools.pool import PoolDefinition
from penstock.pools.rates import FixedWindow, RateLimit, TokenBucket
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

    def new_model(self) -> GateModel:
        return GateModel()

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
    @WHILE_SHRINKING
    def test_any_order_of_moves_through_gates_does_as_the_model_says(self) -> None:
        self.run_machine(GateMachine, self.machine_examples // 2)  # of which each step is several


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class GatedJob(ModelJob):
    """A job of a pool with a gate; `unique` is its key, of which there is one at a time."""

    pool: str = ""
    key: str = ""
    gated: bool = True
    unique: str | None = None
    until_start: bool = False


@dataclass
class ModelGate:
    """The gate of a pool: what was declared of it, who had the last turn, and all that has ever started."""

    declared: PoolDefinition
    epoch: int = 1
    last: str = ""
    started: list[tuple[str, datetime]] = field(default_factory=list)

    def starts(self, key: str | None = None) -> list[datetime]:
        """When jobs have started: all, or those of a key."""
        return [moment for of, moment in self.started if key is None or of == key]

    def policies(self, key: str) -> list[tuple[RateLimit, list[datetime]]]:
        """The rate limits that a job of a key must pass, each with what has started under it."""
        declared, found = self.declared, []
        if declared.rate_limit is not None:
            found.append((declared.rate_limit, self.starts()))
        if declared.key_rate_limit is not None and key:
            found.append((declared.key_rate_limit, self.starts(key)))
        return found


class GateModel(Model):
    def __init__(self) -> None:
        super().__init__()
        self.jobs: dict[UUID, GatedJob] = {}  # type: ignore[assignment] # all of them are
        self.gates: dict[str, ModelGate] = {}
        self.holders: dict[tuple[str, str], UUID] = {}

    def declare(self, pool: PoolDefinition) -> None:
        gate = self.gates.setdefault(pool.name, ModelGate(pool))
        gate.epoch += gate.declared != pool
        gate.declared = pool

    # ----- the line

    def enqueue(self, new: NewJob, now: datetime) -> None:
        """Add a job: it waits at its gate, or is scheduled; ready are those that come without knowing of the gate."""
        gated, due, options = new.concurrency_key is not None, new.run_at <= now, new.options
        self.jobs[new.id] = GatedJob(
            new=new,
            run_at=new.run_at,
            place="scheduled" if not due else "waiting" if gated else "ready",
            seq=self.seq(),
            enqueued_at=now,
            pool=new.pool,
            key=new.concurrency_key or "",
            gated=gated,
            unique=options.key,
            until_start=bool(options.until_start),
        )

    def replace(self, old: GatedJob, new: NewJob, now: datetime) -> None:
        """Put a job in the place of one that was never tried. It keeps the time at which that one was enqueued."""
        old.place = "waiting" if new.run_at <= now else "scheduled"
        old.new, old.run_at, old.key = replace(new, id=old.id), new.run_at, new.concurrency_key or ""
        old.until_start = bool(new.options.until_start)

    def waiting(self, pool: str, key: str) -> list[GatedJob]:
        """Jobs of a key that wait, the most urgent and oldest first."""
        found = [job for job in self.jobs.values() if (job.pool, job.key, job.place) == (pool, key, "waiting")]
        return sorted(found, key=lambda job: (-job.priority, job.run_at, job.id))

    def running(self, pool: str, key: str) -> int:
        return sum((job.pool, job.key, job.place) == (pool, key, "running") for job in self.jobs.values())

    def line_of_keys(self, pool: str) -> list[str]:
        """Keys of which jobs wait, in the order of their names, going round from the one that had the last turn."""
        keys = {job.key for job in self.jobs.values() if (job.pool, job.place) == (pool, "waiting")}
        last = self.gates[pool].last
        return sorted(keys, key=lambda key: (key <= last, key))

    # ----- the gate

    def open(self, pool: str, room: int, now: datetime) -> list[GatedJob]:
        """Open a gate; the jobs that may start.

        Each place goes to the key that runs the least, of those to the one that has had the fewest places now, and of
        those to the next in line. Jobs that are to be canceled still stand in line, but do not start.
        """
        gate, given = self.gates[pool], Counter[str]()
        if gate.declared.rate_limit is not None:
            self._close(pool)
        line = self.line_of_keys(pool)
        most = {key: self._most(gate, key, now) for key in line}
        running = {key: self.running(pool, key) for key in line}
        for _ in range(min(room, self._left(gate.declared.rate_limit, gate.starts(), now, room))):
            keys = [key for key in line if given[key] < most[key]]
            if not keys:
                break
            gate.last = min(keys, key=lambda key: (running[key] + given[key], given[key], line.index(key)))
            given[gate.last] += 1
        return [
            job
            for key, count in given.items()
            for job in [job for job in self.waiting(pool, key) if job.asked_at is None][:count]
        ]

    def start(self, jobs: Iterable[GatedJob], lease: int, now: datetime) -> None:
        """Let jobs run that have passed: they pay, and those with a key until they start give it away."""
        for job in jobs:
            job.starts(lease, now)
            self.gates[job.pool].started.append((job.key, now))
            if job.until_start:
                self._free(job)

    def waits(self, pool: str, now: datetime) -> list[tuple[timedelta, bool]]:
        """Of each key of which jobs wait: after which time tokens are there for one; and if its limit lets it run."""
        gate, found = self.gates[pool], []
        for key in self.line_of_keys(pool):
            wait = max((until(policy, starts, now) for policy, starts in gate.policies(key)), default=timedelta(0))
            number = gate.declared.key_parallelism
            found.append((wait, not key or number is None or self.running(pool, key) < number))
        return found

    def refills(self, pool: str, now: datetime) -> list[timedelta]:
        """After which times there is a token again of the rate limits of which there is none now."""
        keys = self.line_of_keys(pool)
        found = [until(*one, now) for key in keys for one in self.gates[pool].policies(key)]
        return [wait for wait in found if wait]

    def _most(self, gate: ModelGate, key: str, now: datetime) -> int:
        pool, number = gate.declared.name, gate.declared.key_parallelism
        most = len(self.waiting(pool, key))
        if not key:
            return most
        most = most if number is None else min(most, max(0, number - self.running(pool, key)))
        return self._left(gate.declared.key_rate_limit, gate.starts(key), now, most)

    def _left(self, policy: RateLimit | None, starts: Sequence[datetime], now: datetime, most: int) -> int:
        return most if policy is None else min(most, int(tokens(policy, starts, now)))

    def _close(self, pool: str) -> None:
        for job in self.jobs.values():
            if (job.pool, job.place) == (pool, "ready"):
                job.place, job.gated = "waiting", True

    # ----- moves

    def promote(self, now: datetime) -> list[ModelJob]:
        due = super().promote(now)
        for job in due:
            if isinstance(job, GatedJob) and job.gated:
                job.place = "waiting"
        return due

    def settle(self, lease: int, settlement: Settlement) -> bool:
        settled = super().settle(lease, settlement)
        if settled and settlement.frees_key:
            self._free(self.jobs[settlement.id])
        return settled

    def cancel(self, job: ModelJob, settlement: Settlement) -> None:
        super().cancel(job, settlement)
        self._free(self.jobs[job.id])

    def retry(self, job: ModelJob, now: datetime) -> bool:
        """Make a job pending again if it has failed or was canceled; it waits at its gate, and has no key."""
        retried, known = super().retry(job, now), self.jobs[job.id]
        if retried:
            rated = self.gates[known.pool].declared.rate_limit is not None
            known.gated = bool(known.key) or known.unique is not None or rated
            known.place = "waiting" if known.gated else "ready"
        return retried

    def _free(self, job: GatedJob) -> None:
        if job.unique is not None and self.holders.get((job.pool, job.unique)) == job.id:
            del self.holders[job.pool, job.unique]


def tokens(policy: RateLimit, starts: Sequence[datetime], now: datetime) -> Fraction:
    full = Fraction(policy.rate if policy.capacity is None else policy.capacity)
    left, before = full, None
    for moment in starts:
        left = _filled(policy, left, full, before, moment) - 1
        before = moment
    return _filled(policy, left, full, before, now)


def until(policy: RateLimit, starts: Sequence[datetime], now: datetime) -> timedelta:
    """After which time a rate limit has a token; zero if it has one."""
    missing = 1 - tokens(policy, starts, now)
    if missing <= 0:
        return timedelta(0)
    if isinstance(policy, TokenBucket):
        return ceil(missing * Fraction(policy.period // timedelta.resolution) / policy.rate) * timedelta.resolution
    return policy.period - (now - _EPOCH) % policy.period


def most_in(policy: RateLimit, length: timedelta) -> Fraction:
    """How many may start in a stretch of time of some length, wherever it begins."""
    full = policy.rate if policy.capacity is None else policy.capacity
    if isinstance(policy, TokenBucket):
        return full + Fraction(length / timedelta.resolution) * policy.rate / (policy.period // timedelta.resolution)
    return Fraction(full + policy.rate * ceil(length / policy.period))


def _filled(policy: RateLimit, left: Fraction, full: Fraction, before: datetime | None, moment: datetime) -> Fraction:
    if before is None:
        return full
    if isinstance(policy, TokenBucket):
        come = Fraction((moment - before) // timedelta.resolution, policy.period // timedelta.resolution) * policy.rate
    else:
        come = Fraction(((moment - _EPOCH) // policy.period - (before - _EPOCH) // policy.period) * policy.rate)
    return min(full, left + come)
