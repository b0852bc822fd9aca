"""Outboxes on PostgreSQL: how one stands and where its reader is are written by one statement."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from penstock.changes.position import Position, Snapshot
from penstock.errors import Conflict, CursorInvalid
from penstock.outbox.backfill import BEFORE_ALL
from penstock.outbox.outbox import reader_name
from penstock.outbox.trouble import Trouble
from penstock.store.contract.outboxes import KEPT, Aside, AsideCount, AsideState, Forgets, OutboxPlan, OutboxRow, Step
from penstock.store.contract.session import OpenTransaction, Row, Session
from penstock.store.postgres.connections import Connections
from penstock.store.postgres.jobs import run
from penstock.store.postgres.session import BEGIN_INTERNAL, begin
from penstock.store.rows.outboxes import ASIDE, aside_of, aside_values, outbox_of, plan_values, step_values
from penstock.store.sql.queries import load_queries


class PostgresOutboxes:
    """See `store.outboxes.Outboxes`."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._queries = load_queries("penstock.store.postgres", "outboxes", "$")

    async def declare(self, plan: OutboxPlan, backfill: str | None, now: datetime) -> OutboxRow:
        """Make an outbox known."""
        known = await self._list(plan.name)
        if not known:
            await self._run("add", **plan_values(plan), backfill=backfill, now=now)
            known = await self._list(plan.name)  # which another program may have added just now
        if known[0].plan != plan:  # who finds all as it is needs no right to write
            await self._run("declare", **plan_values(plan), now=now)
            known = await self._list(plan.name)
        return known[0]

    async def capture(self, outbox: int, interests: Sequence[int], meaning: str | None = None) -> None:
        """Have its messages read under these numbers too, and judged by this meaning."""
        await self._run("capture", outbox=outbox, interests=[*interests], meaning=meaning)

    async def prepared(self, outbox: int) -> None:
        """Its changes are captured from now on."""
        await self._run("prepared", outbox=outbox)

    async def topic(self, name: str) -> int:
        """The number of a topic, which is made known."""
        if not (found := await self._run("topic", topic=name)):
            await self._run("add_topic", topic=name)
            found = await self._run("topic", topic=name)
        return int(found[0][0])

    async def send(self, session: OpenTransaction, topic: str, payload: str, key: str | None) -> bool:
        """Send a message in a transaction; False if nobody has ever declared the topic."""
        return bool(await self._fetch(session, "send", topic=topic, payload=payload, key=key))

    async def resend(self, session: OpenTransaction, interest: int, rows: Sequence[tuple[str, str]]) -> None:
        """Append rows to the change feed as they are, each with its key."""
        keys, afters = ([row[number] for row in rows] for number in (0, 1))
        await self._fetch(session, "resend", interest=interest, keys=keys, afters=afters)

    async def list(self) -> builtins.list[OutboxRow]:
        """All outboxes by name."""
        return await self._list(None)

    async def advance(self, step: Step, now: datetime, session: Session | None = None) -> bool:
        """Write what a step says, in a transaction."""
        if session is not None:
            return await self._advance(session, step, now)
        if not step.put and not step.taken:
            return bool(await self._run("advance", **_advanced(step, now)))
        session = await begin(self._connections, BEGIN_INTERNAL)
        try:
            if not await self._advance(session, step, now):
                return False
            await session.commit()
        finally:
            await session.rollback()
        return True

    async def waiting(self, outbox: int, limit: int) -> builtins.list[Aside]:
        """Messages that wait, of keys of which none has failed, in their order."""
        return _asides(await self._run("waiting", outbox=outbox, limit=limit))

    async def failed(self, outbox: int, now: datetime, limit: int) -> builtins.list[Aside]:
        """Messages that keep those of their key waiting, and are to be tried again by now."""
        return _asides(await self._run("failed", outbox=outbox, now=now, limit=limit))

    async def next_retry(self, outbox: int) -> datetime | None:
        """When the next of these is to be tried again."""
        found: datetime | None = (await self._run("next_retry", outbox=outbox))[0][0]
        return found

    async def kept_keys(self, outbox: int) -> set[str]:
        """The keys of which messages wait or have failed, those parked left out."""
        return {row[0] for row in await self._run("kept_keys", outbox=outbox)}

    async def turned(self, outbox: int) -> set[int]:
        """The numbers of messages aside that were turned into inserts."""
        return {row[0] for row in await self._run("turned", outbox=outbox)}

    async def put_keys(
        self, session: OpenTransaction, outbox: int, keys: Sequence[str], kinds: Sequence[str]
    ) -> set[str]:
        """Of rows with these keys those of which a change of these kinds was put aside, as a session sees it."""
        return {row[0] for row in await self._fetch(session, "put_keys", outbox=outbox, keys=[*keys], kinds=[*kinds])}

    async def aside(
        self, outbox: int, states: Sequence[AsideState], limit: int, after: int = BEFORE_ALL
    ) -> builtins.list[Aside]:
        """Messages that are put aside, in their order, after the one with a number."""
        return _asides(await self._run("aside", outbox=outbox, states=[*states], limit=limit, after=after))

    async def count_aside(self, outbox: int) -> dict[AsideState, int]:
        """How many messages are put aside, and how they stand."""
        return {row[0]: row[1] for row in await self._run("count_aside", outbox=outbox)}

    async def backlog(self, most: int) -> builtins.list[AsideCount]:
        """What is put aside of each outbox, by state; no more than `most` of each are counted."""
        return [AsideCount(*row) for row in await self._run("backlog", most=most)]

    async def pause(self, name: str, *, paused: bool) -> bool:
        """Send nothing of an outbox, or go on; False if there is none."""
        return bool(await self._run("pause", name=name, paused=paused))

    async def retry(self, name: str, now: datetime, seqs: Sequence[int] | None = None) -> int:
        """Have what has failed tried again now; how many."""
        wanted = None if seqs is None else [*seqs]
        head = await self._run("retry", name=name, said=now.isoformat(), seqs=wanted)
        return len(head) + len(await self._run("retry_aside", name=name, now=now, seqs=wanted))

    async def skip(self, name: str, seq: int, now: datetime) -> bool:  # noqa: ARG002 - SQLite asks for the time
        """Pass a message by that has failed; False if none of this number has."""
        if await self._run("skip", name=name, seq=seq):
            return True
        return bool(await self._run("skip_aside", name=name, seq=seq))

    async def halt(self, name: str, trouble: Trouble) -> bool:
        """Have an outbox wait for somebody to look after it; False if there is none."""
        return bool(await self._run("halt", name=name, trouble=trouble.text()))

    async def hold(self, name: str, lease: int) -> bool:
        """Take an outbox from the relay that reads it, and keep it from all relays under a lease."""
        session = await begin(self._connections, BEGIN_INTERNAL)
        try:
            if not await self._fetch(session, "touch", name=name):
                return False
            await self._fetch(session, "hold_reader", reader=reader_name(name), lease=lease)
            await session.commit()
        finally:
            await session.rollback()
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
        """Go on from elsewhere; False if there is no such outbox."""
        if session is not None:
            return await self._place(session, name, at, backfill, now, forgets, interests)
        own = await begin(self._connections, BEGIN_INTERNAL)
        try:
            if not await self._place(own, name, at, backfill, now, forgets, interests):
                return False
            await own.commit()
        finally:
            await own.rollback()
        return True

    async def forget(self, name: str) -> bool:
        """Drop an outbox, with its reader and what is put aside; False if there is none."""
        session = await begin(self._connections, BEGIN_INTERNAL)
        try:
            found = await self._fetch(session, "forget", name=name)
            await self._fetch(session, "forget_reader", reader=reader_name(name))
            await session.commit()
        finally:
            await session.rollback()
        return bool(found)

    # ----- steps

    async def _advance(self, session: Session, step: Step, now: datetime) -> bool:
        if not await self._fetch(session, "advance", **_advanced(step, now)):
            return False
        if step.taken:
            await self._fetch(session, "take", outbox=step.outbox.id, seqs=[*step.taken])
        if step.put:
            lists = zip(*map(aside_values, step.put), strict=True)
            values = dict(zip(ASIDE, map(builtins.list, lists), strict=True))
            await self._fetch(session, "put", outbox=step.outbox.id, **values)
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
        if at is not None:
            await self._fetch(session, "hold_room")  # so that nothing after it is emptied meanwhile
        ((text, high),) = await self._fetch(session, "moment")
        here = Position(Snapshot.parse(text), high=high)
        if at is None:
            at = here
        elif at.high > high or max(at.seen.end, (at.batch or at.seen).end) > here.seen.end:
            raise CursorInvalid(f"The change feed has not reached {at} yet.", fix="Use a position of this database.")
        if not (rows := await self._fetch(session, "place", name=name, backfill=backfill)):
            return False
        outbox, interests = rows[0]
        if known is not None and [*known] != interests:
            raise Conflict(f"Outbox {name} was redeclared meanwhile.")
        await self._fetch(session, "put_reader", reader=reader_name(name), position=str(at), now=now)
        older = backfill not in {None, KEPT}
        await self._fetch(session, "forget_unread", outbox=outbox, interests=interests, older=older, **at.bounds())
        if forgets != "again":
            await self._fetch(session, "forget_aside", outbox=outbox, parked=forgets == "all")
        return True

    async def _list(self, name: str | None) -> builtins.list[OutboxRow]:
        rows = await self._run("list", name=name)
        return [outbox_of(row, row[7], row[8], row[9], row[14], row[17]) for row in rows]

    async def _fetch(self, session: OpenTransaction, query_name: str, /, **values: Any) -> Sequence[Row]:
        query = self._queries[query_name]
        return await session.fetch(query.statement, query.args(values))

    async def _run(self, query_name: str, /, **values: Any) -> Sequence[Row]:
        return await run(self._connections, self._queries[query_name], values)


def _advanced(step: Step, now: datetime) -> dict[str, Any]:
    return step_values(step) | {"skipped": [*step.skipped], "now": now}


def _asides(rows: Sequence[Row]) -> list[Aside]:
    return [aside_of(row, row[6], row[10], row[11]) for row in rows]
