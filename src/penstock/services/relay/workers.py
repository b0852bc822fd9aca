"""Workers deliver the messages of a window at the same time, while the window is written and more messages join it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from penstock.clock import Clock
from penstock.dataclass import dataclass
from penstock.errors import TryAgain
from penstock.observe.errortext import error_text
from penstock.observe.logs import event as log_event
from penstock.services.relay.cursor import Cursor
from penstock.services.relay.items import Item
from penstock.services.relay.sending import Sending
from penstock.services.relay.source import Source
from penstock.services.relay.state import Failure, Report
from penstock.services.relay.window import Entry, Window
from penstock.services.service import end

LOOK_EVERY = 0.05  # seconds; writers that use penstock wake it at once
_RETRIES_AT_ONCE = 100
_WRITE_EVERY = 1.0  # for finished messages, while the oldest is under way
_AGAIN_AFTER = 1.0  # when the database was away


@dataclass(slots=True)
class _Times:
    """When the parts of the loop last ran, by the monotonic clock."""

    looked: float
    written: float
    asked: float  # whether others have changed the outbox
    released: float = 0.0
    again: float = 0.0  # when to go on after the database was away


class Workers:
    """The workers of one window, as many as the parallelism of the outbox."""

    def __init__(
        self,
        cursor: Cursor,
        source: Source,
        sending: Sending,
        *,
        clock: Clock,
        wake: asyncio.Event,  # set when there may be more messages
        stops: Callable[[], bool],  # whether nothing more is to start
        report: Callable[[Report], None],
    ) -> None:
        self._cursor = cursor
        self._source = source
        self._sending = sending
        self._clock = clock
        self._wake = wake
        self._stops = stops
        self._report = report
        self._window: Window
        self._tasks: set[asyncio.Task[None]] = set()
        self._broken: list[BaseException] = []
        self._reads_on = self._ended = self._closed = self._cut = False
        now = clock.monotonic()
        self._at = _Times(now, now, now)

    async def run(self, items: Sequence[Item], *, together: bool) -> Failure | None:
        """Deliver messages, together or each by itself; the first failure, if all before it are finished.

        With a parallelism, messages that follow join while others are under way.
        """
        self._window = Window(self._cursor.state, together=together)
        self._reads_on = self._cursor.outbox.parallelism > 1 and not together
        if together:
            self._window.add(self._cursor.state, items)
        else:
            self._join(items)
        self._start()
        try:
            while self._tasks or (not self._window.is_written and self._cursor.state.row is not None):
                if self._tasks and self._reads_on:
                    await self._clock.wait(self._wake, LOOK_EVERY)
                elif self._tasks:
                    await self._wake.wait()
                self._wake.clear()
                if self._broken:
                    raise self._broken[0]
                await self._go_on()
        finally:
            if self._reads_on and not self._window.is_clear:
                self._source.forget()
            self._cursor.state = self._cursor.state.remember(self._window.unwritten_items())
            self._closed = self._cut = True
            await end(*self._tasks)
        return self._window.failure()

    async def _go_on(self) -> None:
        """Write, read and start; a database that is away for a moment ends no delivery under way."""
        if self._tasks and self._clock.monotonic() < self._at.again:
            return
        ended, self._ended = self._ended, False
        try:
            await self._write()
            if self._reads_on:
                await self._read_on(woken=not ended)
        except TryAgain as error:
            if not self._tasks:
                raise
            self._at.again = self._clock.monotonic() + _AGAIN_AFTER
            log_event("outbox.tick_failed", logging.WARNING, error=error_text(error), again_in=_AGAIN_AFTER)
        self._start()

    async def _write(self) -> None:
        """Write the finished messages: up to the oldest unfinished one, and from time to time those behind it."""
        window, state, now = self._window, self._cursor.state, self._clock.monotonic()
        waits = self._tasks and window.room > 0 and now - self._at.written < _WRITE_EVERY
        due = state.uncertain or (not window.is_written and (window.moves or not waits))
        if not due or state.row is None:
            return
        self._at.written = now
        piece = window.piece(state)
        if await self._cursor.write(piece.write):
            window.forget(piece)
            for entry in piece.entries:
                self._source.drop(entry.items)

    # ----- which messages are in the window

    async def _read_on(self, *, woken: bool) -> None:
        """Have more messages join as there is room."""
        now = self._clock.monotonic()
        due = woken or now - self._at.looked >= LOOK_EVERY
        if not due and self._source.empty:
            return
        if due:
            self._at.looked = now
            if now - self._at.asked >= _WRITE_EVERY:
                self._at.asked = now
                self._closed = self._closed or await self._cursor.is_changed()
            await self._read_aside(now)
        if self._may_join() and (room := self._window.room) > 0:
            self._join(await self._source.read_on(room))
        row = self._cursor.state.row
        if self._window.is_clear and row is not None and row.backfill is None:
            await self._source.keep_up()

    async def _read_aside(self, now: float) -> None:
        """Have set-aside messages join: retries, and messages that wait for no other of their key any more.

        They are read again each time, so more are only read when few of them are still to start.
        """
        window, state = self._window, self._cursor.state
        known, still = window.aside()
        places = min(self._cursor.outbox.parallelism, _RETRIES_AT_ONCE)
        rows_are_left = state.row is not None and state.row.backfill is not None
        retries = state.by_key and window.lanes.retries < places and not (window.is_clear and rows_are_left)
        if retries and self._may_join():
            self._join(await self._cursor.retries(places + len(known), known))
        if self._may_join() and (room := window.room) > 0 and not (still and now - self._at.released < _WRITE_EVERY):
            self._at.released = now
            self._join(await self._cursor.take_released(room + still, known))

    def _may_join(self) -> bool:
        return not self._window.is_closed and self._may_start()

    def _join(self, items: Sequence[Item]) -> None:
        joined = self._window.join(self._cursor.state, items)
        if self._reads_on:
            self._source.drop(joined)

    # ----- delivering

    def _start(self) -> None:
        """Have as many deliveries under way as may be."""
        if self._may_start():
            free = self._cursor.outbox.parallelism - len(self._tasks)
            for _ in range(min(free, self._window.lanes.ready)):
                task = asyncio.create_task(self._work())
                self._tasks.add(task)
                task.add_done_callback(self._note_end)

    def _may_start(self) -> bool:
        state = self._cursor.state
        return state.row is not None and not state.uncertain and not self._closed and not self._stops()

    async def _work(self) -> None:
        """Deliver one after another, until nothing may start or a handler has cancelled this task."""
        task, window = asyncio.current_task(), self._window
        assert task is not None  # noqa: S101 - it runs in one
        while not task.cancelling() and self._may_start() and (entry := window.next()) is not None:
            failure = await self._sending.attempt(entry.items, lambda: self._cut)
            self._ended = True
            self._wake.set()
            if failure is not None:
                self._fail(entry, failure)
                continue
            window.end(entry, written=self._cursor.in_transaction)
            if self._cursor.in_transaction:
                self._source.drop(entry.items)
            elif self._cut:  # nobody looks at the window any more
                self._cursor.state = self._cursor.state.remember(entry.items)

    def _fail(self, entry: Entry, failure: Failure) -> None:
        if self._window.goes_on(entry):
            state, now, chance = self._cursor.state, self._clock.now(), self._clock.random()
            self._cursor.state, report = state.fail_one(entry.first, failure.error, now, chance)
            self._report(report)
            self._window.set_aside(entry, entry.first.set_aside("halted", report.trouble))
        else:
            self._window.end(entry, failure)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken.append(error)
        self._wake.set()
