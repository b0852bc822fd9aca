"""Tokens on SQLite: the one writer sees to it that each counts once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from penstock.jobs.progress import Progress, progress_text
from penstock.jobs.token import Token, Told
from penstock.store.contract.external import OUTSIDE, TOKEN_KEPT, Redeemed
from penstock.store.contract.jobs import Settle
from penstock.store.contract.session import Row, Session
from penstock.store.sql.queries import load_queries
from penstock.store.sqlite.dialect import encode_datetime
from penstock.store.sqlite.jobrows import job_from
from penstock.store.sqlite.jobs import SqliteJobs, fetch
from penstock.store.sqlite.session import Begin, reading, writing


class SqliteTokens:
    """See `store.contract.Tokens`."""

    def __init__(self, begin_read: Begin, begin_write: Begin, jobs: SqliteJobs) -> None:
        self._begin_read = begin_read
        self._begin_write = begin_write
        self._jobs = jobs
        self._queries = load_queries("penstock.store.sqlite", "tokens", "?")

    async def report(self, lease: int, progress: Mapping[UUID, Progress]) -> None:
        """Write how far running jobs have come."""
        async with writing(self._begin_write) as session:
            for job_id, said in progress.items():
                await self._fetch(session, "report", id=job_id.bytes, lease=lease, progress=progress_text(said))

    async def issue(self, lease: int, token: Token, deadline: datetime) -> bool:
        """Remember a token; False if the attempt is not this lease's any more."""
        values = {
            "id": token.job_id.bytes,
            "lease": lease,
            "attempt": token.attempt,
            "hash": token.hash,
            "deadline": encode_datetime(deadline),
            "kept_until": encode_datetime(deadline + TOKEN_KEPT),
        }
        async with writing(self._begin_write) as session:
            return bool(await self._fetch(session, "issue", **values))

    async def void(self, job_id: UUID, attempt: int) -> bool:
        """Let a token count no more; False if it has been brought."""
        async with writing(self._begin_write) as session:
            rows = await self._fetch(session, "void", id=job_id.bytes, attempt=attempt)
        return not rows or rows[0][0] == "expired"

    async def hold(self, lease: int, attempts: Sequence[tuple[UUID, int]]) -> set[UUID]:
        """Move jobs from their worker's lease, with their slots; those that were still there."""
        held: set[UUID] = set()
        async with writing(self._begin_write) as session:
            for job_id, attempt in attempts:
                rows = await self._fetch(session, "hold", id=job_id.bytes, lease=lease, attempt=attempt)
                if not rows:
                    continue
                held.add(job_id)
                if await self._fetch(session, "give", pool=rows[0][0], lease=lease):
                    await self._fetch(session, "take_slot", pool=rows[0][0])
        return held

    async def redeem(self, token: Token, told: Told, now: datetime, settle: Settle) -> Redeemed | None:
        """Settle the job of a token as `settle` says, if nobody has before; None if there is no such token."""
        key = {"id": token.job_id.bytes, "attempt": token.attempt}
        async with writing(self._begin_write) as session:
            known = await self._fetch(session, "known", **key)
            if not known or not token.fits(known[0][0]):
                return None
            if known[0][2] is not None:
                return Redeemed(accepted=False, told=known[0][2])
            rows = await self._fetch(session, "lease_of", **key)
            if not rows or datetime.fromisoformat(known[0][1]) <= now:
                return Redeemed(accepted=False, told="expired")
            await self._end(session, rows[0][0], rows[0][1:], told, now, settle)
        return Redeemed(accepted=True, told=told)

    async def expire(self, now: datetime, limit: int, settle: Settle) -> int:
        """Settle jobs of which nobody has told in time; how many."""
        return await self._sweep("overdue", {"now": encode_datetime(now), "limit": limit}, "expired", now, settle)

    async def cancel(self, now: datetime, limit: int, settle: Settle) -> int:
        """Settle jobs under no worker's lease for which a request to cancel stands; how many."""
        return await self._sweep("canceled", {"limit": limit}, "canceled", now, settle)

    async def prune(self, now: datetime, limit: int) -> int:
        """Forget tokens that have had their time; how many."""
        query = self._queries["prune"]
        async with writing(self._begin_write) as session:
            return await session.execute(query.statement, query.args({"now": encode_datetime(now), "limit": limit}))

    # ----- steps

    async def _sweep(self, name: str, values: dict[str, Any], told: Told, now: datetime, settle: Settle) -> int:
        async with reading(self._begin_read) as session:
            if not await self._fetch(session, name, **values):
                return 0
        async with writing(self._begin_write) as session:
            rows = await self._fetch(session, name, **values)
            for row in rows:
                await self._end(session, OUTSIDE, row, told, now, settle)
        return len(rows)

    async def _end(self, session: Session, lease: int, row: Row, told: Told, now: datetime, settle: Settle) -> None:
        job = job_from(row)
        (settlement,) = settle([job])
        await self._jobs.settle_within(session, lease, settlement)
        if lease == OUTSIDE:
            await self._fetch(session, "free_slot", pool=job.pool)
        kept = encode_datetime(now + TOKEN_KEPT)
        await self._fetch(session, "tell", id=job.id.bytes, attempt=job.attempt, told=told, kept_until=kept)

    async def _fetch(self, session: Session, name: str, **values: Any) -> Sequence[Row]:
        return await fetch(session, self._queries[name], values)
