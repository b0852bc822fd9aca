"""What verbs about pools take and give (`store.nouns.pools`)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from penstock.pools.rates import RateLimit


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool with a limit, as one worker sees it."""

    pool: str
    max_parallelism: int  # its limit, with slots lent by others of its group; 0 while it is paused
    epoch: int  # the number of this limit
    granted: int  # how many slots all workers hold together
    held: int  # how many this worker holds
    holders: int  # how many workers hold slots or want some
    wanted: int  # how many slots others want and do not have
    # how many jobs are ready, or wait at its gate; counted no further than asked. Of a pool that may lend slots only
    # those that may start as far as their keys go
    waiting: int
    free: int = 0  # how many slots can be taken now
    lacking: int = 0  # how many slots the other pools of its group want and do not have


@dataclass(frozen=True, slots=True)
class Backlog:
    """The waiting work of a pool."""

    pool: str
    # the limit that holds, 0 while it is paused; None for jobs without a pool, which have none
    max_parallelism: int | None
    granted: int  # how many slots all workers hold together
    ready: int  # how many jobs may start now; counted no further than asked
    oldest: datetime | None  # the due time of the oldest of those
    scheduled: int  # how many start later; counted no further than asked, over all pools


@dataclass(frozen=True, slots=True)
class PoolRow:
    """A pool, as seen from outside."""

    name: str
    declared: int  # the limit that the program declared last
    max_parallelism: int  # the limit that holds
    paused: bool  # whether no job of it is started
    granted: int  # how many slots workers hold
    ready: int  # how many jobs are due
    scheduled: int  # how many start later
    running: int  # how many run
    waiting: int = 0  # how many of those that are due wait at its gate
    key_parallelism: int | None = None  # how many jobs of one concurrency key run at once; None for any number
    rate_limit: RateLimit | None = None  # how many jobs start in a time; None for any number
    key_rate_limit: RateLimit | None = None  # how many of one concurrency key do
    group: str | None = None  # name of the pools that lend it their unused slots
    # how long one of its jobs waits until it is as urgent as one of the next higher priority; None for ever
    ageing: timedelta | None = None


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A concurrency key whose jobs wait at the gate of a pool, as seen from outside."""

    key: str  # the key; empty for jobs without one
    waiting: int  # how many of its jobs wait; counted no further than asked
    running: int  # how many run; likewise


@dataclass(frozen=True, slots=True)
class Activity:
    """The number of jobs of a pool in one place."""

    pool: str
    place: str  # ready, completing, scheduled or running; or success, failed or canceled
    count: int  # their number; for ended jobs, those that ended since a time
    # for waiting jobs, when the first one may run; for running ones, when the first one began; for those that have
    # ended, when the first one did. None if that was not asked
    first: datetime | None


@dataclass(frozen=True, slots=True)
class OldJob:
    """A job that has run, or has been ready, for long."""

    id: UUID
    function: str
    pool: str
    place: str  # running or ready
    since: datetime
