"""Outboxes on SQLite: how one stands, where its reader is and what is put aside are written in one turn."""

from __future__ import annotations

import builtins
import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from penstock.changes.position import Position
from penstock.errors import Conflict, CursorInvalid
from penstock.outbox.backfill import BEFORE_ALL
from penstock.outbox.outbox import reader_name
from penstock.outbox.trouble import Trouble
from penstock.store.contract.outboxes import KEPT, Aside, AsideCount, AsideState, Forgets, OutboxPlan, OutboxRow, Step
from penstock.store.contract.session import OpenTransaction, Row, Session
from penstock.store.rows.outboxes import ASIDE, aside_of, aside_values, outbox_of, plan_values, step_values
from penstock.store.sql.queries import load_queries
from penstock.store.sqlite.changes import SqliteChanges
from penstock.store.sqlite.dialect import encode_datetime
from penstock.store.sqlite.session import Begin, reading, writing

_TIMES = (8, 10, 11)  # of the values of a message that is put aside


class SqliteOutboxes:
    """See `store.outboxes.Outboxes`."""

    def __init__(self, begin_read: Begin, begin_write: Begin, changes: SqliteChanges) -> None:
        self._begin_read = begin_read
        self._begin_write = begin_write
        self._changes = changes
        self._queries = load_queries("penstock.store.sqlite", "outboxes", "?")

    async def declare(self, plan: OutboxPlan, backfill: str | None, now: datetime) -> OutboxRow:
        """Make an outbox known."""
        known = await self._list(plan.name)
        if known and known[0].plan == plan:  # who finds all as it is takes no lock
            return known[0]
        values = plan_values(plan) | {"keep_for": plan.keep_for.total_seconds(), "now": encode_datetime(now)}
        async with writing(self._begin_write) as session:
            if not await self._fetch(session, "add", **values, backfill=backfill):
                await self._execute(session, "declare", **values)
        return (await self._list(plan.name))[0]

    async def capture(self, outbox: int, interests: Sequence[int], meaning: str | None = None) -> None:
        """Have its messages read under these numbers too, and judged by this meaning."""
        values = {"interests": json.dumps([*interests]), "meaning": meaning}
        async with writing(self._begin_write) as session:
            await self._execute(session, "capture", outbox=outbox, **values)

    async def prepared(self, outbox: int) -> None:
        """Its changes are captured from now on."""
        async with writing(self._begin_write) as session:
            await self._execute(session, "prepared", outbox=outbox)

    async def topic(self, name: str) -> int:
        """The number of a topic, which is made known."""
        found = await self._read("topic", topic=name)
        if not found:
            async with writing(self._begin_write) as session:
                await self._execute(session, "add_topic", topic=name)
                found = await self._fetch(session, "topic", topic=name)
        return int(found[0][0])

    async def send(self, session: OpenTransaction, topic: str, payload: str, key: str | None) -> bool:
        """Send a message in a transaction; False if nobody has ever declared the topic."""
        return bool(await self._fetch(session, "send", topic=topic, payload=payload, key=key))

    async def resend(self, session: OpenTransaction, interest: int, rows: Sequence[tuple[str, str]]) -> None:
        """Append rows to the change feed as they are, each with its key."""
        await self._execute(session, "resend", interest=interest, rows=json.dumps([*rows]))

    async def list(self) -> builtins.list[OutboxRow]:
        """All outboxes by name."""
        return await self._list(None)

    async def advance(self, step: Step, now: datetime, session: Session | None = None) -> bool:
        """Write what a step says, in a transaction."""
        if session is not None:
            return await self._advance(session, step, now)
        own = await self._begin_write()
        try:
            if not await self._advance(own, step, now):
                return False
            await own.commit()
        finally:
            await own.rollback()
        return True

    async def waiting(self, outbox: int, limit: int) -> builtins.list[Aside]:
        """Messages that wait, of keys of which none has failed, in their order."""
        return _asides(await self._read("waiting", outbox=outbox, limit=limit))

    async def failed(self, outbox: int, now: datetime, limit: int) -> builtins.list[Aside]:
        """Messages that keep those of their key waiting, and are to be tried again by now."""
        return _asides(await self._read("failed", outbox=outbox, now=encode_datetime(now), limit=limit))

    async def next_retry(self, outbox: int) -> datetime | None:
        """When the next of these is to be tried again."""
        return _time_or_none((await self._read("next_retry", outbox=outbox))[0][0])

    async def kept_keys(self, outbox: int) -> set[str]:
        """The keys of which messages wait or have failed, those parked left out."""
        return {row[0] for row in await self._read("kept_keys", outbox=outbox)}

    async def turned(self, outbox: int) -> set[int]:
        """The numbers of messages aside that were turned into inserts."""
        return {row[0] for row in await self._read("turned", outbox=outbox)}

    async def put_keys(
        self, session: OpenTransaction, outbox: int, keys: Sequence[str], kinds: Sequence[str]
    ) -> set[str]:
        """Of rows with these keys those of which a change of these kinds was put aside, as a session sees it."""
        values = {"keys": json.dumps([*keys]), "kinds": json.dumps([*kinds])}
        return {row[0] for row in await self._fetch(session, "put_keys", outbox=outbox, **values)}

    async def aside(
        self, outbox: int, states: Sequence[AsideState], limit: int, after: int = BEFORE_ALL
    ) -> builtins.list[Aside]:
        """Messages that are put aside, in their order, after the one with a number."""
        return _asides(await self._read("aside", outbox=outbox, states=json.dumps([*states]), limit=limit, after=after))

    async def count_aside(self, outbox: int) -> dict[AsideState, int]:
        """How many messages are put aside, and how they stand."""
        return {row[0]: row[1] for row in await self._read("count_aside", outbox=outbox)}

    async def backlog(self, most: int) -> builtins.list[AsideCount]:
        """What is put aside of each outbox, by state; no more than `most` of each are counted."""
        rows = await self._read("backlog", most=most)
        return [AsideCount(row[0], row[1], row[2], _time(row[3]), row[4]) for row in rows]

    async def pause(self, name: str, *, paused: bool) -> bool:
        """Send nothing of an outbox, or go on; False if there is none."""
        async with writing(self._begin_write) as session:
            return bool(await self._fetch(session, "pause", name=name, paused=paused))

    async def retry(self, name: str, now: datetime, seqs: Sequence[int] | None = None) -> int:
        """Have what has failed tried again now; how many."""
        wanted = None if seqs is None else json.dumps([*seqs])
        async with writing(self._begin_write) as session:
            head = await self._fetch(session, "retry", name=name, said=now.isoformat(), seqs=wanted)
            aside = await self._fetch(session, "retry_aside", name=name, now=encode_datetime(now), seqs=wanted)
            if aside:
                await self._execute(session, "touch", name=name)
        return len(head) + len(aside)

    async def skip(self, name: str, seq: int, now: datetime) -> bool:  # noqa: ARG002 - as the promise has it
        """Pass a message by that has failed; False if none of this number has."""
        async with writing(self._begin_write) as session:
            if await self._fetch(session, "skip", name=name, seq=seq):
                return True
            gone = await self._fetch(session, "skip_aside", name=name, seq=seq)
            if gone:
                await self._execute(session, "touch", name=name)
        return bool(gone)

    async def halt(self, name: str, trouble: Trouble) -> bool:
        """Have an outbox wait for somebody to look after it; False if there is none."""
        async with writing(self._begin_write) as session:
            return bool(await self._fetch(session, "halt", name=name, trouble=trouble.text()))

    async def hold(self, name: str, lease: int) -> bool:
        """Take an outbox from the relay that reads it, and keep it from all relays under a lease."""
        async with writing(self._begin_write) as session:
            if not await self._fetch(session, "touch", name=name):
                return False
            await self._execute(session, "hold_reader", reader=reader_name(name), lease=lease)
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
        async with writing(self._begin_write) as own:
            return await self._place(own, name, at, backfill, now, forgets, interests)

    async def forget(self, name: str) -> bool:
        """Drop an outbox, with its reader and what is put aside; False if there is none."""
        async with writing(self._begin_write) as session:
            found = await self._fetch(session, "forget", name=name)
            await self._execute(session, "forget_reader", reader=reader_name(name))
        return bool(found)

    # ----- steps

    async def _advance(self, session: Session, step: Step, now: datetime) -> bool:
        move = step.move
        if not await self._changes.move(session, move.reader, move.lease, move.before, move.after, now):
            return False
        skipped, moment = json.dumps([*step.skipped]), encode_datetime(now)
        values = step_values(step)
        for name in ("reader", "lease", "before", "after"):
            del values[name]
        if not await self._fetch(session, "advance", **values, skipped=skipped, now=moment):
            return False
        if step.taken:
            await self._execute(session, "take", outbox=step.outbox.id, seqs=json.dumps([*step.taken]))
        if step.put:
            query = self._queries["put"]
            rows = [
                query.args({"outbox": step.outbox.id, **dict(zip(ASIDE, _stored(one), strict=True))})
                for one in step.put
            ]
            await session.execute_many(query.statement, rows)
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
        ((high,),) = await self._fetch(session, "moment")
        if at is None:
            at = Position(high=high)
        elif at.high > high:
            raise CursorInvalid(f"The change feed has not reached {at} yet.", fix="Use a position of this database.")
        if not (rows := await self._fetch(session, "place", name=name, backfill=backfill)):
            return False
        outbox, interests = rows[0]
        if known is not None and [*known] != json.loads(interests):
            raise Conflict(f"Outbox {name} was redeclared meanwhile.")
        moment = encode_datetime(now)
        await self._execute(session, "put_reader", reader=reader_name(name), position=str(at), now=moment)
        older = backfill not in {None, KEPT}
        values = {"outbox": outbox, "interests": interests, "high": at.high, "older": older}
        await self._execute(session, "forget_unread", **values)
        if forgets != "again":
            await self._execute(session, "forget_aside", outbox=outbox, parked=forgets == "all")
        return True

    async def _list(self, name: str | None) -> builtins.list[OutboxRow]:
        return [
            outbox_of(
                row,
                timedelta(seconds=row[7]),
                json.loads(row[8]),
                _time(row[9]),
                json.loads(row[14]),
                _time_or_none(row[17]),
            )
            for row in await self._read("list", name=name)
        ]

    async def _fetch(self, session: OpenTransaction, query_name: str, /, **values: Any) -> Sequence[Row]:
        query = self._queries[query_name]
        return await session.fetch(query.statement, query.args(values))

    async def _execute(self, session: OpenTransaction, query_name: str, /, **values: Any) -> None:
        query = self._queries[query_name]
        await session.execute(query.statement, query.args(values))

    async def _read(self, query_name: str, /, **values: Any) -> Sequence[Row]:
        async with reading(self._begin_read) as session:
            return await self._fetch(session, query_name, **values)


def _stored(one: Aside) -> list[Any]:
    values = list(aside_values(one))
    for place in _TIMES:
        values[place] = None if values[place] is None else encode_datetime(values[place])
    return values


def _asides(rows: Sequence[Row]) -> list[Aside]:
    return [aside_of(row, _time(row[6]), _time_or_none(row[10]), _time_or_none(row[11])) for row in rows]


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _time_or_none(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
