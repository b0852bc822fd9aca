"""Leases of workers on PostgreSQL."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from penstock.jobs.job import Job
from penstock.store.contract.jobs import Settle
from penstock.store.contract.overview import LeaseRow
from penstock.store.contract.session import Row, Session
from penstock.store.postgres.connections import Connections
from penstock.store.postgres.jobs import PostgresJobs, run
from penstock.store.postgres.session import BEGIN_INTERNAL, begin
from penstock.store.rows.jobs import job_of
from penstock.store.sql.queries import load_queries


class PostgresLeases:
    """See `store.contract.Leases`."""

    def __init__(self, connections: Connections, jobs: PostgresJobs) -> None:
        self._connections = connections
        self._jobs = jobs
        self._queries = load_queries("penstock.store.postgres", "leases", "$")

    async def take(self, worker: str, ttl: timedelta, now: datetime) -> int:
        """A new lease; its number fences everything done under it."""
        rows = await self._run("take", worker=worker, now=now, expires_at=now + ttl)
        lease: int = rows[0][0]
        return lease

    async def renew(self, lease: int, ttl: timedelta, now: datetime) -> bool:
        """Extend a lease; False if it was lost."""
        return bool(await self._run("renew", lease=lease, expires_at=now + ttl))

    async def jobs(self, lease: int) -> builtins.list[Job]:
        """The jobs that run under a lease."""
        return [job_of(row) for row in await self._run("running", lease=lease)]

    async def list(self, session: Session) -> builtins.list[LeaseRow]:
        """All leases, oldest first."""
        return [LeaseRow(*row) for row in await session.fetch(self._queries["list"].statement)]

    async def give_back(self, lease: int) -> None:
        """End a lease under which no job runs any more."""
        await self._run("give_back", lease=lease)

    async def expired(self, now: datetime) -> builtins.list[int]:
        """Leases that have run out."""
        return [row[0] for row in await self._run("expired", now=now)]

    async def rescue(self, lease: int, now: datetime, settle: Settle) -> int:
        """End an expired lease: settle every job that still runs under it; how many."""
        session = await begin(self._connections, BEGIN_INTERNAL)
        try:
            lock, running, remove = (self._queries[name] for name in ("lock_expired", "running", "remove"))
            held = await session.fetch(lock.statement, lock.args({"lease": lease, "now": now}))
            if held and not held[0][1]:
                return 0  # renewed in the meantime
            jobs = [job_of(row) for row in await session.fetch(running.statement, running.args({"lease": lease}))]
            if jobs:
                await self._jobs.settle_all_within(session, lease, settle(jobs))
            await session.execute(remove.statement, remove.args({"lease": lease}))
            await session.commit()
            return len(jobs)
        finally:
            await session.rollback()

    async def _run(self, name: str, **values: Any) -> Sequence[Row]:
        return tuple(await run(self._connections, self._queries[name], values))
