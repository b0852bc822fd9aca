"""Pools at rest: limits, and slots that are handed out under a lock on the pool."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from penstock.dataclass import dataclass
from penstock.pools.pool import PoolDefinition
from penstock.pools.rates import RateLimit
from penstock.pools.shares import Member, lend
from penstock.store.nouns.noun import Access, Noun, Values
from penstock.store.nouns.rates import TICK, rate_of, rate_text
from penstock.store.session import Row, Session

_FIRST = 100  # jobs; the oldest is shown


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
    # jobs that may start as far as their keys go
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
    declared: int  # the limit that the program declared last; 0 of jobs without a pool
    max_parallelism: int  # the limit that holds; likewise
    paused: bool  # whether no job of it is started
    granted: int  # how many slots workers hold
    ready: int  # how many jobs are due
    scheduled: int  # how many start later
    running: int  # how many run
    waiting: int = 0  # how many due jobs wait at its gate
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
class OldJob:
    """A job that has run, or has been ready, for long."""

    id: UUID
    function: str
    pool: str
    place: str  # running or ready
    since: datetime


class Pools(Noun, queries=("pools",)):
    """Pools at rest: their limits, and which worker holds how many slots.

    `places` are those of ready jobs after which a look at some pools begins, as values of the query `look`.
    """

    def __init__(self, access: Access, places: Callable[[Sequence[str]], Values] = lambda _pools: {}) -> None:
        super().__init__(access)
        self._places = places

    async def declare(self, pools: Sequence[PoolDefinition]) -> None:
        """Store the declared pools; values that differ from the declaration before hold from now on."""
        if not pools:
            return
        known = {row["name"]: dict(row) for row in await self._look("declared")}
        for pool in pools:  # an unchanged declaration takes no lock, and needs no right to write
            before = known.get(pool.name)
            if before != values_of(pool):
                async with self._writing() as session:  # in the order in which others lock pools: its groups first
                    for group in sorted({pool.group or "", before["pool_group"] or "" if before else ""} - {""}):
                        await self._fetch(session, "changed", pool=pool.name, pool_group=group)
                    await self._fetch(session, "declare", **values_of(pool))

    async def change(self, name: str, *, max_parallelism: int | None = None, paused: bool | None = None) -> bool:
        """Change a limit, for all workers at once; False if there is no such pool."""
        return bool(await self._run("change", pool=name, max_parallelism=max_parallelism, paused=paused))

    async def epoch(self, session: Session, pool: str) -> int | None:
        """The number of a pool's limit; None if there is no such pool."""
        rows = await self._fetch(session, "epoch", pool=pool)
        return rows[0]["epoch"] if rows else None

    async def look(self, lease: int, pools: Sequence[str], most: int) -> builtins.list[PoolView]:
        """The pools as a worker sees them, counting waiting jobs up to `most`."""
        rows = await self._look(
            "look", lease=lease, pools=list(pools), most=most, **self._places(pools), **self._access.left
        )
        groups = [row["pool_group"] for row in rows]
        members = {
            group: self._read(Member, await self._look("members", pool_group=group)) for group in {*groups} - {None}
        }
        views = self._read(PoolView, rows)
        return [_with_loans(view, members.get(group)) for view, group in zip(views, groups, strict=True)]

    async def acquire(self, lease: int, pool: str, count: int) -> int:
        """Take up to this many more slots; the number the worker holds then. The store notes that it wants the rest.

        The slots of all workers together are never more than the limit. None are given to a lease that was lost.
        """
        async with self._writing() as session:
            # Two statements: the snapshot of the second one begins after the lock.
            limit, group = 0, None
            for row in await self._fetch(session, "lock", pool=pool):
                if row["is_it"]:
                    limit, group = row["max_parallelism"], row["pool_group"]
            if group is not None:
                limit = lend(self._read(Member, await self._fetch(session, "members", pool_group=group)), pool)
            rows = await self._fetch(session, "acquire", pool=pool, lease=lease, count=count, limit=limit)
        return rows[0]["held"] if rows else 0

    async def release(self, lease: int, pool: str, count: int) -> int:
        """Give this many slots back, and want none; the number the worker holds then."""
        rows = await self._run("release", lease=lease, pool=pool, count=count)
        return rows[0]["held"] if rows else 0

    async def list(self, session: Session) -> builtins.list[PoolRow]:
        """All pools, by name."""
        return self._pools(await self._fetch(session, "list"))

    async def waiting(self, session: Session, pool: str, keys: int, most: int) -> builtins.list[KeyRow]:
        """The concurrency keys whose jobs wait at the gate of a pool, in their order: so many, each counted so far."""
        return self._read(KeyRow, await self._fetch(session, "waiting", pool=pool, keys=keys, most=most))

    async def backlog(self, most: int) -> builtins.list[Backlog]:
        """The waiting work of each pool, and of the jobs without one, counted up to `most`."""
        return self._read(Backlog, await self._look("backlog", most=most, first=most))

    async def now(self, session: Session, most: int) -> builtins.list[tuple[PoolRow, datetime | None]]:
        """All pools, and the jobs without one, counted up to `most`; each with the due time of its oldest ready job."""
        rows = await self._fetch(session, "now", most=most, first=_FIRST)
        return [*zip(self._pools(rows), (self._access.time(row["oldest"]) for row in rows), strict=True)]

    async def oldest(self, session: Session, most: int) -> builtins.list[OldJob]:
        """The jobs that have run longest, and the ready ones that have waited longest; `most` of each."""
        return self._read(OldJob, await self._fetch(session, "oldest", most=most))

    def _pools(self, rows: Sequence[Row]) -> builtins.list[PoolRow]:
        return self._read(
            PoolRow,
            rows,
            rate_limit=lambda row: rate_of(row["rate_limit"]),
            key_rate_limit=lambda row: rate_of(row["key_rate_limit"]),
            group=lambda row: row["pool_group"],
            ageing=lambda row: None if row["ageing"] is None else row["ageing"] * TICK,
        )


def values_of(pool: PoolDefinition) -> dict[str, Any]:
    """The stored values of a declared pool, as the query `declared` gives them."""
    return {
        "name": pool.name,
        "declared": pool.max_parallelism,
        "key_parallelism": pool.key_parallelism,
        "rate_limit": rate_text(pool.rate_limit),
        "key_rate_limit": rate_text(pool.key_rate_limit),
        "pool_group": pool.group,
        "ageing": None if pool.ageing is None else pool.ageing // TICK,
    }


def _with_loans(view: PoolView, members: Sequence[Member] | None) -> PoolView:
    """A pool as a worker sees it, with the slots that the others of its group lend it, if it has one."""
    if members is None:
        return replace(view, free=max(0, view.max_parallelism - view.granted))
    limit = lend(members, view.pool)
    own = view.max_parallelism  # it wants these even while others have them, and so gets them back
    lacking = sum(one.wanted for one in members if one.name != view.pool and one.limit)  # a paused one borrows nothing
    return replace(view, max_parallelism=max(own, limit), free=max(0, limit - view.granted), lacking=lacking)
