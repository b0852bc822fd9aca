"""The readers of the change feed at rest. Each store keeps and reads the feed in its own way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import datetime, timedelta

from penstock.changes.demand import Demand
from penstock.changes.position import Position, Snapshot
from penstock.store.contract.changes import Batch, Dropped, Lag, ReaderRow, Rotation
from penstock.store.contract.session import OpenTransaction, Session
from penstock.store.nouns.noun import Noun


class Changes(Noun, ABC, queries=("changes", "feed")):
    """The change feed: captured changes, and the position of each reader.

    Only triggers write there. A reader is held under a lease, as jobs are: a process that has lost it cannot move it.
    """

    async def register(self, name: str, now: datetime, at: Position | None = None) -> bool:
        """Add a reader at a position, or where the feed ends now; False if there is one of this name."""
        return await self._put("register", name, now, at)

    async def place(self, name: str, now: datetime, at: Position | None = None) -> bool:
        """Move a reader to a position, and take it from its process; False if there is none."""
        return await self._put("place", name, now, at)

    async def take(self, name: str, lease: int) -> Position | None:
        """Read under a lease from now on; the reader's position, or None if another lease has it that is not gone.

        If the database was restored elsewhere, all readers are first made to fit it.
        """
        rows = await self._run("take", name=name, lease=lease)
        return Position.parse(rows[0][0]) if rows else None

    async def leave(self, name: str, lease: int) -> None:
        """Read no more under a lease: the next one to take the reader knows that this one has not died."""
        await self._run("leave", name=name, lease=lease)

    async def move(
        self, session: Session, name: str, lease: int, before: Position, after: Position, now: datetime
    ) -> bool:
        """Advance a reader by compare-and-set, in the transaction that applies a batch; False if it was lost.

        It is lost if another lease has taken it, or it has moved; and the batch is void if the server has crashed since
        it was read. After False the caller rolls the transaction back.
        """
        values = {"name": name, "lease": lease, "before": str(before), "after": str(after), "server": after.server}
        return bool(await self._fetch(session, "move", **values, now=now))

    async def readers(self) -> list[ReaderRow]:
        """All readers by name."""
        return [
            ReaderRow(name, Position.parse(position), lease, *map(self._access.time, times))
            for name, position, lease, *times in await self._look("readers")
        ]

    async def lag(self, position: Position, most: int, interests: Sequence[int] | None = None) -> Lag:
        """The backlog behind a position; no more than `most` writes are counted."""
        wanted = None if interests is None else list(interests)
        values = position.bounds() | {"high": position.high}
        ((rows, oldest_at),) = await self._look("lag", **values, interests=wanted, most=most)
        return Lag(rows, self._access.time(oldest_at))

    async def forget(self, name: str) -> bool:
        """Drop a reader, so that no changes are kept for it; False if there is none."""
        return bool(await self._run("forget", name=name))

    async def before(self, moment: datetime) -> Position:
        """A position before all kept changes that were written at a time or later."""
        ((first, high),) = await self._look("first_since", moment=moment)
        return Position(high=high) if first is None else Position(Snapshot(first), high=high)

    async def end(self, session: OpenTransaction) -> Position:
        """The position behind all changes that a session sees."""
        ((snapshot, high),) = await self._fetch(session, "moment")
        return Position(high=high) if snapshot is None else Position(Snapshot.parse(snapshot), high=high)

    async def demand(self, interests: Sequence[int], room: int) -> Demand:
        """Have interests on demand captured for so many transactions of the server, on SQLite for so many changes.

        Asking again prolongs it.
        """
        async with self._writing() as session:
            if "demand_alone" in self._queries:
                await self._fetch(session, "demand_alone")
            rows = await self._fetch(session, "demand", interests=list(interests), room=room)
        ((since,),) = await self._run("demand_since")  # in another transaction: the first one may be older than a write
        return Demand(since, {row[0]: row[1] for row in rows})

    async def refused(self, interests: Sequence[int]) -> dict[int, str]:
        """Those of some interests on demand that this user may not demand, each with the right that is missing."""
        rows = await self._look("refused", interests=list(interests)) if "refused" in self._queries else ()
        grant = "grant update on sequence penstock.demand_{} to {}"
        return {row[0]: self._own(grant.format(row[0], row[1])).sql for row in rows}

    async def demanded(self, interests: Sequence[int]) -> set[int]:
        """Those of some interests on demand that are captured now."""
        return {row[0] for row in await self._look("demanded", interests=list(interests))}

    async def dropped(self) -> Dropped:
        """The changes that are gone.

        PostgreSQL shows an emptied slot as empty also to snapshots that are older: ask after reading, and outside the
        session in which was read.
        """
        ((origin, last),) = await self._look("dropped")
        return Dropped(origin, last)

    async def unread(self, session: OpenTransaction, position: Position, interest: int, limit: int) -> set[str] | None:
        """The keys of rows with changes after a position, as a session sees them; None if there are more than `limit`.

        Changes of whole tables have no keys, and count as more.
        """
        values = position.bounds() | {"high": position.high, "interests": [interest], "limit": limit + 1}
        keys = [row[0] for row in await self._fetch(session, "unread", **values)]
        if len(keys) > limit or None in keys:
            return None
        return {key.decode(errors="replace") if isinstance(key, bytes) else key for key in keys}

    async def size(self) -> int:
        """The size of the feed in bytes; on SQLite about."""
        return int((await self._look("size"))[0][0])

    # ----- steps

    async def _put(self, query_name: str, name: str, now: datetime, at: Position | None) -> bool:
        async with self._writing() as session:
            if "hold_room" in self._queries:
                await self._fetch(session, "hold_room")
            at = await self.end(session) if at is None else at
            return bool(await self._fetch(session, query_name, name=name, position=str(at), now=now))

    # ----- different on each store

    @abstractmethod
    async def read(
        self,
        position: Position,
        limit: int,
        interests: Sequence[int] | None = None,
        session: OpenTransaction | None = None,
    ) -> Batch:
        """The changes after a position: of up to `limit` writes, of these interests or of all.

        All changes of one write come together.

        With a session, they are the changes that it sees. They fit the rows that it reads: none is missed or comes
        twice.

        Raises:
            Conflict: The position is of another server, from which the database was restored, or was read before the
                server crashed, and not written: take the reader again.
        """

    @abstractmethod
    async def rotate(self, now: datetime, limit: int) -> Rotation:
        """Make room: drop changes that all readers have passed, in one bounded step, and waiting for nobody.

        Changes younger than the longest `keep_for` of an outbox are kept.
        """

    @abstractmethod
    async def oldest_transaction(self) -> timedelta | None:
        """The age of the oldest open transaction; None if it cannot be known."""
