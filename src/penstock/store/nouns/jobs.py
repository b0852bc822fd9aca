"""Reads jobs, and requests cancels. Each store moves jobs in its own way."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from penstock.jobs.filter import JobFilter
from penstock.jobs.job import JobStatus
from penstock.store.contract.jobs import ABOVE_ALL
from penstock.store.contract.session import OpenTransaction, Session
from penstock.store.nouns.noun import Access, Noun
from penstock.store.rows.jobs import filter_values


class StoredJobs(Noun):
    """The part of `store.contract.Jobs` that is the same for both stores."""

    def __init__(self, access: Access) -> None:
        super().__init__(access, "jobs", "moves")

    async def request_cancel(self, session: OpenTransaction, ids: Sequence[UUID], now: datetime) -> None:
        await self._fetch_each(session, "request_cancel", [{"id": one} for one in ids], now=now)

    async def request_cancel_all(self, session: OpenTransaction, where: JobFilter, now: datetime) -> int:
        return await self._execute(session, "request_cancel_all", **filter_values(where), now=now)

    async def find(self, session: OpenTransaction, job_id: UUID, now: datetime) -> JobStatus | None:
        return (await self.find_many(session, [job_id], now)).get(job_id)

    async def find_many(self, session: OpenTransaction, ids: Sequence[UUID], now: datetime) -> dict[UUID, JobStatus]:
        rows = await self._fetch_each(session, "find", [{"id": one} for one in ids], now=now)
        return {self._access.uuid(row[0]): self._access.status(row) for row in rows}

    async def list(self, session: Session, where: JobFilter, limit: int, now: datetime) -> builtins.list[JobStatus]:
        rows = await self._fetch(session, "list", **filter_values(where), limit=limit, now=now)
        return [self._access.status(row) for row in rows]

    async def matching(
        self, session: Session, where: JobFilter, limit: int, now: datetime, below: UUID = ABOVE_ALL
    ) -> builtins.list[UUID]:
        values = {**filter_values(where), "limit": limit, "now": now, "below": below}
        return [self._access.uuid(row[0]) for row in await self._fetch(session, "matching", **values)]

    async def count(self, session: Session, now: datetime) -> dict[str, int]:
        return {row[0]: row[1] for row in await self._fetch(session, "count", now=now)}
