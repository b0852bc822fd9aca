"""Locks on PostgreSQL."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from penstock.store.contract.locks import LOCK_KEPT, LockRow
from penstock.store.contract.session import OpenTransaction, Row, Session
from penstock.store.postgres.connections import Connections
from penstock.store.postgres.jobs import run
from penstock.store.postgres.session import BEGIN_INTERNAL, begin
from penstock.store.sql.queries import load_queries


class PostgresLocks:
    """See `store.contract.Locks`.

    Args:
        connections: For renewing, which no number of calls may keep up.
        for_calls: For what functions and programs do, of which there may be many at once.
    """

    def __init__(self, connections: Connections, for_calls: Connections) -> None:
        self._connections = connections
        self._for_calls = for_calls
        self._queries = load_queries("penstock.store.postgres", "locks", "$")

    async def take(self, key: str, attempt: UUID, holder: str, lease: timedelta, now: datetime) -> LockRow:
        """Take a lock that is free or has run out; whose it is now."""
        asked = {"key": key, "attempt": attempt, "holder": holder, "now": now, "expires_at": now + lease}
        while True:
            rows = await self._call("take", **asked) or await self._call("find", key=key)
            if rows:
                return LockRow(*rows[0])

    async def want(self, key: str, fence: int) -> bool:
        """Say that somebody waits for a lock."""
        return bool(await self._call("want", key=key, fence=fence))

    async def renew(self, key: str, fence: int, lease: timedelta, now: datetime) -> bool:
        """Let a lock run out later; False if it was lost."""
        values = {"key": key, "fence": fence, "expires_at": now + lease}
        return bool(await run(self._connections, self._queries["renew"], values))

    async def release(self, key: str, fence: int) -> LockRow | None:
        """Give a lock back; how it was, or None if it was lost."""
        return _one(await self._call("release", key=key, fence=fence))

    async def withdraw(self, key: str, attempt: UUID) -> LockRow | None:
        """Give a lock back if this attempt took it."""
        return _one(await self._call("withdraw", key=key, attempt=attempt))

    async def check(self, transaction: OpenTransaction, key: str, fence: int) -> bool:
        """Whether a lock has this holder, who keeps it at least until the transaction ends."""
        query = self._queries["check"]
        return bool(await transaction.fetch(query.statement, query.args({"key": key, "fence": fence})))

    async def list(self, session: Session, limit: int) -> builtins.list[LockRow]:
        """Locks that are held or have run out, in the order in which they were taken."""
        query = self._queries["list"]
        return [LockRow(*row) for row in await session.fetch(query.statement, query.args({"limit": limit}))]

    async def prune(self, now: datetime, limit: int) -> int:
        """Forget locks that ran out long ago; how many."""
        query = self._queries["prune"]
        session = await begin(self._connections, BEGIN_INTERNAL)
        try:
            count = await session.execute(query.statement, query.args({"before": now - LOCK_KEPT, "limit": limit}))
            await session.commit()
        finally:
            await session.rollback()
        return count

    async def _call(self, name: str, **values: Any) -> Sequence[Row]:
        return await run(self._for_calls, self._queries[name], values)


def _one(rows: Sequence[Row]) -> LockRow | None:
    return LockRow(*rows[0]) if rows else None
