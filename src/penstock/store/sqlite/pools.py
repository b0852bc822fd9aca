"""Pools on SQLite: limits, and slots that are handed out by the one writer."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from penstock.store.contract import PoolRow, PoolView, Row, Session
from penstock.store.queries import load_queries
from penstock.store.seen import Activity
from penstock.store.sqlite.dialect import encode_datetime
from penstock.store.sqlite.jobs import Begin, fetch, reading, writing


class SqlitePools:
    """See `store.contract.Pools`."""

    def __init__(self, begin_read: Begin, begin_write: Begin) -> None:
        self._begin_read = begin_read
        self._begin_write = begin_write
        self._queries = load_queries("penstock.store.sqlite", "pools", "?")

    async def declare(self, limits: Mapping[str, int]) -> None:
        """Make pools known."""
        if not limits:
            return
        async with reading(self._begin_read) as session:
            known: dict[str, int] = {row[0]: row[1] for row in await self._fetch(session, "declared")}
        new = {name: limit for name, limit in limits.items() if known.get(name) != limit}
        if new:  # who starts and finds all as it is takes no lock
            async with writing(self._begin_write) as session:
                for name, limit in new.items():
                    await self._fetch(session, "declare", pool=name, limit=limit)

    async def change(self, name: str, *, max_parallelism: int | None = None, paused: bool | None = None) -> bool:
        """Change a limit, for all workers at once; False if there is no such pool."""
        async with writing(self._begin_write) as session:
            return bool(await self._fetch(session, "change", pool=name, max_parallelism=max_parallelism, paused=paused))

    async def look(self, lease: int, pools: Sequence[str], most: int) -> builtins.list[PoolView]:
        """How pools stand for a worker."""
        async with reading(self._begin_read) as session:
            rows = [await self._fetch(session, "look", lease=lease, pool=pool, most=most) for pool in sorted(pools)]
        return [PoolView(*row) for found in rows for row in found]

    async def acquire(self, lease: int, pool: str, count: int) -> int:
        """Take up to this many more slots; how many the worker holds then."""
        async with writing(self._begin_write) as session:
            locked = await self._fetch(session, "lock", pool=pool)
            values = {"pool": pool, "lease": lease, "count": count, "limit": locked[0][0] if locked else 0}
            rows = await self._fetch(session, "acquire", **values)
        return rows[0][0] if rows else 0

    async def release(self, lease: int, pool: str, count: int) -> int:
        """Give this many slots back; how many the worker holds then."""
        async with writing(self._begin_write) as session:
            rows = await self._fetch(session, "release", lease=lease, pool=pool, count=count)
        return rows[0][0] if rows else 0

    async def list(self, session: Session) -> builtins.list[PoolRow]:
        """All pools, by name."""
        rows = await self._fetch(session, "list")
        return [
            PoolRow(name, declared, limit, bool(paused), granted, ready, scheduled, running)
            for name, declared, limit, paused, granted, ready, scheduled, running in rows
        ]

    async def activity(self, session: Session, since: datetime) -> builtins.list[Activity]:
        """What goes on in each pool, and what has ended since a time."""
        rows = await self._fetch(session, "activity", since=encode_datetime(since))
        return [Activity(pool, place, count, datetime.fromisoformat(first)) for pool, place, count, first in rows]

    async def _fetch(self, session: Session, name: str, **values: Any) -> Sequence[Row]:
        return await fetch(session, self._queries[name], values)
