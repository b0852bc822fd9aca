"""Outboxes at rest: their cursors, their readers, and their set-aside messages."""

from __future__ import annotations

import builtins
import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, field
from datetime import datetime, timedelta
from typing import Any, Literal

from penstock.changes.change import CapturedChange
from penstock.changes.position import Position, Snapshot
from penstock.dataclass import dataclass
from penstock.errors import Conflict, CursorInvalid
from penstock.outbox.backfill import BEFORE_ALL
from penstock.outbox.outbox import reader_name
from penstock.outbox.trouble import Trouble
from penstock.store.nouns.noun import Noun
from penstock.store.nouns.tasks import Move
from penstock.store.session import OpenTransaction, Row, Session

AsideState = Literal["waiting", "halted", "parked"]
Forgets = Literal["again", "pending", "all"]

Identity = tuple[int, str | None]  # of a message: its number; of an older row 0 and its key, as its number may change

KEPT = "kept"  # instead of a backfill: the one before


@dataclass(frozen=True, slots=True)
class OutboxPlan:
    """An outbox as a program declares it to the store."""

    name: str
    function: str  # the name of its handler
    kind: str
    source: str  # the table or the topic that it sends
    spec: str  # the other options, as JSON, to be shown
    version: int  # of the declaration
    keep_for: timedelta  # how long messages are kept at least


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """An outbox as it is kept."""

    id: int
    plan: OutboxPlan  # its last declaration
    # the numbers under which its messages are in the change feed, those of earlier declarations too
    interests: tuple[int, ...]
    declared_at: datetime  # when it was
    epoch: int  # the number of changes by others than the relay that reads it
    ready: bool  # whether its changes are captured
    paused: bool
    backfill: str | None  # the rest of the backfill, as `outbox.backfill` writes it; None if that is done
    skips: tuple[int, ...]  # the numbers of messages that are passed by
    trouble: Trouble | None  # the trouble of the next message, if it has failed
    delivered: int  # the number of delivered messages
    delivered_at: datetime | None  # the time of the last delivery
    rate: float = 0.0  # deliveries per second, over about a minute until then
    # the declarations under which changes were captured, by these numbers, as `outbox.criteria` writes them
    meanings: Mapping[int, str] = field(default_factory=dict)
    passed: frozenset[Identity] = frozenset()  # messages behind the one that is next which are done with already
    fence: int = 0  # the fencing number of its reader, which rises with each lease that takes it; 0 if none ever has


@dataclass(frozen=True, slots=True)
class AsideCount:
    """The number of messages of an outbox that are set aside in one state."""

    outbox: int
    state: AsideState
    number: int  # their number, as far as they were counted
    oldest_at: datetime  # the time at which the first of them was written
    used_up: int  # the number of those whose attempts are used up


