"""Keys of jobs on PostgreSQL."""

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


class PostgresKeys:
    """See `store.contract.Keys`."""

    def __init__(self) -> None:
        self._queries = load_queries("penstock.store.postgres", "keys", "$")

    async def hold(self, transaction: OpenTransaction, job: NewJob) -> bool:
        """Let a job that is about to be enqueued have its key; False if another one has it."""
        options = job.options
        return bool(
            await self._fetch(
                transaction,
                "hold",
                pool=job.pool,
                key=options.key,
                id=job.id,
                until_start=bool(options.until_start),
            )
        )

    async def holder(self, transaction: OpenTransaction, pool: str, key: str) -> KeyHolder | None:
        """Who has a key."""
        rows = await self._fetch(transaction, "holder", pool=pool, key=key)
        return KeyHolder(*rows[0]) if rows else None

    async def replace(self, transaction: OpenTransaction, job_id: UUID, job: NewJob, now: datetime) -> bool:
        """Put a job in the place of a pending one, which keeps its id; False if that has started."""
        return bool(
            await self._fetch(
                transaction,
                "replace",
                id=job_id,
                function=job.function,
                kind=job.kind,
                args=job.args,
                priority=job.priority,
                rank=job.rank,
                run_at=job.run_at,
                options=options_text(job.options),
                on_complete=job.on_complete,
                concurrency_key=job.concurrency_key,
                now=now,
            )
        )

    async def _fetch(self, transaction: OpenTransaction, name: str, **values: Any) -> Sequence[Row]:
        query = self._queries[name]
        return await transaction.fetch(query.statement, query.args(values))
