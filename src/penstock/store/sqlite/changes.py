"""The change feed on SQLite: one transaction writes at a time, so a position is the number of the last change read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from penstock.changes.change import changes_told
from penstock.changes.position import Position
from penstock.store.contract.changes import Batch, Lag, ReaderRow, Rotation
from penstock.store.contract.session import OpenTransaction, Row, Session, reading, writing
from penstock.store.sql.queries import load_queries
from penstock.store.sqlite.dialect import SQLITE, encode_datetime
from penstock.store.sqlite.jobs import fetch
from penstock.store.sqlite.session import Begin


class SqliteChanges:
    """See `store.changes.Changes`."""

    def __init__(self, begin_read: Begin, begin_write: Begin) -> None:
        self._begin_read = begin_read
        self._begin_write = begin_write
        self._queries = load_queries("changes", SQLITE)

    async def register(self, name: str, now: datetime, at: Position | None = None) -> bool:
        """Add a reader at a position, or where the feed ends now; False if there is one of this name."""
        return await self._put("register", name, now, at)

    async def place(self, name: str, now: datetime, at: Position | None = None) -> bool:
        """Put a reader elsewhere, and take it from who reads it; False if there is none."""
        return await self._put("place", name, now, at)

    async def take(self, name: str, lease: int) -> Position | None:
        """Read under a lease from now on; where the reader is, or None."""
        rows = await self._write("take", name=name, lease=lease)
        return Position.parse(rows[0][0]) if rows else None

    async def leave(self, name: str, lease: int) -> None:
        """Read no more under a lease."""
        await self._write("leave", name=name, lease=lease)

    async def read(
        self,
        position: Position,
        limit: int,
        interests: Sequence[int] | None = None,
        session: OpenTransaction | None = None,
    ) -> Batch:
        """What comes after a position: up to `limit` changes of these interests, or of all."""
        if session is None:
            async with reading(self._begin_read) as own:
                return await self.read(position, limit, interests, own)
        ((end,),) = await self._fetch(session, "moment")
        values = {"high": position.high, "interests": _wanted(interests), "limit": limit}
        rows = await self._fetch(session, "begin", **values)
        changes, complete = changes_told(map(_told, rows), interests), len(rows) < limit
        high = max(end, position.high) if complete else changes[-1].seq
        return Batch(changes, Position(high=high), complete, position)

    async def move(
        self, session: Session, name: str, lease: int, before: Position, after: Position, now: datetime
    ) -> bool:
        """Move a reader on in a transaction; False if it was lost."""
        values = {"name": name, "lease": lease, "before": str(before), "after": str(after)}
        return bool(await self._fetch(session, "move", **values, now=encode_datetime(now)))

    async def readers(self) -> list[ReaderRow]:
        """All readers by name."""
        async with reading(self._begin_read) as session:
            rows = await self._fetch(session, "readers")
        return [
            ReaderRow(name, Position.parse(position), lease, *map(datetime.fromisoformat, times))
            for name, position, lease, *times in rows
        ]

    async def lag(self, position: Position, most: int, interests: Sequence[int] | None = None) -> Lag:
        """How far behind a position is; no more than `most` changes are counted."""
        async with reading(self._begin_read) as session:
            values = {"high": position.high, "interests": _wanted(interests), "most": most}
            ((rows, oldest_at),) = await self._fetch(session, "lag", **values)
        return Lag(rows, None if oldest_at is None else datetime.fromisoformat(oldest_at))

    async def forget(self, name: str) -> bool:
        """Drop a reader, so that nothing is kept for it; False if there is none."""
        return bool(await self._write("forget", name=name))

    async def before(self, moment: datetime) -> Position:
        """A position before all that was written at a time or later and is kept still."""
        async with reading(self._begin_read) as session:
            ((high,),) = await self._fetch(session, "first_since", moment=encode_datetime(moment))
        return Position(high=high)

    async def unread(self, session: OpenTransaction, position: Position, interest: int, limit: int) -> set[str] | None:
        """The keys of rows with changes after a position, as a session sees them; None if there are more."""
        values = {"high": position.high, "interest": interest, "limit": limit + 1}
        rows = await self._fetch(session, "unread", **values)
        if len(rows) > limit or any(row[0] is None for row in rows):
            return None
        return {row[0].decode(errors="replace") if isinstance(row[0], bytes) else row[0] for row in rows}

    async def rotate(self, now: datetime, limit: int) -> Rotation:  # noqa: ARG002 - PostgreSQL asks for the time
        """Delete up to `limit` changes that all readers have passed, and no outbox keeps."""
        async with reading(self._begin_read) as session:
            high, unread = await self._passed(session)
            ((seconds,),) = await self._fetch(session, "kept")
            kept = f"-{seconds} seconds" if seconds else None
            first = await self._fetch(session, "first", kept=kept)
        if not first or first[0][0] > high:  # who has nothing to delete takes no lock
            return Rotation(kept=int(unread))
        async with writing(self._begin_write) as session:
            high, unread = await self._passed(session)  # a reader may have been put further back meanwhile
            query = self._queries["clear"]
            emptied = await session.execute(query.statement, query.args({"high": high, "limit": limit, "kept": kept}))
        return Rotation(emptied, kept=int(unread))

    async def size(self) -> int:
        """About how many bytes the feed takes."""
        async with reading(self._begin_read) as session:
            ((size,),) = await self._fetch(session, "size")
        return int(size)

    async def oldest_transaction(self) -> timedelta | None:
        """Nobody can say."""
        return None

    # ----- steps

    async def _put(self, query_name: str, name: str, now: datetime, at: Position | None) -> bool:
        async with writing(self._begin_write) as session:
            if at is None:
                at = Position(high=(await self._fetch(session, "moment"))[0][0])
            values = {"name": name, "position": str(at), "now": encode_datetime(now)}
            return bool(await self._fetch(session, query_name, **values))

    async def _passed(self, session: OpenTransaction) -> tuple[int, bool]:
        """Up to which number all readers have passed, and whether there is more."""
        ((end,),) = await self._fetch(session, "moment")
        readers = await self._fetch(session, "readers")
        high: int = min((Position.parse(row[1]).high for row in readers), default=end)
        return high, high < end

    async def _fetch(self, session: OpenTransaction, query_name: str, /, **values: Any) -> Sequence[Row]:
        return await fetch(session, self._queries[query_name], values)

    async def _write(self, query_name: str, /, **values: Any) -> Sequence[Row]:
        async with writing(self._begin_write) as session:
            return await self._fetch(session, query_name, **values)


def _wanted(interests: Sequence[int] | None) -> str | None:
    return None if interests is None else json.dumps(list(interests))


def _told(row: Row) -> Sequence[Any]:
    seq, interests, kinds, *texts, changed_at = row
    key, before, after = (None if text is None else text.decode(errors="replace") for text in texts)
    return seq, interests, kinds, key, before, after, datetime.fromisoformat(changed_at)
