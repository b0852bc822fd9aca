"""Outboxes at rest: their cursors, their readers, and their set-aside messages."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from datetime import datetime

from penstock.changes.position import Position, Snapshot
from penstock.errors import Conflict, CursorInvalid
from penstock.outbox.backfill import BEFORE_ALL
from penstock.outbox.outbox import reader_name
from penstock.outbox.trouble import Trouble
from penstock.store.contract.outboxes import KEPT, Aside, AsideCount, AsideState, Forgets, OutboxPlan, OutboxRow, Step
from penstock.store.contract.session import OpenTransaction, Row, Session
from penstock.store.nouns.noun import Access, Noun
from penstock.store.rows.outboxes import aside_of, aside_values, outbox_of, plan_values, step_values


class StoredOutboxes(Noun):
    """See `store.contract.Outboxes`."""

    def __init__(self, access: Access) -> None:
        super().__init__(access, "outboxes")

    async def declare(self, plan: OutboxPlan, backfill: str | None, now: datetime) -> OutboxRow:
        known = await self._list(plan.name)
        if not known:
            await self._run("add", **plan_values(plan), backfill=backfill, now=now)
            known = await self._list(plan.name)  # which another program may have added just now
        if known[0].plan != plan:  # an unchanged declaration takes no lock, and needs no right to write
            await self._run("declare", **plan_values(plan), now=now)
            known = await self._list(plan.name)
        return known[0]

    async def capture(self, outbox: int, interests: Sequence[int], meaning: str | None = None) -> None:
        await self._run("capture", outbox=outbox, interests=[*interests], meaning=meaning)

    async def prepared(self, outbox: int) -> None:
        await self._run("prepared", outbox=outbox)

    async def topic(self, name: str) -> int:
        if not (found := await self._look("topic", topic=name)):
            await self._run("add_topic", topic=name)
            found = await self._look("topic", topic=name)
        return int(found[0][0])

    async def send(self, session: OpenTransaction, topic: str, payload: str, key: str | None) -> bool:
        return bool(await self._fetch(session, "send", topic=topic, payload=payload, key=key))

    async def resend(self, session: OpenTransaction, interest: int, rows: Sequence[tuple[str, str]]) -> None:
        keys, afters = ([row[place] for row in rows] for place in (0, 1))
        await self._fetch(session, "resend", interest=interest, rows=[*rows], keys=keys, afters=afters)

    async def list(self) -> builtins.list[OutboxRow]:
        return await self._list(None)

    async def advance(self, step: Step, now: datetime, session: Session | None = None) -> bool:
        if session is not None:
            return await self._advance(session, step, now)
        if not step.put and not step.taken and not self._queries["advance"].then:
            return bool(await self._run("advance", **step_values(step), now=now))
        own = await self._access.begin_write()
        try:
            if not await self._advance(own, step, now):
                return False
            await own.commit()
        finally:
            await own.rollback()
        return True

    async def waiting(self, outbox: int, limit: int) -> builtins.list[Aside]:
        return self._asides(await self._look("waiting", outbox=outbox, limit=limit))

    async def failed(self, outbox: int, now: datetime, limit: int) -> builtins.list[Aside]:
        return self._asides(await self._look("failed", outbox=outbox, now=now, limit=limit))

    async def next_retry(self, outbox: int) -> datetime | None:
        found: datetime | None = self._access.time((await self._look("next_retry", outbox=outbox))[0][0])
        return found

    async def kept_keys(self, outbox: int) -> set[str]:
        return {row[0] for row in await self._look("kept_keys", outbox=outbox)}

    async def turned(self, outbox: int) -> set[int]:
        return {row[0] for row in await self._look("turned", outbox=outbox)}

    async def put_keys(
        self, session: OpenTransaction, outbox: int, keys: Sequence[str], kinds: Sequence[str]
    ) -> set[str]:
        return {row[0] for row in await self._fetch(session, "put_keys", outbox=outbox, keys=[*keys], kinds=[*kinds])}

    async def aside(
        self, outbox: int, states: Sequence[AsideState], limit: int, after: int = BEFORE_ALL
    ) -> builtins.list[Aside]:
        return self._asides(await self._look("aside", outbox=outbox, states=[*states], limit=limit, after=after))

    async def backlog(self, most: int) -> builtins.list[AsideCount]:
        return [
            AsideCount(outbox, state, number, self._access.time(oldest_at), used_up)
            for outbox, state, number, oldest_at, used_up in await self._look("backlog", most=most)
        ]

    async def pause(self, name: str, *, paused: bool) -> bool:
        return bool(await self._run("pause", name=name, paused=paused))

    async def retry(self, name: str, now: datetime, seqs: Sequence[int] | None = None) -> int:
        wanted = None if seqs is None else [*seqs]
        head = await self._run("retry", name=name, said=now.isoformat(), seqs=wanted)
        return len(head) + len(await self._run("retry_aside", name=name, now=now, seqs=wanted))

    async def skip(self, name: str, seq: int) -> bool:
        if await self._run("skip", name=name, seq=seq):
            return True
        return bool(await self._run("skip_aside", name=name, seq=seq))

    async def halt(self, name: str, trouble: Trouble) -> bool:
        return bool(await self._run("halt", name=name, trouble=trouble.text()))

    async def hold(self, name: str, lease: int) -> bool:
        async with self._writing() as session:
            if not await self._fetch(session, "touch", name=name):
                return False
            await self._fetch(session, "hold_reader", reader=reader_name(name), lease=lease)
        return True

    async def place(
        self,
        name: str,
        at: Position | None,
        backfill: str | None,
        now: datetime,
        *,
        forgets: Forgets = "again",
        interests: Sequence[int] | None = None,
        session: Session | None = None,
    ) -> bool:
        if session is not None:
            return await self._place(session, name, at, backfill, now, forgets, interests)
        async with self._writing() as own:
            return await self._place(own, name, at, backfill, now, forgets, interests)

    async def forget(self, name: str) -> bool:
        async with self._writing() as session:
            found = await self._fetch(session, "forget", name=name)
            await self._fetch(session, "forget_reader", reader=reader_name(name))
        return bool(found)

    # ----- steps

    async def _advance(self, session: Session, step: Step, now: datetime) -> bool:
        if not await self._fetch(session, "advance", **step_values(step), now=now):
            return False
        if step.taken:
            await self._fetch(session, "take", outbox=step.outbox.id, seqs=[*step.taken])
        await self._fetch_each(session, "put", [aside_values(one) for one in step.put], outbox=step.outbox.id)
        return True

    async def _place(
        self,
        session: Session,
        name: str,
        at: Position | None,
        backfill: str | None,
        now: datetime,
        forgets: Forgets,
        known: Sequence[int] | None,
    ) -> bool:
        at = await self._known_position(session, at)
        if not (rows := await self._fetch(session, "place", name=name, backfill=backfill)):
            return False
        outbox, interests = rows[0][0], self._access.items(rows[0][1])
        if known is not None and [*known] != interests:
            raise Conflict(f"Outbox {name} was redeclared meanwhile.")
        await self._fetch(session, "put_reader", reader=reader_name(name), position=str(at), now=now)
        unread = {"interests": interests, "older": backfill not in {None, KEPT}, "high": at.high}
        await self._fetch(session, "forget_unread", outbox=outbox, **unread, **at.bounds())
        if forgets != "again":
            await self._fetch(session, "forget_aside", outbox=outbox, parked=forgets == "all")
        return True

    async def _known_position(self, session: Session, at: Position | None) -> Position:
        """A position that the feed has reached; by default its end."""
        if at is not None and "hold_room" in self._queries:
            await self._fetch(session, "hold_room")  # so that nothing after it is emptied meanwhile
        ((snapshot, high),) = await self._fetch(session, "moment")
        here = Position(high=high) if snapshot is None else Position(Snapshot.parse(snapshot), high=high)
        if at is None:
            return here
        if at.high > high or (snapshot and max(at.seen.end, (at.batch or at.seen).end) > here.seen.end):
            raise CursorInvalid(f"The change feed has not reached {at} yet.", fix="Use a position of this database.")
        return at

    async def _list(self, name: str | None) -> builtins.list[OutboxRow]:
        access = self._access
        return [
            outbox_of(
                row,
                access.duration(row[7]),
                access.items(row[8]),
                access.time(row[9]),
                access.items(row[14]),
                access.time(row[17]),
            )
            for row in await self._look("list", name=name)
        ]

    def _asides(self, rows: Sequence[Row]) -> builtins.list[Aside]:
        time = self._access.time
        return [aside_of(row, time(row[6]), time(row[10]), time(row[11])) for row in rows]
