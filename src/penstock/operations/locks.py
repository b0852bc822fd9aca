"""The operations on locks: they are seen with their holders, and one is taken from its holder."""

from __future__ import annotations

from typing import Any

from penstock.app import Backend
from penstock.errors import LockLost
from penstock.operations.operation import Given, Noun, Parameter, Refusal
from penstock.store.session import reading

noun = Noun("locks")
_FENCE = Parameter("fence", "number", "The holder's fencing token, from penstock locks.", needed=True, least=1)


@noun.lists(Parameter("limit", "page", "How many locks to list.", default=100))
async def every(backend: Backend, given: Given) -> Any:
    """Show locks that are held or have expired, the oldest first."""
    store = backend.engine.store
    async with reading(store.begin_read) as session:
        return {"locks": await store.locks.list(session, given["limit"])}


@noun.changes(
    Parameter("key", "name", needed=True), _FENCE, tells="{key} is free.", refusals={LockLost: Refusal(409, "LockLost")}
)
async def release(backend: Backend, given: Given) -> Any:
    """Take a lock from its holder. The holder learns of it within a third of its lease."""
    store, key, fence = backend.engine.store, given["key"], given["fence"]
    if await store.locks.release(key, fence) is None:
        raise LockLost(f"The lock {key!r} does not have the holder {fence} any more.", fix="Look at penstock locks.")
    store.signals.notify()
    return {"key": key, "released": True}
