"""Rebuilding: what the handler of an outbox has written is made anew from the rows that there are.

Owns that the reset and the new beginning are one transaction, and that no relay is in its way.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from penstock.calls.attempts import Attempts
from penstock.calls.engine import Engine
from penstock.calls.run import Runner
from penstock.errors import ContextError, OutboxNotFound
from penstock.functions.function import AnyFunction
from penstock.observe import points
from penstock.observe.logs import event as log_event
from penstock.outbox.older import first
from penstock.outbox.outbox import reader_name
from penstock.store.contract import Session

if TYPE_CHECKING:
    from penstock.calls.outboxes import DeclaredOutbox


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
            f"Outbox {name} is not declared by this program, so its handler cannot run.",
            fix="Do it with the program that declares it.",
        )
    if declared.reset is None:
        raise ContextError(
            f"Outbox {name} declares no reset, so there is nothing to rebuild.",
            fix="Move it back, and it sends again what is kept; or write reset= at an outbox of a table whose handler "
            "is a mutation.",
        )
    return declared.reset


async def rebuild(engine: Engine, name: str, reset: AnyFunction) -> None:
    """Run the reset of an outbox, and have it begin with all rows again.

    Meanwhile it is kept from relays, whose writes to the same rows would be in the way of the reset's. Should this
    process die, they have it again when its lease has run out.

    Args:
        engine: Where it is.
        name: The outbox.
        reset: What clears what its handler has written.

    Raises:
        OutboxNotFound: It was dropped meanwhile.
    """
    store = engine.store
    lease = await store.leases.take(f"rebuild {name}", timedelta(seconds=engine.config.lease), engine.clock.now())
    log_event("outbox.rebuilding", outbox=name, lease=lease)

    async def begin_anew(session: Session) -> None:
        if points.armed:
            await points.reach("outbox.rebuild", outbox=name)
        placed = await store.outboxes.place(name, None, left, engine.clock.now(), forgets="all", session=session)
        if not placed:
            raise OutboxNotFound(f"Outbox {name} was dropped meanwhile.")

    async def check() -> dict[str, Any]:
        return {}

    try:
        await Attempts(engine).run(lambda: store.outboxes.hold(name, lease), "Rebuilding an outbox")
        left = await _all_rows(engine, name)
        await Runner(engine).mutation(reset, check, seal=begin_anew)
    finally:
        await store.changes.leave(reader_name(name), lease)  # a relay that takes it sees that nobody died
        await store.leases.give_back(lease)
        store.signals.notify()
    log_event("outbox.rebuilt", logging.WARNING, outbox=name)


async def _all_rows(engine: Engine, name: str) -> str:
    """What is left of older rows at first: all, in the order whose changes are captured."""
    row = next((one for one in await engine.store.outboxes.list() if one.plan.name == name), None)
    if row is None:
        return first()
    found = (one.interest.order for one in await engine.store.interests.list() if one.id == row.interests[-1])
    return first(tuple(next(found, ())), row.epoch)
