"""Pools at rest: limits, and slots that are handed out under a lock on the pool."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from datetime import datetime

from penstock.pools.pool import PoolDefinition
from penstock.pools.shares import Member, lent
from penstock.store.contract.overview import Activity
from penstock.store.contract.pools import Backlog, KeyRow, PoolRow, PoolView
from penstock.store.contract.session import Row, Session
from penstock.store.nouns.noun import Access, Noun, Values
from penstock.store.rows.pools import declared_of, declared_values, pool_row_of, views_of


class StoredPools(Noun):
    """See `store.contract.Pools`.

    Args:
        access: The access to the database.
        places: The places of ready jobs after which a look at some pools begins, as values of the query `look`.
    """

    def __init__(self, access: Access, places: Callable[[Sequence[str]], Values] = lambda _pools: {}) -> None:
        super().__init__(access, "pools")
        self._places = places

    async def declare(self, pools: Sequence[PoolDefinition]) -> None:
        if not pools:
            return
        known = {row[0]: tuple(row) for row in await self._look("declared")}
        for pool in pools:  # an unchanged declaration takes no lock, and needs no right to write
            before = known.get(pool.name)
            if before != declared_of(pool):
                await self._run("declare", **declared_values(pool))
                for group in {pool.group, before[5] if before else None} - {None}:
                    await self._run("changed", pool=pool.name, pool_group=group)

    async def change(self, name: str, *, max_parallelism: int | None = None, paused: bool | None = None) -> bool:
        return bool(await self._run("change", pool=name, max_parallelism=max_parallelism, paused=paused))

    async def epoch(self, session: Session, pool: str) -> int | None:
        rows = await self._fetch(session, "epoch", pool=pool)
        return rows[0][0] if rows else None

    async def look(self, lease: int, pools: Sequence[str], most: int) -> builtins.list[PoolView]:
        rows = await self._look("look", lease=lease, pools=list(pools), most=most, **self._places(pools))
        groups = {row[-1] for row in rows} - {None}
        return views_of(rows, {group: _members(await self._look("members", pool_group=group)) for group in groups})

    async def acquire(self, lease: int, pool: str, count: int) -> int:
        async with self._writing() as session:
            # Two statements: the snapshot of the second one begins after the lock.
            limit, group = 0, None
            for own, of_group, is_it in await self._fetch(session, "lock", pool=pool):
                if is_it:
                    limit, group = own, of_group
            if group is not None:
                limit = lent(_members(await self._fetch(session, "members", pool_group=group)), pool)
            rows = await self._fetch(session, "acquire", pool=pool, lease=lease, count=count, limit=limit)
        return rows[0][0] if rows else 0

    async def release(self, lease: int, pool: str, count: int) -> int:
        rows = await self._run("release", lease=lease, pool=pool, count=count)
        return rows[0][0] if rows else 0

    async def list(self, session: Session) -> builtins.list[PoolRow]:
        return [pool_row_of(row) for row in await self._fetch(session, "list")]

    async def waiting(self, session: Session, pool: str, keys: int, most: int) -> builtins.list[KeyRow]:
        return [KeyRow(*row) for row in await self._fetch(session, "waiting", pool=pool, keys=keys, most=most)]

    async def backlog(self, most: int) -> builtins.list[Backlog]:
        return [
            Backlog(pool, limit, granted, ready, self._access.time(oldest), scheduled)
            for pool, limit, granted, ready, oldest, scheduled in await self._look("backlog", most=most)
        ]

    async def activity(self, session: Session, since: datetime) -> builtins.list[Activity]:
        rows = await self._fetch(session, "activity", since=since)
        return [Activity(pool, place, count, self._access.time(first)) for pool, place, count, first in rows]


def _members(rows: Sequence[Row]) -> list[Member]:
    return [Member(*row) for row in rows]
