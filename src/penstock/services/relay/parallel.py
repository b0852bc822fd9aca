"""Hands over messages beside each other, each of another key: a part of the relay.

Owns a window of messages that moves on while they are under way: which of them may begin, and what is written of those
that are done with though others before them are not. `sending` makes the attempts, `source` finds the messages, and
`delivery` decides about failures.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile

from penstock.clock import Clock
from penstock.errors import TryAgain
from penstock.observe.errortext import error_text
from penstock.observe.logs import event as log_event
from penstock.outbox.outbox import Outbox
from penstock.services.relay.cursor import Item, Standing
from penstock.services.relay.sending import Failure, Sending
from penstock.services.relay.source import Upcoming
from penstock.store.contract.outboxes import Aside, Step

OF_ALL_KEYS = frozenset({"truncate", "lost"})
_SPAN, _BYTES = 2000, 16 * 2**20  # from the first that is not done with to the last that is known
_AGAIN_AT_ONCE = 100
_LOOK_EVERY = 0.05  # seconds; who writes with penstock wakes it at once
_WRITE_EVERY = 1.0  # what is done with, while the first one is under way
_AGAIN_AFTER = 1.0  # when the database was away


@dataclass(slots=True, eq=False)
class Entry:
    """A message in the window.

    Attributes:
        item: The message.
        number: Its place in the order in which messages came.
        done: Whether it is done with.
        sent: Whether that is because it was sent.
        put: Whether that is because it was put aside.
    """

    item: Item
    number: int
    done: bool = False
    sent: bool = False
    put: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What the line of the outbox does.

    Attributes:
        stops: Whether nothing more is to begin.
        puts_aside: Says how a message is put aside that failed, and tells of it.
        writes: Writes a step, by which these messages are delivered.
    """

    stops: Callable[[], bool]
    puts_aside: Callable[[Item, Exception], Aside]
    writes: Callable[[Step, Sequence[Item]], Awaitable[None]]


