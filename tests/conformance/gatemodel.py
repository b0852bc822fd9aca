"""What a store should remember of gates and keys, in plain Python. `gatemachine` compares.

It knows nothing of how stores do it: what is left of a rate limit is reckoned from all that has ever started.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from math import ceil
from uuid import UUID

from conformance.model import Model, ModelJob
from penstock.jobs.job import NewJob, Settlement
from penstock.pools.pool import PoolDefinition
from penstock.pools.rates import RateLimit, TokenBucket

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
    """What a store should remember of jobs that pass a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: dict[UUID, GatedJob] = {}  # type: ignore[assignment] # all of them are
        self.gates: dict[str, ModelGate] = {}
        self.holders: dict[tuple[str, str], UUID] = {}

    def declare(self, pool: PoolDefinition) -> None:
        """Make a pool known, or what has changed of it."""
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
        """How many jobs of a key run, whoever has them."""
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
        """Move due jobs to ready, or to their gate."""
        due = super().promote(now)
        for job in due:
            if isinstance(job, GatedJob) and job.gated:
                job.place = "waiting"
        return due

    def settle(self, lease: int, settlement: Settlement) -> bool:
        """Settle a job if it runs under a lease; whether it did."""
        settled = super().settle(lease, settlement)
        if settled and settlement.frees_key:
            self._free(self.jobs[settlement.id])
        return settled

    def cancel(self, job: ModelJob, settlement: Settlement) -> None:
        """End a pending job that is to be canceled."""
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
    """What is left of a rate limit after all that has started."""
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
