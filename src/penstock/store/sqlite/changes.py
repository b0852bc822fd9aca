"""The change feed on SQLite: one transaction writes at a time, so a position is the number of the last change read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from penstock.changes.change import changes_told
from penstock.changes.position import Position
from penstock.store.nouns.changes import Batch, Changes, Rotation
from penstock.store.session import OpenTransaction, Row


class SqliteChanges(Changes):
    """See `store.nouns.Changes`."""

    async def read(
        self,
        position: Position,
        limit: int,
        interests: Sequence[int] | None = None,
        session: OpenTransaction | None = None,
    ) -> Batch:
        if session is None:
            async with self._reading() as own:
                return await self.read(position, limit, interests, own)
        ((_, end),) = await self._fetch(session, "moment")
        values = {"high": position.high, "interests": None if interests is None else list(interests), "limit": limit}
        rows = await self._fetch(session, "begin", **values)
        changes, complete = changes_told(map(_decode, rows), interests), len(rows) < limit
        high = max(end, position.high) if complete else changes[-1].seq
        return Batch(changes, Position(high=high), complete, position, clock=high)

    async def rotate(self, now: datetime, limit: int, *, early: bool = False) -> Rotation:  # noqa: ARG002 - PostgreSQL has slots
        """Delete up to `limit` changes that all readers have passed, and no outbox keeps."""
        async with self._reading() as session:
            high, unread = await self._common_position(session)
            ((seconds,),) = await self._fetch(session, "kept")
            kept = f"-{seconds} seconds" if seconds else None
            first = await self._fetch(session, "first", kept=kept)
        if not first or first[0][0] > high:  # nothing to delete: no lock is needed
            return Rotation(kept=int(unread))
        async with self._writing() as session:
            high, unread = await self._common_position(session)  # a reader may have been put further back meanwhile
            await self._execute(session, "cleared", high=high, limit=limit, kept=kept)
            emptied = await self._execute(session, "clear", high=high, limit=limit, kept=kept)
        return Rotation(emptied, kept=int(unread))

    async def oldest_transaction(self) -> timedelta | None:
        return None

    # ----- steps

    async def _common_position(self, session: OpenTransaction) -> tuple[int, bool]:
        """The number up to which all readers have passed, and whether there is more."""
        ((_, end),) = await self._fetch(session, "moment")
        readers = await self._fetch(session, "readers")
        high: int = min((Position.parse(row["position"]).high for row in readers), default=end)
        return high, high < end


def _decode(row: Row) -> Sequence[Any]:
    seq, interests, kinds, *texts, changed_at = row
    key, before, after = (None if text is None else text.decode(errors="replace") for text in texts)
    return seq, interests, kinds, key, before, after, datetime.fromisoformat(changed_at)
