"""The change feed on PostgreSQL: read by snapshots, in slots that are truncated.

A reader's position is a snapshot. Its unread changes are the ones that the snapshot does not show. The order in which
transactions commit is not that of any number, and one that stays open keeps back its own changes only.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from penstock.changes.change import CapturedChange, changes_told
from penstock.changes.position import ALL, ERA, Position, Snapshot
from penstock.changes.rotation import Slots
from penstock.errors import Conflict, DatabaseBusy
from penstock.store.nouns.changes import Batch, Changes, Rotation
from penstock.store.postgres.session import PostgresSession
from penstock.store.session import OpenTransaction, Row, Session, Statement

# These are no queries of a .sql file: the name of a table and a setting cannot be parameters.
_LOCK = "lock table penstock.{table} in access exclusive mode"
TURN = (
    "create or replace function penstock.current_slot() returns smallint language sql immutable "
    "as 'select {slot}::smallint'"
)
_TRUNCATE = "truncate penstock.change_{slot}"
_UNREAD = (
    "select exists (select from penstock.change_{slot} where (xid >= $1 or xid = any($2::bigint[])) "
    "and (seq > $3 or xid >= $4 or xid = any($5::bigint[])))"
)
_YOUNG = (
    "select changed_at > clock_timestamp() - greatest((select max(keep_for) from penstock.outbox), case when exists ("
    "select from penstock.demanded) then interval '60 seconds' end) "
    "from penstock.change_{slot} order by seq desc limit 1"
)
_DROPPED = "update penstock.change_slot set dropped = greatest(dropped, (select max(xid) from penstock.change_{slot}))"
_EMPTIED = "select setval('penstock.change_emptied', txid_current())"
_BOUNDS = ("seen_end", "seen_open", "last", "batch_end", "batch_open")
_IMPATIENT = Statement("set local lock_timeout = '100ms'")


class PostgresChanges(Changes):
    """See `store.nouns.Changes`."""

    async def take(self, name: str, lease: int) -> Position | None:
        ((origin, here),) = await self._run("origin")
        if origin != here:
            await self._settle_in()
        return await super().take(name, lease)

    async def read(
        self,
        position: Position,
        limit: int,
        interests: Sequence[int] | None = None,
        session: OpenTransaction | None = None,
    ) -> Batch:
        asked, before = {"interests": None if interests is None else list(interests)}, position
        shown = _view(session)
        changes: builtins.list[CapturedChange] = []
        room = limit
        if position.batch is not None:
            rows = await self._ask(session, "go_on", **position.bounds(), **asked, limit=limit)
            room, changes = limit - len(rows), changes_told(rows, interests)
            position = position.advance(position.batch, [one.seq for one in changes], complete=room > 0)
            if position.batch is not None:
                return Batch(changes, position, complete=False, before=before, rest=len(changes))
        rows = await self._begin(session, {**position.bounds(), **asked, "limit": room})
        first = rows[0]
        snapshot, clock, server = shown or Snapshot.parse(first["snapshot"]), first["clock"], first["server"]
        if server is not None and before.server not in {None, server}:
            raise Conflict("The database has crashed, and may give numbers again that this position has passed.")
        if position.seen.end > snapshot.end and position.seen != ALL:
            await self._settle_in()
            raise Conflict("The database was restored on another server, where this position is invalid.")
        found = [tuple(row)[3:] for row in rows if row["seq"] is not None]
        new, complete = changes_told(found, interests), len(found) < room
        if shown and not complete:
            snapshot = ALL  # that the session sees; transactions that may have ended come with the others
        after = replace(position, server=server).advance(snapshot, [one.seq for one in new], complete=complete)
        return Batch(changes + new, after, complete, before, len(changes), clock)

    async def end(self, session: OpenTransaction) -> Position:
        end = await super().end(session)
        return end if _view(session) is None else Position(ALL, high=end.high)  # which `read` turns into what is shown

    # ----- room

    async def rotate(self, now: datetime, limit: int, *, early: bool = False) -> Rotation:
        """Truncate up to `limit` slots that all readers have passed, and go on to the next one when it is time."""
        slots = await self._slots()
        emptied = kept = 0
        for slot in slots.to_empty()[:limit]:
            if not (slots.keep_for and await self._is_kept(slot)) and await self._empty(slot):
                emptied += 1
            else:
                kept += 1
        following = (await self._slots() if emptied else slots).following(now, early=early)
        moved = following is not None and await self._turn(slots.current, following, now)
        return Rotation(emptied, kept, moved)

    async def oldest_transaction(self) -> timedelta | None:
        seconds = (await self._run("oldest"))[0][0]
        return None if seconds is None else timedelta(seconds=seconds)

    # ----- steps

    async def _begin(self, session: OpenTransaction | None, values: dict[str, Any]) -> Sequence[Row]:
        """The first changes of a new batch, however large it is."""
        try:
            return await self._ask(session, "begin", **values)
        except DatabaseBusy as error:
            if session is not None or not error.facts.get("slow"):
                raise
        return await self._run("begin_far", **values)

    async def _slots(self) -> Slots:
        ((current, since, sizes, keep_for),) = await self._run("slots")
        return Slots(current, since, dict(enumerate(sizes)), keep_for)

    async def _turn(self, current: int, following: int, now: datetime) -> bool:
        """Have changes written into another slot; False if somebody else has."""
        async with self._writing() as session:
            if not await self._fetch(session, "turn", slot=following, current=current, now=now):
                return False
            await session.execute(self._own(TURN.format(slot=following)))
        return True

    async def _empty(self, slot: int) -> bool:
        """Truncate a slot, if nobody uses it and every reader has passed its changes; whether it was.

        Once its lock is held, no open transaction has written there, and none can until it is truncated.
        """
        try:
            async with self._writing() as session:
                await session.execute(_IMPATIENT)
                await session.execute(self._own(_LOCK.format(table=f"change_{slot}")))
                (held,) = await self._fetch(session, "lock_room")
                if held[0] == slot or await self._is_young(session, slot) or await self._is_wanted(session, slot):
                    return False
                await session.execute(self._own(_DROPPED.format(slot=slot)))
                await session.execute(self._own(_EMPTIED))
                await session.execute(self._own(_TRUNCATE.format(slot=slot)))
        except (DatabaseBusy, Conflict):  # somebody uses it, or waits for this transaction while this one waits
            return False
        return True

    async def _is_kept(self, slot: int) -> bool:
        """Whether `_is_young` would say yes, without a lock."""
        async with self._begin_kept() as session:
            return await self._is_young(session, slot)

    async def _is_young(self, session: Session, slot: int) -> bool:
        """Whether a slot holds changes that outboxes keep to send them again, by the clock of the database."""
        rows = await session.fetch(self._own(_YOUNG.format(slot=slot)))
        return bool(rows and rows[0][0])

    async def _is_wanted(self, session: Session, slot: int) -> bool:
        """Whether a reader has still to read a change in a slot."""
        unread = self._own(_UNREAD.format(slot=slot))
        for row in await self._fetch(session, "readers"):
            bounds = Position.parse(row["position"]).bounds()
            if (await session.fetch(unread, [bounds[name] for name in _BOUNDS]))[0][0]:
                return True
        return False

    async def _settle_in(self) -> None:
        """Make the feed and its readers fit the server to which the database was moved.

        That server counts transactions from the beginning. Changes that a reader may have been handed are moved below
        its numbers, along with the positions of readers. All other changes count as written now.
        """
        async with self._writing() as session:
            await session.execute(_IMPATIENT)
            await session.execute(self._own(_LOCK.format(table="change")))
            await self._fetch(session, "lock_room")
            rows = await self._fetch(session, "lock_readers")
            readers = [(row["name"], Position.parse(row["position"])) for row in rows]
            if await self._is_settled(session, readers):
                return
            high = max((position.high for _name, position in readers), default=0)
            await self._settle(session, readers, high)

    async def _is_settled(self, session: Session, readers: list[tuple[str, Position]]) -> bool:
        """Whether another process has done it meanwhile."""
        ((origin, here),) = await self._fetch(session, "origin")
        ((moment, _high),) = await self._fetch(session, "moment")
        now = Snapshot.parse(moment)
        return bool(origin == here) and all(position.seen.end <= now.end for _name, position in readers)

    async def _settle(self, session: Session, readers: list[tuple[str, Position]], high: int) -> None:
        await self._fetch(session, "settle_changes", high=high, era=ERA)
        for name, position in readers:
            await self._fetch(session, "settle_reader", name=name, position=str(position.shift(ERA)))
        await self._fetch(session, "settle_numbers", high=high)
        await self._fetch(session, "settle_in")


def _view(session: OpenTransaction | None) -> Snapshot | None:
    """The transactions that a snapshot on a replica is known to show, which it does not say itself; None elsewhere."""
    return session.shown if isinstance(session, PostgresSession) else None
