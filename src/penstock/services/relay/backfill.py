"""Reads the rows that are older than their outbox, with the changes captured while they are delivered.

Both are read in one snapshot, so of each row it is known whether its change comes before it or after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.calls.handlers.deliveries import Messages
from penstock.calls.run.runner import FunctionCalls
from penstock.changes.change import CapturedChange
from penstock.changes.position import Position
from penstock.dataclass import dataclass
from penstock.outbox.backfill import BackfillProgress
from penstock.services.relay.cursor import Cursor
from penstock.services.relay.items import Item, row_key
from penstock.store.nouns.changes import Batch
from penstock.store.nouns.interests import Source
from penstock.store.nouns.outboxes import Aside, OutboxRow
from penstock.store.session import OpenTransaction, Row, reading

_AT_ONCE = 2000


@dataclass(frozen=True, slots=True)
class Captured:
    """Changes captured while older rows are delivered, as messages to set aside."""

    put: Sequence[Aside]
    position: Position  # behind it
    complete: bool  # whether there was no more


@dataclass(frozen=True, slots=True)
class Page:
    """Some older rows."""

    items: list[Item]  # the rows that are messages
    left: BackfillProgress  # after all of them
    ended: bool
    captured: Captured  # to be set aside before


class Backfill:
    """The older rows of one outbox."""

    def __init__(self, runner: FunctionCalls, cursor: Cursor) -> None:
        self._store = runner.engine.store
        self._clock = runner.engine.clock
        self._messages = cursor.messages
        self._cursor = cursor

    async def read_captured(self, row: OutboxRow, start: Position) -> Captured:
        """The changes captured since, up to one read."""
        batch = await self._store.changes.read(start, _AT_ONCE, row.interests)
        if not batch.changes:
            return Captured([], batch.position, batch.complete)
        source = await self._store.interests.source(row.interests[-1])  # before a connection is held
        async with reading(self._store.begin_read) as session:
            return await self._to_set_aside(session, row, batch, source)

    async def page(self, row: OutboxRow, start: Position, limit: int) -> Page | None:
        """The next rows; None if more changes were captured than one read takes, or the table is not there.

        The changes up to `start` were just read: a session has no time for a reader that is far behind.
        """
        source = await self._store.interests.source(row.interests[-1])
        async with reading(self._store.begin_read) as session:
            batch = await self._store.changes.read(start, _AT_ONCE, row.interests, session)
            if source is None or not batch.complete:
                return None
            captured = await self._to_set_aside(session, row, batch, source)
            left = BackfillProgress.parse(row.backfill or "")
            if left.after is None:
                rows = await session.fetch(source.first, [limit])
            else:
                rows = await session.fetch(source.following, [left.after, limit])
            known = await self._keys_set_aside(session, row, left, [one[0] for one in rows])
        known |= {one.change.key for one in captured.put if one.change.kind in _covering(left) and one.change.key}
        items, left = self._items(row, batch, rows, known, left)
        return Page(items, left, len(rows) < limit, captured)

    # ----- steps

    def _items(
        self, row: OutboxRow, batch: Batch, rows: Sequence[Row], known: set[str], left: BackfillProgress
    ) -> tuple[list[Item], BackfillProgress]:
        """Rows that are no messages by themselves, as they were inserted or changed since, are passed over.

        With the others the reader moves past the changes captured before they were read, which are set aside by then.
        The one that has failed keeps its number; should it be gone, no other one gets that.
        """
        now, items, trouble = self._clock.now(), list[Item](), self._cursor.state.trouble
        failed = left.failed if trouble is None or trouble.seq >= 0 else (trouble.seq, trouble.key)
        for key, after, _before, at in rows:
            change = CapturedChange(0, row.interests[-1], "enter", key, None, after, now)
            if key in known or self._messages.kind(change) is None:
                left = left.at(at)
                continue
            if failed is not None and failed[1] != key:
                left, failed = left.at_number(failed[0]), None
            left = left.after_row(at, None if failed is None else failed[0])
            failed, change.seq = None, left.number
            number = len(batch.changes)
            items.append(Item(change, key_of(self._messages, change), batch, number, backfill=left.text()))
        return items, left if failed is None else left.at_number(failed[0])

    async def _keys_set_aside(
        self, session: OpenTransaction, row: OutboxRow, left: BackfillProgress, keys: Sequence[str]
    ) -> set[str]:
        """The rows whose set-aside messages come instead of them."""
        return await self._store.outboxes.put_keys(session, row.id, keys, _covering(left)) if keys else set()

    async def _to_set_aside(
        self, session: OpenTransaction, row: OutboxRow, batch: Batch, source: Source | None
    ) -> Captured:
        """Captured changes, as messages to set aside.

        In an order of their own, rows may move past the place that was reached. So each that is changed comes by its
        change: as one that is inserted, if it was not handed over before. If it was, it is only known by that.
        """
        left = BackfillProgress.parse(row.backfill or "")
        handed: set[str] | None = None
        if left.order and self._messages.tells("enter") and source is not None:
            handed = await self._keys_delivered(session, row, batch, source, left)
        put = []
        for change in batch.changes:
            kind, as_insert = self._messages.kind_of(change), False
            if handed is not None and kind in {"enter", "change"} and change.key is not None:
                as_insert = kind == "change" and change.key not in handed
                kind = "enter" if as_insert else kind
                handed.add(change.key)
            elif self._messages.kind(change) is None:
                continue
            meant = replace(change, kind=kind or change.kind)
            put.append(Aside(meant, key_of(self._messages, meant), "waiting", as_insert=as_insert))
        return Captured(put, batch.position, batch.complete)

    async def _keys_delivered(
        self, session: OpenTransaction, row: OutboxRow, batch: Batch, source: Source, left: BackfillProgress
    ) -> set[str]:
        """The keys of changed rows that were delivered before, or have a message set aside."""
        first: dict[str, CapturedChange] = {}  # by the later ones a row may have moved on
        for one in batch.changes:
            if one.key is not None and one.before is not None and self._messages.kind_of(one) == "change":
                first.setdefault(one.key, one)
        keys, changed = list(first), list(first.values())
        handed = await self._keys_set_aside(session, row, left, keys)
        handed |= {key for _, key in self._cursor.state.all_finished if key is not None}  # of older rows
        if changed and left.after is not None:
            rows = f"[{','.join(one.before or 'null' for one in changed)}]"
            passed = await session.fetch(source.passed, [rows, left.after])
            handed |= {keys[number] for (number,) in passed}
        return handed


def key_of(messages: Messages, change: CapturedChange) -> str:
    """The ordering key of a message, by which it waits for others."""
    key = messages.key(change)
    return row_key(change) if key is None else key


def _covering(left: BackfillProgress) -> tuple[str, ...]:
    """The kinds of changes that come instead of an older row."""
    return ("enter", "change") if left.order else ("enter",)
