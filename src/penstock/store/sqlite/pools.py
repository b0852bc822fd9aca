"""Pools on SQLite: limits, and slots that are handed out by the one writer."""

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
from penstock.store.rows.pools import declared_of, declared_values, pool_row_of, views_of
from penstock.store.sql.queries import load_queries
from penstock.store.sqlite.dialect import encode_datetime
from penstock.store.sqlite.jobs import fetch
from penstock.store.sqlite.session import Begin, reading, writing


class SqlitePools:
    """See `store.contract.Pools`."""

    def __init__(self, begin_read: Begin, begin_write: Begin) -> None:
        self._begin_read = begin_read
        self._begin_write = begin_write
        self._queries = load_queries("penstock.store.sqlite", "pools", "?")

    async def declare(self, pools: Sequence[PoolDefinition]) -> None:
        """Make pools known."""
        if not pools:
            return
        async with reading(self._begin_read) as session:
            known = {row[0]: row for row in await self._fetch(session, "declared")}
        new = [pool for pool in pools if known.get(pool.name) != declared_of(pool)]
        if new:  # who starts and finds all as it is takes no lock
            async with writing(self._begin_write) as session:
                for pool in new:
                    await self._fetch(session, "declare", **declared_values(pool))
                    await self._fetch(session, "declare_gate", pool=pool.name)
                    await self._fetch(session, "reopen", pool=pool.name)
                    for group in {pool.group, known[pool.name][5] if pool.name in known else None} - {None}:
                        await self._fetch(session, "changed", pool=pool.name, pool_group=group)

    async def change(self, name: str, *, max_parallelism: int | None = None, paused: bool | None = None) -> bool:
        """Change a limit, for all workers at once; False if there is no such pool."""
        async with writing(self._begin_write) as session:
            rows = await self._fetch(session, "change", pool=name, max_parallelism=max_parallelism, paused=paused)
            if rows and rows[0][1] is not None:
                await self._fetch(session, "changed", pool=name, pool_group=rows[0][1])
        return bool(rows)

    async def epoch(self, session: Session, pool: str) -> int | None:
        """The number of a pool's limit."""
        rows = await self._fetch(session, "epoch", pool=pool)
        return rows[0][0] if rows else None

    async def look(self, lease: int, pools: Sequence[str], most: int) -> builtins.list[PoolView]:
        """How pools stand for a worker."""
        async with reading(self._begin_read) as session:
            found = [await self._fetch(session, "look", lease=lease, pool=pool, most=most) for pool in sorted(pools)]
            rows = [row for rows in found for row in rows]
            groups = {row[-1] for row in rows} - {None}
            return views_of(rows, {group: await self._members(session, group) for group in groups})

    async def acquire(self, lease: int, pool: str, count: int) -> int:
        """Take up to this many more slots; how many the worker holds then."""
        async with writing(self._begin_write) as session:
            locked = await self._fetch(session, "lock", pool=pool)
            limit, group = (locked[0][0], locked[0][1]) if locked else (0, None)
            if group is not None:
                limit = lent(await self._members(session, group), pool)
            rows = await self._fetch(session, "acquire", pool=pool, lease=lease, count=count, limit=limit)
        return rows[0][0] if rows else 0

    async def release(self, lease: int, pool: str, count: int) -> int:
        """Give this many slots back; how many the worker holds then."""
        async with writing(self._begin_write) as session:
            rows = await self._fetch(session, "release", lease=lease, pool=pool, count=count)
        return rows[0][0] if rows else 0

    async def list(self, session: Session) -> builtins.list[PoolRow]:
        """All pools, by name."""
        return [pool_row_of(row) for row in await self._fetch(session, "list")]

    async def waiting(self, session: Session, pool: str, keys: int, most: int) -> builtins.list[KeyRow]:
        """The concurrency keys whose jobs wait at the gate of a pool."""
        return [KeyRow(*row) for row in await self._fetch(session, "waiting", pool=pool, keys=keys, most=most)]

    async def backlog(self, most: int) -> builtins.list[Backlog]:
        """How much work of each pool waits, counted up to `most`."""
        async with reading(self._begin_read) as session:
            rows = await self._fetch(session, "backlog", most=most)
        return [
            Backlog(pool, limit, granted, ready, None if oldest is None else datetime.fromisoformat(oldest), scheduled)
            for pool, limit, granted, ready, oldest, scheduled in rows
        ]

    async def _members(self, session: Session, group: str) -> builtins.list[Member]:
        return [Member(*row) for row in await self._fetch(session, "members", pool_group=group)]

    async def activity(self, session: Session, since: datetime) -> builtins.list[Activity]:
        """What goes on in each pool, and what has ended since a time."""
        rows = await self._fetch(session, "activity", since=encode_datetime(since))
        return [Activity(pool, place, count, datetime.fromisoformat(first)) for pool, place, count, first in rows]

    async def _fetch(self, session: Session, name: str, **values: Any) -> Sequence[Row]:
        return await fetch(session, self._queries[name], values)
