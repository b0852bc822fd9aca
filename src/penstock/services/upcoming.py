"""Which messages of an outbox are next: a part of the relay.

Owns the order of sources: what has failed and is tried again, rows that are older than the outbox, what waited behind
either, and the change feed. While rows that are older are handed over, what is captured is put aside.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from penstock.calls.deliveries import Messages
from penstock.calls.run import Runner
from penstock.changes.change import CapturedChange
from penstock.observe.logs import event as log_event
from penstock.outbox.message import BEFORE_ALL
from penstock.services.standing import Item, Standing
from penstock.store.changes import Batch
from penstock.store.contract import Row
from penstock.store.outboxes import Aside, OutboxRow

_AT_ONCE = 2000
_ASIDE_AT_ONCE = 500
_ROWS_AT_ONCE = 500
_LOOKS = 10  # until there is something
_MOVE_EVERY = 5.0  # without messages, so that the feed can be emptied


class Upcoming:
    """The messages of one outbox that are next.

    Args:
        runner: Runs functions.
        messages: Makes messages of changes.
        standing: Where the outbox stands.
        largest: How many may be handed over together now.
    """

    def __init__(self, runner: Runner, messages: Messages, standing: Standing, largest: Callable[[], int]) -> None:
        self._store = runner.engine.store
        self._clock = runner.engine.clock
        self._messages = messages
        self._standing = standing
        self._largest = largest
        self._buffer: deque[Item] = deque()
        self._end = standing.position
        self._after: Batch | None = None

    @property
    def empty(self) -> bool:
        """Whether nothing is at hand."""
        return not self._buffer

    def forget(self) -> None:
        """What is at hand may not be next any more."""
        self._buffer.clear()
        self._after = None

    def drop(self, items: Iterable[Item]) -> None:
        """These are done with."""
        for item in items:
            if self._buffer and self._buffer[0] is item:
                self._buffer.popleft()

    def is_kept(self, item: Item) -> bool:
        """Whether a message waits for another one of its key."""
        return item.aside is None and item.key in self._standing.keys

    async def next(self) -> list[Item]:
        """The next messages: as many as may be handed over together, or some that are to be put aside."""
        standing, now = self._standing, self._clock.now()
        if standing.row is None:
            return []
        outbox = standing.row.id
        if standing.retry_at is not None and standing.retry_at <= now:
            again = await self._store.outboxes.failed(outbox, now, 1)
            if again:
                return [_aside(again[0])]
            standing.retry_at = await self._store.outboxes.next_retry(outbox)
        if standing.row.backfill is not None:
            return await self._older(standing.row)
        if standing.waits and standing.keys:
            waiting = await self._store.outboxes.waiting(outbox, min(_ASIDE_AT_ONCE, self._largest()))
            if waiting:
                return self._piece([_aside(one) for one in waiting])
            standing.keys = await self._store.outboxes.kept_keys(outbox)
        standing.waits = False
        if not self._buffer:
            await self._read(standing.row)
        return self._piece(self._buffer)

    # ----- steps

    async def _read(self, row: OutboxRow) -> None:
        """Read on in the change feed."""
        looks, complete = 0, False
        while not self._buffer and not complete and looks < _LOOKS:
            start = self._standing.position if self._after is None else self._after.position
            self._after = batch = await self._store.changes.read(start, _AT_ONCE, row.interests)
            self._buffer.extend(self._items(batch))
            looks, complete = looks + 1, batch.complete
        if self._buffer or self._after is None:
            self._after = None  # the last of them leads there
        elif self._clock.monotonic() - self._standing.moved_at >= _MOVE_EVERY:
            await self._standing.write(self._standing.step(after=self._after.position))

    def _items(self, batch: Batch) -> list[Item]:
        """The messages of a batch; what else was captured is passed by with the message before it."""
        found = [
            Item(change, self._key(change), batch, number)
            for number, change in enumerate(batch.changes, 1)
            if self._messages.kind(change) is not None
        ]
        if found:
            found[-1].number = len(batch.changes)
        return found

    def _key(self, change: CapturedChange) -> str:
        key = self._messages.key(change)
        return f"\x01{change.seq}" if key is None else key  # of no key: in nobody's way

    def _piece(self, items: Sequence[Item] | deque[Item]) -> list[Item]:
        """The first of some messages: as many as are handed over at once, or all in a row that are put aside."""
        if not items:
            return []
        kept = self.is_kept(items[0])
        most = _AT_ONCE if kept else self._largest()
        piece: list[Item] = []
        for item in items:
            if len(piece) >= most or self.is_kept(item) is not kept:
                break
            piece.append(item)
        return piece

    # ----- rows that are older

    async def _older(self, row: OutboxRow) -> list[Item]:
        """The next rows that were there before the outbox; what is written meanwhile is put aside, and comes after."""
        for _ in range(_LOOKS):
            while await self._put_aside(row):
                pass
            if self._standing.row is None or self._standing.row.backfill is None:
                return []
            at = json.loads(self._standing.row.backfill)
            limit = min(_ROWS_AT_ONCE, self._largest())
            found = await self._rows(row, at["after"], limit)
            if found is None:
                continue
            rows, known, ended = found
            items = self._of_rows(row, rows, known, at["count"])
            if items:
                return items
            if ended:
                log_event("outbox.backfilled", outbox=row.plan.name, rows=at["count"])
                await self._standing.write(self._standing.step(filled=True))
                return await self.next()
            if rows:
                left = json.dumps({"after": rows[-1][0], "count": at["count"]})
                await self._standing.write(self._standing.step(backfill=left))
        return []

    async def _rows(self, row: OutboxRow, after: str | None, limit: int) -> tuple[Sequence[Row], set[str], bool] | None:
        """Rows after a key, which of these are messages by themselves, as they were inserted since, and if it was all.

        Nothing while more of those are unread than could be known, or the table is not there. Where triggers tell of
        more than is meant, one that was changed since may have come by that: it is read once that is put aside.
        """
        number = row.interests[-1]
        source = await self._store.interests.source(number)
        session = await self._store.begin_read()
        try:
            kinds = ("enter",) if self._messages.exact else ("enter", "change")
            unread = [
                await self._store.changes.unread(session, self._standing.position, number, _AT_ONCE, kind)
                for kind in kinds
            ]
            if source is None or None in unread:
                return None
            if after is None:
                rows = await session.fetch(source.first, [limit])
            else:
                rows = await session.fetch(source.following, [after, limit])
            put = await self._store.outboxes.put_keys(session, row.id, [one[0] for one in rows])
        finally:
            await session.rollback()
        entered, *changed = [keys or set() for keys in unread]
        sure = next((count for count, one in enumerate(rows) if changed and one[0] in changed[0]), len(rows))
        return rows[:sure], entered | put, len(rows) < limit and sure == len(rows)

    def _of_rows(self, row: OutboxRow, rows: Sequence[Row], known: set[str], count: int) -> list[Item]:
        now, items = self._clock.now(), list[Item]()
        for key, after, _before in rows:
            if key in known:
                continue
            count += 1
            change = CapturedChange(BEFORE_ALL + count, row.interests[-1], "enter", key, None, after, now)
            if self._messages.kind(change) is not None:
                left = json.dumps({"after": key, "count": count})
                items.append(Item(change, self._key(change), backfill=left))
        return items

    async def _put_aside(self, row: OutboxRow) -> bool:
        """Put aside what was captured since; whether there is more."""
        self.forget()
        if self._standing.row is None:
            return False
        batch = await self._store.changes.read(self._standing.position, _AT_ONCE, row.interests)
        put = [Aside(self._meant(item.change), item.key, "waiting") for item in self._items(batch)]
        if put or not batch.complete:
            step = self._standing.step(after=batch.position, put=put, trouble=self._standing.trouble)
            await self._standing.write(step)
        return not batch.complete

    def _meant(self, change: CapturedChange) -> CapturedChange:
        """A change as the kind that is meant: rows that are inserted by it are told from others by that."""
        return replace(change, kind=self._messages.kind(change) or change.kind)


def _aside(aside: Aside) -> Item:
    return Item(aside.change, aside.key, aside=aside)
