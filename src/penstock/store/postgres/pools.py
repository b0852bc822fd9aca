"""Pools on PostgreSQL: limits, and slots that are handed out under a lock on the pool's row."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from penstock.pools.pool import PoolDefinition
from penstock.pools.shares import Member, lent
from penstock.store.contract.overview import Activity
from penstock.store.contract.pools import Backlog, KeyRow, PoolRow, PoolView
from penstock.store.contract.session import Row, Session
from penstock.store.postgres.connections import Connections
from penstock.store.postgres.heads import Heads
from penstock.store.postgres.jobs import run
from penstock.store.postgres.session import BEGIN_INTERNAL, begin
from penstock.store.rows.pools import declared_of, declared_values, pool_row_of, views_of
from penstock.store.sql.queries import load_queries


class PostgresPools:
    """See `store.contract.Pools`."""

    def __init__(self, connections: Connections, heads: Heads) -> None:
        self._connections = connections
        self._heads = heads
        self._queries = load_queries("penstock.store.postgres", "pools", "$")

    async def declare(self, pools: Sequence[PoolDefinition]) -> None:
        """Make pools known."""
        if not pools:
            return
        # Who finds all as it is needs no right to write.
        known = {row[0]: row for row in await self._run("declared")}
        for pool in pools:
            before = known.get(pool.name)
            if before is None or tuple(before) != declared_of(pool):
                await self._run("declare", **declared_values(pool))
                for group in {pool.group, before[5] if before else None} - {None}:
                    await self._run("changed", pool=pool.name, pool_group=group)

    async def change(self, name: str, *, max_parallelism: int | None = None, paused: bool | None = None) -> bool:
        """Change a limit, for all workers at once; False if there is no such pool."""
        return bool(await self._run("change", pool=name, max_parallelism=max_parallelism, paused=paused))

    async def epoch(self, session: Session, pool: str) -> int | None:
        """The number of a pool's limit."""
        rows = await self._fetch(session, "epoch", pool=pool)
        return rows[0][0] if rows else None

    async def look(self, lease: int, pools: Sequence[str], most: int) -> builtins.list[PoolView]:
        """How pools stand for a worker."""
        rows = await self._run("look", lease=lease, pools=list(pools), most=most, **self._heads.after(pools))
        groups = {row[-1] for row in rows} - {None}
        return views_of(rows, {group: _members(await self._run("members", pool_group=group)) for group in groups})

    async def acquire(self, lease: int, pool: str, count: int) -> int:
        """Take up to this many more slots; how many the worker holds then."""
        session = await begin(self._connections, BEGIN_INTERNAL)
        try:
            # Two statements: what the second one sees begins after the lock.
            limit, group = 0, None
            for own, of_group, is_it in await self._fetch(session, "lock", pool=pool):
                if is_it:
                    limit, group = own, of_group
            if group is not None:
                limit = lent(_members(await self._fetch(session, "members", pool_group=group)), pool)
            rows = await self._fetch(session, "acquire", pool=pool, lease=lease, count=count, limit=limit)
            await session.commit()
        finally:
            await session.rollback()
        return rows[0][0] if rows else 0

    async def release(self, lease: int, pool: str, count: int) -> int:
        """Give this many slots back; how many the worker holds then."""
        rows = await self._run("release", lease=lease, pool=pool, count=count)
        return rows[0][0] if rows else 0

    async def list(self, session: Session) -> builtins.list[PoolRow]:
        """All pools, by name."""
        return [pool_row_of(row) for row in await self._fetch(session, "list")]

    async def waiting(self, session: Session, pool: str, keys: int, most: int) -> builtins.list[KeyRow]:
        """The concurrency keys whose jobs wait at the gate of a pool."""
        return [KeyRow(*row) for row in await self._fetch(session, "waiting", pool=pool, keys=keys, most=most)]

    async def backlog(self, most: int) -> builtins.list[Backlog]:
        """How much work of each pool waits, counted up to `most`."""
        return [Backlog(*row) for row in await self._run("backlog", most=most)]

    async def activity(self, session: Session, since: datetime) -> builtins.list[Activity]:
        """What goes on in each pool, and what has ended since a time."""
        return [Activity(*row) for row in await self._fetch(session, "activity", since=since)]

    async def _run(self, name: str, **values: Any) -> Sequence[Row]:
        return await run(self._connections, self._queries[name], values)

    async def _fetch(self, session: Session, name: str, **values: Any) -> Sequence[Row]:
        query = self._queries[name]
        return await session.fetch(query.statement, query.args(values))


def _members(rows: Sequence[Row]) -> list[Member]:
    return [Member(*row) for row in rows]
