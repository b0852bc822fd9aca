"""The promises of a store about locks; a part of `store.contract`, in a file of its own for its length.

A lock is one row while it is held. Each holder has a number of its own, the fence, and every move names it: who has
lost a lock learns of it, and changes nothing.
"""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

from penstock.store.contract.session import OpenTransaction, Session

LOCK_KEPT = timedelta(hours=1)  # for how long one that has run out can be seen, if nobody takes it over


@dataclass(frozen=True, slots=True)
class LockRow:
    """A lock that is held, or has run out and was not given back.

    Attributes:
        key: What is locked.
        fence: The number of its holder; it rises from one to the next, also over all keys, and none is given twice.
        attempt: Who asked for it: a number of the caller's own.
        holder: What its holder calls itself, for people.
        taken_at: Since when it is held.
        expires_at: When it runs out, unless it is renewed.
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
        """Take a lock that is free or has run out; whose it is now. Asked again for an attempt, it answers the same."""

    async def want(self, key: str, fence: int) -> bool:
        """Say that somebody waits for a lock; False if it does not have this holder any more."""

    async def renew(self, key: str, fence: int, lease: timedelta, now: datetime) -> bool:
        """Let a lock run out later; False if it does not have this holder any more."""

    async def release(self, key: str, fence: int) -> LockRow | None:
        """Give a lock back; how it was, or None if it does not have this holder any more."""

    async def withdraw(self, key: str, attempt: UUID) -> LockRow | None:
        """Give a lock back if this attempt took it, whose answer was lost or has come too late."""

    async def check(self, transaction: OpenTransaction, key: str, fence: int) -> bool:
        """Whether a lock has this holder, who keeps it at least until the transaction ends."""

    async def list(self, session: Session, limit: int) -> builtins.list[LockRow]:
        """Locks that are held or have run out, in the order in which they were taken."""

    async def prune(self, now: datetime, limit: int) -> int:
        """Forget locks that ran out `LOCK_KEPT` ago, in one bounded step; how many."""
