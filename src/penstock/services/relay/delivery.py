"""Delivers the messages of one outbox: holds it under the relay's lease, and does what `state` decides.

`source` gives messages, `workers` deliver them, `cursor` writes the outbox's state.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any

from penstock.api.outbox.declared import DeclaredOutbox
from penstock.calls.lease import Lease
from penstock.calls.run.runner import FunctionCalls
from penstock.errors import Conflict, TryAgain
from penstock.observe import points
from penstock.observe.logs import event as log_event
from penstock.outbox.trouble import Trouble
from penstock.services.relay.cursor import Cursor
from penstock.services.relay.items import Item
from penstock.services.relay.sending import Sending
from penstock.services.relay.source import Source
from penstock.services.relay.state import Decision, Report, Write
from penstock.services.relay.window import OF_ALL_KEYS
from penstock.services.relay.workers import LOOK_EVERY, Workers
from penstock.services.service import Service, end
from penstock.store.nouns.changes import BACKSTOP

_STATE_EVERY = 1.0
_STAND_BY = 1.0


class OutboxDelivery(Service):
    """Delivers the messages of one outbox; `on_failed` is called after each failed attempt."""

    name = "outbox"

    def __init__(self, runner: FunctionCalls, declared: DeclaredOutbox, lease: Lease) -> None:
        super().__init__(runner.engine.clock)
        self._signals = runner.engine.store.signals
        self._outbox = declared.outbox
        self._lease = lease
        self._cursor = Cursor(runner, declared)
        self._sending = Sending(runner, declared, self._cursor)
        self._source = Source(runner, self._cursor)
        self._looked_at = -1e9
        self.on_failed: Callable[[str, Trouble], None] = lambda _outbox, _trouble: None

    async def tick(self) -> float:
        """Deliver some messages; seconds until the next look."""
        try:
            return await self._tick()
        except Conflict:
            self._cursor.forget()  # what was read may be void, as the database has crashed since
            raise

    async def _tick(self) -> float:
        if (pause := await self._until_ready()) > 0:
            return pause
        trouble, now = self._cursor.state.trouble, self.clock.now()
        if trouble is not None and not trouble.due(now):
            return _until(trouble.retry_at, now, _STATE_EVERY)
        items = await self._source.next()
        if not items:
            return _until(self._cursor.state.retry_at, self.clock.now(), self._until_fed())
        if (wait := self._linger(items)) > 0:
            return wait
        self._cursor.state, decision = self._cursor.state.next(items, self.clock.now())
        await self._perform(decision)
        return 0.0

    @property
    def has_it(self) -> bool:
        return self._cursor.state.row is not None

    async def next_at(self) -> datetime | None:
        """The time at which it goes on by itself, if it waits: for a retry within its policy, or to linger."""
        if not self.has_it:
            return None
        times, since = await self._cursor.next_attempts(), self._cursor.state.batching.since
        if since is not None:
            left = since + self._outbox.linger.total_seconds() - self.clock.monotonic()
            times.append(self.clock.now() + timedelta(seconds=max(0.0, left)))
        return min(times, default=None)

    async def end(self, grace: float) -> None:
        """Stop; deliveries under way may end within this many seconds."""
        self._stopping = True
        self.wake.set()
        if (running := self._task) is not None:  # which is forgotten if the lease is lost meanwhile
            await asyncio.wait([running], timeout=grace)
            await end(running)
            self._task = None
        with contextlib.suppress(TryAgain):  # then they are delivered once more
            state = self._cursor.state
            unknown = not self.has_it or state.uncertain
            if unknown and state.all_finished and self._lease.number is not None:
                await self._take(self._lease.number)
            if (write := self._cursor.state.write_sent()) is not None:
                await self._cursor.write(write)
        await self._cursor.leave()

    async def interrupt(self) -> None:
        """Stop the deliveries under way, and go on when there is a lease again."""
        running = self._task is not None
        await self.kill()
        self._cursor.forget()
        if running and not self._stopping:
            self.start()

    # ----- holding the outbox

    async def _until_ready(self) -> float:
        """Take the outbox in its present state unless this process has it; seconds until it may, or 0."""
        lease, cursor = self._lease.number, self._cursor
        if lease is None or self._stopping:
            cursor.forget()
            return _STAND_BY
        if self._is_late():
            return _STATE_EVERY
        if self.has_it and (cursor.state.uncertain or await self._is_changed()):
            cursor.forget()
        if cursor.state.lease != lease and not await self._take(lease):
            return _STAND_BY
        row = cursor.state.row
        return 0.0 if row is not None and row.ready and not row.paused else _STATE_EVERY

    def _is_late(self) -> bool:
        """Whether another relay may have the outbox by now, as this process was paused or the database away."""
        return self.clock.monotonic() >= self._lease.stop_at

    async def _take(self, lease: int) -> bool:
        """Take the outbox; False if another relay has it, or the database does not know it."""
        self._source.forget()
        self._looked_at = self.clock.monotonic()
        await self._cursor.take(lease)
        return self.has_it

    async def _is_changed(self) -> bool:
        """See from time to time whether others have changed the outbox."""
        state, now = self._cursor.state, self.clock.monotonic()
        quiet = self._source.empty and now - self._looked_at >= _STATE_EVERY
        if not (quiet or state.trouble is not None or (state.row is not None and state.row.paused)):
            return False
        self._looked_at = now
        return await self._cursor.is_changed()

    def _until_fed(self) -> float:
        wakes = self._signals.until_fed(self.wake, self._source.position) >= BACKSTOP
        return BACKSTOP if wakes else LOOK_EVERY

    def _linger(self, items: Sequence[Item]) -> float:
        """The time for which a batch still waits to be filled, where more may come."""
        first, state = items[0], self._cursor.state
        new = first.aside is None and first.backfill is None
        if not (self._outbox.linger and new and self._source.exhausted):
            return 0.0
        if state.waits_for_key(first) or state.is_done(first):
            return 0.0
        batching, wait = state.batching.linger(self._outbox, items, state.at_once, self.clock.monotonic())
        self._cursor.state = replace(state, batching=batching)
        if wait > 0:
            self._source.forget()  # so that new messages are found
        return wait

    # ----- delivering

    async def _perform(self, decision: Decision) -> None:
        """Do what was decided about messages."""
        report, write = decision.report, decision.write
        if report is not None:
            self._report(report)
        if write is not None:
            if write.begun is not None:
                self._source.stay()
            await self._cursor.write(write)
            self._source.drop(write.drops)
            self._log_passed(write)
        if decision.deliver:
            await self._deliver(decision.deliver)

    async def _deliver(self, items: Sequence[Item]) -> None:
        """Deliver messages: in one transaction or call, or each by itself."""
        if points.armed:
            await points.reach("outbox.next", outbox=self._outbox.name, items=items)
        if self._is_late():  # it may have been suspended since it looked
            return
        state = self._cursor.state
        together = self._cursor.in_transaction or self._outbox.batch is not None
        wall = items[0].change.kind in OF_ALL_KEYS  # it goes alone, and no other key is delivered meanwhile
        if together and state.all_finished:
            items = list(takewhile(lambda item: not state.is_done(item), items))
        if wall and not together:
            items = items[:1]
        workers = Workers(
            self._cursor, self._source, self._sending,
            clock=self.clock, wake=self.wake, stops=lambda: self._stopping or self._is_late(), report=self._report,
        )  # fmt: skip
        failure = await workers.run(items, together=together or wall or state.at_once == 1)
        if failure is None:
            self._cursor.state = replace(self._cursor.state, batching=self._cursor.state.batching.more())
        elif self.has_it:
            chance = self.clock.random() if len(failure.items) == 1 else 0.0
            self._cursor.state, decision = self._cursor.state.fail(failure, self.clock.now(), chance)
            await self._perform(decision)
            if failure.busy and len(failure.items) > 1:
                log_event("outbox.again", outbox=self._outbox.name, messages=len(failure.items), error=failure.error)

    def _log_passed(self, write: Write) -> None:
        for item in write.drops:
            facts: dict[str, Any] = {"outbox": self._outbox.name, "message": item.change.seq}
            if item.change.seq in write.step.skipped:
                log_event("outbox.passed", **facts)
            elif any(one.state == "parked" for one in write.step.put):
                log_event("outbox.parked", logging.ERROR, **facts, key=item.log_key)

    def _report(self, report: Report) -> None:
        """Count and log a failed attempt."""
        trouble, outbox = report.trouble, self._outbox.name
        facts: dict[str, Any] = {"outbox": outbox, "message": trouble.seq, "key": report.item.log_key}
        facts["attempts"] = trouble.attempts
        self._cursor.count("failed", min(trouble.attempts, 1))  # none if it was only put off
        log_event("outbox.failed", logging.WARNING, **facts, error=trouble.error)
        if report.halts:
            log_event("outbox.halted", logging.ERROR, **facts, error=trouble.error)
        self.on_failed(outbox, trouble)


def _until(moment: datetime | None, now: datetime, most: float) -> float:
    return most if moment is None else min(most, max(0.001, (moment - now).total_seconds()))
