"""The window: the messages under way, which of them may start, and which are done with.

Messages of different keys are delivered at the same time, as many as the parallelism says; with one, all are in one
lane, in their order. The window moves on as messages are done with, so one that takes long keeps no others waiting.
Messages done with behind the oldest that is not are recorded in `passed`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile

from penstock.clock import Clock
from penstock.errors import TryAgain
from penstock.observe.errortext import error_text
from penstock.observe.logs import event as log_event
from penstock.outbox.outbox import Outbox
from penstock.services.relay.cursor import Cursor, Item
from penstock.services.relay.sending import Failure, Sending
from penstock.services.relay.source import Source
from penstock.services.service import end
from penstock.store.nouns.outboxes import Aside

OF_ALL_KEYS = frozenset({"truncate", "lost"})
LOOK_EVERY = 0.05  # seconds; writers that use penstock wake it at once
_SPAN, _BYTES = 2000, 16 * 2**20  # from the oldest that is not done with to the last that is known
_RETRIES_AT_ONCE = 100
_WRITE_EVERY = 1.0  # for messages done with, while the oldest is under way
_AGAIN_AFTER = 1.0  # when the database was away


@dataclass(slots=True, eq=False)
class Entry:
    """Messages in the window that are delivered together: one, or all that are in the window."""

    items: Sequence[Item]
    number: int  # in the order in which entries came
    done: bool = False
    sent: bool = False  # done with because it was sent
    put: bool = False  # done with because it was put aside

    @property
    def first(self) -> Item:
        """Its first message: all come from aside, or none does."""
        return self.items[0]


class Window:
    """Deliveries of one outbox that are under way."""

    def __init__(
        self,
        outbox: Outbox,
        cursor: Cursor,
        source: Source,
        sending: Sending,
        *,
        clock: Clock,
        wake: asyncio.Event,  # set when there may be more messages
        room: int,  # so many messages may have started though nothing is written of them
        stops: Callable[[], bool],  # whether nothing more is to start
        put_aside: Callable[[Item, Exception], Aside],  # of a message that failed while other keys go on
    ) -> None:
        self._parallelism = outbox.parallelism
        self._by_key = outbox.on_failure == "halt_key"
        self._cursor = cursor
        self._source = source
        self._sending = sending
        self._clock = clock
        self._wake = wake
        self._room = room
        self._stops = stops
        self._put_aside = put_aside
        self._count = self._bytes = 0
        self._order = deque[Entry]()  # those that were not put aside before, from the oldest that is not done with
        self._known: dict[int, Entry] = {}  # those of which nothing is written, by their numbers
        self._lanes: dict[str, deque[Entry]] = {}  # lanes: messages that start one after another
        self._ready = (deque[str](), deque[str]())  # the lanes whose first may start: of new messages, of retries
        self._turn = 0
        self._workers: set[asyncio.Task[None]] = set()
        self._broken: list[BaseException] = []
        self._together = self._reads_on = self._ended = self._full = self._closed = self._cut = False
        self._news: list[Entry] = []
        self._put: list[Aside] = []
        self._stopped: set[str] = set()
        self._failures: dict[int, Failure] = {}
        self._looked_at = self._written_at = self._asked_at = clock.monotonic()
        self._released_at = self._again_at = 0.0

    async def run(self, items: Sequence[Item], *, together: bool) -> Failure | None:
        """Deliver messages, together or each by itself; the first failure, if all before it are done with.

        With a parallelism, messages that follow join while others are under way.
        """
        self._together, self._reads_on = together, self._parallelism > 1 and not together
        if together:
            self._add(items)
        else:
            self._join(items)
        self._start()
        try:
            while self._workers or (self._news and self._cursor.row is not None):
                if self._workers and self._reads_on:
                    await self._clock.wait(self._wake, LOOK_EVERY)
                elif self._workers:
                    await self._wake.wait()
                self._wake.clear()
                if self._broken:
                    raise self._broken[0]
                await self._go_on()
        finally:
            if self._reads_on and self._order:
                self._source.forget()
            await self._cancel()
        left = min((entry.number for entry in self._known.values() if not entry.done), default=-1)
        return self._failures.get(left)

    async def _go_on(self) -> None:
        """Write, read and start; a database that is away for a moment ends no delivery under way."""
        if self._workers and self._clock.monotonic() < self._again_at:
            return
        ended, self._ended = self._ended, False
        try:
            await self._write()
            if self._reads_on:
                await self._read_on(woken=not ended)
        except TryAgain as error:
            if not self._workers:
                raise
            self._again_at = self._clock.monotonic() + _AGAIN_AFTER
            log_event("outbox.tick_failed", logging.WARNING, error=error_text(error), again_in=_AGAIN_AFTER)
        self._start()

    # ----- which messages are in the window

    async def _read_on(self, *, woken: bool) -> None:
        """Have more messages join as there is room."""
        now = self._clock.monotonic()
        due = woken or now - self._looked_at >= LOOK_EVERY
        if not due and self._source.empty:
            return
        if due:
            self._looked_at = now
            if now - self._asked_at >= _WRITE_EVERY:
                self._asked_at = now
                self._closed = self._closed or await self._cursor.is_changed()
            await self._read_aside(now)
        if self._may_join() and (room := self._has_room()) > 0:
            self._join(await self._source.read_on(room))
        row = self._cursor.row
        if not self._order and row is not None and row.backfill is None:
            await self._source.keep_up()

    async def _read_aside(self, now: float) -> None:
        """Have set-aside messages join: retries, and those that wait for none of their key any more.

        They are read anew each time, so more are only read when few of them are still to start.
        """
        aside = [entry for entry in self._known.values() if entry.first.aside is not None]
        known = {entry.first.identity for entry in aside}
        places = min(self._parallelism, _RETRIES_AT_ONCE)
        rows_are_left = self._cursor.row is not None and self._cursor.row.backfill is not None
        if self._by_key and self._may_join() and len(self._ready[1]) < places and (self._order or not rows_are_left):
            self._join(await self._cursor.retries(places + len(aside), known))
        if self._may_join() and (room := self._has_room()) > 0:
            still = sum(not _is_retry(entry.first) and not entry.done for entry in aside)
            if not still or now - self._released_at >= _WRITE_EVERY:
                self._released_at = now
                self._join(await self._cursor.released(room + still, known))

    def _may_join(self) -> bool:
        return not self._full and not self._failures and self._may_start()

    def _has_room(self) -> int:
        return 0 if self._bytes > _BYTES else min(self._room - len(self._known), _SPAN - len(self._order))

    def _join(self, items: Sequence[Item]) -> None:
        """Have messages join, up to one that is of all keys, or is to be skipped: that goes alone."""
        skips = () if self._cursor.row is None else self._cursor.row.skips
        for item in items:
            if item.change.kind in OF_ALL_KEYS or item.change.seq in skips:
                self._full = True
                return
            if self._reads_on:
                self._source.drop((item,))
            self._add((item,))

    def _add(self, items: Sequence[Item]) -> None:
        entry = Entry(items, self._count)
        item, aside = entry.first, entry.first.aside
        if aside is None:
            self._order.append(entry)
            self._bytes += item.size
        elif item.key in self._stopped:
            return  # it waits again
        self._count += 1
        self._known[entry.number] = entry
        if self._source.is_done(item):
            self._is_done(entry, sent=self._cursor.was_sent(item))
        elif aside is None and (item.key in self._stopped or self._source.waits_for_key(item)):
            self._keep(entry)
        elif (lane := item.key if self._parallelism > 1 else "") in self._lanes:
            self._lanes[lane].append(entry)
        else:
            self._lanes[lane] = deque((entry,))
            self._is_ready(lane)

    # ----- delivering

    def _start(self) -> None:
        """Have as many deliveries under way as may be."""
        if self._may_start():
            free = self._parallelism - len(self._workers)
            for _ in range(min(free, len(self._ready[0]) + len(self._ready[1]))):
                worker = asyncio.create_task(self._work())
                self._workers.add(worker)
                worker.add_done_callback(self._has_ended)

    def _may_start(self) -> bool:
        certain = self._cursor.row is not None and not self._cursor.uncertain
        return certain and not self._closed and not self._stops()

    async def _work(self) -> None:
        """Deliver one after another, until nothing may start or a handler has cancelled this task."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - it runs in one
        while not task.cancelling() and (name := self._next()) is not None:
            lane = self._lanes[name]
            entry = lane[0]
            failure = await self._sending.attempt(entry.items, lambda: self._cut)
            self._ended = True
            self._wake.set()
            lane.popleft()
            if failure is not None:
                self._failed(entry, failure, lane)
            elif self._sending.in_transaction:
                self._leave(entry)
            else:
                self._is_done(entry, sent=True)
            if lane:
                self._is_ready(name)
            else:
                del self._lanes[name]

    def _next(self) -> str | None:
        """The lane whose first message starts next; none behind one that failed, unless others go on."""
        before = min(self._failures, default=self._count)
        self._turn = 1 - self._turn
        for ready in (self._ready[self._turn], self._ready[1 - self._turn]):
            while ready and self._may_start():
                lane = ready.popleft()
                if self._lanes[lane][0].number < before:
                    return lane
        return None

    def _failed(self, entry: Entry, failure: Failure, lane: deque[Entry]) -> None:
        """If messages of other keys go on, put it aside with those of its key; otherwise start nothing more."""
        item = entry.first
        if self._together or not self._by_key or item.backfill is not None:  # an older row has no number before
            self._failures[entry.number] = failure
            lane.clear()
            return
        self._put.append(self._put_aside(item, failure.error))
        self._stopped.add(item.key)
        entry.put = True
        self._is_done(entry)
        behind = [one for one in lane if one.first.key == item.key]
        for one in behind:
            lane.remove(one)
            if one.first.aside is None:
                self._keep(one)
            else:
                del self._known[one.number]

    def _keep(self, entry: Entry) -> None:
        """Put a message aside that waits for one of its key."""
        self._put.append(Aside(entry.first.change, entry.first.key, "waiting"))
        entry.put = True
        self._is_done(entry)

    def _is_ready(self, lane: str) -> None:
        self._ready[_is_retry(self._lanes[lane][0].first)].append(lane)

    def _is_done(self, entry: Entry, *, sent: bool = False) -> None:
        entry.done, entry.sent = True, sent
        self._news.append(entry)

    def _leave(self, entry: Entry) -> None:
        """An entry is done with, and that is written."""
        if self._order and self._order[0] is entry:
            self._order.popleft()
            self._bytes -= entry.first.size
        self._source.drop(entry.items)
        self._known.pop(entry.number, None)

    def _has_ended(self, worker: asyncio.Task[None]) -> None:
        self._workers.discard(worker)
        if not worker.cancelled() and (error := worker.exception()) is not None:
            self._broken.append(error)
        self._wake.set()

    async def _cancel(self) -> None:
        """Start nothing more, and cancel the deliveries under way."""
        self._closed = self._cut = True
        await end(*self._workers)

    # ----- writing

    async def _write(self) -> None:
        """Write the finished messages: up to the oldest unfinished one, and from time to time those behind it."""
        now, oldest = self._clock.monotonic(), self._order[0] if self._order else None
        moves = (oldest is not None and oldest.done) or any(entry.first.aside is not None for entry in self._news)
        waits = self._workers and self._has_room() > 0 and now - self._written_at < _WRITE_EVERY
        due = self._cursor.uncertain or (self._news and (moves or self._put or not waits))
        if not due or self._cursor.row is None:
            return
        self._written_at = now
        news, put = list(self._news), list(self._put)  # taken off once they are written: until then others come
        first = list(takewhile(lambda entry: entry.done, self._order))
        behind = [entry for entry in islice(self._order, len(first), None) if entry.done]
        aside = [entry for entry in news if entry.first.aside is not None and not entry.put]
        sent = _items_of(entry for entry in news if entry.sent)
        step = self._cursor.step(
            _items_of([*first, *aside]),
            put=put,
            delivered=len(sent),
            passed={item.identity for item in _items_of(behind)},
        )
        await self._cursor.write(step, sent)
        for entry in (*first, *news):
            self._leave(entry)
        del self._news[: len(news)], self._put[: len(put)]
        self._stopped = {one.key for one in self._put}  # one of them may have failed meanwhile


def _is_retry(item: Item) -> bool:
    return item.aside is not None and item.aside.state == "halted"


def _items_of(entries: Iterable[Entry]) -> list[Item]:
    return [item for entry in entries for item in entry.items]