class Beside:
    """One window of messages that are handed over beside each other.

    It moves on as messages are done with and that is written, so that one that takes long keeps no others waiting. What
    has failed before takes turns with what flows.

    Args:
        outbox: The outbox.
        standing: Where it stands.
        upcoming: Which messages are next.
        sending: Hands them over.
        hooks: What the line does.
        clock: The time.
        wake: Is set when there may be more messages.
        room: How many messages may have begun though nothing is written of them.
    """

    def __init__(
        self,
        outbox: Outbox,
        standing: Standing,
        upcoming: Upcoming,
        sending: Sending,
        hooks: Hooks,
        *,
        clock: Clock,
        wake: asyncio.Event,
        room: int,
    ) -> None:
        self._outbox = outbox
        self._standing = standing
        self._upcoming = upcoming
        self._sending = sending
        self._hooks = hooks
        self._clock = clock
        self._wake = wake
        self._room = room
        self._count = self._bytes = 0
        self._order = deque[Entry]()  # those that were not put aside before, from the first that is not done with
        self._known: dict[int, Entry] = {}  # those of which nothing is written, by their numbers
        self._lanes: dict[str, deque[Entry]] = {}
        self._ready = (deque[str](), deque[str]())  # the keys of what flows, and of what has failed
        self._turn = 0
        self._workers: set[asyncio.Task[None]] = set()
        self._fallen: list[BaseException] = []
        self._ended = self._full = self._closed = False
        self._news: list[Entry] = []
        self._put: list[Aside] = []
        self._stopped: set[str] = set()
        self._failures: dict[int, Failure] = {}
        self._looked_at = self._written_at = self._asked_at = clock.monotonic()
        self._released_at = self._again_at = 0.0

    async def run(self, items: Sequence[Item]) -> Failure | None:
        """Hand messages over, and those that follow; the first one that failed, if all before it are done with."""
        self._join(items)
        self._begin()
        try:
            while self._workers or (self._news and self._standing.row is not None):
                if self._workers:
                    await self._clock.wait(self._wake, _LOOK_EVERY)
                self._wake.clear()
                if self._fallen:
                    raise self._fallen[0]
                await self._go_on()
        finally:
            if self._order:
                self._upcoming.forget()
            await self._cut()
        left = min((entry.number for entry in self._known.values() if not entry.done), default=-1)
        return self._failures.get(left)

    async def _go_on(self) -> None:
        """Write, read and begin; a database that is away for a moment ends nothing that is under way."""
        if self._workers and self._clock.monotonic() < self._again_at:
            return
        ended, self._ended = self._ended, False
        try:
            await self._write()
            await self._read_on(woken=not ended)
        except TryAgain as error:
            if not self._workers:
                raise
            self._again_at = self._clock.monotonic() + _AGAIN_AFTER
            log_event("outbox.tick_failed", logging.WARNING, error=error_text(error), again_in=_AGAIN_AFTER)
        self._begin()

    # ----- which messages are in the window

    async def _read_on(self, *, woken: bool) -> None:
        """Have more join as there is room."""
        now = self._clock.monotonic()
        due = woken or now - self._looked_at >= _LOOK_EVERY
        if not due and self._upcoming.empty:
            return
        if due:
            self._looked_at = now
            if now - self._asked_at >= _WRITE_EVERY:
                self._asked_at = now
                self._closed = self._closed or await self._standing.is_changed()
            await self._read_aside(now)
        if self._may_join() and (room := self._has_room()) > 0:
            self._join(await self._upcoming.read_on(room))
        if not self._order and self._standing.row is not None and self._standing.row.backfill is None:
            await self._upcoming.keep_up()

    async def _read_aside(self, now: float) -> None:
        """Have those join that were put aside: what is to be tried again, and what waits no more.

        They are read anew each time, so more are only read when few of them are still to begin.
        """
        aside = [entry for entry in self._known.values() if entry.item.aside is not None]
        known = {entry.item.identity for entry in aside}
        places = min(self._outbox.parallelism, _AGAIN_AT_ONCE)
        rows_are_left = self._standing.row is not None and self._standing.row.backfill is not None
        if self._flows and self._may_join() and len(self._ready[1]) < places and (self._order or not rows_are_left):
            self._join(await self._upcoming.again(places + len(aside), known))
        if self._may_join() and (room := self._has_room()) > 0:
            states = [one.item.aside.state for one in aside if one.item.aside is not None and not one.done]
            still = states.count("waiting")
            if not still or now - self._released_at >= _WRITE_EVERY:
                self._released_at = now
                self._join(await self._upcoming.released(room + still, known))

    def _may_join(self) -> bool:
        return not self._full and not self._failures and self._may_begin()

    def _has_room(self) -> int:
        return 0 if self._bytes > _BYTES else min(self._room - len(self._known), _SPAN - len(self._order))

    def _join(self, items: Sequence[Item]) -> None:
        """Have messages join, up to one that is of all keys, or is to be skipped: that goes alone."""
        row = self._standing.row
        for item in items:
            if item.change.kind in OF_ALL_KEYS or (row is not None and item.change.seq in row.skips):
                self._full = True
                return
            self._upcoming.drop([item])
            self._add(Entry(item, self._count))
            self._count += 1

    def _add(self, entry: Entry) -> None:
        item, aside = entry.item, entry.item.aside
        if aside is None:
            self._order.append(entry)
            self._bytes += item.size
        elif item.key in self._stopped:
            return  # it waits again
        self._known[entry.number] = entry
        if self._sending.is_done(item):
            self._is_done(entry, sent=self._sending.was_sent(item))
        elif aside is None and (item.key in self._stopped or self._upcoming.is_kept(item)):
            self._keep(entry)
        elif aside is not None and self._upcoming.is_idle(item):
            self._is_done(entry)
        elif item.key in self._lanes:
            self._lanes[item.key].append(entry)
        else:
            self._lanes[item.key] = deque([entry])
            self._is_ready(item.key)

    @property
    def _flows(self) -> bool:
        """Whether others pass by one that fails."""
        return self._outbox.on_failure == "halt_key"

    # ----- handing over

    def _begin(self) -> None:
        """Have as many under way as may be."""
        if self._may_begin():
            free = self._outbox.parallelism - len(self._workers)
            for _ in range(min(free, sum(map(len, self._ready)))):
                worker = asyncio.create_task(self._work())
                self._workers.add(worker)
                worker.add_done_callback(self._has_ended)

    def _may_begin(self) -> bool:
        certain = self._standing.row is not None and not self._standing.uncertain
        return certain and not self._closed and not self._hooks.stops()

    async def _work(self) -> None:
        while (entry := self._next()) is not None:
            error = await self._sending.attempt(entry.item)
            self._ended = True
            self._wake.set()
            lane = self._lanes[entry.item.key]
            lane.popleft()
            if error is None:
                self._is_done(entry, sent=True)
            else:
                self._failed(entry, error, lane)
            if lane:
                self._is_ready(entry.item.key)
            else:
                del self._lanes[entry.item.key]

    def _next(self) -> Entry | None:
        """The message that begins next; none behind one that failed, unless it flows past that."""
        before = min(self._failures, default=self._count)
        self._turn = 1 - self._turn
        for ready in (self._ready[self._turn], self._ready[1 - self._turn]):
            while ready and self._may_begin():
                entry = self._lanes[ready.popleft()][0]
                if entry.number < before:
                    return entry
        return None

    def _failed(self, entry: Entry, error: Exception, lane: deque[Entry]) -> None:
        """If others flow past it, it is put aside, and so are those of its key; otherwise nothing more begins."""
        item = entry.item
        if (
            not self._flows or item.backfill is not None
        ):  # the numbers of older rows are not theirs before they are next
            self._failures[entry.number] = item, error
            lane.clear()
            return
        self._put.append(self._hooks.puts_aside(item, error))
        self._stopped.add(item.key)
        entry.put = True
        self._is_done(entry)
        for behind in lane:
            if behind.item.aside is None:
                self._keep(behind)
            else:
                del self._known[behind.number]
        lane.clear()

    def _keep(self, entry: Entry) -> None:
        """Put a message aside that waits for one of its key."""
        self._put.append(Aside(entry.item.change, entry.item.key, "waiting"))
        entry.put = True
        self._is_done(entry)

    def _is_ready(self, key: str) -> None:
        aside = self._lanes[key][0].item.aside
        self._ready[aside is not None and aside.state == "halted"].append(key)

    def _is_done(self, entry: Entry, *, sent: bool = False) -> None:
        entry.done, entry.sent = True, sent
        self._news.append(entry)

    def _has_ended(self, worker: asyncio.Task[None]) -> None:
        self._workers.discard(worker)
        error = asyncio.CancelledError() if worker.cancelled() else worker.exception()
        if error is not None:
            self._fallen.append(error)
        self._wake.set()

    async def _cut(self) -> None:
        """Begin nothing more, and end what is under way."""
        self._closed = True
        workers = list(self._workers)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    # ----- what is written

    async def _write(self) -> None:
        """Write what is done with: up to the first that is not, and from time to time which ones behind that are."""
        now, first = self._clock.monotonic(), self._order[0] if self._order else None
        moves = (first is not None and first.done) or any(entry.item.aside is not None for entry in self._news)
        waits = self._workers and self._has_room() > 0 and now - self._written_at < _WRITE_EVERY
        due = self._standing.uncertain or (self._news and (moves or self._put or not waits))
        if not due or self._standing.row is None:
            return
        self._written_at = now
        news, put = list(self._news), list(self._put)  # taken off once they are written: until then others come
        first_ones = [entry.item for entry in takewhile(lambda entry: entry.done, self._order)]
        done = first_ones + [entry.item for entry in news if entry.item.aside is not None and not entry.put]
        behind = {entry.item.identity for entry in islice(self._order, len(first_ones), None) if entry.done}
        sent = [entry.item for entry in news if entry.sent]
        await self._hooks.writes(self._standing.step(done, put=put, delivered=len(sent), passed=behind), sent)
        for item in first_ones:
            self._order.popleft()
            self._bytes -= item.size
        for entry in news:
            del self._known[entry.number]
        del self._news[: len(news)], self._put[: len(put)]
        self._stopped = {one.key for one in self._put}  # one of them may have failed meanwhile
