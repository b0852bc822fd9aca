"""Which messages of an outbox are next: a part of the relay.

Owns the order of sources: what has failed and is tried again, rows that are older than the outbox, what waited behind
either, and the change feed. While rows that are older are handed over, what is captured is put aside. Which rows these
are is `services/olderrows`'s.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence

from penstock.calls.deliveries import Messages
from penstock.calls.run import Runner
from penstock.changes.position import Position
from penstock.observe.logs import event as log_event
from penstock.services.olderrows import Captured, OlderRows, key_of
from penstock.services.reading import ReadSize
from penstock.services.standing import Identity, Item, Standing
from penstock.store.changes import Batch
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
        sent: Those that were sent, and it is not written that they were.
    """

    def __init__(
        self,
        runner: Runner,
        messages: Messages,
        standing: Standing,
        largest: Callable[[], int],
        sent: Collection[Identity],
    ) -> None:
        self._store = runner.engine.store
        self._clock = runner.engine.clock
        self._messages = messages
        self._standing = standing
        self._largest = largest
        self._buffer: deque[Item] = deque()
        self._end = standing.position
        self._after: Position | None = None
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
        """Whether a message waits for another one of its key."""
        return item.aside is None and item.key in self._standing.keys

    async def next(self) -> list[Item]:
        """The next messages: as many as may be handed over together, or some that are to be put aside."""
        standing, now = self._standing, self._clock.now()
        if standing.row is None:
            return []
        outbox, self._messages.meanings = standing.row.id, standing.row.meanings
        if standing.retry_at is not None and standing.retry_at <= now:
            again = await self._store.outboxes.failed(outbox, now, 1)
            if again:
                return [_aside(again[0])]
            standing.retry_at = await self._store.outboxes.next_retry(outbox)
        if standing.row.backfill is not None:
            return await self._older()
        if standing.waits and standing.keys:
            if (waiting := await self._waiting(outbox)) is not None:
                return waiting
            standing.keys = await self._store.outboxes.kept_keys(outbox)
        standing.waits = False
        if not self._buffer:
            await self._read(standing.row)
        return self._piece(self._buffer)

    # ----- steps

    @property
    def _read_to(self) -> Position:
        """Up to where all that was captured is known, though the reader may not have moved there yet."""
        return self._standing.position if self._after is None else self._after

    async def _read(self, row: OutboxRow) -> None:
        """Read on in the change feed."""
        looks, complete = 0, False
        while not self._buffer and not complete and looks < _LOOKS:
            batch = await self._store.changes.read(self._read_to, self._size.number, row.interests)
            self._size.adapt(batch)
            self._buffer.extend(self._items(batch))
            self._after, looks, complete = batch.position, looks + 1, batch.complete
        if self._buffer or self._after is None:
            self._after = None  # the last of them leads there
        elif self._clock.monotonic() - self._standing.moved_at >= _MOVE_EVERY:
            await self._standing.write(self._standing.step(after=self._after))

    def _items(self, batch: Batch) -> list[Item]:
        """The messages of a batch; what else was captured is passed by with the message before it."""
        found = [
            Item(change, key_of(self._messages, change), batch, number)
            for number, change in enumerate(batch.changes, 1)
            if change.seq not in self._standing.turned and self._messages.kind(change) is not None
        ]
        if found:
            found[-1].number = len(batch.changes)
        return found

    async def _waiting(self, outbox: int) -> list[Item] | None:
        """The first of those that wait, None if none do; what only told of rows that were handed over is dropped."""
        standing, limit = self._standing, min(_ASIDE_AT_ONCE, self._largest())
        while waiting := [_aside(one) for one in await self._store.outboxes.waiting(outbox, limit)]:
            idle = [item for item in waiting if self._messages.kind(item.change) is None]
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
        for _ in range(_LOOKS):
            while await self._put_aside():
                pass
            if self._standing.row is None or self._standing.row.backfill is None:
                return []
            most = min(_ROWS_AT_ONCE, self._largest())
            page = await self._older_rows.page(self._standing.row, self._read_to, most)
            if page is None or not await self._write_aside(page.aside):
                continue
            if page.items:
                return page.items
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
        standing, self._after = self._standing, captured.position
        late = self._clock.monotonic() - standing.moved_at >= _MOVE_EVERY
        if not captured.put and captured.complete and not late:
            return True
        return await standing.write(standing.step(after=captured.position, put=captured.put, trouble=standing.trouble))


def _aside(aside: Aside) -> Item:
    return Item(aside.change, aside.key, aside=aside)
