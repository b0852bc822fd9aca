"""The readers of the change feed at rest. Each store keeps and reads the feed in its own way."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from penstock.changes.position import Position, Snapshot
from penstock.store.contract.changes import Lag, ReaderRow
from penstock.store.contract.session import OpenTransaction, Session
from penstock.store.nouns.noun import Access, Noun


class StoredReaders(Noun):
    """The part of `store.contract.Changes` that is the same for both stores."""

    def __init__(self, access: Access) -> None:
        super().__init__(access, "changes")

    async def register(self, name: str, now: datetime, at: Position | None = None) -> bool:
        return await self._put("register", name, now, at)

    async def place(self, name: str, now: datetime, at: Position | None = None) -> bool:
        return await self._put("place", name, now, at)

    async def take(self, name: str, lease: int) -> Position | None:
        rows = await self._run("take", name=name, lease=lease)
        return Position.parse(rows[0][0]) if rows else None

    async def leave(self, name: str, lease: int) -> None:
        await self._run("leave", name=name, lease=lease)

    async def move(
        self, session: Session, name: str, lease: int, before: Position, after: Position, now: datetime
    ) -> bool:
        values = {"name": name, "lease": lease, "before": str(before), "after": str(after), "now": now}
        return bool(await self._fetch(session, "move", **values))

    async def readers(self) -> list[ReaderRow]:
        return [
            ReaderRow(name, Position.parse(position), lease, *map(self._access.time, times))
            for name, position, lease, *times in await self._look("readers")
        ]

    async def lag(self, position: Position, most: int, interests: Sequence[int] | None = None) -> Lag:
        wanted = None if interests is None else list(interests)
        values = position.bounds() | {"high": position.high}
        ((rows, oldest_at),) = await self._look("lag", **values, interests=wanted, most=most)
        return Lag(rows, self._access.time(oldest_at))

    async def forget(self, name: str) -> bool:
        return bool(await self._run("forget", name=name))

    async def before(self, moment: datetime) -> Position:
        ((first, high),) = await self._look("first_since", moment=moment)
        return Position(high=high) if first is None else Position(Snapshot(first), high=high)

    async def unread(self, session: OpenTransaction, position: Position, interest: int, limit: int) -> set[str] | None:
        values = position.bounds() | {"high": position.high, "interest": interest, "limit": limit + 1}
        keys = [row[0] for row in await self._fetch(session, "unread", **values)]
        if len(keys) > limit or None in keys:
            return None
        return {key.decode(errors="replace") if isinstance(key, bytes) else key for key in keys}

    async def size(self) -> int:
        return int((await self._look("size"))[0][0])

    # ----- steps

    async def _put(self, query_name: str, name: str, now: datetime, at: Position | None) -> bool:
        async with self._writing() as session:
            if "hold_room" in self._queries:
                await self._fetch(session, "hold_room")
            if at is None:
                ((snapshot, high),) = await self._fetch(session, "moment")
                at = Position(high=high) if snapshot is None else Position(Snapshot.parse(snapshot), high=high)
            return bool(await self._fetch(session, query_name, name=name, position=str(at), now=now))
