"""The promises of a store about locks; a part of `store.contract`, in a file of its own for its length.

A lock is one row while it is held. Each holder has a fencing number, and every move names it: a holder that has
lost its lock learns of it, and changes nothing.
"""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

from penstock.store.contract.session import OpenTransaction, Session

LOCK_KEPT = timedelta(hours=1)  # the time for which an expired one can be seen, if nobody takes it over


@dataclass(frozen=True, slots=True)
class LockRow:
    """A lock that is held, or has run out and was not given back.

    Attributes:
        key: The key of the lock.
        fence: The number of its holder; it rises from one to the next, also over all keys, and none is given twice.
        attempt: The caller's own number of the request.
        holder: The name of its holder, for people.
        taken_at: The time at which it was taken.
        expires_at: The time at which it expires, unless it is renewed.
        wanted: Whether somebody waits for it.
    """

    key: str
    fence: int
    attempt: UUID
    holder: str
    taken_at: datetime
    expires_at: datetime
    wanted: bool


class Locks(Protocol):
    """Locks at rest. Each verb is a transaction of its own, but for `check` and `list`."""

    async def take(self, key: str, attempt: UUID, holder: str, lease: timedelta, now: datetime) -> LockRow:
        """Take a lock that is free or has expired; its present row. A repeated request has the same answer."""

    async def want(self, key: str, fence: int) -> bool:
        """Say that somebody waits for a lock; False if it does not have this holder any more."""

    async def renew(self, key: str, fence: int, lease: timedelta, now: datetime) -> bool:
        """Let a lock run out later; False if it does not have this holder any more."""

    async def release(self, key: str, fence: int) -> LockRow | None:
        """Give a lock back; its last row, or None if it does not have this holder any more."""

    async def withdraw(self, key: str, attempt: UUID) -> LockRow | None:
        """Give a lock back if this attempt took it, whose answer was lost or has come too late."""

    async def check(self, transaction: OpenTransaction, key: str, fence: int) -> bool:
        """Whether a lock has this holder, which keeps it at least until the transaction ends."""

    async def list(self, session: Session, limit: int) -> builtins.list[LockRow]:
        """Locks that are held or have run out, in the order in which they were taken."""

    async def prune(self, now: datetime, limit: int) -> int:
        """Forget locks that expired `LOCK_KEPT` ago, in one bounded step; their number."""
