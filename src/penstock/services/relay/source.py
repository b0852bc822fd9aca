"""Which messages of an outbox are next: a part of the relay.

Owns the order of sources: rows that are older than the outbox, what waited behind them or behind what has failed, and
the change feed; what has failed takes turns with all of these. While rows that are older are handed over, what is
captured is put aside. Which rows these are is `services/relay/backfill`'s.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from itertools import islice, takewhile

from penstock.calls.handlers.deliveries import Messages
from penstock.calls.run.runner import Runner
from penstock.changes.change import LOST, CapturedChange
from penstock.changes.position import Position
from penstock.observe.logs import event as log_event
from penstock.outbox.outbox import Outbox
from penstock.outbox.trouble import Noted
from penstock.services.reading import ReadSize
from penstock.services.relay.backfill import Captured, OlderRows, key_of
from penstock.services.relay.cursor import Item, Standing
from penstock.store.contract.changes import Batch
from penstock.store.contract.outboxes import Aside, Identity, OutboxRow

_AT_ONCE = 2000
_ASIDE_AT_ONCE = 500
_ROWS_AT_ONCE = 500
_LOOKS = 10  # until there is something
_MOVE_EVERY = 5.0  # without messages, so that the feed can be emptied


class Upcoming:
    """The messages of one outbox that are next.

    Args:
        runner: Runs functions.
        outbox: The outbox.
        messages: Makes messages of changes.
        standing: Where it stands.
        largest: How many may be handed over together now.
        sent: Those that were sent, and it is not written that they were.

    Attributes:
        exhausted: Whether there was no more in the change feed when it was read last.
    """

    def __init__(
        self,
        runner: Runner,
        outbox: Outbox,
        messages: Messages,
        standing: Standing,
        largest: Callable[[], int],
        sent: Collection[Identity],
    ) -> None:
        self._store = runner.engine.store
        self._clock = runner.engine.clock
        self._batch, self._by_key = outbox.batch, outbox.on_failure == "halt_key"
        self._messages = messages
        self._standing = standing
        self._largest = largest
        self._sent = sent
        self._buffer: deque[Item] = deque()
        self._after: Position | None = None
        self._flows = False
        self.exhausted = False
        self._size = ReadSize(_AT_ONCE)
        self._older_rows = OlderRows(runner, messages, standing, sent)

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
        """Whether a message waits for another one of its key; an older row only for one that has failed."""
        if item.aside is not None or item.key not in self._standing.keys:
            return False
        if item.backfill is not None and not self._by_key:
            return False
        return item.identity not in self._standing.passed and item.identity not in self._sent

    def is_idle(self, item: Item) -> bool:
        """Whether a message that waited only told of a row that was handed over."""
        return self._messages.kind(item.change) is None

    async def next(self) -> list[Item]:
        """The next messages: as many as may be handed over together, or some that are to be put aside.

        What has failed and is due takes turns with what flows, so that neither keeps the other waiting.
        """
        if self._flows:
            self._flows = False
            if flowing := await self._flowing():
                return flowing
        if again := await self.again(1, ()):
            self._flows = True
            return again
        return await self._flowing()

    def stay(self) -> None:
        """What was next is so again."""
        self._flows = not self._flows

    async def again(self, limit: int, but: Container[Identity]) -> list[Item]:
        """Up to so many messages that have failed and are to be tried again by now; `but` some."""
        standing, now = self._standing, self._clock.now()
        if standing.row is None or standing.retry_at is None or standing.retry_at > now:
            return []
        self._messages.meanings = standing.row.meanings
        due = [_aside(one) for one in await self._store.outboxes.failed(standing.row.id, now, limit)]
        if not due:
            standing.retry_at = await self._store.outboxes.next_retry(standing.row.id)
        return [item for item in due if item.identity not in but]

    async def released(self, limit: int, but: Container[Identity]) -> list[Item]:
        """Up to so many messages that were put aside and wait no more; `but` some."""
        standing = self._standing
        if standing.row is None or standing.row.backfill is not None or not (standing.waits and standing.keys):
            return []
        waiting = [_aside(one) for one in await self._store.outboxes.waiting(standing.row.id, limit)]
        if not waiting:
            standing.keys, standing.waits = await self._store.outboxes.kept_keys(standing.row.id), False
        return [item for item in waiting if item.identity not in but]

    async def read_on(self, room: int) -> list[Item]:
        """Up to so many messages behind those that were dropped, or that are to be put aside.

        Of older rows those of the page at hand, up to one that is to be put aside: its number is not its own before.
        """
        standing = self._standing
        if standing.row is None:
            return []
        if standing.row.backfill is not None:
            return list(takewhile(lambda item: not self.is_kept(item), islice(self._buffer, room)))
        if not self._buffer:
            await self._read(standing.row)
        return list(islice(self._buffer, room))

    # ----- steps

    async def _flowing(self) -> list[Item]:
        """The next of those that have not failed."""
        standing = self._standing
        if standing.row is None:
            return []
        outbox, self._messages.meanings = standing.row.id, standing.row.meanings
        if standing.row.backfill is not None:
            return await self._older()
        if standing.waits and standing.keys:
            if (waiting := await self._waiting(outbox)) is not None:
                return waiting
            standing.keys = await self._store.outboxes.kept_keys(outbox)
        standing.waits = False
        if len(self._buffer) < self._least() and not (self._buffer and self.exhausted):
            await self._read(standing.row)
        await self.keep_up()
        return self._piece(self._buffer)

    async def keep_up(self) -> None:
        """Move the reader from time to time where there are no messages, so that the feed can be emptied."""
        standing = self._standing
        late = self._clock.monotonic() - standing.moved_at >= _MOVE_EVERY
        if late and not self._buffer and self._after is not None and self._after != standing.position:
            await standing.write(standing.step(after=self._after))

    def _least(self) -> int:
        """How many messages of the feed are to be at hand, if there are so many."""
        return min(self._batch or 1, self._largest())

    @property
    def _read_to(self) -> Position:
        """Up to where all that was captured is known, though the reader may not have moved there yet."""
        return self._standing.position if self._after is None else self._after

    async def _read(self, row: OutboxRow) -> None:
        """Read on in the change feed."""
        looks, self.exhausted = 0, False
        while len(self._buffer) < self._least() and not self.exhausted and looks < _LOOKS:
            batch = await self._store.changes.read(self._read_to, self._size.number, row.interests)
            self._size.adapt(batch)
            self._buffer.extend(self._items(batch, row))
            self._after, self.exhausted, looks = batch.position, batch.complete, looks + 1

    def _items(self, batch: Batch, row: OutboxRow) -> list[Item]:
        """The messages of a batch; what else was captured is passed by with the message before it."""
        found = list[Item]()
        for number, change in enumerate(batch.changes, 1):
            if change.seq not in self._standing.turned and self._messages.kind(change) is not None:
                item = Item(change, key_of(self._messages, change), batch, number)
                if change.kind == LOST:
                    item.lost = self._noted(found, row, change)
                found.append(item)
        if found:
            found[-1].number = len(batch.changes)
        return found

    def _noted(self, found: list[Item], row: OutboxRow, change: CapturedChange) -> Noted:
        """How many lost changes in a row this one tells of: it takes the place of those before it.

        None joins one that was told or is skipped, as nobody was told of more.
        """
        told = {*row.skips, 0 if row.trouble is None else row.trouble.seq}
        if not found or found[-1].lost is None or found[-1].change.seq in told:
            return 1, change.changed_at
        number, since = found.pop().lost or (0, change.changed_at)
        return number + 1, since

    async def _waiting(self, outbox: int) -> list[Item] | None:
        """The first of those that wait, None if none do; what only told of rows that were handed over is dropped."""
        standing, limit = self._standing, min(_ASIDE_AT_ONCE, self._largest())
        while waiting := [_aside(one) for one in await self._store.outboxes.waiting(outbox, limit)]:
            idle = [item for item in waiting if self.is_idle(item)]
            if idle and not await standing.write(standing.step(idle, trouble=standing.trouble)):
                return []
            if len(idle) < len(waiting):
                return self._piece([item for item in waiting if item not in idle])
            limit = _ASIDE_AT_ONCE  # where one is idle, many are
        return None

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

    async def _older(self) -> list[Item]:
        """The next rows that were there before the outbox; what is written meanwhile is put aside, and comes after."""
        if self._buffer and self._standing.trouble is None:
            return self._piece(self._buffer)
        for _ in range(_LOOKS):
            while await self._put_aside():
                pass
            if self._standing.row is None or self._standing.row.backfill is None:
                return []
            most = min(max(_ROWS_AT_ONCE, self._batch or 0), self._largest())
            page = await self._older_rows.page(self._standing.row, self._read_to, most)
            if page is None or not await self._write_aside(page.aside):
                continue
            if page.items:
                self._buffer.extend(page.items)
                return self._piece(self._buffer)
            if page.ended:
                log_event("outbox.backfilled", outbox=page.outbox, rows=page.left.count)
                await self._standing.write(self._standing.step(after=page.aside.position, filled=True))
                return await self.next()
            await self._standing.write(self._standing.step(after=page.aside.position, backfill=page.left.text()))
        return []

    async def _put_aside(self) -> bool:
        """Put aside what was captured since; whether there is more."""
        self._buffer.clear()
        if self._standing.row is None:
            return False
        captured = await self._older_rows.captured(self._standing.row, self._read_to)
        return await self._write_aside(captured) and not captured.complete

    async def _write_aside(self, captured: Captured) -> bool:
        """Write down what is put aside; False if nothing is known any more.

        Where there is nothing to put, the reader moves with the rows that are handed over; if none are, now and then.
        """
        standing = self._standing
        late = captured.position != standing.position and self._clock.monotonic() - standing.moved_at >= _MOVE_EVERY
        if captured.put or not captured.complete or late:
            step = standing.step(after=captured.position, put=captured.put, trouble=standing.trouble)
            if not await standing.write(step):
                return False
        self._after = captured.position  # only now: what could not be written is to be read again
        return True


def _aside(aside: Aside) -> Item:
    return Item(aside.change, aside.key, aside=aside)
