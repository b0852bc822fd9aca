"""The gates of pools on SQLite: part of claiming, in its transaction. There is one writer, so one worker decides."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from penstock.jobs.job import Job
from penstock.pools.gate import Passage
from penstock.store.contract.jobs import Room
from penstock.store.contract.session import Session
from penstock.store.nouns.gates import Gates
from penstock.store.sqlite.dialect import encode_datetime
from penstock.store.sqlite.jobrows import CLAIMED, job_from


class SqliteGates(Gates):
    """See `store.nouns.Gates`."""

    async def _close(self, session: Session, pool: str) -> bool:
        await self._execute(session, "close", pool=pool)
        return bool(await self._execute(session, "closed", pool=pool))

    async def _start(
        self, session: Session, lease: int, room: Room, found: Passage, now: datetime
    ) -> tuple[list[Job], Sequence[str]]:
        started_at, jobs, keys = encode_datetime(now), list[Job](), list[str]()
        for key, count in found.counts.items():
            values = {"pool": room.pool, "key": key, "count": count, "lease": lease, "epoch": room.epoch}
            for row in await self._fetch(session, "start", **values, now=now):
                taken = dict(zip(CLAIMED, row, strict=True)) | {"lease": lease, "started_at": started_at}
                taken["attempt"] += taken["ending"] is None
                await self._execute(session, "free_started", id=row[0])
                await self._execute(session, "started", **taken)
                jobs.append(job_from((*row[:10], taken["attempt"], row[11], started_at, taken["failing_since"])))
                keys.append(taken["concurrency_key"])
        await self._execute(session, "turned", pool=room.pool, last=found.last)
        return jobs, keys
