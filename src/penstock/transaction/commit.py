"""The write door: the one way in which a change leaves. Jobs and cancels go with the rows, or nothing goes.

Owns the order of the last steps: enqueue, settle, commit, then wake the services.
"""

from __future__ import annotations

from penstock.errors import LeaseLost
from penstock.jobs.job import Settlement
from penstock.observe import points
from penstock.transaction.transaction import Transaction


async def commit(transaction: Transaction, lease: int | None = None, settlement: Settlement | None = None) -> None:
    """Commit a transaction, with the settlement of the job that it is.

    Raises:
        Conflict: Run it again.
        LeaseLost: The job is not this worker's any more; nothing was committed.
        DatabaseUnavailable: With ``facts["uncertain"]``, nobody knows whether it was committed.
    """
    if transaction.failure is not None:
        raise transaction.failure
    store, session = transaction.store, transaction.session
    if transaction.jobs:
        await store.jobs.enqueue(session, transaction.jobs, transaction.now)
    if transaction.cancels:
        await store.jobs.request_cancel(session, transaction.cancels, transaction.now)
    if lease is not None and settlement is not None and not await store.jobs.settle_within(session, lease, settlement):
        raise LeaseLost("The job's lease was lost while it ran; another worker has it.")
    if points.armed:
        await points.reach("commit.before", transaction=transaction)
    await session.commit()
    if points.armed:
        await points.reach("commit.after", transaction=transaction)
    if transaction.jobs or transaction.cancels or transaction.wakes:
        store.signals.notify()
    for tell in transaction.committed:
        tell()
