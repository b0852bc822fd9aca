"""The promises of a store about pools; a part of `store.contract`, in a file of its own for its length."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from penstock.pools.pool import PoolDefinition
from penstock.pools.rates import RateLimit
from penstock.store.contract.overview import Activity
from penstock.store.contract.session import Session


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


class Pools(Protocol):
    """Pools at rest: their limits, and the slots of each worker."""

    async def declare(self, pools: Sequence[PoolDefinition]) -> None:
        """Store the declared pools; values that differ from the declaration before hold from now on."""

    async def change(self, name: str, *, max_parallelism: int | None = None, paused: bool | None = None) -> bool:
        """Change a limit, for all workers at once; False if there is no such pool."""

    async def epoch(self, session: Session, pool: str) -> int | None:
        """The number of a pool's limit; None if there is no such pool."""

    async def look(self, lease: int, pools: Sequence[str], most: int) -> list[PoolView]:
        """The pools as a worker sees them, counting waiting jobs up to `most`."""

    async def acquire(self, lease: int, pool: str, count: int) -> int:
        """Take up to this many more slots; the number the worker holds then. The store notes that it wants the rest.

        The slots of all workers together are never more than the limit. None are given to a lease that was lost.
        """

    async def release(self, lease: int, pool: str, count: int) -> int:
        """Give this many slots back, and want none; the number the worker holds then."""

    async def backlog(self, most: int) -> Sequence[Backlog]:
        """The waiting work of each pool, and of the jobs without one, counted up to `most`."""

    async def list(self, session: Session) -> builtins.list[PoolRow]:
        """All pools, by name."""

    async def waiting(self, session: Session, pool: str, keys: int, most: int) -> builtins.list[KeyRow]:
        """The concurrency keys whose jobs wait at the gate of a pool, in their order: so many, each counted so far."""

    async def activity(self, session: Session, since: datetime) -> builtins.list[Activity]:
        """The present jobs of each pool, and of the one without a limit, and those that ended since a time."""
