"""Locks at rest.

A lock is one row while it is held. Each holder has a fencing number, and every move names it: a holder that has
lost its lock learns of it, and changes nothing.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from penstock.dataclass import dataclass
from penstock.store.nouns.noun import Access, Noun
from penstock.store.session import OpenTransaction, Row, Session

LOCK_KEPT = timedelta(hours=1)  # the time for which an expired one can be seen, if nobody takes it over


@dataclass(frozen=True, slots=True)
class LockRow:
    """A lock that is held, or has run out and was not given back."""

    key: str
    fence: int  # the number of its holder; it rises from one to the next, also over all keys, and none is given twice
    attempt: UUID  # the caller's own number of the request
    holder: str  # the name of its holder, for people
    taken_at: datetime  # the time at which it was taken
    expires_at: datetime  # the time at which it expires, unless it is renewed
    wanted: bool  # whether somebody waits for it


class Locks(Noun, queries=("locks",)):
    """Locks at rest. Each verb is a transaction of its own, but for `check` and `list`.

    Requests of functions and programs use `calls`: there may be many at once, and renewals must not wait for them.
    """

    def __init__(self, access: Access, calls: Access) -> None:
        super().__init__(access)
        self._calls = calls

    async def take(self, key: str, attempt: UUID, holder: str, lease: timedelta, now: datetime) -> LockRow:
        """Take a lock that is free or has expired; its present row. A repeated request has the same answer."""
        if self._access.looks_first:
            found = self._one(LockRow, await self._call("find", key=key))
            if found is not None and found.expires_at > now:
                return found
        asked = {"key": key, "attempt": attempt, "holder": holder, "now": now, "expires_at": now + lease}
        while True:
            rows = await self._call("take", **asked) or await self._call("find", key=key)
            if (lock := self._one(LockRow, rows)) is not None:
                return lock

    async def want(self, key: str, fence: int) -> bool:
        """Say that somebody waits for a lock; False if it does not have this holder any more."""
        return bool(await self._call("want", key=key, fence=fence))

    async def renew(self, key: str, fence: int, lease: timedelta, now: datetime) -> bool:
        """Let a lock run out later; False if it does not have this holder any more."""
        return bool(await self._run("renew", key=key, fence=fence, expires_at=now + lease))

    async def release(self, key: str, fence: int) -> LockRow | None:
        """Give a lock back; its last row, or None if it does not have this holder any more."""
        return self._one(LockRow, await self._call("release", key=key, fence=fence))

    async def withdraw(self, key: str, attempt: UUID) -> LockRow | None:
        """Give a lock back if this attempt took it, whose answer was lost or has come too late."""
        return self._one(LockRow, await self._call("withdraw", key=key, attempt=attempt))

    async def check(self, transaction: OpenTransaction, key: str, fence: int) -> bool:
        """Whether a lock has this holder, which keeps it at least until the transaction ends."""
        return bool(await self._fetch(transaction, "check", key=key, fence=fence))

    async def list(self, session: Session, limit: int) -> builtins.list[LockRow]:
        """Locks that are held or have run out, in the order in which they were taken."""
        return self._read(LockRow, await self._fetch(session, "list", limit=limit))

    async def prune(self, now: datetime, limit: int) -> int:
        """Forget locks that expired `LOCK_KEPT` ago, in one bounded step; their number."""
        return await super().prune(now - LOCK_KEPT, limit)

    async def _call(self, query_name: str, /, **values: object) -> Sequence[Row]:
        query = self._queries[query_name]
        return await (self._calls.look if query_name == "find" else self._calls.run)(query, values)
