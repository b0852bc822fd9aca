"""The gates of pools on PostgreSQL. One worker at a time holds a gate, under a lock on its row."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from penstock.jobs.job import Job
from penstock.pools.gate import Passage
from penstock.store.contract.jobs import Room
from penstock.store.contract.session import Session
from penstock.store.nouns.gates import Gates
from penstock.store.rows.jobs import job_of


class PostgresGates(Gates):
    """See `store.nouns.Gates`."""

    async def _close(self, session: Session, pool: str) -> bool:
        return bool(await self._execute(session, "close", pool=pool))

    async def _start(
        self, session: Session, lease: int, room: Room, found: Passage, now: datetime
    ) -> tuple[list[Job], Sequence[str]]:
        keys, counts = list(found.counts), list(found.counts.values())
        values = {"pool": room.pool, "epoch": room.epoch, "lease": lease, "last": found.last, "now": now}
        rows = await self._fetch(session, "start", keys=keys, counts=counts, **values)
        return [job_of(row[:-1]) for row in rows], [row[-1] for row in rows]
