"""Delivers the messages of one outbox: holds it under the relay's lease, and follows the policy after a failure.

`source` gives messages, `window` delivers them, `cursor` writes the outbox's progress.
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
from penstock.calls.run.runner import Runner
from penstock.errors import Conflict, TryAgain, WorkerLost
from penstock.observe import points
from penstock.observe.logs import event as log_event
from penstock.outbox.trouble import Trouble, after_failure
from penstock.services.relay.batching import Batching
from penstock.services.relay.cursor import Cursor, Item
from penstock.services.relay.sending import Failure, Sending
from penstock.services.relay.source import Source
from penstock.services.relay.window import LOOK_EVERY, OF_ALL_KEYS, Window
from penstock.services.service import Service, end
from penstock.store.nouns.changes import BACKSTOP
from penstock.store.nouns.outboxes import Aside

_STATE_EVERY = 1.0
_STAND_BY = 1.0


class OutboxDelivery(Service):
    """Delivers the messages of one outbox; `on_failed` is called after each failed attempt."""

    name = "outbox"

    def __init__(self, runner: Runner, declared: DeclaredOutbox, lease: Lease) -> None:
        super().__init__(runner.engine.clock)
        self._signals = runner.engine.store.signals
        self._outbox = declared.outbox
        self._lease = lease
        self._messages = declared.messages(runner.engine.store.dialect)
        self._cursor = Cursor(runner, declared.outbox)
        self._sending = Sending(runner, declared, self._messages, self._cursor)
        self._batching = Batching(declared.outbox, self.clock, in_transaction=self._sending.in_transaction)
        self._source = Source(runner, declared.outbox, self._messages, self._cursor, self._batching)
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
        cursor, now = self._cursor, self.clock.now()
        if cursor.trouble is not None and not cursor.trouble.due(now):
            return _until(cursor.trouble.retry_at, now, _STATE_EVERY)
        items = await self._source.next()
        if not items:
            return _until(cursor.retry_at, self.clock.now(), self._until_fed())
        if (wait := self._linger(items)) > 0:
            return wait
        await self._deliver(items)
        return 0.0

    @property
    def has_it(self) -> bool:
        return self._cursor.row is not None

    async def next_at(self) -> datetime | None:
        """The time at which it goes on by itself, if it waits: for a retry within its policy, or to linger."""
        if not self.has_it:
            return None
        times, left = await self._cursor.next_attempts(), self._batching.lingers()
        return min([*times, *([] if left is None else [self.clock.now() + timedelta(seconds=left)])], default=None)

    async def end(self, grace: float) -> None:
        """Stop; deliveries under way may end within this many seconds."""
        self._stopping = True
        self.wake.set()
        if (running := self._task) is not None:  # which is forgotten if the lease is lost meanwhile
            await asyncio.wait([running], timeout=grace)
            await end(running)
            self._task = None
        with contextlib.suppress(TryAgain):  # then they are delivered once more
            unknown = not self.has_it or self._cursor.uncertain
            if unknown and self._cursor.finished and self._lease.number is not None:
                await self._take(self._lease.number)
            await self._cursor.write_sent()
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
        if cursor.row is not None and (cursor.uncertain or await self._is_changed()):
            cursor.forget()
        if (cursor.row is None or cursor.lease != lease) and not await self._take(lease):
            return _STAND_BY
        return 0.0 if cursor.row is not None and cursor.row.ready and not cursor.row.paused else _STATE_EVERY

    def _is_late(self) -> bool:
        """Whether another relay may have the outbox by now, as this process was paused or the database away."""
        return self.clock.monotonic() >= self._lease.stop_at

    async def _take(self, lease: int) -> bool:
        """Take the outbox; False if another relay has it, or the database does not know it."""
        self._source.forget()
        self._batching.reset()
        self._looked_at = self.clock.monotonic()
        died = await self._cursor.take(lease)
        if died is not None:
            self._batching.careful = self._batching.whole
        elif not self._cursor.resumed:
            self._batching.careful = 0
        if self._cursor.row is not None:
            self._messages.meanings = self._cursor.row.meanings
        return self._cursor.row is not None

    async def _is_changed(self) -> bool:
        """See from time to time whether others have changed the outbox."""
        cursor, now = self._cursor, self.clock.monotonic()
        quiet = self._source.empty and now - self._looked_at >= _STATE_EVERY
        if not (quiet or cursor.trouble is not None or (cursor.row is not None and cursor.row.paused)):
            return False
        self._looked_at = now
        return await cursor.is_changed()

    def _until_fed(self) -> float:
        told = self._signals.until_fed(self.wake, self._source.position) >= BACKSTOP
        return BACKSTOP if told else LOOK_EVERY

    def _linger(self, items: Sequence[Item]) -> float:
        """The time for which a batch still waits to be filled, where more may come."""
        first, source = items[0], self._source
        new = first.aside is None and first.backfill is None
        if not new or not source.exhausted or source.waits_for_key(first) or source.is_done(first):
            return 0.0
        if (wait := self._batching.linger(items, source.largest)) > 0:
            source.forget()  # so that new messages are found
        return wait

    # ----- delivering

    async def _deliver(self, items: list[Item]) -> None:
        row, source = self._cursor.row, self._source
        assert row is not None  # noqa: S101 - it has the outbox
        if source.waits_for_key(items[0]):
            await self._write(items, put=[Aside(item.change, item.key, "waiting") for item in items])
            return
        if done := self._done_of(items):
            await self._write(done, delivered=sum(map(self._cursor.is_unwritten, done)))
            return
        if skipped := [item.change.seq for item in items if item.change.seq in row.skips]:
            await self._skip(items, skipped[0])
            return
        if self._batching.careful and not await self._may_try(items[0]):
            return
        if points.armed:
            await points.reach("outbox.next", outbox=self._outbox.name, items=items)
        if self._is_late():  # it may have been suspended since it looked
            return
        await self._open_window(items)

    def _done_of(self, items: Sequence[Item]) -> list[Item]:
        """Messages that are done with already; only the first ones, but of those aside any."""
        if items[0].aside is not None:
            return [item for item in items if self._source.is_done(item)]
        return list(takewhile(self._source.is_done, items))

    async def _open_window(self, items: Sequence[Item]) -> None:
        """Deliver messages: in one transaction or call, or each by itself."""
        together = self._sending.in_transaction or self._outbox.batch is not None
        wall = items[0].change.kind in OF_ALL_KEYS  # it goes alone, and no other key is delivered beside it
        if together and self._cursor.finished:
            items = list(takewhile(lambda item: not self._source.is_done(item), items))
        if wall and not together:
            items = items[:1]
        window = Window(
            self._outbox, self._cursor, self._source, self._sending,
            clock=self.clock, wake=self.wake, room=self._batching.whole,
            stops=lambda: self._stopping or self._is_late(), put_aside=self._halted,
        )  # fmt: skip
        failure = await window.run(items, together=together or wall or self._source.largest == 1)
        if failure is not None:
            if self._cursor.row is not None:
                await self._failed(failure)
        else:
            self._batching.more()

    async def _may_try(self, item: Item) -> bool:
        """Whether a message may be tried after a process has died, maybe of it.

        Each is delivered alone, and the beginning of its attempt is written, until as many are done with as the
        process may have had under way. So a poison message is known when the next process has died of it. The first
        death counts as one of its attempts.
        """
        if self._cursor.has_begun(item):
            self._batching.careful -= 1
            return True
        known, now, most = self._cursor.known(item), self.clock.now(), self._outbox.retry.max_attempts
        if known is not None and most is not None and known.deaths >= max(most, 2):
            await self._pass_by(item, replace(known, halted=True, retry_at=None), known)
            return False
        error = WorkerLost("The process that delivered it died.")
        begun = after_failure(self._outbox.retry, item.change.seq, known, error, now, 0.0)
        at = now if known is None or known.retry_at is None else min(now, known.retry_at)  # so that it is next again
        deaths = max(begun.deaths, 2)
        begun = replace(begun, halted=False, deaths=deaths, retry_at=at, key=item.change.key, left=item.backfill)
        self._source.stay()
        if item.aside is not None and item.aside.state == "halted":
            await self._write([item], put=[Aside(item.change, item.key, "halted", begun)], keeps=True)
        else:
            await self._write(trouble=begun)
        self._cursor.begin(item, known)
        return False

    async def _skip(self, items: list[Item], seq: int) -> None:
        """Skip a message, once those before it are delivered."""
        if items[0].change.seq != seq:
            self._batching.fewer(next(number for number, item in enumerate(items) if item.change.seq == seq))
            return
        await self._write(items[:1], skipped=[seq])
        log_event("outbox.passed", outbox=self._outbox.name, message=seq)

    # ----- failures

    async def _failed(self, failure: Failure) -> None:
        """Find the message that failed: fewer are delivered together, until it is alone. Then follow the policy."""
        items, done = failure.items, failure.done
        if len(items) == 1:
            await self._pass_by(items[0], *self._trouble(items[0], failure.error))
            return
        halves = failure.busy or done == len(items) or (not done and self._outbox.batch is not None)  # nobody knows
        self._batching.fewer(len(items) // 2 if halves else max(1, done), items)
        if failure.busy:
            log_event("outbox.again", outbox=self._outbox.name, messages=len(items), error=failure.error)

    def _trouble(self, item: Item, error: Exception) -> tuple[Trouble, Trouble | None]:
        """The trouble of a message that failed, and the trouble before it."""
        known, now = self._cursor.failed(item), self.clock.now()
        return after_failure(self._outbox.retry, item.change.seq, known, error, now, self.clock.random()), known

    async def _pass_by(self, item: Item, trouble: Trouble, known: Trouble | None) -> None:
        """Follow the policy of the outbox: halt, halt the key, or park the message as a dead letter."""
        trouble = self._told(item, trouble, known)
        policy = self._policy(item)
        if policy == "halt_key":
            await self._write([item], put=[Aside(item.change, item.key, "halted", trouble)], keeps=True)
        elif policy == "park" and trouble.halted:
            await self._write([item], put=[Aside(item.change, item.key, "parked", trouble)], keeps=True)
            log_event("outbox.parked", logging.ERROR, outbox=self._outbox.name, message=trouble.seq, key=item.told_key)
        else:
            await self._write(trouble=trouble)

    def _policy(self, item: Item) -> str:
        return "halt" if item.change.kind == "lost" else self._outbox.on_failure

    def _halted(self, item: Item, error: Exception) -> Aside:
        """The set-aside form of a message that failed while messages of other keys go on."""
        return Aside(item.change, item.key, "halted", self._told(item, *self._trouble(item, error)))

    def _told(self, item: Item, trouble: Trouble, known: Trouble | None) -> Trouble:
        """Log a failure; the trouble to write."""
        outbox, message, attempts = self._outbox.name, item.change.seq, trouble.attempts
        facts: dict[str, Any] = {"outbox": outbox, "message": message, "key": item.told_key, "attempts": attempts}
        self._cursor.count("failed", min(attempts, 1))  # none if it was only put off
        log_event("outbox.failed", logging.WARNING, **facts, error=trouble.error)
        halts = trouble.halted and self._policy(item) != "park"
        if halts and self._cursor.is_news(message, known):
            log_event("outbox.halted", logging.ERROR, **facts, error=trouble.error)
        trouble = replace(trouble, key=item.change.key, left=item.backfill)
        self.on_failed(outbox, trouble)
        return trouble

    async def _write(self, items: Sequence[Item] = (), *, put: Sequence[Aside] = (), **said: Any) -> None:
        """Write that messages are done with, put aside, or have failed."""
        await self._cursor.write(self._cursor.step(items, put=put, **said), () if put else items)
        self._source.drop(items)


def _until(moment: datetime | None, now: datetime, most: float) -> float:
    return most if moment is None else min(most, max(0.001, (moment - now).total_seconds()))
