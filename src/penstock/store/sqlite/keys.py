"""Keys of jobs on SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from penstock.jobs.job import NewJob
from penstock.store.contract import OpenTransaction, Row
from penstock.store.jobrows import options_text
from penstock.store.keys import KeyHolder
from penstock.store.queries import load_queries
from penstock.store.sqlite.dialect import encode_datetime


class SqliteKeys:
    """See `store.contract.Keys`."""

    def __init__(self) -> None:
        self._queries = load_queries("penstock.store.sqlite", "keys", "?")

    async def hold(self, transaction: OpenTransaction, job: NewJob) -> bool:
        """Let a job that is about to be enqueued have its key; False if another one has it."""
        options = job.options
        return bool(
            await self._fetch(
                transaction,
                "hold",
                pool=job.pool,
                key=options.key,
                id=job.id.bytes,
                until_start=bool(options.until_start),
            )
        )

    async def holder(self, transaction: OpenTransaction, pool: str, key: str) -> KeyHolder | None:
        """Who has a key."""
        rows = await self._fetch(transaction, "holder", pool=pool, key=key)
        if not rows:
            return None
        job_id, until_start, enqueued_at = rows[0]
        since = None if enqueued_at is None else datetime.fromisoformat(enqueued_at)
        return KeyHolder(UUID(bytes=bytes(job_id)), bool(until_start), since)

    async def replace(self, transaction: OpenTransaction, job_id: UUID, job: NewJob, now: datetime) -> bool:
        """Put a job in the place of a pending one, which keeps its id; False if that has started."""
        return bool(
            await self._fetch(
                transaction,
                "replace",
                id=job_id.bytes,
                function=job.function,
                kind=job.kind,
                args=job.args,
                priority=job.priority,
                rank=job.rank,
                run_at=encode_datetime(job.run_at),
                options=options_text(job.options),
                on_complete=job.on_complete,
                concurrency_key=job.concurrency_key,
                now=encode_datetime(now),
            )
        )

    async def _fetch(self, transaction: OpenTransaction, name: str, **values: Any) -> Sequence[Row]:
        query = self._queries[name]
        return await transaction.fetch(query.statement, query.args(values))
