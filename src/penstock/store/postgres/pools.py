"""Pools on PostgreSQL: limits, and slots that are handed out under a lock on the pool's row."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from penstock.store.contract import PoolRow, PoolView, Row, Session
from penstock.store.postgres.connections import Connections
from penstock.store.postgres.jobs import run
from penstock.store.postgres.session import BEGIN_INTERNAL, begin
from penstock.store.queries import load_queries
from penstock.store.seen import Activity


class PostgresPools:
    """See `store.contract.Pools`."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._queries = load_queries("penstock.store.postgres", "pools", "$")

    async def declare(self, limits: Mapping[str, int]) -> None:
        """Make pools known."""
        if not limits:
            return
        # Who finds all as it is needs no right to write.
        known: dict[str, int] = {row[0]: row[1] for row in await self._run("declared")}
        for name, limit in limits.items():
            if known.get(name) != limit:
                await self._run("declare", pool=name, limit=limit)

    async def change(self, name: str, *, max_parallelism: int | None = None, paused: bool | None = None) -> bool:
        """Change a limit, for all workers at once; False if there is no such pool."""
        return bool(await self._run("change", pool=name, max_parallelism=max_parallelism, paused=paused))

    async def look(self, lease: int, pools: Sequence[str], most: int) -> builtins.list[PoolView]:
        """How pools stand for a worker."""
        return [PoolView(*row) for row in await self._run("look", lease=lease, pools=list(pools), most=most)]

    async def acquire(self, lease: int, pool: str, count: int) -> int:
        """Take up to this many more slots; how many the worker holds then."""
        session = await begin(self._connections, BEGIN_INTERNAL)
        try:
            # Two statements: what the second one sees begins after the lock.
            locked = await self._fetch(session, "lock", pool=pool)
            values = {"pool": pool, "lease": lease, "count": count, "limit": locked[0][0] if locked else 0}
            rows = await self._fetch(session, "acquire", **values)
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
        return [PoolRow(*row) for row in await self._fetch(session, "list")]

    async def activity(self, session: Session, since: datetime) -> builtins.list[Activity]:
        """What goes on in each pool, and what has ended since a time."""
        return [Activity(*row) for row in await self._fetch(session, "activity", since=since)]

    async def _run(self, name: str, **values: Any) -> Sequence[Row]:
        return await run(self._connections, self._queries[name], values)

    async def _fetch(self, session: Session, name: str, **values: Any) -> Sequence[Row]:
        query = self._queries[name]
        return await session.fetch(query.statement, query.args(values))
