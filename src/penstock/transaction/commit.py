"""The write door: all changes are committed here. Rows, jobs and cancels commit together, or nothing does.

Owns the order of the last steps: enqueue, settle or seal, commit, then wake the services.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby

from penstock.errors import LeaseLost
from penstock.jobs.job import Settlement
from penstock.observe import points
from penstock.store.session import Session, TriggerFound
from penstock.transaction.shared import Shared
from penstock.transaction.transaction import Transaction


async def commit_shared(
    shared: Shared, transactions: Sequence[Transaction], lease: int, settlements: Sequence[Settlement]
) -> None:
    """Commit the jobs that share a transaction, with their settlements. On any error nothing is committed."""
    await shared.send_all()
    if shared.failure is not None:
        raise shared.failure
    first, session = transactions[0], shared.session
    store = first.store
    if each := shared.reordered and await store.interests.each_of(sorted(shared.reordered), session):
        await shared.refuse(each)
    for now, group in groupby(transactions, key=lambda one: one.now):
        if jobs := [job for one in group for job in one.jobs]:
            await store.jobs.enqueue(session, jobs, now)
    if cancels := [cancel for one in transactions for cancel in one.cancels]:
        await store.jobs.request_cancel(session, cancels, first.now)
    if await store.jobs.settle_all_within(session, lease, settlements) < len(settlements):
        raise LeaseLost("The lease of jobs was lost while they ran; another worker has them.")
    await _commit(session, transactions)


async def commit(transaction: Transaction, seal: Callable[[Session], Awaitable[None]] | None = None) -> None:
    """Commit a transaction, with what `seal` writes last: the end of its job, or the cursor of an outbox."""
    if transaction.failure is not None:
        raise transaction.failure
    store, session = transaction.store, transaction.session
    if transaction.jobs:
        await store.jobs.enqueue(session, transaction.jobs, transaction.now)
    if transaction.cancels:
        await store.jobs.request_cancel(session, transaction.cancels, transaction.now)
    if seal is not None:
        await seal(session)
    await _commit(session, (transaction,))


async def _commit(session: Session, transactions: Sequence[Transaction]) -> None:
    last = transactions[-1]
    if points.armed:
        await points.reach("commit.before", transaction=last)
    try:
        if session.passed or any(one.assumes or one.session.passed for one in transactions):
            await _refuse_triggers(session, transactions)
        await session.commit()
    except TriggerFound as error:
        last.statements.triggered |= {error.table}
        raise
    if points.armed:
        await points.reach("commit.after", transaction=last)
    if any(one.owes_bytes for one in transactions):
        last.store.files.owes = True
    if any(one.jobs or one.cancels or one.wakes for one in transactions):
        last.store.signals.notify()
    elif wrote := set[str]().union(*(one.wrote for one in transactions)):
        last.store.signals.wrote(wrote)
    for transaction in transactions:
        for tell in transaction.committed:
            tell()


async def _refuse_triggers(session: Session, transactions: Sequence[Transaction]) -> None:
    """Have all run again if a trigger is on a written table that was thought to have none.

    It may have changed rows that functions were told as they were before, or as they wrote them.
    """
    for statements in transactions[-1].statements.known({name for one in transactions for name, _key in one.writes}):
        if transactions[-1].foresees(statements.definition):
            await session.refuse_trigger(statements.definition, statements.find_trigger())
