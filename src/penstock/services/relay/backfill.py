"""The rows that are older than their outbox, and what was captured while they are handed over: a part of the relay.

Owns which rows are still to come, and their numbers. What was captured is read in the very snapshot in which rows are
read, so of each row it is known whether its change comes before or after. Leaves writing it to `services/relay/source`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from penstock.calls.handlers.deliveries import Messages
from penstock.calls.run.runner import Runner
from penstock.changes.change import CapturedChange
from penstock.changes.position import Position
from penstock.outbox.backfill import BackfillProgress
from penstock.services.relay.cursor import Item, Standing, unkeyed
from penstock.store.contract.changes import Batch, Source
from penstock.store.contract.outboxes import Aside, Identity, OutboxRow
from penstock.store.contract.session import OpenTransaction, Row

_AT_ONCE = 2000


@dataclass(frozen=True, slots=True)
class Captured:
    """What was captured while older rows are handed over.

    Attributes:
        put: As it is put aside.
        position: Where the reader is then.
        complete: Whether there was no more.
    """

    put: Sequence[Aside]
    position: Position
    complete: bool


@dataclass(frozen=True, slots=True)
class Page:
    """Some older rows.

    Attributes:
        outbox: The name of the outbox.
        items: Those that are messages.
        left: What is left after all of them.
        ended: Whether there are no more.
        aside: What was captured, as it is to be put aside before.
    """

    outbox: str
    items: list[Item]
    left: BackfillProgress
    ended: bool
    aside: Captured


class OlderRows:
    """The older rows of one outbox.

    Args:
        runner: Runs functions.
        messages: Makes messages of changes.
        standing: Where the outbox stands.
        sent: Messages that were sent, and it is not written that they were.
    """

    def __init__(self, runner: Runner, messages: Messages, standing: Standing, sent: Collection[Identity]) -> None:
        self._store = runner.engine.store
        self._clock = runner.engine.clock
        self._messages = messages
        self._standing = standing
        self._sent = sent

    async def captured(self, row: OutboxRow, start: Position) -> Captured:
        """What was captured since, as far as it is read at once."""
        batch = await self._store.changes.read(start, _AT_ONCE, row.interests)
        if not batch.changes:
            return Captured([], batch.position, batch.complete)
        source = await self._store.interests.source(row.interests[-1])  # before a connection is held
        session = await self._store.begin_read()
        try:
            return await self._captured(session, row, batch, source)
        finally:
            await session.rollback()

    async def page(self, row: OutboxRow, start: Position, limit: int) -> Page | None:
        """The next rows; None if more was captured than is read at once, or the table is not there.

        Args:
            row: The outbox.
            start: Up to where it is known what was captured. It was just read, as what comes since has to be read soon:
                a session has no time for a reader that is far behind.
            limit: How many rows.
        """
        source = await self._store.interests.source(row.interests[-1])
        session = await self._store.begin_read()
        try:
            batch = await self._store.changes.read(start, _AT_ONCE, row.interests, session)
            if source is None or not batch.complete:
                return None
            captured = await self._captured(session, row, batch, source)
            left = BackfillProgress.parse(row.backfill or "")
            if left.after is None:
                rows = await session.fetch(source.first, [limit])
            else:
                rows = await session.fetch(source.following, [left.after, limit])
            known = await self._known(session, row, left, [one[0] for one in rows])
        finally:
            await session.rollback()
        known |= {one.change.key for one in captured.put if one.change.kind in _covering(left) and one.change.key}
        items, left = self._items(row, batch, rows, known, left)
        return Page(row.plan.name, items, left, len(rows) < limit, captured)

    # ----- steps

    def _items(
        self, row: OutboxRow, batch: Batch, rows: Sequence[Row], known: set[str], left: BackfillProgress
    ) -> tuple[list[Item], BackfillProgress]:
        """Rows that are no messages by themselves, as they were inserted or changed since, are passed over.

        With the others the reader moves past what was captured until they were read, which is put aside by then. The
        one that has failed keeps its number; should it be gone, no other one gets that.
        """
        now, items, trouble = self._clock.now(), list[Item](), self._standing.trouble
        failed = left.failed if trouble is None or trouble.seq >= 0 else (trouble.seq, trouble.key)
        for key, after, _before, at in rows:
            change = CapturedChange(0, row.interests[-1], "enter", key, None, after, now)
            if key in known or self._messages.kind(change) is None:
                left = left.at(at)
                continue
            if failed is not None and failed[1] != key:
                left, failed = left.reached(failed[0]), None
            left = left.counted(at, None if failed is None else failed[0])
            failed, change.seq = None, left.number
            number = len(batch.changes)
            items.append(Item(change, key_of(self._messages, change), batch, number, backfill=left.text()))
        return items, left if failed is None else left.reached(failed[0])

    async def _known(
        self, session: OpenTransaction, row: OutboxRow, left: BackfillProgress, keys: Sequence[str]
    ) -> set[str]:
        """Of some rows those of which something was put aside that comes instead of them."""
        return await self._store.outboxes.put_keys(session, row.id, keys, _covering(left)) if keys else set()

    async def _captured(
        self, session: OpenTransaction, row: OutboxRow, batch: Batch, source: Source | None
    ) -> Captured:
        """What was captured, as it is put aside.

        In an order of their own, rows may move past the place that was reached. So each that is changed comes by its
        change: as one that is inserted, if it was not handed over before; if it was, it is only known by that.
        """
        left = BackfillProgress.parse(row.backfill or "")
        handed: set[str] | None = None
        if left.order and self._messages.tells("enter") and source is not None:
            handed = await self._handed(session, row, batch, source, left)
        put = []
        for change in batch.changes:
            kind, turned = self._messages.meant(change), False
            if handed is not None and kind in {"enter", "change"} and change.key is not None:
                turned = kind == "change" and change.key not in handed
                kind = "enter" if turned else kind
                handed.add(change.key)
            elif self._messages.kind(change) is None:
                continue
            meant = replace(change, kind=kind or change.kind)
            put.append(Aside(meant, key_of(self._messages, meant), "waiting", turned=turned))
        return Captured(put, batch.position, batch.complete)

    async def _handed(
        self, session: OpenTransaction, row: OutboxRow, batch: Batch, source: Source, left: BackfillProgress
    ) -> set[str]:
        """The keys of changed rows that were handed over before, or of which something is put aside."""
        first: dict[str, CapturedChange] = {}  # by the later ones a row may have moved on
        for one in batch.changes:
            if one.key is not None and one.before is not None and self._messages.meant(one) == "change":
                first.setdefault(one.key, one)
        keys, changed = list(first), list(first.values())
        handed = await self._known(session, row, left, keys)
        handed |= {key for _, key in (*self._sent, *self._standing.passed) if key is not None}  # of older rows
        if changed and left.after is not None:
            rows = f"[{','.join(one.before or 'null' for one in changed)}]"
            passed = await session.fetch(source.passed, [rows, left.after])
            handed |= {keys[number] for (number,) in passed}
        return handed


def key_of(messages: Messages, change: CapturedChange) -> str:
    """By which a message waits for others."""
    key = messages.key(change)
    return unkeyed(change) if key is None else key


def _covering(left: BackfillProgress) -> tuple[str, ...]:
    """Which kinds of changes come instead of an older row."""
    return ("enter", "change") if left.order else ("enter",)
