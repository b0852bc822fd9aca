"""What verbs about pools take and give (`store.nouns.pools`)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from penstock.pools.rates import RateLimit


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool with a limit, as one worker sees it.

    Attributes:
        max_parallelism: Its limit, with slots lent by others of its group; 0 while it is paused.
        epoch: The number of this limit.
        granted: How many slots all workers hold together.
        held: How many this worker holds.
        holders: How many workers hold slots or want some.
        wanted: How many slots others want and do not have.
        waiting: How many jobs are ready, or wait at its gate; counted no further than asked. Of a pool that may lend
            slots only those that may start as far as their keys go.
        free: How many slots can be taken now.
        lacking: How many slots the other pools of its group want and do not have.
    """

    pool: str
    max_parallelism: int
    epoch: int
    granted: int
    held: int
    holders: int
    wanted: int
    waiting: int
    free: int = 0
    lacking: int = 0


@dataclass(frozen=True, slots=True)
class Backlog:
    """The waiting work of a pool.

    Attributes:
        max_parallelism: The limit that holds, 0 while it is paused; None for jobs without a pool, which have none.
        granted: How many slots all workers hold together.
        ready: How many jobs may start now; counted no further than asked.
        oldest: The due time of the oldest of those.
        scheduled: How many start later; counted no further than asked, over all pools.
    """

    pool: str
    max_parallelism: int | None
    granted: int
    ready: int
    oldest: datetime | None
    scheduled: int


@dataclass(frozen=True, slots=True)
class PoolRow:
    """A pool, as seen from outside.

    Attributes:
        declared: The limit that the program declared last.
        max_parallelism: The limit that holds.
        paused: Whether no job of it is started.
        granted: How many slots workers hold.
        ready: How many jobs are due.
        scheduled: How many start later.
        running: How many run.
        waiting: How many of those that are due wait at its gate.
        key_parallelism: How many jobs of one concurrency key run at once; None for any number.
        rate_limit: How many jobs start in a time; None for any number.
        key_rate_limit: How many of one concurrency key do.
        group: Name of the pools that lend it their unused slots.
        ageing: How long one of its jobs waits until it is as urgent as one of the next higher priority; None for ever.
    """

    name: str
    declared: int
    max_parallelism: int
    paused: bool
    granted: int
    ready: int
    scheduled: int
    running: int
    waiting: int = 0
    key_parallelism: int | None = None
    rate_limit: RateLimit | None = None
    key_rate_limit: RateLimit | None = None
    group: str | None = None
    ageing: timedelta | None = None


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A concurrency key whose jobs wait at the gate of a pool, as seen from outside.

    Attributes:
        key: The key; empty for jobs without one.
        waiting: How many of its jobs wait; counted no further than asked.
        running: How many run; likewise.
    """

    key: str
    waiting: int
    running: int


@dataclass(frozen=True, slots=True)
class Activity:
    """The number of jobs of a pool in one place.

    Attributes:
        place: Ready, completing, scheduled or running; or success, failed or canceled.
        count: Their number; for ended jobs, those that ended since a time.
        first: For waiting jobs, when the first one may run; for running ones, when the first one began; for those
            that have ended, when the first one did.
    """

    pool: str
    place: str
    count: int
    first: datetime
