"""Keys of jobs at rest, as far as it is the same for both stores: they differ in their SQL, and in how values look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from penstock.jobs.job import NewJob
from penstock.store.contract.keys import KeyHolder
from penstock.store.contract.session import OpenTransaction, Row
from penstock.store.rows.jobs import options_text
from penstock.store.sql.queries import Query


class StoredKeys:
    """See `store.contract.Keys`.

    Args:
        queries: The store's queries of keys.
    """

    def __init__(self, queries: Mapping[str, Query]) -> None:
        self._queries = queries

    async def hold(self, transaction: OpenTransaction, job: NewJob) -> bool:
        """Let a job that is about to be enqueued have its key; False if another one has it."""
        options = job.options
        values = {"pool": job.pool, "key": options.key, "until_start": bool(options.until_start)}
        return bool(await self._fetch(transaction, "hold", id=self.encode(job.id), **values))

    async def holder(self, transaction: OpenTransaction, pool: str, key: str) -> KeyHolder | None:
        """Who has a key."""
        rows = await self._fetch(transaction, "holder", pool=pool, key=key)
        return KeyHolder(*self.decode(rows[0])) if rows else None

    async def free(self, transaction: OpenTransaction, pool: str, key: str, job_id: UUID) -> bool:
        """Take a key from a job that is not there, and so will never free it; False if that is there."""
        held = {"pool": pool, "key": key, "id": self.encode(job_id)}
        if not await self._fetch(transaction, "lost", **held):  # all may look, but not all may delete
            return False
        await self._fetch(transaction, "free", **held)  # unless another one has done so just now
        return True

    async def replace(self, transaction: OpenTransaction, holder: KeyHolder, job: NewJob, now: datetime) -> bool:
        """Put a job in the place of a pending one, which keeps its id; False if that has started, or is canceled."""
        job_id, until_start = self.encode(holder.job_id), bool(job.options.until_start)
        replaced = await self._fetch(
            transaction,
            "replace",
            id=job_id,
            function=job.function,
            kind=job.kind,
            args=job.args,
            priority=job.priority,
            rank=job.rank,
            run_at=self.encode(job.run_at),
            options=options_text(job.options),
            on_complete=job.on_complete,
            concurrency_key=job.concurrency_key,
            now=self.encode(now),
        )
        if replaced and holder.until_start != until_start:
            keep = self._queries["keep"]
            await transaction.execute(keep.statement, keep.args({"id": job_id, "until_start": until_start}))
        return bool(replaced)

    async def take_over(self, transaction: OpenTransaction, holder: KeyHolder, job: NewJob) -> bool:
        """Let a job that is about to be enqueued have the key of one that is canceled; False if that has started."""
        values = {"pool": job.pool, "key": job.options.key, "until_start": bool(job.options.until_start)}
        ids = {"id": self.encode(job.id), "holder": self.encode(holder.job_id)}
        return bool(await self._fetch(transaction, "take_over", **values, **ids))

    def encode(self, value: UUID | datetime) -> Any:
        """An id or a time as the store takes it."""
        return value

    def decode(self, row: Row) -> tuple[UUID, bool, datetime | None, bool]:
        """A row of the query `holder`, whose values are in the store's form."""
        job_id, until_start, enqueued_at, canceled = row
        return job_id, until_start, enqueued_at, canceled

    async def _fetch(self, transaction: OpenTransaction, name: str, **values: Any) -> Sequence[Row]:
        query = self._queries[name]
        return await transaction.fetch(query.statement, query.args(values))
