"""What pools and workers do at one moment, as ``penstock top`` and the dashboard show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from penstock.jobs.job import DEFAULT_POOL
from penstock.store.contract.jobs import LeaseRow
from penstock.store.contract.session import Session, reading
from penstock.store.contract.store import Store
from penstock.store.nouns.pools import Activity, OldJob, PoolRow

MOST_COUNTED = 10_000  # jobs of a pool, by `glance`
_WINDOW = 10.0  # seconds, for rates
_OLDEST = 3  # jobs that run, and that are ready
_ENDS = ("success", "failed", "canceled", "skipped")


@dataclass(frozen=True, slots=True)
class Look:
    """The numbers of one moment; ends are counted over `window` seconds."""

    now: datetime
    window: float
    pools: Sequence[PoolRow]
    activity: Sequence[Activity]
    oldest: Sequence[OldJob]
    workers: Sequence[LeaseRow]


@dataclass(frozen=True, slots=True)
class PoolNow:
    """A pool at that moment."""

    name: str
    limit: int | None
    paused: bool
    running: int
    ready: int
    scheduled: int
    ended: float  # per second
    failed: int  # within the window
    waits: float | None  # seconds since the oldest ready job could have started


async def look(store: Store, now: datetime) -> Look:
    """The numbers of now. Those of jobs that have ended, and the oldest jobs, take a while if there are many."""
    async with reading(store.begin_read) as session:
        return Look(
            now,
            _WINDOW,
            await store.pools.list(session),
            await store.pools.activity(session, now - timedelta(seconds=_WINDOW)),
            await store.pools.oldest(session, _OLDEST),
            await _workers(store, session),
        )


async def glance(store: Store, now: datetime) -> Look:
    """The same without jobs that have ended and without the oldest; of each pool up to `MOST_COUNTED` jobs count."""
    async with reading(store.begin_read) as session:
        pools, activity = await store.pools.now(session, MOST_COUNTED)
        return Look(now, _WINDOW, pools, activity, (), await _workers(store, session))


async def _workers(store: Store, session: Session) -> list[LeaseRow]:
    return [one for one in await store.leases.list(session) if one.is_worker]


def hindrance(pool: PoolRow) -> str | None:
    """Why a pool starts none of its jobs now, in a sentence; None if it does."""
    if pool.paused or not pool.max_parallelism:
        return f"The pool {pool.name} is paused."
    if pool.running >= pool.max_parallelism:
        return f"The pool {pool.name} runs as much as it may: {pool.running} of {pool.max_parallelism}."
    return None


def pools_of(seen: Look) -> list[PoolNow]:
    """The pools by name, the jobs without one first."""
    found = {(one.pool, one.place): one for one in seen.activity}
    limits = {pool.name: pool for pool in seen.pools}
    names = sorted(limits.keys() | {one.pool for one in seen.activity} | {DEFAULT_POOL})
    names.sort(key=lambda name: name != DEFAULT_POOL)

    def count(pool: str, *places: str) -> int:
        return sum(found[pool, place].count for place in places if (pool, place) in found)

    def of(name: str) -> PoolNow:
        ready, limit = found.get((name, "ready")), limits.get(name)
        return PoolNow(
            name=name,
            limit=None if limit is None else limit.max_parallelism,
            paused=limit is not None and limit.paused,
            running=count(name, "running"),
            ready=count(name, "ready", "completing"),
            scheduled=count(name, "scheduled"),
            ended=count(name, *_ENDS) / seen.window,
            failed=count(name, "failed"),
            waits=None if ready is None or ready.first is None else max(0.0, (seen.now - ready.first).total_seconds()),
        )

    return [of(name) for name in names]
