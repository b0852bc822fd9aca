"""Locks on SQLite. Who only looks, or waits for one that is held, does not ask for the write lock."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from penstock.store.contract.locks import LOCK_KEPT, LockRow
from penstock.store.contract.session import OpenTransaction, Row, Session
from penstock.store.sql.queries import load_queries
from penstock.store.sqlite.dialect import encode_datetime
from penstock.store.sqlite.jobs import fetch
from penstock.store.sqlite.session import Begin, reading, writing


class SqliteLocks:
    """See `store.contract.Locks`."""

    def __init__(self, begin_read: Begin, begin_write: Begin) -> None:
        self._begin_read = begin_read
        self._begin_write = begin_write
        self._queries = load_queries("penstock.store.sqlite", "locks", "?")

    async def take(self, key: str, attempt: UUID, holder: str, lease: timedelta, now: datetime) -> LockRow:
        """Take a lock that is free or has run out; whose it is now."""
        async with reading(self._begin_read) as session:
            found = _one(await self._fetch(session, "find", key=key))
        if found is not None and found.expires_at > now:
            return found
        times = {"now": encode_datetime(now), "expires_at": encode_datetime(now + lease)}
        async with writing(self._begin_write) as session:
            rows = await self._fetch(session, "take", key=key, attempt=str(attempt), holder=holder, **times)
            return _row((rows or await self._fetch(session, "find", key=key))[0])

    async def want(self, key: str, fence: int) -> bool:
        """Say that somebody waits for a lock."""
        return bool(await self._write("want", key=key, fence=fence))

    async def renew(self, key: str, fence: int, lease: timedelta, now: datetime) -> bool:
        """Let a lock run out later; False if it was lost."""
        return bool(await self._write("renew", key=key, fence=fence, expires_at=encode_datetime(now + lease)))

    async def release(self, key: str, fence: int) -> LockRow | None:
        """Give a lock back; how it was, or None if it was lost."""
        return _one(await self._write("release", key=key, fence=fence))

    async def withdraw(self, key: str, attempt: UUID) -> LockRow | None:
        """Give a lock back if this attempt took it."""
        return _one(await self._write("withdraw", key=key, attempt=str(attempt)))

    async def check(self, transaction: OpenTransaction, key: str, fence: int) -> bool:
        """Whether a lock has this holder, who keeps it at least until the transaction ends."""
        return bool(await self._fetch(transaction, "check", key=key, fence=fence))

    async def list(self, session: Session, limit: int) -> builtins.list[LockRow]:
        """Locks that are held or have run out, in the order in which they were taken."""
        return [_row(row) for row in await self._fetch(session, "list", limit=limit)]

    async def prune(self, now: datetime, limit: int) -> int:
        """Forget locks that ran out long ago; how many."""
        before, query = encode_datetime(now - LOCK_KEPT), self._queries["prune"]
        async with reading(self._begin_read) as session:
            if not await self._fetch(session, "any_old", before=before):
                return 0
        async with writing(self._begin_write) as session:
            return await session.execute(query.statement, query.args({"before": before, "limit": limit}))

    async def _write(self, name: str, **values: Any) -> Sequence[Row]:
        async with writing(self._begin_write) as session:
            return await self._fetch(session, name, **values)

    async def _fetch(self, session: OpenTransaction, name: str, **values: Any) -> Sequence[Row]:
        return await fetch(session, self._queries[name], values)


def _row(row: Row) -> LockRow:
    key, fence, attempt, holder, taken_at, expires_at, wanted = row
    times = datetime.fromisoformat(taken_at), datetime.fromisoformat(expires_at)
    return LockRow(key, fence, UUID(attempt), holder, *times, bool(wanted))


def _one(rows: Sequence[Row]) -> LockRow | None:
    return _row(rows[0]) if rows else None
