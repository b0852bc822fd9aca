"""Leases of workers on SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from penstock.jobs.job import Job
from penstock.store.contract import Row, SettleLost
from penstock.store.queries import load_queries
from penstock.store.sqlite.dialect import encode_datetime
from penstock.store.sqlite.jobs import Begin, SqliteJobs, fetch, job_from, reading, writing


class SqliteLeases:
    """See `store.contract.Leases`."""

    def __init__(self, begin_read: Begin, begin_write: Begin, jobs: SqliteJobs) -> None:
        self._begin_read = begin_read
        self._begin_write = begin_write
        self._jobs = jobs
        self._queries = load_queries("penstock.store.sqlite", "leases", "?")

    async def take(self, worker: str, ttl: timedelta, now: datetime) -> int:
        """A new lease; its number fences everything done under it."""
        rows = await self._write("take", worker=worker, now=encode_datetime(now), expires_at=encode_datetime(now + ttl))
        lease: int = rows[0][0]
        return lease

    async def renew(self, lease: int, ttl: timedelta, now: datetime) -> bool:
        """Extend a lease; False if it was lost."""
        return bool(await self._write("renew", lease=lease, expires_at=encode_datetime(now + ttl)))

    async def jobs(self, lease: int) -> list[Job]:
        """The jobs that run under a lease."""
        async with reading(self._begin_read) as session:
            return [job_from(row) for row in await fetch(session, self._queries["running"], {"lease": lease})]

    async def give_back(self, lease: int) -> None:
        """End a lease under which no job runs any more."""
        await self._write("give_back", lease=lease)

    async def expired(self, now: datetime) -> list[int]:
        """Leases that have run out."""
        async with reading(self._begin_read) as session:
            return [row[0] for row in await fetch(session, self._queries["expired"], {"now": encode_datetime(now)})]

    async def rescue(self, lease: int, now: datetime, settle: SettleLost) -> int:
        """End an expired lease: settle every job that still runs under it; how many."""
        async with writing(self._begin_write) as session:
            held = await fetch(session, self._queries["lock_expired"], {"lease": lease, "now": encode_datetime(now)})
            if held and not held[0][1]:
                return 0  # renewed in the meantime
            rows = await fetch(session, self._queries["running"], {"lease": lease})
            for settlement in settle([job_from(row) for row in rows]):
                await self._jobs.settle_within(session, lease, settlement)
            await fetch(session, self._queries["remove"], {"lease": lease})
            return len(rows)

    async def _write(self, name: str, **values: Any) -> Sequence[Row]:
        async with writing(self._begin_write) as session:
            return await fetch(session, self._queries[name], values)
