"""Leases of workers on SQLite.

One transaction at a time writes, whoever's it is. So a lease whose row cannot be written in time is extended beside the
database; nobody takes over what is extended.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from penstock.clock import Clock
from penstock.errors import DatabaseBusy
from penstock.jobs.job import Job
from penstock.store.contract.jobs import Settle
from penstock.store.contract.overview import LeaseRow
from penstock.store.contract.session import Row, Session
from penstock.store.sql.queries import load_queries
from penstock.store.sqlite.dialect import encode_datetime
from penstock.store.sqlite.extensions import Extensions
from penstock.store.sqlite.jobrows import job_from
from penstock.store.sqlite.jobs import SqliteJobs, fetch
from penstock.store.sqlite.session import Begin, reading, writing

_PATIENCE_PART = 0.1  # of the time a lease holds: how long a renewal waits for the write lock


class SqliteLeases:
    """See `store.contract.Leases`."""

    def __init__(
        self, begin_read: Begin, begin_write: Begin, jobs: SqliteJobs, extensions: Extensions, clock: Clock
    ) -> None:
        self._extensions = extensions
        self._clock = clock
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
        called_at = self._clock.now()
        try:
            async with asyncio.timeout(ttl.total_seconds() * _PATIENCE_PART):
                held = bool(await self._write("renew", lease=lease, expires_at=encode_datetime(now + ttl)))
        except (TimeoutError, DatabaseBusy):
            return await self._extend(lease, ttl, now - called_at)
        self._extensions.forget(lease)
        return held

    async def jobs(self, lease: int) -> builtins.list[Job]:
        """The jobs that run under a lease."""
        async with reading(self._begin_read) as session:
            return [job_from(row) for row in await fetch(session, self._queries["running"], {"lease": lease})]

    async def list(self, session: Session) -> builtins.list[LeaseRow]:
        """All leases, oldest first. What is extended beside the database ends later than it says."""
        return [
            LeaseRow(lease, worker, datetime.fromisoformat(started), datetime.fromisoformat(expires), running)
            for lease, worker, started, expires, running in await fetch(session, self._queries["list"], {})
        ]

    async def give_back(self, lease: int) -> None:
        """End a lease under which no job runs any more."""
        async with writing(self._begin_write) as session:
            await fetch(session, self._queries["give_back"], {"lease": lease})
            await fetch(session, self._queries["remove_slots"], {"lease": lease})
        self._extensions.forget(lease)

    async def expired(self, now: datetime) -> builtins.list[int]:
        """Leases that have run out."""
        async with reading(self._begin_read) as session:
            rows = await fetch(session, self._queries["expired"], {"now": encode_datetime(now)})
            return [row[0] for row in rows if not self._is_extended(row[0], now)]

    async def rescue(self, lease: int, now: datetime, settle: Settle) -> int:
        """End an expired lease: settle every job that still runs under it; how many."""
        async with writing(self._begin_write) as session:
            held = await fetch(session, self._queries["lock_expired"], {"lease": lease, "now": encode_datetime(now)})
            if held and (not held[0][1] or self._is_extended(lease, now)):
                return 0  # renewed in the meantime
            rows = await fetch(session, self._queries["running"], {"lease": lease})
            for settlement in settle([job_from(row) for row in rows]):
                await self._jobs.settle_within(session, lease, settlement)
            await fetch(session, self._queries["remove"], {"lease": lease})
            await fetch(session, self._queries["remove_slots"], {"lease": lease})
        self._extensions.remove(lease)
        return len(rows)

    async def _extend(self, lease: int, ttl: timedelta, offset: timedelta) -> bool:
        """Extend a lease beside the database; False if it was lost.

        Who rescues looks there once the lease has ended. So an extension counts if it stood there before.

        Args:
            lease: The lease.
            ttl: For how long, from now.
            offset: What the caller's time is ahead of the clock's.

        Raises:
            DatabaseBusy: The lease has run out, so that only the database can tell whose it is.
        """
        async with reading(self._begin_read) as session:
            rows = await fetch(session, self._queries["expiry"], {"lease": lease})
        if not rows:
            self._extensions.forget(lease)
            return False
        ends = datetime.fromisoformat(rows[0][0]), self._extensions.end(lease)
        end = max(moment for moment in ends if moment is not None)
        self._extensions.write(lease, self._clock.now() + offset + ttl)
        if self._clock.now() + offset < end:
            return True
        self._extensions.forget(lease)
        raise DatabaseBusy(
            f"Another process held the write lock of the database until lease {lease} expired.",
            fix="Find the process that writes for so long, or raise lease.",
        )

    def _is_extended(self, lease: int, now: datetime) -> bool:
        end = self._extensions.end(lease)
        return end is not None and now < end

    async def _write(self, name: str, **values: Any) -> Sequence[Row]:
        async with writing(self._begin_write) as session:
            return await fetch(session, self._queries[name], values)
