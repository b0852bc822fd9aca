"""Tokens at rest. Redeeming one locks the token first and then the job, so that each counts once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from penstock.dataclass import dataclass
from penstock.jobs.job import Job
from penstock.jobs.progress import Progress, progress_text
from penstock.jobs.token import Token, Told
from penstock.store.nouns.jobs import Jobs, Settle
from penstock.store.nouns.leases import OUTSIDE
from penstock.store.nouns.noun import Access, Noun
from penstock.store.session import Session, writing

TOKEN_KEPT = timedelta(days=1)  # the time for which the outcome of a token is kept


@dataclass(frozen=True, slots=True)
class Redeemed:
    """The outcome of redeeming a token."""

    accepted: bool  # whether the job has been settled by it
    told: Told  # the outcome that counts: the first one, or that its time or its attempt is over


class Tokens(Noun, queries=("tokens",)):
    """The words of a running attempt: how far it has come, and to be completed by an outside system.

    Requests of functions and programs use `calls`: there may be many at once.
    """

    def __init__(self, access: Access, calls: Access, jobs: Jobs) -> None:
        super().__init__(access)
        self._calls = calls
        self._jobs = jobs

    async def report(self, lease: int, progress: Mapping[UUID, Progress]) -> None:
        """Write the progress of jobs that run under a lease."""
        rows = [{"id": job_id, "progress": progress_text(said)} for job_id, said in progress.items()]
        await self._run_each("report", rows, lease=lease)

    async def issue(self, lease: int, token: Token, deadline: datetime) -> bool:
        """Remember the token of an attempt; False if the attempt does not run under this lease any more."""
        values = {
            "id": token.job_id,
            "lease": lease,
            "attempt": token.attempt,
            "hash": token.hash,
            "deadline": deadline,
            "kept_until": deadline + TOKEN_KEPT,
        }
        return bool(await self._calls.run(self._queries["issue"], values))

    async def void(self, job_id: UUID, attempt: int) -> bool:
        """Void the token of an attempt that has failed; False if it has been redeemed before."""
        rows = await self._calls.run(self._queries["void"], {"id": job_id, "attempt": attempt})
        return not rows or rows[0]["told"] == "expired"

    async def hold(self, lease: int, attempts: Sequence[tuple[UUID, int]]) -> set[UUID]:
        """Move jobs with a token from a lease to `OUTSIDE`, and their slots with them; those it still held."""
        rows = [{"id": job_id, "attempt": attempt} for job_id, attempt in attempts]
        return {self._access.uuid(row["id"]) for row in await self._run_each("hold", rows, lease=lease)}

    async def redeem(self, token: Token, told: Told, now: datetime, settle: Settle) -> Redeemed | None:
        """Settle the job of a token, whether its function has returned or not, as `settle` says; once.

        None if there is no such token. Its slot is given back if it was held outside.
        """
        key = {"id": token.job_id, "attempt": token.attempt}
        async with writing(self._calls.begin_write) as session:
            known = await self._fetch(session, "known", **key)
            if not known or not token.fits(known[0]["hash"]):
                return None
            if known[0]["told"] is not None:
                return Redeemed(accepted=False, told=known[0]["told"])
            rows = await self._fetch(session, "lease_of", **key)
            if not rows or self._access.time(known[0]["deadline"]) <= now:
                return Redeemed(accepted=False, told="expired")
            (job,) = self._read(Job, rows)
            await self._end(session, rows[0]["lease"], job, told, now, settle)
        return Redeemed(accepted=True, told=told)

    async def expire(self, now: datetime, limit: int, settle: Settle) -> int:
        """Settle jobs held outside that nobody completed in time, and give their slots back; the number of jobs."""
        return await self._sweep("overdue", {"now": now, "limit": limit}, "expired", now, settle)

    async def cancel(self, now: datetime, limit: int, settle: Settle) -> int:
        """Settle jobs held outside for which a request to cancel stands, as `expire` does."""
        return await self._sweep("canceled", {"limit": limit}, "canceled", now, settle)

    # ----- steps

    async def _sweep(self, name: str, values: Mapping[str, Any], told: Told, now: datetime, settle: Settle) -> int:
        if self._access.looks_first and not await self._look(name, **values):
            return 0
        async with self._writing() as session:
            rows = await self._fetch(session, name, **values)
            jobs = self._read(Job, rows)
            for job in sorted(jobs, key=lambda job: job.pool):  # slots of several pools are freed in one order
                await self._end(session, OUTSIDE, job, told, now, settle)
        return len(rows)

    async def _end(self, session: Session, lease: int, job: Job, told: Told, now: datetime, settle: Settle) -> None:
        await self._jobs.settle_all_within(session, lease, settle([job]))
        if lease == OUTSIDE:
            await self._fetch(session, "free_slot", pool=job.pool)
        await self._fetch(session, "tell", id=job.id, attempt=job.attempt, told=told, kept_until=now + TOKEN_KEPT)
