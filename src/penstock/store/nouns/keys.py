"""Keys of jobs at rest."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from penstock.dataclass import dataclass
from penstock.jobs.job import NewJob
from penstock.store.nouns.jobtext import options_text
from penstock.store.nouns.noun import Noun
from penstock.store.session import OpenTransaction

_JOB = ("function", "kind", "args", "priority", "rank", "run_at", "on_complete", "concurrency_key")


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """The job that has a key."""

    job_id: UUID
    until_start: bool  # whether it has the key only until it starts
    # the time it was enqueued, if it may be replaced, since it is pending and was never tried
    enqueued_at: datetime | None
    canceled: bool = False  # whether it is to be canceled and has not started, so that its key is about to be free


class Keys(Noun, queries=("keys",)):
    """Keys of jobs, for one job at a time each. They are freed where jobs are claimed and settled."""

    async def hold(self, transaction: OpenTransaction, job: NewJob) -> bool:
        """Let a job that is about to be enqueued have its key; False if another one has it."""
        options = job.options
        values = {"pool": job.pool, "key": options.key, "until_start": bool(options.until_start)}
        return bool(await self._fetch(transaction, "hold", id=job.id, **values))

    async def holder(self, transaction: OpenTransaction, pool: str, key: str) -> KeyHolder | None:
        """The job that has a key."""
        return self._one(KeyHolder, await self._fetch(transaction, "holder", pool=pool, key=key))

    async def free(self, transaction: OpenTransaction, pool: str, key: str, job_id: UUID) -> bool:
        """Take a key from a job that is not there, and so will never free it; False if it is there."""
        held = {"pool": pool, "key": key, "id": job_id}
        if not await self._fetch(transaction, "lost", **held):  # all may look, but not all may delete
            return False
        await self._fetch(transaction, "free", **held)  # unless another one has done so just now
        return True

    async def replace(self, transaction: OpenTransaction, holder: KeyHolder, job: NewJob, now: datetime) -> bool:
        """Put a job in the place of a pending one, which keeps its id; False if that has started, or is canceled."""
        until_start = bool(job.options.until_start)
        values = {name: getattr(job, name) for name in _JOB} | {"options": options_text(job.options), "now": now}
        replaced = await self._fetch(transaction, "replace", id=holder.job_id, **values)
        if replaced and holder.until_start != until_start:
            await self._fetch(transaction, "keep", id=holder.job_id, until_start=until_start)
        return bool(replaced)

    async def take_over(self, transaction: OpenTransaction, holder: KeyHolder, job: NewJob) -> bool:
        """Let a job that is about to be enqueued have the key of one that is canceled; False if that has started."""
        values = {"pool": job.pool, "key": job.options.key, "until_start": bool(job.options.until_start)}
        return bool(await self._fetch(transaction, "take_over", id=job.id, holder=holder.job_id, **values))
