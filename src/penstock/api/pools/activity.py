"""The work of pools and workers at one moment, as ``penstock top`` and the dashboard show it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from penstock.dataclass import dataclass
from penstock.jobs.job import DEFAULT_POOL
from penstock.jobs.states import FINISHED
from penstock.observe.logbook import Numbers
from penstock.store.nouns.leases import LeaseRow
from penstock.store.nouns.logbook import minute_of
from penstock.store.nouns.pools import OldJob, PoolRow
from penstock.store.session import reading
from penstock.store.store import Store

MOST_COUNTED = 10_000  # jobs of a pool
_WINDOW = timedelta(minutes=1)  # over which ends are counted, and since the minute began


@dataclass(frozen=True, slots=True)
class Look:
    """The numbers of one moment; ends are counted over `window` seconds."""

    now: datetime
    window: float
    rows: Sequence[tuple[PoolRow, datetime | None]]  # of the jobs without a pool, too; since when the first one is due
    ends: Numbers
    oldest: Sequence[OldJob]
    workers: Sequence[LeaseRow]

    @property
    def pools(self) -> list[PoolRow]:
        """The pools that have a limit."""
        return [row for row, _ in self.rows if row.name != DEFAULT_POOL]


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


async def look(store: Store, now: datetime, most: int | None = None, oldest: int = 0) -> Look:
    """The numbers of now: of each pool up to `most` jobs count (10,000), and so many of the oldest jobs are found.

    Processes count jobs that have ended, and write that every few seconds: to find all would read a whole table.
    """
    since = minute_of(now - _WINDOW)
    ends = await store.logbook.sums(since)
    async with reading(store.begin_read) as session:
        rows = await store.pools.now(session, most or MOST_COUNTED)
        old = await store.pools.oldest(session, oldest) if oldest else ()
        workers = [one for one in await store.leases.list(session) if one.is_worker]
    return Look(now, (now - since).total_seconds(), rows, ends, old, workers)


def hindrance(pool: PoolRow) -> str | None:
    """Why a pool starts none of its jobs now, in a sentence; None if it does."""
    if pool.paused or not pool.max_parallelism:
        return f"The pool {pool.name} is paused."
    if pool.running >= pool.max_parallelism:
        return f"The pool {pool.name} runs as much as it may: {pool.running} of {pool.max_parallelism}."
    return None


def pools_of(seen: Look) -> list[PoolNow]:
    """The pools by name, the jobs without one first."""

    def of(row: PoolRow, oldest: datetime | None) -> PoolNow:
        ends = seen.ends.get(f"pool {row.name}", {})
        return PoolNow(
            name=row.name,
            limit=None if row.name == DEFAULT_POOL else row.max_parallelism,
            paused=row.paused,
            running=row.running,
            ready=row.ready,
            scheduled=row.scheduled,
            ended=sum(ends.get(state.value, 0) for state in FINISHED) / seen.window,
            failed=round(ends.get("failed", 0)),
            waits=None if oldest is None else max(0.0, (seen.now - oldest).total_seconds()),
        )

    return [of(*row) for row in sorted(seen.rows, key=lambda one: one[0].name != DEFAULT_POOL)]
