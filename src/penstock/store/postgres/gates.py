"""The gates of pools on PostgreSQL: jobs with a concurrency key, or of a pool with a rate limit, start through them.

One worker at a time holds a gate, under a lock on a row of the pool's; `pools.gate` decides which jobs pass.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta

from penstock.jobs.job import Job
from penstock.pools.gate import Gate, WaitingKey, passage, passed
from penstock.store.contract.jobs import Room
from penstock.store.contract.keys import Rates
from penstock.store.contract.session import Session
from penstock.store.nouns.noun import Access, Noun
from penstock.store.rows.jobs import job_of
from penstock.store.rows.pools import KEYS_COMPARED, rates_of, turns_of


class PostgresGates(Noun):
    """Lets jobs through gates; part of claiming."""

    def __init__(self, access: Access, rates: Rates) -> None:
        super().__init__(access, "gates")
        self._rates = rates

    async def open(self, lease: int, room: Room, now: datetime) -> tuple[list[Job], timedelta | None]:
        """Start jobs that wait at a pool's gate; and the wait until more may start, if a rate limit is in the way."""
        async with self._writing() as session:
            # The lock comes first: the snapshot of the next statement begins after it.
            if not await self._fetch(session, "lock", pool=room.pool):
                return [], None
            return await self._pass(session, lease, room, now)

    async def _pass(
        self, session: Session, lease: int, room: Room, now: datetime
    ) -> tuple[list[Job], timedelta | None]:
        gate, turns = await self._turns(session, room, now)
        if gate.rate_limit is not None and await self._execute(session, "close", pool=room.pool):
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

    async def _turns(self, session: Session, room: Room, now: datetime) -> tuple[Gate, list[WaitingKey]]:
        keys = max(room.room, KEYS_COMPARED)
        return turns_of(await self._fetch(session, "turns", pool=room.pool, room=room.room, keys=keys, now=now))
