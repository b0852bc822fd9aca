"""Jobs that have a key: of a pool's jobs with the same one there is only one, until it starts or until it ends.

Owns the policies for a second one. The key is freed where jobs are claimed and settled, in the store.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from uuid import UUID

from penstock.errors import Conflict, DuplicateJob
from penstock.jobs.job import NewJob, job_id
from penstock.pools.options import Duplicate
from penstock.store.nouns.keys import KeyHolder
from penstock.transaction.transaction import Transaction

_ATTEMPTS = 20
_MINUTE = 60_000 << 80  # between two ids of jobs, which begin with the time in milliseconds


async def enqueue_with_key(transaction: Transaction, job: NewJob, duplicate: Duplicate) -> UUID:
    """Enqueue a job unless one has its key; then follow the policy `duplicate`. The id of the job."""
    keys, key = transaction.store.keys, job.options.key or ""
    for _ in range(_ATTEMPTS):  # in a transaction of a weaker isolation a holder may be gone when it is looked at
        if await keys.hold(transaction, job):
            await transaction.enqueue([job])
            return job.id
        holder = await keys.holder(transaction, job.pool, key)
        if holder is None or await _lets_go(transaction, job, holder):
            continue
        if holder.canceled:  # it never starts, so nothing is returned of it, refused for it or put in its place
            if await keys.take_over(transaction, holder, job):
                await transaction.enqueue([job])
                return job.id
            continue
        if duplicate.does == "return":
            return holder.job_id
        if duplicate.does == "reject" or holder.enqueued_at is None:
            if holder.until_start and duplicate.does != "reject":
                continue  # it starts at this moment, and frees its key
            other = job_id(holder.job_id)
            raise DuplicateJob(
                f"Pool {job.pool} has a job with the key {key!r} already, {other}, which has not ended.",
                fix='Wait until it has, or enqueue with on_duplicate="return".',
                job=other,
            )
        if await keys.replace(transaction, holder, _delay(job, holder, duplicate), transaction.now):
            transaction.wakes = True
            return holder.job_id
    raise Conflict(f"The key {key!r} of pool {job.pool} was taken and freed repeatedly by other transactions.")


async def _lets_go(transaction: Transaction, job: NewJob, holder: KeyHolder) -> bool:
    """Whether a key is free, or about to be: its job was never stored, or this transaction cancels it.

    In autocommit a program may have died after it stored the key.
    """
    if holder.enqueued_at is not None and holder.job_id in transaction.cancels:
        await transaction.store.jobs.request_cancel(transaction, [holder.job_id], transaction.now)
        return True
    keys, key = transaction.store.keys, job.options.key or ""
    may_be_lost = holder.enqueued_at is None and job.id.int - holder.job_id.int > _MINUTE
    return may_be_lost and await keys.free(transaction, job.pool, key, holder.job_id)


def _delay(job: NewJob, holder: KeyHolder, duplicate: Duplicate) -> NewJob:
    """The job, no later than the job that it replaces may wait at most."""
    if duplicate.max_wait is None or holder.enqueued_at is None:
        return job
    latest = holder.enqueued_at + duplicate.max_wait
    if job.run_at <= latest:
        return job
    return replace(job, run_at=latest, rank=job.rank - (job.run_at - latest) // timedelta.resolution)