@dataclass(frozen=True, slots=True)
class Aside:
    """A message that is not next any more, and not delivered."""

    change: CapturedChange  # its change
    key: str  # the key by which it is ordered
    # ``waiting`` for others to be delivered; ``halted``, as it has failed, and those of its key wait for it;
    # ``parked``, as it has failed, and nobody waits for it
    state: AsideState
    trouble: Trouble | None = None  # its trouble, if it has failed
    # whether it is delivered as an insert, and is a mere change in the feed: its row was older than the outbox, and
    # changed before the backfill delivered it
    as_insert: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a relay, written together, if the outbox and its reader are as the relay knows them."""

    outbox: OutboxRow  # the outbox as the relay knows it
    move: Move  # the move of its reader; none if its ends are the same
    backfill: str | None  # the rest of the backfill then
    trouble: Trouble | None = None  # the trouble of the next message then
    delivered: int = 0  # the number of messages delivered since
    put: Sequence[Aside] = ()  # messages that are put aside; one that was put aside before is written again
    taken: Sequence[int] = ()  # the numbers of messages that are aside no more
    skipped: Sequence[int] = ()  # the numbers of messages that were passed by, as was asked for
    passed: frozenset[Identity] = frozenset()  # all messages behind the one that is next then which are done with


class Outboxes(Noun, queries=("outboxes", "feed")):
    """Outboxes at rest: their cursors, and their set-aside messages."""

    async def declare(self, plan: OutboxPlan, backfill: str | None, now: datetime) -> OutboxRow:
        """Make an outbox known: as it was before, or not ready if it is new. A lower version changes nothing."""
        known = await self._list(plan.name)
        if not known:
            await self._run("add", **asdict(plan), backfill=backfill, now=now)
            known = await self._list(plan.name)  # which another program may have added just now
        if known[0].plan != plan:  # an unchanged declaration takes no lock, and needs no right to write
            await self._run("declare", **asdict(plan), now=now)
            known = await self._list(plan.name)
        return known[0]

    async def capture(self, outbox: int, interests: Sequence[int], meaning: str | None = None) -> None:
        """Have its messages read under these numbers too, and judged by these criteria."""
        await self._run("capture", outbox=outbox, interests=[*interests], meaning=meaning)

    async def note_prepared(self, outbox: int) -> None:
        """Note that its changes are captured from now on."""
        await self._run("prepared", outbox=outbox)

    async def topic(self, name: str) -> int:
        """The number of a topic, which is made known."""
        if not (found := await self._look("topic", topic=name)):
            await self._run("add_topic", topic=name)
            found = await self._look("topic", topic=name)
        return int(found[0][0])

    async def send(
        self, session: OpenTransaction, topic: str, payload: str, key: str | None, trace: str | None = None
    ) -> bool:
        """Send a message in a transaction, with its trace; False if nobody has ever declared the topic."""
        return bool(await self._fetch(session, "send", topic=topic, payload=payload, key=key, trace=trace))

    async def resend(self, session: OpenTransaction, interest: int, rows: Sequence[tuple[str, str]]) -> None:
        """Append rows to the change feed as they are, each with its key, in a transaction that has locked them."""
        keys, afters = ([row[place] for row in rows] for place in (0, 1))
        await self._fetch(session, "resend", interest=interest, rows=[*rows], keys=keys, afters=afters)

    async def list(self) -> builtins.list[OutboxRow]:
        """All outboxes by name."""
        return await self._list(None)

    async def advance(self, step: Step, now: datetime, session: Session | None = None) -> bool:
        """Write a step, in a transaction; by default in one of its own.

        Returns:
            False if the reader was lost, or the outbox was changed by others. The caller then rolls back the
            transaction.
        """
        if session is not None:
            return await self._advance(session, step, now)
        if not step.put and not step.taken and not self._queries["advance"].then:
            return bool(await self._run("advance", **_step_values(step), now=now))
        async with self._begin_kept() as own:
            if not await self._advance(own, step, now):
                return False
            await own.commit()
        return True

    async def waiting(self, outbox: int, limit: int) -> builtins.list[Aside]:
        """Messages that wait, of keys without a failed one, in their order."""
        return self._asides(await self._look("waiting", outbox=outbox, limit=limit))

    async def list_failed(self, outbox: int, now: datetime, limit: int) -> builtins.list[Aside]:
        """Messages that keep those of their key waiting, and are to be tried again by now; the longest due first."""
        return self._asides(await self._look("failed", outbox=outbox, now=now, limit=limit))

    async def next_retry(self, outbox: int) -> datetime | None:
        """The time of the next of these retries."""
        found: datetime | None = self._access.time((await self._look("next_retry", outbox=outbox))[0][0])
        return found

    async def list_kept_keys(self, outbox: int) -> set[str]:
        """The keys of messages that wait or have failed, without parked ones."""
        return {row[0] for row in await self._look("kept_keys", outbox=outbox)}

    async def inserts(self, outbox: int) -> set[int]:
        """The numbers of messages aside that are inserts, and mere changes in the feed."""
        return {row[0] for row in await self._look("inserts", outbox=outbox)}

    async def put_keys(
        self, session: OpenTransaction, outbox: int, keys: Sequence[str], kinds: Sequence[str]
    ) -> set[str]:
        """The keys among these for which a change of these kinds was set aside, as a session sees it."""
        return {row[0] for row in await self._fetch(session, "put_keys", outbox=outbox, keys=[*keys], kinds=[*kinds])}

    async def aside(
        self, outbox: int, states: Sequence[AsideState], limit: int, after: int = BEFORE_ALL
    ) -> builtins.list[Aside]:
        """Messages that are put aside, in their order, after the one with a number."""
        return self._asides(await self._look("aside", outbox=outbox, states=[*states], limit=limit, after=after))

    async def backlog(self, most: int) -> builtins.list[AsideCount]:
        """The set-aside messages of each outbox, by state; no more than `most` of each are counted."""
        return self._read(AsideCount, await self._look("backlog", most=most))

    async def pause(self, name: str, *, paused: bool) -> bool:
        """Send nothing of an outbox, or go on; False if there is none."""
        return bool(await self._run("pause", name=name, paused=paused))

    async def retry(self, name: str, now: datetime, seqs: Sequence[int] | None = None) -> int:
        """Retry failed messages now: the next one and those set aside, or some of these; their number."""
        wanted = None if seqs is None else [*seqs]
        async with self._writing() as session:
            head = await self._fetch(session, "retry", name=name, said=now.isoformat(), seqs=wanted)
            return len(head) + len(await self._fetch(session, "retry_aside", name=name, now=now, seqs=wanted))

    async def skip(self, name: str, seq: int) -> bool:
        """Pass a message by that has failed; False if none of this number has."""
        if await self._run("skip", name=name, seq=seq):
            return True
        return bool(await self._run("skip_aside", name=name, seq=seq))

    async def halt(self, name: str, trouble: Trouble) -> bool:
        """Have an outbox wait for somebody to look after it; False if there is none."""
        return bool(await self._run("halt", name=name, trouble=trouble.text()))

    async def hold(self, name: str, lease: int) -> bool:
        """Take an outbox from the relay that reads it, and keep it from all relays under a lease; False if none is."""
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
        """Go on from elsewhere; False if there is no such outbox.

        Args:
            name: The outbox.
            at: The position; None for the end of the feed.
            backfill: The new backfill; `KEPT` for the one before.
            now: The time.
            forgets: The set-aside messages to forget: messages that are read ``"again"``, which inserts of this outbox
                alone are not; with ``"pending"`` all but those parked; or ``"all"``.
            interests: The numbers under which it is known to be read; by default that does not matter.
            session: The transaction; by default one of its own.

        Raises:
            Conflict: It is read under other numbers by now.
            CursorInvalid: The feed has not come to this position yet: it is of another database.
        """
        async with self._writing() if session is None else nullcontext(session) as own:
            at = await self._check_position(own, at)
            if not (rows := await self._fetch(own, "place", name=name, backfill=backfill)):
                return False
            outbox, numbers = rows[0][0], self._access.items(rows[0][1])
            if interests is not None and [*interests] != numbers:
                raise Conflict(f"Outbox {name} was redeclared meanwhile.")
            await self._fetch(own, "put_reader", reader=reader_name(name), position=str(at), now=now)
            unread = {"interests": numbers, "older": backfill not in {None, KEPT}, "high": at.high}
            await self._fetch(own, "forget_unread", outbox=outbox, **unread, **at.bounds())
            if forgets != "again":
                await self._fetch(own, "forget_aside", outbox=outbox, parked=forgets == "all")
            return True

    async def forget(self, name: str) -> bool:
        """Drop an outbox, with its reader and its set-aside messages; False if there is none."""
        async with self._writing() as session:
            found = await self._fetch(session, "forget", name=name)
            await self._fetch(session, "forget_reader", reader=reader_name(name))
        return bool(found)

    # ----- steps

    async def _advance(self, session: Session, step: Step, now: datetime) -> bool:
        if not await self._fetch(session, "advance", **_step_values(step), now=now):
            return False
        if step.taken:
            await self._fetch(session, "take", outbox=step.outbox.id, seqs=[*step.taken])
        await self._fetch_each(session, "put", [_aside_values(one) for one in step.put], outbox=step.outbox.id)
        return True

    async def _check_position(self, session: Session, at: Position | None) -> Position:
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
        return self._read(
            OutboxRow,
            await self._look("list", name=name),
            meanings=lambda row: {int(number): said for number, said in json.loads(row["meanings"]).items()},
            passed=lambda row: frozenset((number, key) for number, key in json.loads(row["passed"])),
            fence=lambda row: row["fence"] or 0,
        )

    def _asides(self, rows: Sequence[Row]) -> builtins.list[Aside]:
        return self._read(Aside, rows, change=self._change_of, trouble=self._trouble_of)

    def _change_of(self, row: Row) -> CapturedChange:
        (change,) = self._read(CapturedChange, [row], key=lambda row: row["row_key"])
        return change

    def _trouble_of(self, row: Row) -> Trouble | None:
        if row["failed_at"] is None:
            return None
        return Trouble(
            since=self._access.time(row["failed_at"]),
            retry_at=self._access.time(row["retry_at"]),
            error=row["error"] or "",
            halted=bool(row["used_up"]),
            **{name: row[name] for name in ("seq", "attempts", "traceback", "deaths")},
        )


def _step_values(step: Step) -> dict[str, Any]:
    return {
        "outbox": step.outbox.id,
        "epoch": step.outbox.epoch,
        "reader": step.move.reader,
        "lease": step.move.lease,
        "before": str(step.move.before),
        "after": str(step.move.after),
        "server": step.move.after.server,
        "backfill": step.backfill,
        "trouble": None if step.trouble is None else step.trouble.text(),
        "delivered": step.delivered,
        "passed": json.dumps(sorted(step.passed, key=str)) if step.passed else "[]",
        "skipped": [*step.skipped],
    }


def _aside_values(one: Aside) -> dict[str, Any]:
    change, trouble = one.change, one.trouble
    return {
        "seq": change.seq,
        "key": one.key,
        "state": one.state,
        "interest": change.interest,
        "kind": change.kind,
        "row_key": change.key,
        "before": change.before,
        "after": change.after,
        "changed_at": change.changed_at,
        "attempts": trouble.attempts if trouble else 0,
        "failed_at": trouble.since if trouble else None,
        "retry_at": trouble.retry_at if trouble else None,
        "error": trouble.error if trouble else None,
        "traceback": trouble.traceback if trouble else None,
        "deaths": trouble.deaths if trouble else 0,
        "used_up": trouble.halted if trouble else False,
        "as_insert": one.as_insert,
    }
