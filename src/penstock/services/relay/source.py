"""Gives the next messages of an outbox: older rows, then messages released from aside, then those of the change feed.

Retries take turns with all of these. While older rows are delivered, captured changes are set aside.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice, takewhile

from penstock.calls.run.runner import FunctionCalls
from penstock.changes.change import LOST, CapturedChange
from penstock.changes.position import Position
from penstock.observe.logs import event as log_event
from penstock.outbox.trouble import Noted
from penstock.services.reading import ReadSize
from penstock.services.relay.backfill import Backfill, Captured, key_of
from penstock.services.relay.cursor import Cursor
from penstock.services.relay.items import Item
from penstock.store.nouns.changes import Batch
from penstock.store.nouns.outboxes import OutboxRow

_AT_ONCE = 2000
_ASIDE_AT_ONCE = 500
_ROWS_AT_ONCE = 500
_LOOKS = 10  # until there is something
_MOVE_EVERY = 5.0  # without messages, so that the feed can be emptied


class Source:
    """The next messages of one outbox."""

    def __init__(self, runner: FunctionCalls, cursor: Cursor) -> None:
        self._changes = runner.engine.store.changes
        self._clock = runner.engine.clock
        self._cursor = cursor
        self._buffer: deque[Item] = deque()
        self._read_to: Position | None = None
        self._retried_last = False
        self.exhausted = False  # whether the change feed had no more when it was read last
        self._size = ReadSize(_AT_ONCE)
        self._backfill = Backfill(runner, cursor)

    @property
    def empty(self) -> bool:
        """Whether no message of the feed, and no older row, is at hand."""
        return not self._buffer

    @property
    def position(self) -> Position:
        """The place up to which the feed is read, though the reader may not have moved there yet."""
        return self._cursor.state.position if self._read_to is None else self._read_to

    def forget(self) -> None:
        """Drop the messages at hand; they are read again."""
        self._buffer.clear()
        self._read_to = None

    def drop(self, items: Iterable[Item]) -> None:
        """Drop messages that are taken, or done with."""
        for item in items:
            if self._buffer and self._buffer[0] is item:
                self._buffer.popleft()

    async def next(self) -> list[Item]:
        """The next messages: as many as may be delivered together, or messages that wait for their keys."""
        if self._retried_last:
            self._retried_last = False
            if items := await self._new():
                return items
        if retries := await self._cursor.retries(1):
            self._retried_last = True
            return retries
        return await self._new()

    def stay(self) -> None:
        """Give the same messages again."""
        self._retried_last = not self._retried_last

    async def read_on(self, room: int) -> list[Item]:
        """Messages behind the dropped ones, as long as there is room.

        Of older rows only those of the page at hand, up to the first that waits for its key. The numbers behind it are
        not known before.
        """
        state = self._cursor.state
        row = state.row
        if row is None:
            return []
        if row.backfill is not None:
            return list(takewhile(lambda item: not state.waits_for_key(item), islice(self._buffer, room)))
        if not self._buffer:
            await self._read(row)
        return list(islice(self._buffer, room))

    async def keep_up(self) -> None:
        """Move the reader from time to time where there are no messages, so that the feed can be emptied."""
        if self._is_late() and not self._buffer and self._read_to not in {None, self._cursor.state.position}:
            await self._cursor.write(self._cursor.state.write(after=self._read_to))

    def _is_late(self) -> bool:
        return self._clock.monotonic() - self._cursor.moved_at >= _MOVE_EVERY

    async def _new(self) -> list[Item]:
        """The next messages that have not failed."""
        row = self._cursor.state.row
        if row is None:
            return []
        if row.backfill is not None:
            return await self._older_rows()
        if released := await self._cursor.take_released(min(_ASIDE_AT_ONCE, self._cursor.state.at_once)):
            return released
        if len(self._buffer) < self._least() and not (self._buffer and self.exhausted):
            await self._read(row)
        await self.keep_up()
        return self._piece()

    def _least(self) -> int:
        """The number of messages of the feed to have at hand, if there are as many."""
        return min(self._cursor.outbox.batch or 1, self._cursor.state.at_once)

    def _piece(self) -> list[Item]:
        """The first messages at hand: as many as are delivered at once, or all in a row that wait for their keys."""
        state = self._cursor.state
        if not self._buffer or not state.keys:
            return list(islice(self._buffer, state.at_once))
        waits = state.waits_for_key(self._buffer[0])
        most = islice(self._buffer, _AT_ONCE if waits else state.at_once)
        return list(takewhile(lambda item: state.waits_for_key(item) is waits, most))

    # ----- the change feed

    async def _read(self, row: OutboxRow) -> None:
        looks, self.exhausted = 0, False
        while len(self._buffer) < self._least() and not self.exhausted and looks < _LOOKS:
            batch = await self._changes.read(self.position, self._size.number, row.interests)
            self._size.adapt(batch)
            self._buffer.extend(self._items(batch, row))
            self._read_to, self.exhausted, looks = batch.position, batch.complete, looks + 1

    def _items(self, batch: Batch, row: OutboxRow) -> list[Item]:
        """The messages of a batch; other changes are done with when the message before them is."""
        found, messages, inserts = list[Item](), self._cursor.messages, self._cursor.state.inserts
        for number, change in enumerate(batch.changes, 1):
            if change.seq not in inserts and messages.kind(change) is not None:
                item = Item(change, key_of(messages, change), batch, number)
                if change.kind == LOST:
                    item.lost = self._count_lost(found, row, change)
                found.append(item)
        if found:
            found[-1].number = len(batch.changes)
        return found

    def _count_lost(self, found: list[Item], row: OutboxRow, change: CapturedChange) -> Noted:
        """The number of lost changes in a row that this one stands for: it takes the place of those before it.

        None joins one that was logged or is skipped, as nobody was told of more.
        """
        told = {*row.skips, 0 if row.trouble is None else row.trouble.seq}
        if not found or found[-1].lost is None or found[-1].change.seq in told:
            return 1, change.changed_at
        number, since = found.pop().lost or (0, change.changed_at)
        return number + 1, since

    # ----- older rows

    async def _older_rows(self) -> list[Item]:
        """The next older rows; changes captured meanwhile are set aside, and come after them."""
        state, outbox = self._cursor.state, self._cursor.outbox
        if self._buffer and (state.trouble is None or self._buffer[0].identity in state.begun):
            return self._piece()
        for _ in range(_LOOKS):
            self._buffer.clear()
            while (row := self._cursor.state.row) is not None:
                captured = await self._backfill.read_captured(row, self.position)
                if not await self._put_aside(captured) or captured.complete:
                    break
            row = self._cursor.state.row
            if row is None or row.backfill is None:
                return []
            most = min(max(_ROWS_AT_ONCE, outbox.batch or 0), state.batching.whole)
            page = await self._backfill.page(row, self.position, most)
            if page is None or not await self._put_aside(page.captured):
                continue
            if page.items:
                self._buffer.extend(page.items)
                return self._piece()
            after = page.captured.position
            if page.ended:
                log_event("outbox.backfilled", outbox=outbox.name, rows=page.left.count)
                await self._cursor.write(self._cursor.state.write(after=after, filled=True))
                return await self.next()
            left = page.left.text()
            await self._cursor.write(self._cursor.state.write(after=after, backfill=left))
        return []

    async def _put_aside(self, captured: Captured) -> bool:
        """Write the messages that are set aside; False if the outbox is lost.

        Where there is nothing to put, the reader moves with the older rows; if there are none, now and then.
        """
        state = self._cursor.state
        late = captured.position != state.position and self._is_late()
        if captured.put or not captured.complete or late:
            write = state.write(after=captured.position, put=captured.put, trouble=state.trouble)
            if not await self._cursor.write(write):
                return False
        self._read_to = captured.position  # only now: messages that could not be written are read again
        return True
