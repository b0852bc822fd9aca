"""The gates of pools on PostgreSQL: jobs with a concurrency key, or of a pool with a rate limit, start through them.

One worker at a time holds a gate, under a lock on a row of the pool's; what passes is decided by `pools.turns`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from penstock.jobs.job import Job
from penstock.pools.turns import Gate, Turn, passage, passed
from penstock.store.contract.jobs import Room
from penstock.store.contract.keys import Rates
from penstock.store.contract.session import Row, Session
from penstock.store.postgres.connections import Connections
from penstock.store.postgres.dialect import POSTGRES
from penstock.store.postgres.session import BEGIN_INTERNAL, begin
from penstock.store.rows.jobs import job_of
from penstock.store.rows.pools import KEYS_COMPARED, rates_of, turns_of
from penstock.store.sql.queries import load_queries


class PostgresGates:
    """Lets jobs through gates; part of claiming."""

    def __init__(self, connections: Connections, rates: Rates) -> None:
        self._connections = connections
        self._rates = rates
        self._queries = load_queries("gates", POSTGRES)

    async def open(self, lease: int, room: Room, now: datetime) -> tuple[list[Job], timedelta | None]:
        """Start jobs that wait at a pool's gate; and after which time more may, if a rate limit is in the way."""
        session = await begin(self._connections, BEGIN_INTERNAL)
        try:
            # The lock comes first: what the next statement sees begins after it.
            if not await self._fetch(session, "lock", pool=room.pool):
                return [], None
            found = await self._pass(session, lease, room, now)
            await session.commit()
        finally:
            await session.rollback()
        return found

    async def _pass(
        self, session: Session, lease: int, room: Room, now: datetime
    ) -> tuple[list[Job], timedelta | None]:
        gate, turns = await self._turns(session, room, now)
        if gate.rate_limit is not None and await self._close(session, room.pool):
            gate, turns = await self._turns(session, room, now)
        found = passage(gate, turns, room.room, now)
        if not found.counts:
            return [], found.again
        rows = await self._fetch(
            session,
            "start",
            pool=room.pool,
            keys=list(found.counts),
            counts=list(found.counts.values()),
            last=found.last,
            lease=lease,
            epoch=room.epoch,
            now=now,
        )
        jobs = [job_of(row) for row in rows]
        started = Counter(job.options.concurrency_key or "" for job in jobs)
        found = passed(gate, turns, found, started, now)
        if found.rates:
            await self._rates.keep(session, rates_of(room.pool, gate, found))
        return jobs, found.again

    async def _turns(self, session: Session, room: Room, now: datetime) -> tuple[Gate, list[Turn]]:
        keys = max(room.room, KEYS_COMPARED)
        return turns_of(await self._fetch(session, "turns", pool=room.pool, room=room.room, keys=keys, now=now))

    async def _close(self, session: Session, pool: str) -> int:
        query = self._queries["close"]
        return await session.execute(query.statement, query.args({"pool": pool}))

    async def _fetch(self, session: Session, name: str, **values: Any) -> Sequence[Row]:
        query = self._queries[name]
        return await session.fetch(query.statement, query.args(values))
