"""Rebuilding: what the handler of an outbox has written is made anew from the rows that there are.

Owns that the reset and the new beginning are one transaction, and that no relay is in its way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

from penstock.api.outbox.declared import DeclaredOutbox
from penstock.calls.lease import Lease
from penstock.calls.run.engine import Engine
from penstock.calls.run.execution import Execution
from penstock.calls.run.runner import Runner
from penstock.errors import ContextError, OutboxNotFound, TryAgain
from penstock.functions.function import AnyFunction
from penstock.observe import points
from penstock.observe.logs import event as log_event
from penstock.outbox.older import first
from penstock.outbox.outbox import reader_name
from penstock.store.contract.outboxes import OutboxRow
from penstock.store.contract.session import Session


def reset_of(declared: DeclaredOutbox | None, name: str) -> AnyFunction:
    """What clears what the handler of an outbox has written.

    Args:
        declared: The outbox, if this program declares it.
        name: Its name.

    Raises:
        ContextError: It does not, or without a reset.
    """
    if declared is None:
        raise ContextError(
            f"Outbox {name} has no declaration in this program, so its handler cannot run.",
            fix="Do it with the program that declares it.",
        )
    if declared.reset is None:
        raise ContextError(
            f"Outbox {name} declares no reset, so there is nothing to rebuild.",
            fix="Move it back to send kept messages again. Only an outbox of a table with a mutation as handler takes "
            "reset=.",
        )
    return declared.reset


async def rebuild(engine: Engine, name: str, reset: AnyFunction) -> None:
    """Run the reset of an outbox, and have it begin with all rows again.

    Meanwhile it is kept from relays, whose writes to the same rows would be in the way of the reset's, however long
    that takes. Should this process die, they have it again when its lease has run out.

    Args:
        engine: Where it is.
        name: The outbox.
        reset: What clears what its handler has written.

    Raises:
        OutboxNotFound: It was dropped meanwhile.
    """
    store = engine.store
    lease = Lease(engine, f"rebuild {name}", _lost, fenced=True)
    await lease.keep()
    log_event("outbox.rebuilding", outbox=name, lease=lease.number)
    row: OutboxRow | None = None
    left = first()

    async def hold() -> dict[str, Any]:
        """Before each attempt: a relay may have it, and it may be declared otherwise."""
        nonlocal row, left
        while lease.number is None:  # it was lost, and another is about to be taken
            await engine.clock.sleep(lease.due)
        await store.outboxes.hold(name, lease.number)
        row = next((one for one in await store.outboxes.list() if one.plan.name == name), None)
        left = await _all_rows(engine, row)
        return {}

    async def begin_anew(session: Session) -> None:
        if points.armed:
            await points.reach("outbox.rebuild", outbox=name)
        interests = None if row is None else row.interests
        if not await store.outboxes.place(
            name, None, left, engine.clock.now(), forgets="all", interests=interests, session=session
        ):
            raise OutboxNotFound(f"Outbox {name} was dropped meanwhile.")

    try:
        async with _kept(engine, lease):
            await Runner(engine).mutation(reset, hold, execution=Execution(seal=begin_anew))
    finally:
        if lease.number is not None:
            await store.changes.leave(reader_name(name), lease.number)  # a relay that takes it sees that nobody died
        await lease.give_back()
        store.signals.notify()
    log_event("outbox.rebuilt", logging.WARNING, outbox=name)


@contextlib.asynccontextmanager
async def _kept(engine: Engine, lease: Lease) -> AsyncIterator[None]:
    """Renew a lease for the time of a block."""

    async def renew() -> None:
        while True:
            await engine.clock.sleep(lease.due)
            with contextlib.suppress(TryAgain):
                await lease.keep(busy=False)

    keeper = asyncio.create_task(renew())
    try:
        yield
    finally:
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)


async def _lost(_lease: int, _reason: str) -> None:
    """The next attempt holds the outbox again, under another lease."""


async def _all_rows(engine: Engine, row: OutboxRow | None) -> str:
    """What is left of older rows at first: all, in the order whose changes are captured."""
    if row is None:
        return first()
    found = (one.interest.order for one in await engine.store.interests.list() if one.id == row.interests[-1])
    return first(tuple(next(found, ())), row.epoch)
