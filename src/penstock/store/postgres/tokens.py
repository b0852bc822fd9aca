"""Tokens on PostgreSQL. Who ends a job with one locks the token first and then the job, so that each counts once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from penstock.jobs.progress import Progress, progress_text
from penstock.jobs.token import Token, Told
from penstock.store.contract.external import OUTSIDE, TOKEN_KEPT, Redeemed
from penstock.store.contract.jobs import Settle
from penstock.store.contract.session import Row
from penstock.store.postgres.connections import Connections
from penstock.store.postgres.jobs import PostgresJobs, run
from penstock.store.postgres.session import BEGIN_INTERNAL, PostgresSession, begin
from penstock.store.rows.jobs import job_of
from penstock.store.sql.queries import load_queries


class PostgresTokens:
    """See `store.contract.Tokens`.

    Args:
        connections: For what workers do.
        for_calls: For what functions and programs do, of which there may be many at once.
        jobs: Settles jobs.
    """

    def __init__(self, connections: Connections, for_calls: Connections, jobs: PostgresJobs) -> None:
        self._connections = connections
        self._for_calls = for_calls
        self._jobs = jobs
        self._queries = load_queries("penstock.store.postgres", "tokens", "$")

    async def report(self, lease: int, progress: Mapping[UUID, Progress]) -> None:
        """Write how far running jobs have come."""
        await self._run(
            "report", ids=list(progress), progresses=list(map(progress_text, progress.values())), lease=lease
        )

    async def issue(self, lease: int, token: Token, deadline: datetime) -> bool:
        """Remember a token; False if the attempt is not this lease's any more."""
        values = {
            "id": token.job_id,
            "lease": lease,
            "attempt": token.attempt,
            "hash": token.hash,
            "deadline": deadline,
            "kept_until": deadline + TOKEN_KEPT,
        }
        return bool(await run(self._for_calls, self._queries["issue"], values))

    async def void(self, job_id: UUID, attempt: int) -> bool:
        """Let a token count no more; False if it has been brought."""
        rows = await run(self._for_calls, self._queries["void"], {"id": job_id, "attempt": attempt})
        return not rows or rows[0][0] == "expired"

    async def hold(self, lease: int, attempts: Sequence[tuple[UUID, int]]) -> set[UUID]:
        """Move jobs from their worker's lease, with their slots; those that were still there."""
        ids, numbers = [job_id for job_id, _ in attempts], [attempt for _, attempt in attempts]
        return {row[0] for row in await self._run("hold", lease=lease, ids=ids, attempts=numbers)}

    async def redeem(self, token: Token, told: Told, now: datetime, settle: Settle) -> Redeemed | None:
        """Settle the job of a token as `settle` says, if nobody has before; None if there is no such token."""
        session = await begin(self._for_calls, BEGIN_INTERNAL)
        try:
            known = await self._fetch(session, "known", id=token.job_id, attempt=token.attempt)
            if not known or not token.fits(known[0][0]):
                return None
            if known[0][2] is not None:
                return Redeemed(accepted=False, told=known[0][2])
            rows = await self._fetch(session, "lease_of", id=token.job_id, attempt=token.attempt)
            if not rows or known[0][1] <= now:
                return Redeemed(accepted=False, told="expired")
            await self._end(session, rows[0][0], rows[0][1:], told, now, settle)
            await session.commit()
        finally:
            await session.rollback()
        return Redeemed(accepted=True, told=told)

    async def expire(self, now: datetime, limit: int, settle: Settle) -> int:
        """Settle jobs of which nobody has told in time; how many."""
        return await self._sweep("overdue", {"now": now, "limit": limit}, "expired", now, settle)

    async def cancel(self, now: datetime, limit: int, settle: Settle) -> int:
        """Settle jobs under no worker's lease for which a request to cancel stands; how many."""
        return await self._sweep("canceled", {"limit": limit}, "canceled", now, settle)

    async def prune(self, now: datetime, limit: int) -> int:
        """Forget tokens that have had their time; how many."""
        query = self._queries["prune"]
        session = await begin(self._connections, BEGIN_INTERNAL)
        try:
            count = await session.execute(query.statement, query.args({"now": now, "limit": limit}))
            await session.commit()
        finally:
            await session.rollback()
        return count

    # ----- steps

    async def _sweep(self, name: str, values: dict[str, Any], told: Told, now: datetime, settle: Settle) -> int:
        session = await begin(self._connections, BEGIN_INTERNAL)
        try:
            rows = await self._fetch(session, name, **values)
            for row in sorted(
                rows, key=lambda row: row[5]
            ):  # whoever frees slots of several pools does it in one order
                await self._end(session, OUTSIDE, row, told, now, settle)
            await session.commit()
        finally:
            await session.rollback()
        return len(rows)

    async def _end(
        self, session: PostgresSession, lease: int, row: Row, told: Told, now: datetime, settle: Settle
    ) -> None:
        job = job_of(row)
        await self._jobs.settle_all_within(session, lease, settle([job]))
        if lease == OUTSIDE:
            await self._fetch(session, "free_slot", pool=job.pool)
        await self._fetch(session, "tell", id=job.id, attempt=job.attempt, told=told, kept_until=now + TOKEN_KEPT)

    async def _run(self, name: str, **values: Any) -> Sequence[Row]:
        return await run(self._connections, self._queries[name], values)

    async def _fetch(self, session: PostgresSession, name: str, **values: Any) -> Sequence[Row]:
        query = self._queries[name]
        return await session.fetch(query.statement, query.args(values))
