"""The readers of the change feed at rest. Each store keeps and reads the feed in its own way."""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from penstock.changes.change import CapturedChange, is_lost
from penstock.changes.demand import Demand
from penstock.changes.lag import ReaderLag
from penstock.changes.position import NOTHING, Position, Snapshot
from penstock.dataclass import dataclass
from penstock.errors import Conflict
from penstock.store.nouns.noun import Noun
from penstock.store.session import OpenTransaction, Session

BY_ITSELF = 0.1  # seconds after which a reader without signals looks
BACKSTOP = 1.0  # the same for a reader with signals


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of changes for a reader."""

    # the changes, in commit order: none comes before one that its writer had seen
    changes: builtins.list[CapturedChange]
    position: Position  # the position of the reader once it is done with them. Worth keeping without changes too
    complete: bool  # whether there was no more
    before: Position  # the position before
    rest: int = 0  # the number of changes, the first ones, that belong to a batch begun before
    # a time of the database that covers all that the batch's snapshot shows, and never falls. It is a place in the
    # write-ahead log, on SQLite the greatest number of a change. Commits with `synchronous_commit = off` are covered
    # once they are durable. 0 if the batch is a piece of one begun before
    clock: int = 0

    def at(self, count: int) -> Position:
        """The position of the reader once it is done with this many of the changes."""
        if count == len(self.changes):
            return self.position
        if not count:
            return self.before
        while count and self.changes[count - 1].seq == self.changes[count].seq:  # of one write: handed over together
            count -= 1
        if not count:
            return self.before
        seq = self.changes[count - 1].seq
        high = max(self.before.high, seq)
        if self.position.seen == NOTHING and self.position.batch is None:  # as on SQLite, where numbers say it all
            return Position(high=high)
        if count <= self.rest:
            return replace(self.before, last=seq, high=high)
        snapshot = self.position.batch or self.position.seen
        return Position(self.before.batch or self.before.seen, snapshot, seq, high, self.position.server)


@dataclass(frozen=True, slots=True)
class ReaderRow:
    """A reader of the feed."""

    name: str
    position: Position
    lease: int | None  # the lease under which it reads
    registered_at: datetime
    moved_at: datetime  # the time of its last move


@dataclass(frozen=True, slots=True)
class Lag:
    """The backlog of a reader."""

    rows: int  # the number of unread writes, as far as they were counted
    oldest_at: datetime | None  # the time of the oldest of these; None if there are none


@dataclass(frozen=True, slots=True)
class Dropped:
    """The dropped part of the feed."""

    # the server and database of the feed, and its last recovery from a crash. Elsewhere, or after another crash,
    # positions without a reader are void: numbers of transactions that left nothing are given again
    origin: str
    last: int  # the greatest transaction of a dropped change; on SQLite the greatest number

    def was_passed(self, position: Position) -> bool:
        """Whether a position is behind all dropped changes, so that none after it is missing."""
        seen = position.seen
        if seen == NOTHING:
            return position.high >= self.last
        return self.last < seen.end and all(xid > self.last for xid in seen.open)


@dataclass(frozen=True, slots=True)
class Rotation:
    """The result of one step of making room in the feed."""

    emptied: int = 0  # the number of emptied slots; on SQLite the number of deleted changes
    # the number of slots that could not be emptied, as a reader has not passed them, or somebody holds them
    kept: int = 0
    moved: bool = False  # whether changes are written to another slot from now on


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
        return Position.parse(rows[0]["position"]) if rows else None

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
        return self._read(ReaderRow, await self._look("readers"))

    async def lag(self, position: Position, most: int, interests: Sequence[int] | None = None) -> Lag:
        """The backlog behind a position; no more than `most` writes are counted."""
        wanted = None if interests is None else list(interests)
        values = position.bounds() | {"high": position.high}
        return self._read(Lag, await self._look("lag", **values, interests=wanted, most=most))[0]

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
        return Demand(since, {row["id"]: row["until"] for row in rows})

    async def list_refused(self, interests: Sequence[int]) -> dict[int, str]:
        """The interests on demand that this user may not demand, each with the missing right."""
        rows = await self._look("refused", interests=list(interests)) if "refused" in self._queries else ()
        grant = "grant update on sequence penstock.demand_{} to {}"
        return {row["id"]: self._own(grant.format(row["id"], row["grantee"])).sql for row in rows}

    async def list_demanded(self, interests: Sequence[int]) -> set[int]:
        """The interests on demand, of these, that are captured now."""
        return {row["interest"] for row in await self._look("demanded", interests=list(interests))}

    async def read_dropped(self) -> Dropped:
        """The changes that are gone.

        PostgreSQL shows an emptied slot as empty also to snapshots that are older: ask after reading, and outside the
        session in which was read.
        """
        return self._read(Dropped, await self._look("dropped"))[0]

    async def after(self, session: OpenTransaction, position: Position, interest: int, limit: int) -> set[str] | None:
        """The keys of rows with changes after a position, as a session sees them; None if there are more than `limit`.

        Changes of whole tables have no keys, and count as more. Raises the errors of `list_unread`.
        """
        found = await self.list_unread(session, position, interest, limit)
        return None if found is None or None in found else {key for key in found if key is not None}

    async def list_unread(
        self, session: OpenTransaction, position: Position, interest: int, limit: int
    ) -> set[str | None] | None:
        """The keys of rows with changes after a position, as a session sees them, and None if tables were truncated.

        None of all if there are more than `limit`, or changes were lost.

        Raises:
            Conflict: Some were dropped since the session's snapshot was taken.
        """
        values = position.bounds() | {"high": position.high, "interests": [interest], "limit": limit + 1}
        first, *rows = await self._fetch(session, "unread", **values)
        if not first["whole"]:
            raise Conflict("Changes that this transaction has to see were dropped since it began.", fix="Run it again.")
        if len(rows) > limit or any(row["key"] is None and is_lost(interest, *row[1:3]) for row in rows):
            return None
        keys = (row["key"] for row in rows)
        return {key.decode(errors="replace") if isinstance(key, bytes) else key for key in keys}

    async def size(self) -> int:
        """The size of the feed in bytes; on SQLite about."""
        return int((await self._look("size"))[0]["size"])

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
                server crashed, and not written. Take the reader again.
        """

    @abstractmethod
    async def rotate(self, now: datetime, limit: int, *, early: bool = False) -> Rotation:
        """Make room: drop changes that all readers have passed, in one bounded step, and waiting for nobody.

        Changes younger than the longest `keep_for` of an outbox are kept. With `early` changes go to another slot now,
        so that the next step can empty the one that they went to, however little it holds.
        """

    @abstractmethod
    async def oldest_transaction(self) -> timedelta | None:
        """The age of the oldest open transaction; None if it cannot be known."""


@dataclass(frozen=True, slots=True)
class FeedSeen:
    """The feed at one moment."""

    readers: Sequence[tuple[ReaderRow, ReaderLag]]  # each reader and its backlog, by name
    size: int  # the size of the feed in bytes
    oldest_transaction: timedelta | None  # the age of the oldest open transaction; None if it cannot be known


async def see_feed(changes: Changes, most: int) -> FeedSeen:
    """Look at the feed; of each reader no more than `most` unread changes are counted."""
    readers = []
    for row in await changes.readers():
        lag = await changes.lag(row.position, most)
        readers.append((row, ReaderLag(row.name, row.moved_at, lag.rows, lag.oldest_at)))
    return FeedSeen(readers, await changes.size(), await changes.oldest_transaction())
